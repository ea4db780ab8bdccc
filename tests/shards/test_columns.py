"""The small values kept per row."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamio.codecs import codec_for, encode_field
from streamio.shards.columns import CHECK, ColumnBuilder, columns_of, damaged_rows, row_checksum, stored_row
from streamio.shards.formats import format_named
from streamio.shards.reader import ShardReader
from tests.samples import flip, jpg, png


def columns(*rows: dict[str, Any]) -> dict[str, np.ndarray]:
    builder = ColumnBuilder(check=False)
    for row in rows:
        builder.add(row)
    return builder.finish()


@pytest.mark.parametrize(
    ("values", "field", "dtype"),
    [
        ([b"3", b"-7"], "cls", np.int64),
        ([b"9223372036854775807", b"-9223372036854775808"], "int", np.int64),
        ([b"0.5", b"1e300"], "float", np.float64),
        ([b"true", b"0"], "bool", np.bool_),
    ],
)
def test_numbers_of_one_kind_become_a_column(values: list[bytes], field: str, dtype: type) -> None:
    made = columns(*({field: value} for value in values))
    assert list(made) == [field] and made[field].dtype == dtype
    assert made[field].tolist() == [codec_for(field).decode(value) for value in values]


@pytest.mark.parametrize(
    "rows",
    [
        [{"cls": b"1"}, {}],
        [{"cls": b"1"}, {"cls": None}],
        [{"cls": b"1"}, {"cls": b"cat"}],
        [{"int": b"1"}, {"int": b"9223372036854775808"}],
    ],
    ids=["no such field", "no value", "no number", "beyond int64"],
)
def test_a_number_that_a_row_lacks_makes_no_column(rows: list[dict[str, bytes]]) -> None:
    assert columns(*rows) == {}


def test_what_is_known_of_pictures_becomes_columns_with_gaps() -> None:
    made = columns({"jpg": jpg(8, 6)}, {"jpg": b"broken"}, {"seg.png": png(3, 2)}, {"jpg": jpg(16, 1)})
    assert made["jpg.width"].tolist() == [8, -1, -1, 16] and made["jpg.height"].tolist() == [6, -1, -1, 1]
    assert made["seg.png.width"].tolist() == [-1, -1, 3, -1]
    assert list(made) == sorted(made)


def test_other_facts_are_nan_where_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sound:
        def peek(self, data: bytes) -> dict[str, float]:
            return {"seconds": float(data)} if data else {}

    monkeypatch.setattr("streamio.shards.columns.codec_for", lambda field: Sound())
    made = columns({"wav": b"1.5"}, {"wav": b""})["wav.seconds"]
    assert made[0] == 1.5 and math.isnan(made[1])


def test_no_rows_no_columns_but_checksums() -> None:
    assert columns() == {}
    assert ColumnBuilder().finish()[CHECK].shape == (0,)


def test_the_checksum_is_that_of_the_values_and_not_of_their_order() -> None:
    array = np.arange(6, dtype="<f4").reshape(2, 3)
    base = row_checksum({"a": b"1", "x.npy": array, "z": None})
    assert base == row_checksum({"x.npy": array, "a": memoryview(b"1")})
    assert base == row_checksum({"a": b"1", "x.npy": encode_field("x.npy", array)})
    assert base == row_checksum({"a": b"1", "x.npy": array.astype(">f4")})
    assert base == row_checksum({"a": b"1", "x.npy": np.asfortranarray(array)})
    others = [row_checksum({"a": b"2", "x.npy": array}), row_checksum({"a": b"1", "x.npy": array + 1})]
    assert len({base, *others}) == 3
    assert row_checksum({"x": np.zeros((0, 3))}) == row_checksum({})
    assert row_checksum({"cls": np.array(3)}) == row_checksum({"cls": b"3"})


Row = st.fixed_dictionaries(
    {"bin": st.binary(max_size=30) | st.none(), "cls": st.just(b"4") | st.none(), "z": st.just(b"")}
)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(Row, max_size=9),
    arrays=st.sampled_from([None, "alike", "differ", "numbers"]),
    fmt=st.sampled_from(["tar", "lmdb", "hdf5"]),
)
def test_columns_of_a_finished_shard_are_those_made_while_writing(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, bytes]], arrays: str | None, fmt: str
) -> None:
    form = format_named(fmt)
    path = tmp_path_factory.mktemp("any") / f"a{form.suffix}"
    writer, builder = form.create(path), ColumnBuilder()
    for i, row in enumerate(rows):
        fields: dict[str, Any] = {name: value for name, value in row.items() if value is not None}
        if arrays is not None:
            shape = {"alike": (2, 3), "differ": (i,), "numbers": ()}[arrays]
            array = np.full(shape, i, "<i2")
            fields["x.npy"] = array if form.takes_arrays else encode_field("x.npy", array)
        writer.write(f"k{i}", fields)
        builder.add(fields)
    index, made = writer.close(), builder.finish()
    again = columns_of(path, index, check=True)
    assert list(again) == list(made) and all(again[name].tolist() == made[name].tolist() for name in made)
    with ShardReader(path, replace(index, columns=made)) as reader:
        damaged = damaged_rows(reader)
        assert damaged is not None and len(damaged) == 0


def test_damage_is_found_by_row(tmp_path: Path, fmt: str) -> None:
    form = format_named(fmt)
    path = tmp_path / f"a{form.suffix}"
    writer, builder = form.create(path), ColumnBuilder()
    for i in range(5):
        fields = {"bin": b"value %d" % i * 40}
        writer.write(f"k{i}", fields)
        builder.add(fields)
    index = replace(writer.close(), columns=builder.finish())
    flip(path, int(index.fields["bin"].offsets[3]) + 17)
    with ShardReader(path, index) as reader:
        damaged = damaged_rows(reader)
        assert damaged is not None and damaged.tolist() == [3]
        assert set(stored_row(reader, 0)) == {"bin"}
    with ShardReader(path, replace(index, columns={})) as reader:
        assert damaged_rows(reader) is None
