"""A batch of a source on its way: the rows themselves, and the table that a `SampleReader` reads them from."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamio.order.plan import BatchRows
from streamio.shards.manifest import FieldSpec
from streamio.sources.base import Chunk, Cursor, taken
from streamio.types import Alloc, ArrayColumn, Column, ListColumn, NullableColumn, Rows, new_array


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What a batch says of the run: where it is when this batch has been delivered.

    cursors: of the partitions that the batch has rows of.
    ended:   partitions of which nothing comes behind it.
    forget:  partitions that are gone.
    """

    cursors: Mapping[str, Cursor] = field(default_factory=dict)
    ended: Sequence[str] = ()
    forget: Sequence[str] = ()


class Marked(NamedTuple):
    """A finished batch on its way to the loader. mark: what the data set is to be told when the loop has it."""

    batch: Any
    mark: Any


class Piece(NamedTuple):
    """Rows begin … end - 1 of a chunk."""

    chunk: Chunk
    begin: int
    end: int


class SourceBatch(BatchRows):
    """One batch before it is decoded. pieces: its rows, in order."""

    pieces: Sequence[Piece]
    mark: Mark

    @classmethod
    def of(cls, step: int, epoch: int, visit: int, pieces: Sequence[Piece], mark: Mark) -> SourceBatch:
        rows = np.concatenate([piece.chunk.row_numbers(slice(piece.begin, piece.end)) for piece in pieces])
        made = cls(step, rows, np.full(len(rows), visit, np.int64), None, epoch)
        made.pieces, made.mark = pieces, mark
        return made


class HeldRows:
    """The rows of the batch that a thread makes now, as a table: see `streamio.batching.picked.Table`."""

    sizes = np.zeros(1, np.int64)

    def __init__(self, fields: Mapping[str, FieldSpec], fingerprint: str) -> None:
        self.fields, self.fingerprint = fields, fingerprint
        self._local = threading.local()

    @contextmanager
    def holding(self, pieces: Sequence[Piece], rows: Rows) -> Iterator[None]:
        """In this thread, until the end of the block."""
        self._local.pieces, self._local.rows = pieces, rows
        try:
            yield
        finally:
            del self._local.pieces, self._local.rows

    def gather(self, rows: Rows, fields: Sequence[str], alloc: Alloc = new_array) -> dict[str, Column]:
        at = None if rows is self._local.rows else self._places(rows)
        return {name: self._column(name, at, alloc) for name in fields}

    def _column(self, name: str, at: NDArray[np.int64] | None, alloc: Alloc) -> Column:
        parts = [_part(piece, name) for piece in self._local.pieces]
        if at is None:
            return _joined(parts, alloc)
        return taken(_joined(parts, new_array), at)

    def _places(self, rows: Rows) -> NDArray[np.int64]:
        held = {row: place for place, row in enumerate(self._local.rows.tolist())}
        return np.array([held[row] for row in rows.tolist()], np.int64)

    def keys(self, rows: Rows) -> list[str]:
        keys = [key for piece in self._local.pieces for key in _keys(piece)]
        return keys if rows is self._local.rows else [keys[place] for place in self._places(rows).tolist()]

    def locate(self, row: int) -> tuple[str, Any]:
        return self._place(int(self._places(np.array([row]))[0]))

    def _place(self, index: int) -> tuple[str, Any]:
        for chunk, begin, end in self._local.pieces:
            if index < end - begin:
                return chunk.partition, chunk.place(begin + index)
            index -= end - begin
        raise IndexError(index)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _local=threading.local())


def _keys(piece: Piece) -> list[str]:
    chunk, begin, end = piece
    places = (chunk.cursors if chunk.places is None else chunk.places)[begin:end]
    before = f"{chunk.partition}:"
    return [before + str(place) for place in (places.tolist() if isinstance(places, np.ndarray) else places)]


def _part(piece: Piece, name: str) -> Column:
    """A field of a piece, as a view."""
    chunk, begin, end = piece
    column = chunk.columns.get(name)
    if column is None:
        return ListColumn([None] * (end - begin))
    if isinstance(column, ArrayColumn):
        return ArrayColumn(column.values[begin:end])
    if isinstance(column, NullableColumn):
        return NullableColumn(column.values[begin:end], column.lacking[begin:end])
    return ListColumn(column.values[begin:end])


def _joined(parts: Sequence[Column], alloc: Alloc) -> Column:
    """One column of several, in memory of its own. Arrays beside lists of nothing are arrays with gaps."""
    if len(parts) == 1 and isinstance(parts[0], ListColumn):
        return parts[0]
    if len(parts) == 1 and isinstance(parts[0], ArrayColumn):  # nearly always
        copy = alloc(parts[0].values.shape, parts[0].values.dtype)
        copy[...] = parts[0].values
        return ArrayColumn(copy)
    arrays = [part for part in parts if not isinstance(part, ListColumn)]
    if not arrays or any(isinstance(part, ListColumn) and _has_value(part) for part in parts):
        return ListColumn([value for part in parts for value in _values(part)])
    count = sum(map(len, parts))
    values = alloc((count, *arrays[0].values.shape[1:]), arrays[0].values.dtype)
    if all(type(part) is ArrayColumn for part in parts):
        np.concatenate([part.values for part in arrays], out=values)
        return ArrayColumn(values)
    lacking = np.zeros(count, np.bool_)
    at = 0
    for part in parts:
        here = slice(at, at + len(part))
        at += len(part)
        if isinstance(part, ListColumn):
            lacking[here] = True
            continue
        values[here] = part.values
        if isinstance(part, NullableColumn):
            lacking[here] = part.lacking
    return NullableColumn(values, lacking) if lacking.any() else ArrayColumn(values)


def _has_value(column: ListColumn) -> bool:
    return any(value is not None for value in column.values)


def _values(column: Column) -> Sequence[Any]:
    if isinstance(column, NullableColumn):
        return [None if none else value for value, none in zip(column.values, column.lacking, strict=True)]
    return column.values if isinstance(column, ListColumn) else list(column.values)
