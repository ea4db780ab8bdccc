"""`info`, `verify`, `index` and `bench` on sets that are whole and on sets that are not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import streamio
from tests.cli.conftest import Run
from tests.samples import flip, jpg, png, raw_tar, tree


@pytest.fixture
def out(photos: Path, tmp_path: Path) -> Path:
    """Six pictures in three shards."""
    streamio.pack(photos, tmp_path / "out", shard_samples=2, shuffle=False, workers=1)
    return tmp_path / "out"


def test_info_says_what_a_set_holds(run: Run, out: Path) -> None:
    ran = run("info", out)
    assert ran.code == 0, ran.text
    for text in ("tar", "samples", "6", "shards", "3", "2: cat, dog", "3 samples", "jpg", "cls", "in all"):
        assert text in ran.out


def test_info_as_json(run: Run, out: Path) -> None:
    facts = json.loads(run("info", out, "--json").out)
    assert (facts["samples"], facts["shards"], facts["per_class"]) == (6, 3, [3, 3])
    assert facts["fields"]["jpg"]["codec"] == "jpeg"


@pytest.mark.parametrize("sample", ["dog/1", "4", "-2"])
def test_info_shows_one_sample_by_key_or_row(run: Run, out: Path, sample: str) -> None:
    ran = run("info", out, "--sample", sample)
    assert ran.code == 0, ran.text
    assert "dog/1" in ran.out
    assert "jpeg, 9 x 8 pixels" in ran.out


@pytest.mark.parametrize("sample", ["6", "-7", "dog/9"])
def test_info_of_a_sample_that_is_not_there(run: Run, out: Path, sample: str) -> None:
    ran = run("info", out, "--sample", sample)
    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert sample in ran.err


def test_a_key_that_is_a_number_goes_before_the_row(run: Run, tmp_path: Path) -> None:
    streamio.write([{"__key__": "1", "txt": "first"}, {"__key__": "0", "txt": "second"}], tmp_path / "out")
    assert "first" in run("info", tmp_path / "out", "--sample", "1").out


def test_info_shows_values_of_every_kind(run: Run, tmp_path: Path) -> None:
    sample = {
        "__key__": "k", "x": np.arange(6, dtype=np.float32).reshape(2, 3), "txt": "some words", "n": 7,
        "json": {"a": 1}, "bin": b"\x00\xff", "jpg": b"no picture", "long": "x" * 1000,
    }  # fmt: skip
    streamio.write([sample], tmp_path / "out")
    text = run("info", tmp_path / "out", "--sample", "k").out
    for part in ("2 x 3", "some words", "7", "{'a': 1}", "00 ff", "cannot be read"):
        assert part in text
    assert "x" * 301 not in text


def test_info_reads_a_tar_of_another_tool(run: Run, tmp_path: Path) -> None:
    raw_tar(tmp_path / "a.tar", [("1.jpg", jpg()), ("1.cls", b"3")])
    ran = run("info", tmp_path / "a.tar")
    assert ran.code == 0, ran.text
    assert "in all" in ran.out


def test_cli_07_verify_ends_with_1_and_names_the_shard(run: Run, out: Path) -> None:
    assert run("verify", out).code == 0
    flip(out / "shard-000001.tar", 700)
    ran = run("verify", out)
    assert ran.code == 1
    damaged = [line for line in ran.out.splitlines() if "DAMAGED" in line]
    assert len(damaged) == 1
    assert damaged[0].startswith("shard-000001.tar") and "(samples " in damaged[0]
    assert "shard-000000.tar: good" in ran.out
    facts = json.loads(run("verify", out, "--json").out)
    assert facts["ok"] is False


def test_verify_quiet_prints_only_damage(run: Run, out: Path) -> None:
    assert run("verify", out, "-q") == (0, "", "")


def test_index_makes_indexes_of_foreign_tars(run: Run, tmp_path: Path) -> None:
    for name in ("a-000.tar", "a-001.tar"):
        raw_tar(tmp_path / name, [(f"{name}.1.txt", b"x")])
    ran = run("index", tmp_path / "a-{000..001}.tar")
    assert ran.code == 0, ran.text
    assert "a-001.tar" in ran.out
    assert (tmp_path / "a-001.tar.idx").exists()


def test_index_makes_lost_indexes_again(run: Run, out: Path) -> None:
    lost = out / "shard-000001.tar.idx"
    before = lost.read_bytes()
    lost.unlink()
    ran = run("index", out)
    assert ran.code == 0, ran.text
    assert lost.read_bytes() == before


def test_index_for_dali_lies_beside_each_tar(run: Run, out: Path, tmp_path: Path) -> None:
    before = (out / "shard-000000.tar.idx").read_bytes()
    ran = run("index", out, "--dali")
    assert ran.code == 0, ran.text
    first, *_ = sample = (out / "shard-000000.idx").read_text().splitlines()
    assert first == f"v1.2 {len(sample) - 1}"
    field, at, size, name = sample[1].split(" ")[:4]
    data = (out / "shard-000000.tar").read_bytes()[int(at) : int(at) + int(size)]
    assert (field, data[:2], name.endswith(".jpg")) == ("jpg", b"\xff\xd8", True)
    assert "shard-000000.idx: for DALI" in ran.out
    assert (out / "shard-000000.tar.idx").read_bytes() == before
    foreign = raw_tar(tmp_path / "a.tar", [("1.txt", b"x")])
    assert run("index", foreign, "--dali", "-q") == (0, "", "")
    assert (tmp_path / "a.idx").read_text() == "v1.2 1\ntxt 512 1 1.txt\n"


def test_index_for_dali_of_what_it_cannot_read_is_a_wrong_call(run: Run, tmp_path: Path) -> None:
    streamio.write(({"x": i} for i in range(3)), tmp_path / "h", format="hdf5")
    ran = run("index", tmp_path / "h", "--dali")
    assert ran.code == 2 and "DALI reads tars only" in ran.err


def test_index_wants_one_set_or_tars(run: Run, out: Path) -> None:
    assert run("index", out, out / "shard-000000.tar").code == 2


def test_bench_measures_an_epoch(run: Run, out: Path) -> None:
    ran = run("bench", out, "--batch-size", 2, "--workers", 0, "--crop", 8)
    assert ran.code == 0, ran.text
    assert "samples/s" in ran.out
    assert "to the first batch" in ran.out
    assert "stages " in ran.out and "decode" in ran.out
    facts = json.loads(run("bench", out, "--workers", 0, "--raw", "--json").out)
    assert (facts["samples"], facts["batches"], facts["workers"]) == (6, 1, 0)
    assert facts["samples_per_second"] > 0
    assert abs(sum(facts["stage_shares"].values()) - 1) < 0.01 and facts["stage_shares"]["transform"] == 0


def test_bench_reads_samples_of_different_fields(run: Run, tmp_path: Path) -> None:
    src = tree(tmp_path / "src", {"a/1.jpg": jpg(), "a/2.png": png(), "a/3.jpg": jpg(), "a/3.txt": b"x"})
    streamio.pack(src, tmp_path / "out", workers=1)
    ran = run("bench", tmp_path / "out", "--workers", 0)
    assert ran.code == 0, ran.text
    assert "nothing is decoded" in ran.err


def test_cli_07_bench_fails_where_the_set_breaks_in_mid_run(run: Run, tmp_path: Path) -> None:
    src = tree(tmp_path / "src", {f"c/{i}.jpg": jpg() if i < 5 else b"broken" for i in range(6)})
    streamio.pack(src, tmp_path / "out", shuffle=False, workers=1)
    ran = run("bench", tmp_path / "out", "--batch-size", 2, "--workers", 0, "--no-shuffle")
    assert ran.code == 1
    assert ran.out == ""
    assert ran.err.count("\n") == 1
    assert "c/5" in ran.err
