"""The small values kept per row: labels, widths, lengths, and a checksum of each row."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from streamio.codecs import Scalar, codec_for, npy_header
from streamio.codecs.text import NumberCodec
from streamio.shards.index import ShardIndex
from streamio.shards.reader import ShardReader
from streamio.types import Rows

CHECK = "__check__"
"""The column with the checksum of each row. Columns named `__…__` are not shown to users."""

Payload: TypeAlias = "bytes | memoryview | NDArray[Any]"
"""One stored value: its bytes, or the array where the format stores arrays."""

_INT64 = np.iinfo(np.int64)


class ColumnBuilder:
    """Collects the columns of one shard, row by row. The same rows give the same columns.

    A number that is a field itself (`cls`) becomes the column `cls` if every row has it and all are of one
    kind (int64, float64 or bool). What a codec knows besides (`width` of `jpg`) becomes `jpg.width`, with -1
    (of integers) or nan where it is not known.
    """

    def __init__(self, *, check: bool = True) -> None:
        self._rows = 0
        self._facts: dict[tuple[str, str], tuple[list[int], list[Scalar]]] = {}
        self._checks: list[int] | None = [] if check else None

    def add(self, fields: Mapping[str, Payload | None]) -> None:
        """Add a row: stored name -> value as stored. None, or no such name: the row lacks the field."""
        for stored, value in fields.items():
            if value is not None:
                self._add_facts(stored, _facts(stored, value))
        if self._checks is not None:
            self._checks.append(row_checksum(fields))
        self._rows += 1

    def _add_facts(self, stored: str, facts: Mapping[str, Scalar]) -> None:
        for key, value in facts.items():
            rows, values = self._facts.setdefault((stored, key), ([], []))
            rows.append(self._rows)
            values.append(value)

    def finish(self) -> dict[str, NDArray[Any]]:
        """Column name -> int64, float64 or bool (n,), sorted by name."""
        columns: dict[str, NDArray[Any]] = {}
        for (stored, key), (rows, values) in sorted(self._facts.items(), reverse=True):
            column = _filled(rows, values, self._rows) if key else _numbers(values, self._rows)
            if column is not None:
                # The key "" comes last: a field `x.int` hides the fact `int` of a field `x`.
                columns[f"{stored}.{key}" if key else stored] = column
        if self._checks is not None:
            columns[CHECK] = np.array(self._checks, np.int64)
        return dict(sorted(columns.items()))


def row_checksum(fields: Mapping[str, Payload | None]) -> int:
    """xxh32 over the values of a row as stored, one after the other, sorted by stored name.

    A row has one checksum whether its format stores arrays with or without headers and numbers as arrays or
    as text: of arrays it covers the elements (little-endian, C order), of npy files what follows their header,
    of arrays in a field of numbers the text of the number.
    """
    state = xxhash.xxh32()
    for stored, value in sorted(fields.items()):
        if value is not None:
            state.update(_checked(stored, value))
    return state.intdigest()


def columns_of(path: str | os.PathLike[str], index: ShardIndex, *, check: bool = False) -> dict[str, NDArray[Any]]:
    """The columns of a finished shard, from the first bytes of each value. `check`: read all, add checksums."""
    builder = ColumnBuilder(check=check)
    with ShardReader(path, index) as reader:
        for row in range(index.samples):
            builder.add(stored_row(reader, row))
    return builder.finish()


def damaged_rows(reader: ShardReader) -> Rows | None:
    """The rows whose values are not those that were packed; None if the index has no checksums."""
    promised = reader.index.columns.get(CHECK)
    if promised is None:
        return None
    found = np.array([row_checksum(stored_row(reader, row)) for row in range(reader.samples)], np.int64)
    return np.flatnonzero(found != promised)


def stored_row(reader: ShardReader, row: int) -> dict[str, Payload | None]:
    """The values of a row as views of the map; arrays where the format stores no header with them."""
    values: dict[str, Payload | None] = {}
    for name, field in reader.index.fields.items():
        raw = reader.payload(row, name)
        bare = raw is not None and field.dtype is not None and field.shape is not None and not field.skip
        values[name] = np.frombuffer(raw, field.dtype).reshape(field.shape) if bare else raw  # type: ignore[arg-type]
    return values


def _facts(stored: str, value: Payload) -> Mapping[str, Scalar]:
    codec = codec_for(stored)
    if not isinstance(value, np.ndarray):
        return codec.peek(value)
    # A number in HDF5 is an array of no dimensions, without its text.
    return {"": value.item()} if isinstance(codec, NumberCodec) and not value.ndim else {}


def _checked(stored: str, value: Payload) -> bytes | memoryview:
    if not isinstance(value, np.ndarray):
        header = npy_header(value)
        return memoryview(value)[header.skip if header else 0 :]
    codec = codec_for(stored)
    if isinstance(codec, NumberCodec) and value.ndim == 0:
        return codec.encode(value)
    plain = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
    return plain.reshape(-1).view(np.uint8).data if plain.size else b""


def _numbers(values: list[Scalar], rows: int) -> NDArray[Any] | None:
    kinds = {type(value) for value in values}
    if len(values) != rows or len(kinds) != 1:
        return None
    return _column(values, kinds.pop())


def _filled(at: list[int], values: list[Scalar], rows: int) -> NDArray[Any] | None:
    kind = float if any(isinstance(value, float) for value in values) else int
    known = _column(values, kind)
    if known is None:
        return None
    column = np.full(rows, np.nan if kind is float else -1, known.dtype)
    column[at] = known
    return column


def _column(values: list[Scalar], kind: type[Scalar]) -> NDArray[Any] | None:
    if kind is int and not all(_INT64.min <= value <= _INT64.max for value in values):
        return None
    return np.array(values, {int: np.int64, float: np.float64, bool: np.bool_}[kind])
