from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamio.codecs import decode_image
from streamio.errors import OutputExists, UsageError
from streamio.packing.report import Progress
from streamio.packing.stream import write
from streamio.shards.shardset import open_shards
from tests.packing.reading import contents, files, manifest, shard_keys


def test_every_kind_of_value_comes_back(tmp_path: Path, fmt: str) -> None:
    sample: dict[str, Any] = {
        "__key__": "a/1.x", "__url__": "ignored", "vec": np.arange(6, dtype=np.float16).reshape(2, 3), "n": 3,
        "w": 0.5, "ok": True, "name": "é", "meta": {"a": [1, None]}, "raw": b"a\0b\0", "cls": np.int64(2),
        "typed": np.int16(-4), "x.json": [1], "npy": np.zeros((0, 2)),
    }  # fmt: skip
    report = write([sample, {**sample, "__key__": "b"}], tmp_path / "out", format=fmt, classes=["x", "y", "z"])
    found = open_shards(tmp_path / "out")
    assert found.classes == ("x", "y", "z") and report.samples == 2
    got = found[0]
    assert got["__key__"] == "a/1.x" and got["n"] == 3 and got["w"] == 0.5 and got["ok"] is True and got["cls"] == 2
    assert bytes(got["name"]) == "é".encode() and bytes(got["raw"]) == b"a\0b\0" and bytes(got["x.json"]) == b"[1]"
    for name in ("vec", "typed", "npy"):
        np.testing.assert_array_equal(got[name], sample[name])
        assert np.asarray(got[name]).dtype == np.asarray(sample[name]).dtype
    assert "__url__" not in got
    stored = {name: spec.stored for name, spec in manifest(tmp_path / "out").fields.items()}
    assert stored == {
        "vec": "vec.npy", "n": "n.int", "w": "w.float", "ok": "ok.bool", "name": "name.txt", "meta": "meta.json",
        "raw": "raw", "cls": "cls", "typed": "typed.npy", "x.json": "x.json", "npy": "npy",
    }  # fmt: skip


def test_arrays_of_one_shape_are_marked_in_the_manifest(tmp_path: Path, fmt: str) -> None:
    rows = [{"x": np.full(3, i, np.float32), "y": np.zeros(i % 2 + 1), "cls": i} for i in range(6)]
    write(rows, tmp_path / "out", format=fmt, shard_samples=4)
    fields = manifest(tmp_path / "out").fields
    assert (fields["x"].dtype, fields["x"].shape, fields["x"].samples) == ("<f4", (3,), 6)
    assert fields["y"].dtype is None
    assert [found["x"].tolist() for found in open_shards(tmp_path / "out")] == [[i] * 3 for i in range(6)]


def test_shards_roll_over_by_samples_and_by_bytes(tmp_path: Path, fmt: str) -> None:
    rows = [{"bin": bytes(10_000)} for _ in range(10)]
    write(iter(rows), tmp_path / "n", format=fmt, shard_samples=4)
    assert [len(keys) for keys in shard_keys(tmp_path / "n")] == [4, 4, 2]
    write(iter(rows), tmp_path / "b", format=fmt, shard_size=45_000)
    counts = [len(keys) for keys in shard_keys(tmp_path / "b")]
    assert sum(counts) == 10 and max(counts) <= 4 and len(counts) <= 4


def test_samples_without_a_key_get_their_number(tmp_path: Path) -> None:
    write(({"txt": str(i)} for i in range(3)), tmp_path / "out", shard_samples=2)
    assert {key: fields["txt"] for key, fields in contents(tmp_path / "out").items()} == {
        "00000000": b"0", "00000001": b"1", "00000002": b"2",
    }  # fmt: skip


def test_pictures_may_be_given_as_arrays_or_bytes(tmp_path: Path) -> None:
    pixels = np.full((5, 4, 3), 99, np.uint8)
    write([{"png": pixels}, {"png": b"as it is"}], tmp_path / "out")
    found = contents(tmp_path / "out")
    np.testing.assert_array_equal(decode_image(found["00000000"]["png"]), pixels)
    assert found["00000001"]["png"] == b"as it is"


def test_tensors_are_arrays(tmp_path: Path, fmt: str) -> None:
    torch = pytest.importorskip("torch")
    write([{"x": torch.ones(2, requires_grad=True), "cls": torch.tensor(3)}], tmp_path / "out", format=fmt)
    (found,) = open_shards(tmp_path / "out")
    assert found["x"].tolist() == [1, 1] and found["cls"] == 3


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no samples"),
        (
            [{"x": np.zeros(2)}, {"x": "text"}],
            r"'00000001', field x: .*type str .*stored as x.txt, earlier ones as x.npy",
        ),
        ([{"x": None}], r"'00000000', field x: .*NoneType"),
        ([{"x": {1, 2}}], "type set"),
        ([{"cls": "cat"}], r"'00000000', field cls: .*whole number"),
        ([{"__key__": "a", "x": b""}, {"__key__": "a", "x": b""}], "'a' comes twice"),
        ([{"__key__": "", "x": b""}], "cannot be a key"),
        ([{"__key__": 7, "x": b""}], "7 cannot be a key"),
        ([{"__key__": "a"}], "no fields"),
        ([{"x/y": b""}], "'x/y' cannot be a field"),
        ([{5: b""}], "5 cannot be a field"),
        ([{"x": 1, "x.int": 2}], "'x' and 'x.int' would both be stored as x.int"),
        ([b"bytes"], "sample 0 is no mapping but of type bytes"),
        ([{"x": np.array([object()])}], "Python objects"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_its_place(
    tmp_path: Path, fmt: str, rows: list[Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        write(rows, tmp_path / "out", format=fmt)
    assert not os.listdir(tmp_path)


def test_an_error_of_the_iterator_passes_and_leaves_nothing(tmp_path: Path, fmt: str) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        for i in range(5):
            yield {"txt": str(i)}
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        write(rows(), tmp_path / "out", format=fmt, shard_samples=2)
    assert not os.listdir(tmp_path)
    write([{"txt": "old"}], tmp_path / "out", format=fmt)
    before = files(tmp_path / "out")
    with pytest.raises(LookupError):
        write(rows(), tmp_path / "out", format=fmt, shard_samples=2, overwrite=True)
    assert files(tmp_path / "out") == before


def test_wrong_calls_take_nothing_from_the_iterator(tmp_path: Path) -> None:
    taken: list[int] = []
    rows = ({"txt": str(i)} for i in range(3) if not taken.append(i))
    write([{"txt": "old"}], tmp_path / "out")
    with pytest.raises(OutputExists):
        write(rows, tmp_path / "out")
    for options in ({"format": "zip"}, {"shard_size": "x"}, {"shard_size": 1, "shard_samples": 1}):
        with pytest.raises(UsageError):
            write(rows, tmp_path / "new", **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        write(rows, "")
    assert not taken


def test_the_report_and_the_progress(tmp_path: Path) -> None:
    told: list[Progress] = []
    report = write(
        ({"bin": bytes(i * 1000)} for i in range(5)), tmp_path / "out", shard_size=3200, progress=told.append
    )
    assert report.layout_reason == "5 samples from a program" and report.fields == ("bin",)
    assert report.shards == len(manifest(tmp_path / "out").shards) and report.bytes == sum(
        shard.bytes for shard in manifest(tmp_path / "out").shards
    )
    assert report.notes == (
        "2 samples are larger than the shard limit of 3.2 KB: 00000003 (3.6 KB), 00000004 (4.6 KB)",
    )
    assert told[-1].stage == "commit" and told[-1].done_samples == 5 and told[-1].total_samples is None


def test_the_same_samples_give_the_same_bytes(tmp_path: Path, fmt: str) -> None:
    rows = [{"x": np.full(3, i), "cls": i, "name": f"n{i}"} for i in range(50)]
    for out in ("a", "b"):
        write(rows, tmp_path / out, format=fmt, shard_samples=20)
    assert files(tmp_path / "a") == files(tmp_path / "b")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"": 1}], "'' cannot be a field"),
        ([{".a": 1}], "'.a' cannot be a field"),
        ([{"A": 1, "a": 2}], "'A' and 'a' would both be stored as a.int"),
        ([{"x": np.zeros(2)}, {"x.npy": np.zeros(2)}], "sample '00000001': the fields 'x' and 'x.npy' would both"),
    ],
)
def test_fields_that_could_not_be_told_apart_are_refused(
    tmp_path: Path, rows: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        write(rows, tmp_path / "out")


def test_a_label_beyond_the_classes_is_refused(tmp_path: Path, fmt: str) -> None:
    write([{"cls": np.int64(1)}, {"cls": -1}, {"x": 1}], tmp_path / "out", format=fmt, classes=["a", "b"])
    with pytest.raises(UsageError, match="sample '00000001': cls 2, but there are 2 classes, counted from 0"):
        write([{"cls": 1}, {"cls": 2}], tmp_path / "one", format=fmt, classes=["a", "b"])
