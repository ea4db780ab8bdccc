"""Damage is found, and named by shard and sample."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streamio.diagnostics.verify import ShardVerdict, verify
from streamio.errors import BadManifest
from streamio.shards.index import INDEX_SUFFIX, ShardIndex
from streamio.shards.shardset import open_shards
from tests.samples import flip, jpg, raw_tar
from tests.shards.packed import numbered, pack_set


@pytest.fixture
def folder(tmp_path: Path, fmt: str) -> Path:
    """A set of 37 samples in 4 shards."""
    return pack_set(tmp_path / "o", numbered(37), fmt)


def shards(folder: Path) -> list[Path]:
    return sorted(set(folder.glob("shard*")) - set(folder.glob(f"*{INDEX_SUFFIX}")))


def index_of(shard: Path) -> Path:
    return Path(f"{shard}{INDEX_SUFFIX}")


def test_a_whole_set_is_ok(folder: Path) -> None:
    seen: list[ShardVerdict] = []
    report = verify(folder, on_shard=seen.append)
    assert report.ok and report.promised and report.damaged == () and report.place == str(folder)
    assert list(report.shards) == seen and [v.name for v in seen] == [p.name for p in shards(folder)]


@pytest.mark.parametrize("field", ["raw", "x.npy", "txt", "cls"])
def test_corr_01_one_flipped_byte_names_its_shard_and_key(folder: Path, field: str) -> None:
    """mosaicml/streaming#759; karpathy/nanochat#344: a flipped byte went unnoticed, or no shard could be named."""
    damaged = shards(folder)[2]
    place = ShardIndex.load(index_of(damaged)).fields[field]
    flip(damaged, int(place.offsets[5] + place.sizes[5]) - 1)
    report = verify(folder)
    assert [v.ok for v in report.shards] == [True, True, False, True] and not report.ok
    (bad,) = report.damaged
    assert bad.name == damaged.name and bad.keys == ("k/00025",)
    assert "its bytes are not those that were written" in bad.problem
    list(open_shards(folder))  # reading never crashes


def test_corr_01_values_that_some_rows_lack_are_no_damage(tmp_path: Path, fmt: str) -> None:
    samples = [{"__key__": str(i), "bin": b"b" * 99, **({"cls": i} if i % 3 else {})} for i in range(9)]
    folder = pack_set(tmp_path / "o", samples, fmt)
    place = ShardIndex.load(index_of(shards(folder)[0])).fields["bin"]
    flip(shards(folder)[0], int(place.offsets[6]))
    assert verify(folder).shards[0].keys == ("6",)


def test_damage_between_the_values_is_said_to_be_there(tmp_path: Path) -> None:
    folder = pack_set(tmp_path / "o", numbered(37))
    flip(shards(folder)[1], 300)
    (bad,) = verify(folder).damaged
    assert bad.name == "shard-000001.tar" and bad.keys == () and "between the samples' values" in bad.problem


def test_tar_11_lmdb_08_cut_shards_name_what_is_lost(folder: Path) -> None:
    """onekey-sec/unblob#156; jnwatson/py-lmdb#344."""
    cut = shards(folder)[0]
    place = ShardIndex.load(index_of(cut)).fields["raw"]
    size = int(place.offsets.max())
    os.truncate(cut, size)
    (bad,) = verify(folder).damaged
    assert bad.name == cut.name and f"{size:,} of" in bad.problem and "the shard is cut" in bad.problem
    assert f"k/{int(place.offsets.argmax()):05d}" in bad.keys


def test_all_that_is_wrong_is_in_one_report(folder: Path) -> None:
    first, second, third, fourth = shards(folder)
    first.unlink()
    index_of(second).unlink()
    flip(index_of(third), index_of(third).stat().st_size - 1)
    with open(fourth, "ab") as file:
        file.write(b"more")
    problems = [v.problem for v in verify(folder).shards]
    assert "is missing" in problems[0]
    assert problems[1].startswith("index: ") and problems[2].startswith("index: ")
    assert f"Run: streamio index {folder}" in problems[2]
    assert "longer than it was" in problems[3]


def test_no_set_is_an_error_and_no_report(tmp_path: Path) -> None:
    with pytest.raises(BadManifest):
        verify(tmp_path)


def test_foreign_tars_are_walked(tmp_path: Path) -> None:
    for i in range(2):
        raw_tar(tmp_path / f"{i}.tar", [(f"{i}{j}.jpg", jpg()) for j in range(3)])
    source = f"{tmp_path}/*.tar"
    report = verify(source)
    assert report.ok and not report.promised and [v.name for v in report.shards] == ["0.tar", "1.tar"]
