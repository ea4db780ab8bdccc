"""Reads one shard of any format: a memory map of the file, and its index of offsets and sizes."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamio.errors import BadIndex, MissingShard, StorageError, UsageError
from streamio.memory import address, aligned_array
from streamio.shards.index import MISSING, ShardIndex
from streamio.shards.space import Addresses, copy_items
from streamio.storage.maps import map_descriptor
from streamio.types import ArrayColumn, Column, ListColumn, Rows

Layout: TypeAlias = "tuple[np.dtype[Any], tuple[int, ...]]"
"""(dtype, shape) of one value."""


class ShardReader:
    """Maps one shard file, read-only, and gathers rows of it. Safe to use from several threads.

    name: what messages call the shard. Rows are numbers in this shard, 0 … index.samples - 1; the caller
    checks them. Fields are stored names.

    Raises MissingShard, or CorruptShard where the file's size is not the index's (a map read past the end
    of its file would kill the process).
    """

    def __init__(self, path: str | os.PathLike[str], index: ShardIndex, name: str = "") -> None:
        self.name = name or Path(path).name
        self.index = index
        # All copies and views start here; `_data` keeps the map alive, and so does every view made from it.
        self._data = _map(path, index, self.name)
        self._bytes = np.frombuffer(self._data, np.uint8)

    @property
    def samples(self) -> int:
        return self.index.samples

    @property
    def mapped_bytes(self) -> int:
        return self._data.nbytes

    def layout(self, field: str) -> Layout | None:
        """That of all values of the field if they are numbers or arrays alike, else None."""
        index = self.index.fields.get(field)
        if index is not None and index.dtype is not None and index.shape is not None:
            return index.dtype, index.shape
        numbers = self.index.columns.get(field)
        return None if numbers is None or index is None else (numbers.dtype, ())

    def gather(
        self, rows: Rows, field: str, out: NDArray[Any] | None = None, at: NDArray[np.int64] | None = None
    ) -> Column:
        """The values of one field in these rows, in any order, repeats included.

        Numbers and arrays alike come as an `ArrayColumn` (owned, writable); all else as a `ListColumn` of
        views of the map, which stay valid after `close`.

        out: C-contiguous memory for the values, (m, *shape); only where `layout` is not None.
        at:  places in `out`; row i goes to out[at[i]]. None: row i goes to out[i].
        """
        layout = self.layout(field)
        if layout is None and out is None:
            return self._views(rows, field)
        if out is None:
            assert layout is not None
            out = aligned_array((len(rows), *layout[1]), layout[0])
        if not out.flags.c_contiguous:
            raise UsageError(f"memory with strides {out.strides} for the field '{field}'; it must be C-contiguous")
        values, offsets = self.values(field, (out.dtype, out.shape[1:]))
        copy_items(offsets[rows] + address(values), out, at)
        return ArrayColumn(out)

    def values(self, field: str, layout: Layout) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Memory that has the values of a field, and where in it that of each row begins: int64, C-contiguous.

        Raises BadIndex where the values have not this layout. Whoever keeps addresses in it must hold the memory.
        """
        if self._bytes.size != self.index.shard_bytes:
            raise ValueError(f"{self.name} is closed")
        here = self.layout(field)
        if here != layout:
            self._refuse(field, here, layout)
        index = self.index.fields[field]
        if index.is_array:
            return self._bytes[index.skip :], np.require(index.offsets, np.int64, ["C", "A"])
        column = np.ascontiguousarray(self.index.columns[field])
        return column.view(np.uint8), _ramp(len(column), column.itemsize)

    def spans(self, rows: Rows, field: str) -> tuple[Addresses, Addresses]:
        """(first, last + 1) addresses in the map of what is stored of a field, of the rows that have it."""
        index = self.index.fields.get(field)
        if index is None:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        sizes = index.sizes[rows]
        starts = index.offsets[rows] + address(self._bytes)
        here = sizes != MISSING
        return starts[here], (starts + sizes)[here]

    def value(self, row: int, field: str) -> memoryview | NDArray[Any] | None:
        """One value: an array of its own where the field holds arrays alike, else a view of the stored bytes."""
        index = self.index.fields.get(field)
        if index is not None and index.is_array:
            column = self.gather(np.array([row]), field)
            assert isinstance(column, ArrayColumn)
            return column.values[0, ...]
        return self.payload(row, field)

    def payload(self, row: int, field: str) -> memoryview | None:
        """The bytes of one value as stored, headers included, without a copy; None where there is none."""
        index = self.index.fields.get(field)
        if index is None or index.sizes[row] == MISSING:
            return None
        start = int(index.offsets[row])
        return self._data[start : start + int(index.sizes[row])]

    def close(self) -> None:
        """Drop the map. It goes at once, or with the last view of it that somebody holds."""
        self._data = memoryview(b"")
        self._bytes = np.empty(0, np.uint8)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _views(self, rows: Rows, field: str) -> ListColumn:
        index = self.index.fields.get(field)
        if index is None:
            return ListColumn([None] * len(rows))
        data, starts, sizes = self._data, index.offsets[rows], index.sizes[rows]
        places = zip(starts.tolist(), (starts + sizes).tolist(), (sizes != MISSING).tolist(), strict=True)
        return ListColumn([data[a:b] if here else None for a, b, here in places])

    def _refuse(self, field: str, here: Layout | None, layout: Layout) -> NoReturn:
        holds = "no values alike" if here is None else f"{here[0].name}{list(here[1])}"
        raise BadIndex(
            f"holds {holds} where the set says {layout[0].name}{list(layout[1])}",
            fix="Shard, index and manifest are not of one set; copy it again or pack it again",
            shard=self.name, field=field,
        )  # fmt: skip


@lru_cache(maxsize=8)
def _ramp(count: int, step: int) -> NDArray[np.int64]:
    """Where the elements of a column begin; one for all shards of a size."""
    return np.arange(0, count * step, step, dtype=np.int64)


def _map(path: str | os.PathLike[str], index: ShardIndex, name: str) -> memoryview:
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            index.check(name, size)
            return map_descriptor(file.fileno(), size).data
    except FileNotFoundError:
        raise MissingShard(
            f"{os.fspath(path)} is not there", fix="Copy the set again or pack it again", shard=name
        ) from None
    except OSError as error:
        raise StorageError(f"{os.fspath(path)} cannot be read: {error.strerror}", shard=name) from error
