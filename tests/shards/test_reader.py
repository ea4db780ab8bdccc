"""One shard: rows in any order, views that outlive the reader, no byte behind the end of the file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio.errors import BadIndex, CorruptShard, MissingShard, UsageError
from streamio.shards.index import MISSING, FieldIndex, Keys, ShardIndex
from streamio.shards.reader import ShardReader
from streamio.shards.space import LARGE_ITEM
from streamio.types import ArrayColumn, ListColumn


def shard(
    path: Path, fields: dict[str, list[Any]], columns: dict[str, Any] | None = None, gap: int = 0
) -> ShardIndex:
    """A file with these values one after the other and its index; arrays are stored bare. `gap`: bytes between
    two values; negative for gaps that differ."""
    data, places = bytearray(b"head"), {}
    rows = max(map(len, fields.values()))
    for name, values in fields.items():
        offsets, sizes = [], []
        for i, value in enumerate(values):
            raw = value.tobytes() if isinstance(value, np.ndarray) else value
            offsets.append(len(data))
            sizes.append(MISSING if raw is None else len(raw))
            data += (raw or b"") + b"." * (gap if gap >= 0 else i % 3)
        first = values[0] if values else None
        alike = {"dtype": first.dtype, "shape": first.shape} if isinstance(first, np.ndarray) else {}
        places[name] = FieldIndex(offsets=np.array(offsets, np.int64), sizes=np.array(sizes, np.int64), **alike)
    path.write_bytes(data)
    keys = Keys.of([f"k{i}" for i in range(rows)])
    return ShardIndex(shard_bytes=len(data), keys=keys, fields=places, columns=columns or {})


def rows(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


@pytest.mark.parametrize("gap", [0, 5, -1], ids=["packed", "equal gaps", "uneven gaps"])
@pytest.mark.parametrize("elements", [0, 1, 7, LARGE_ITEM // 4 - 1, LARGE_ITEM // 4, LARGE_ITEM])
def test_arrays_come_in_the_order_asked_for(tmp_path: Path, elements: int, gap: int) -> None:
    arrays = [np.full(elements, i, "<f4") for i in range(12)]
    with ShardReader(tmp_path / "a", shard(tmp_path / "a", {"x.npy": arrays}, gap=gap)) as reader:
        column = reader.gather(rows(5, 2, 2, 9, 0, 11), "x.npy")
    assert isinstance(column, ArrayColumn)
    assert (column.values == np.stack([arrays[i] for i in (5, 2, 2, 9, 0, 11)])).all()


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (1, 64, 64, 3)])
@pytest.mark.parametrize("dtype", ["u1", "?", "<i2", "<f8", "<c16"])
def test_any_shape_and_type_comes_back(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    draw = np.random.default_rng(0)
    arrays = [draw.integers(0, 2, shape).astype(dtype) for _ in range(5)]
    with ShardReader(tmp_path / "a", shard(tmp_path / "a", {"x": arrays}, gap=-1)) as reader:
        values = reader.gather(rows(4, 0, 4), "x").values
        assert isinstance(values, np.ndarray) and values.dtype == dtype and values.shape == (3, *shape)
        assert (values == np.stack([arrays[i] for i in (4, 0, 4)])).all()
        one = reader.value(3, "x")
        assert isinstance(one, np.ndarray) and one.shape == shape and (one == arrays[3]).all()


@pytest.mark.parametrize("elements", [3, LARGE_ITEM])
def test_fills_the_memory_it_is_given_at_the_places_asked_for(tmp_path: Path, elements: int) -> None:
    arrays = [np.full(elements, i, "<i4") for i in range(4)]
    index = shard(tmp_path / "a", {"x": arrays}, {"x": np.arange(4)})
    out = np.full((5, elements), -1, "<i4")
    with ShardReader(tmp_path / "a", index) as reader:
        column = reader.gather(rows(3, 1), "x", out, rows(4, 0))
    assert isinstance(column, ArrayColumn) and column.values is out
    assert out[:, 0].tolist() == [1, -1, -1, -1, 3]


def test_refuses_memory_that_does_not_fit(tmp_path: Path) -> None:
    index = shard(tmp_path / "a", {"x": [np.zeros(3, "<i4")] * 2, "b": [b"", b""]})
    with ShardReader(tmp_path / "a", index) as reader:
        with pytest.raises(BadIndex, match=r"a, field x: holds int32\[3\] where the set says int64\[3\]"):
            reader.gather(rows(0), "x", np.zeros((1, 3), np.int64))
        with pytest.raises(UsageError, match="C-contiguous"):
            reader.gather(rows(0, 1), "x", np.zeros((3, 2), "<i4").T)
        with pytest.raises(BadIndex, match="no values alike"):
            reader.gather(rows(0), "b", np.zeros((1,), np.int64))


def test_mem_06_what_is_handed_out_is_owned_and_the_shard_stays(tmp_path: Path) -> None:
    """pytorch/pytorch#46741, #5442: arrays over a read-only map killed the process at the first change."""
    index = shard(tmp_path / "a", {"x": [np.arange(3.0)] * 3, "cls": [b"1"] * 3}, {"cls": np.ones(3, np.int64)})
    before = (tmp_path / "a").read_bytes()
    with ShardReader(tmp_path / "a", index) as reader:
        for field in ("x", "cls"):
            values = reader.gather(rows(0, 1), field).values
            assert isinstance(values, np.ndarray) and values.flags.writeable and values.flags.c_contiguous
            values += 1
        one = reader.value(0, "x")
        assert isinstance(one, np.ndarray)
        one += 1
        assert (reader.value(0, "x") == np.arange(3.0)).all()
    assert (tmp_path / "a").read_bytes() == before


def test_bytes_are_views_that_outlive_the_reader(tmp_path: Path) -> None:
    index = shard(tmp_path / "a", {"jpg": [b"one", b"", None, b"four" * 5000]})
    reader = ShardReader(tmp_path / "a", index)
    column = reader.gather(rows(3, 2, 1, 0, 0), "jpg")
    (tmp_path / "a").unlink()
    reader.close()
    reader.close()
    assert isinstance(column, ListColumn)
    assert [None if v is None else bytes(v) for v in column.values] == [b"four" * 5000, None, b"", b"one", b"one"]
    assert all(v.readonly for v in column.values if isinstance(v, memoryview))


def test_numbers_come_from_their_column(tmp_path: Path) -> None:
    index = shard(tmp_path / "a", {"cls": [b"7", b"8"]}, {"cls": np.array([7, 8])})
    with ShardReader(tmp_path / "a", index) as reader:
        values = reader.gather(rows(1, 0, 1), "cls").values
        assert isinstance(values, np.ndarray) and values.tolist() == [8, 7, 8]
        value = reader.value(1, "cls")
        assert isinstance(value, memoryview) and bytes(value) == b"8"


def test_no_rows_and_no_such_field(tmp_path: Path) -> None:
    index = shard(tmp_path / "a", {"x": [np.zeros(3)], "b": [b"1"]})
    with ShardReader(tmp_path / "a", index) as reader:
        values = reader.gather(rows(), "x").values
        assert isinstance(values, np.ndarray) and values.shape == (0, 3)
        assert len(reader.gather(rows(), "b")) == 0
        assert list(reader.gather(rows(0, 0), "gone").values) == [None, None]
        assert reader.value(0, "gone") is None


def test_an_empty_file_is_a_shard_of_no_samples(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with ShardReader(tmp_path / "a", ShardIndex(shard_bytes=0, keys=Keys.of([]), fields={})) as reader:
        assert reader.samples == 0


@pytest.mark.parametrize("change", [-1, -4000, 1])
def test_lmdb_08_a_file_of_another_size_is_refused(tmp_path: Path, change: int) -> None:
    """jnwatson/py-lmdb#344: reading a file that was cut killed the process with SIGBUS."""
    index = shard(tmp_path / "shard.lmdb", {"b": [b"x" * 20_000]})
    os.truncate(tmp_path / "shard.lmdb", index.shard_bytes + change)
    with pytest.raises(CorruptShard, match=rf"shard.lmdb: expected {index.shard_bytes:,} bytes, found"):
        ShardReader(tmp_path / "shard.lmdb", index)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    index = shard(tmp_path / "a", {"b": [b""]})
    with pytest.raises(MissingShard, match=r"gone\.tar"):
        ShardReader(tmp_path / "gone.tar", index)


def test_hdf_03_reads_a_file_that_another_process_has_locked(tmp_path: Path) -> None:
    """h5py/h5py#1101, #1722: opening for reading failed with 'unable to lock file'."""
    index = shard(tmp_path / "a", {"b": [b"value"]})
    hold = "import fcntl,sys; f=open(sys.argv[1]); fcntl.flock(f,fcntl.LOCK_EX); print('held',flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path / "a")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        with ShardReader(tmp_path / "a", index) as reader:
            value = reader.value(0, "b")
            assert isinstance(value, memoryview) and bytes(value) == b"value"
        other.communicate(b"\n")


@given(data=st.data())
def test_gather_equals_row_by_row(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("any") / "a"
    count = data.draw(st.integers(1, 20))
    blobs = data.draw(st.lists(st.none() | st.binary(max_size=40), min_size=count, max_size=count))
    size = data.draw(st.integers(0, 9))
    arrays: list[Any] = [np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), "u1") for _ in blobs]
    index = shard(path, {"b": blobs, "x": arrays}, gap=data.draw(st.sampled_from([0, 3, -1])))
    wanted = np.array(data.draw(st.lists(st.integers(0, count - 1), max_size=30)), np.int64)
    with ShardReader(path, index) as reader:
        found = [v if v is None else bytes(v) for v in reader.gather(wanted, "b").values]
        assert found == [blobs[i] for i in wanted]
        assert [bytes(v) for v in reader.gather(wanted, "x").values] == [bytes(arrays[i]) for i in wanted]
        assert [bytes(reader.value(int(i), "x")) for i in wanted] == [bytes(arrays[i]) for i in wanted]
