"""DALI: its index files against the bytes of the tars, and our batches as its external_source takes them.

DALI reads both on the CPU, where it is installed; the lines and arrays are held without it.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import streamio
from streamio import DaliSource, OutputExists, ShardDataset, StreamLoader, UsageError
from streamio.interop.dali import write_dali_index
from streamio.shards.foreign import IndexedShard, index_tars, reindex
from tests.samples import jpg, raw_tar

Samples = list[dict[str, tuple[int, int, str]]]


def parsed(path: Path) -> Samples:
    """A DALI index as DALI reads it: field -> (offset, size, name) for each sample."""
    first, *lines = path.read_bytes().decode("utf-8", "surrogateescape").split("\n")
    assert lines.pop() == ""
    version, count = first.split(" ")
    assert (version, int(count)) == ("v1.2", len(lines))
    samples = []
    for line in lines:
        words = line.split(" ")
        members = [words[i : i + 4] for i in range(0, len(words), 4)]
        samples.append({field: (int(at), int(size), name) for field, at, size, name in members})
    return samples


def check(tar: Path, index: Path) -> Samples:
    """Every member of the tar is in the index once, where Python's tarfile finds it."""
    samples, data = parsed(index), tar.read_bytes()
    found = {name: data[at : at + size] for sample in samples for at, size, name in sample.values()}
    with tarfile.open(tar) as file:
        members = {m.name.replace(" ", "%20"): file.extractfile(m).read() for m in file if m.isfile()}  # type: ignore[union-attr]
    assert found == members
    assert sum(map(len, samples)) == len(members)
    assert all(at % 512 == 0 for sample in samples for at, _, _ in sample.values()), "DALI insists on it"
    assert all(name.endswith(f".{field}") for sample in samples for field, (_, _, name) in sample.items())
    return samples


def one(tar: Path) -> IndexedShard:
    return index_tars([tar])[0]


def test_a_set_of_ours_gets_an_index_for_each_tar(tmp_path: Path) -> None:
    samples = (
        {"__key__": f"a.b/{i:03d}.x y", "jpg": jpg(8, 8 + i % 5), "cls": i, "x": np.full(3 + i % 2, i, np.float32)}
        for i in range(20)
    )
    streamio.write(samples, tmp_path / "s", shard_samples=7)
    done = reindex(tmp_path / "s")
    indexes = [write_dali_index(shard) for shard in done]
    assert [path.name for path in indexes] == ["shard-000000.idx", "shard-000001.idx", "shard-000002.idx"]
    found = [
        sample for shard, index in zip(done, indexes, strict=True) for sample in check(Path(shard.path), index)
    ]
    assert len(found) == 20
    assert [set(sample) for sample in found] == [{"jpg", "cls", "x.npy"}] * 20
    assert found[0]["cls"][2] == "a.b/000%2Ex%20y.cls"
    assert streamio.open(tmp_path / "s")[3]["cls"] == 3, "ours are beside them, as they were"


@pytest.mark.parametrize("fmt", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tars_of_others(tmp_path: Path, fmt: int) -> None:
    long = "d" * 90 + "/" + "f" * 120 if fmt != tarfile.USTAR_FORMAT else "d/f"
    members = [
        ("a.jpg", b"j" * 700),
        ("a.cls", b"1"),
        (f"{long}.jpg", b"k" * 512),
        ("b.json", b"{}"),
    ]
    tar = raw_tar(tmp_path / "x.tar", members, fmt)
    samples = check(tar, write_dali_index(one(tar)))
    assert [sorted(sample) for sample in samples] == [["cls", "jpg"], ["jpg"], ["json"]]


def test_members_that_lie_apart_are_one_sample(tmp_path: Path) -> None:
    tar = raw_tar(tmp_path / "x.tar", [("a.jpg", b"1"), ("b.jpg", b"2"), ("a.cls", b"3")])
    assert [list(sample) for sample in check(tar, write_dali_index(one(tar)))] == [["jpg", "cls"], ["jpg"]]


def test_a_name_of_several_words_is_one_word_in_the_index(tmp_path: Path) -> None:
    tar = raw_tar(tmp_path / "x.tar", [("a b.jpg", b"1"), ("a\tb.jpg", b"2"), ("é.jpg", b"3")], tarfile.PAX_FORMAT)
    names = [sample["jpg"][2] for sample in parsed(write_dali_index(one(tar)))]
    assert names == ["a%20b.jpg", "a%09b.jpg", "é.jpg"]
    bad = raw_tar(tmp_path / "y.tar", [("a.j pg", b"1")])
    with pytest.raises(UsageError, match="'j pg' has a space"):
        write_dali_index(one(bad))
    assert not list(tmp_path.glob("*y.*part"))


def test_an_index_is_replaced_and_anything_else_is_not(tmp_path: Path) -> None:
    tar = raw_tar(tmp_path / "x.tar", [("a.jpg", b"1")])
    path = write_dali_index(one(tar))
    before = path.read_bytes()
    path.write_bytes(b"v1.1 0\n")
    assert write_dali_index(one(tar)) == path
    assert path.read_bytes() == before
    path.write_bytes(b"my notes")
    with pytest.raises(OutputExists, match="no index of DALI's"):
        write_dali_index(one(tar))
    assert path.read_bytes() == b"my notes"


@pytest.mark.filterwarnings("ignore::streamio.ShardWarning")
def test_what_dali_cannot_read_is_refused(tmp_path: Path) -> None:
    streamio.write(({"x": i} for i in range(3)), tmp_path / "h", format="hdf5")
    with pytest.raises(UsageError, match=r"reads tars only.*DaliSource"):
        write_dali_index(reindex(tmp_path / "h")[0])
    with pytest.raises(UsageError, match="holds no samples"):
        write_dali_index(one(raw_tar(tmp_path / "empty.tar", [])))
    with pytest.raises(UsageError, match="behind a URL"):
        write_dali_index(IndexedShard(path="https://x/a.tar", samples=1, kept="a", made=False))


def test_offsets_are_those_that_gnu_tar_prints(tmp_path: Path) -> None:
    """DALI's own tool asks `tar --block-number`, which counts the header's block."""
    tar = raw_tar(tmp_path / "x.tar", [("a.jpg", b"1" * 5000), ("a.cls", b"3"), ("b.jpg", b"2" * 512)])
    listed = subprocess.run(["tar", "tRf", tar], capture_output=True, text=True, check=True).stdout.splitlines()
    lines = [re.fullmatch(r"block (\d+): (\S+\.\S+)", line) for line in listed]
    blocks = {line[2]: int(line[1]) for line in lines if line}
    found = {name: at for sample in parsed(write_dali_index(one(tar))) for at, _, name in sample.values()}
    assert found == {name: 512 * (block + 1) for name, block in blocks.items()}


@pytest.fixture
def photos(tmp_path: Path) -> str:
    samples = ({"jpg": jpg(24 + i % 3, 16), "cls": i, "txt": f"text {i}"} for i in range(10))
    streamio.write(samples, tmp_path / "photos")
    return str(tmp_path / "photos")


def test_batches_become_arrays_and_each_iteration_is_an_epoch(photos: str) -> None:
    dataset = ShardDataset(photos, 4, fields=("jpg", "cls"), shuffle=True, decode={"jpg": False})
    source = DaliSource(StreamLoader(dataset, num_workers=0))
    assert len(source) == 3
    epochs = [list(source) for _ in range(2)]
    whole = streamio.open(photos)
    orders = []
    for epoch in epochs:
        labels = [int(label) for _, numbers in epoch for label in numbers]
        files = [file for jpegs, _ in epoch for file in jpegs]
        assert sorted(labels) == list(range(10))
        assert all(file.dtype == np.uint8 and file.ndim == 1 for file in files)
        assert [file.tobytes() for file in files] == [whole[label]["jpg"] for label in labels]
        orders.append(labels)
    assert orders[0] != orders[1]


def test_fields_of_dicts_are_named_in_the_order_that_the_pipeline_wants(photos: str) -> None:
    dataset = ShardDataset(photos, 5, decode={"jpg": False})
    (labels, jpegs), _ = DaliSource(dataset, fields=("cls", "jpg"))
    assert labels.tolist() == [0, 1, 2, 3, 4] and len(jpegs) == 5
    with pytest.raises(UsageError, match=r"dicts, of .*jpg.*fields=\('jpg', 'cls'\)"):
        next(iter(DaliSource(dataset)))
    with pytest.raises(UsageError, match="has no 'png'"):
        next(iter(DaliSource(dataset, fields=("png",))))
    with pytest.raises(UsageError, match=r"fields=\('jpg',\)"):
        DaliSource(dataset, fields="jpg")


@pytest.mark.parametrize("value", [["text"], [{}], torch.zeros(2, dtype=torch.bfloat16), [None]])
def test_what_dali_has_no_type_for_is_refused_with_its_field(value: Any) -> None:
    with pytest.raises(UsageError, match="field 'x' of a batch holds"):
        next(iter(DaliSource([{"x": value}], fields=("x",))))


@pytest.mark.dali
def test_dali_takes_our_batches(photos: str) -> None:
    dali = importlib.import_module("nvidia.dali")
    fn = dali.fn
    dataset = ShardDataset(photos, 4, fields=("jpg", "cls"), shuffle=True, decode={"jpg": False})
    source = DaliSource(StreamLoader(dataset, num_workers=2))

    @dali.pipeline_def(batch_size=4, num_threads=1, device_id=None)  # type: ignore[untyped-decorator, unused-ignore]
    def pipeline() -> Any:
        jpegs, labels = fn.external_source(source=source, num_outputs=2, batch=True, cycle="raise")
        return jpegs, labels

    pipe = pipeline()
    pipe.build()
    whole = streamio.open(photos)
    for _ in range(2):
        seen = []
        for _ in range(3):
            jpegs, labels = pipe.run()
            for i in range(len(labels)):
                label = int(labels.at(i))
                assert bytes(jpegs.at(i)) == whole[label]["jpg"]
                seen.append(label)
        assert sorted(seen) == list(range(10))
        with pytest.raises(StopIteration):
            pipe.run()
        pipe.reset()


@pytest.mark.dali
def test_dali_reads_our_tars_with_the_index(tmp_path: Path, photos: str) -> None:
    dali = importlib.import_module("nvidia.dali")
    fn = dali.fn
    shards = reindex(photos)
    foreign = raw_tar(tmp_path / "y.tar", [("a b.jpg", jpg(9, 5)), ("é.jpg", jpg(7, 5)), ("a b.txt", b"12345")])
    shards += index_tars([foreign])
    indexes = [write_dali_index(shard) for shard in shards]

    @dali.pipeline_def(batch_size=12, num_threads=1, device_id=None)  # type: ignore[untyped-decorator, unused-ignore]
    def pipeline() -> Any:
        jpegs, texts = fn.readers.webdataset(
            paths=[shard.path for shard in shards], index_paths=list(map(str, indexes)), ext=["jpg", "txt"]
        )
        return jpegs, texts

    pipe = pipeline()
    pipe.build()
    jpegs, texts = pipe.run()
    whole = streamio.open(photos)
    for i in range(10):
        assert bytes(jpegs.at(i)) == whole[i]["jpg"] and bytes(texts.at(i)) == f"text {i}".encode()
    assert (bytes(jpegs.at(10)), bytes(texts.at(10))) == (jpg(9, 5), b"12345")
    assert (bytes(jpegs.at(11)), bytes(texts.at(11))) == (jpg(7, 5), b"")
