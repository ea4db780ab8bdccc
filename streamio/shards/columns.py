"""The small values kept per row: labels, widths, lengths, and a checksum of each row."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
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

_JOINED = 16 << 20
_NPY = b"\x93NUMPY"
_INT64 = np.iinfo(np.int64)


class ColumnBuilder:
    """Collects the columns of one shard, row by row. The same rows give the same columns.

    A number that is a field itself (`cls`) becomes the column `cls` if every row has it and all are of one
    kind (int64, float64 or bool). What a codec knows besides (`width` of `jpg`) becomes `jpg.width`, with -1
    (of integers) or nan where it is not known.
    """

    def __init__(self, *, check: bool = True) -> None:
        self._rows = 0
        self._fields: dict[str, _Facts] = {}
        self._checks: list[int] | None = [] if check else None

    def add_all(self, rows: Sequence[Mapping[str, Payload | None]]) -> None:
        """Add rows: stored name -> value as stored. None, or no such name: the row lacks the field."""
        for row, fields in enumerate(rows, self._rows):
            for stored, value in fields.items():
                if value is not None:
                    facts = self._fields.get(stored)
                    if facts is None:
                        facts = self._fields[stored] = _Facts(stored)
                    facts.add(row, value)
        if self._checks is not None:
            self._checks += map(row_checksum, rows)
        self._rows += len(rows)

    def add(self, fields: Mapping[str, Payload | None]) -> None:
        """Add one row."""
        self.add_all([fields])

    def extend(self, other: ColumnBuilder) -> None:
        """Add the rows of another one behind these."""
        for stored, facts in other._fields.items():
            mine = self._fields.setdefault(stored, _Facts(stored))
            for key, (rows, values) in facts.found.items():
                my_rows, my_values = mine.found.setdefault(key, ([], []))
                my_rows += [self._rows + row for row in rows]
                my_values += values
        if self._checks is not None and other._checks is not None:
            self._checks += other._checks
        self._rows += other._rows

    def finish(self) -> dict[str, NDArray[Any]]:
        """Column name -> int64, float64 or bool (n,), sorted by name."""
        columns: dict[str, NDArray[Any]] = {}
        found = {(stored, key): at for stored, facts in self._fields.items() for key, at in facts.found.items()}
        for (stored, key), (rows, values) in sorted(found.items(), reverse=True):
            column = _filled(rows, values, self._rows) if key else _numbers(values, self._rows)
            if column is not None:
                # The key "" comes last: a field `x.int` hides the fact `int` of a field `x`.
                columns[f"{stored}.{key}" if key else stored] = column
        if self._checks is not None:
            columns[CHECK] = np.array(self._checks, np.int64)
        return dict(sorted(columns.items()))


class _Facts:
    """What is known of the values of one field: by name of the fact, the rows that have it and its values."""

    def __init__(self, stored: str) -> None:
        self._stored = stored
        self._codec = codec_for(stored)
        self._is_number = isinstance(self._codec, NumberCodec)
        self._numbers: dict[bytes, Mapping[str, Scalar]] = {}
        self.found: dict[str, tuple[list[int], list[Scalar]]] = {}

    def add(self, row: int, value: Payload) -> None:
        for key, fact in self._look(value).items():
            try:
                rows, values = self.found[key]
            except KeyError:
                rows, values = self.found[key] = [], []
            rows.append(row)
            values.append(fact)

    def __reduce__(self) -> tuple[Any, ...]:
        return _facts, (self._stored, self.found)

    def _look(self, value: Payload) -> Mapping[str, Scalar]:
        if isinstance(value, np.ndarray):
            # A number in HDF5 is an array of no dimensions, without its text.
            return {"": value.item()} if self._is_number and not value.ndim else {}
        if not self._is_number or type(value) is not bytes:
            return self._codec.peek(value)
        known = self._numbers.get(value)  # few classes, many rows
        if known is None:
            known = self._codec.peek(value)
            if len(self._numbers) < _NUMBERS_KEPT:
                self._numbers[value] = known
        return known


def _facts(stored: str, found: dict[str, tuple[list[int], list[Scalar]]]) -> _Facts:
    """What `_Facts` pickles: its codec is found again by name."""
    facts = _Facts(stored)
    facts.found = found
    return facts


_NUMBERS_KEPT = 4096


def row_checksum(fields: Mapping[str, Payload | None]) -> int:
    """xxh32 over the values of a row as stored, one after the other, sorted by stored name.

    A row has one checksum whether its format stores arrays with or without headers and numbers as arrays or
    as text: of arrays it covers the elements (little-endian, C order), of npy files what follows their header,
    of arrays in a field of numbers the text of the number.
    """
    if len(fields) == 1:
        ((stored, value),) = fields.items()
        return xxhash.xxh32_intdigest(b"" if value is None else _checked(stored, value))
    values = [_checked(name, value) for name in sorted(fields) if (value := fields[name]) is not None]
    if sum(map(len, values)) <= _JOINED:  # summing up in one go takes a sixth of the time
        return xxhash.xxh32_intdigest(b"".join(values))
    state = xxhash.xxh32()
    for value in values:
        state.update(value)
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


def _checked(stored: str, value: Payload) -> bytes | memoryview:
    if not isinstance(value, np.ndarray):
        if value[:6] != _NPY:
            return value
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
