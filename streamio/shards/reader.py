"""Reads one shard of any format: a memory map of the file, and its index of offsets and sizes."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamio.errors import BadIndex, MissingShard, StorageError, UsageError
from streamio.shards.index import MISSING, FieldIndex, ShardIndex
from streamio.types import ArrayColumn, Column, ListColumn, Rows

Layout: TypeAlias = "tuple[np.dtype[Any], tuple[int, ...]]"
"""(dtype, shape) of one value."""

LARGE_ITEM = 8192
"""Arrays of this many bytes are copied one by one, smaller ones by one gather over all windows of the map.
Measured on one core, µs per row (window, one by one): 776 bytes 0.04, 0.5; 4 KiB 0.25, 0.34; 8 KiB 0.43, 0.41;
64 KiB 4.5, 2.4; 150 KB 12.7, 6.3. Rows at equal distances gained nothing from a strided view of their own
(0.04, 0.18, 0.32 µs); both ways release the GIL while they wait for the disk."""


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
            out = np.empty((len(rows), *layout[1]), layout[0])
        self._check_out(field, layout, out)
        index = self.index.fields[field]
        if index.is_array:
            self._copy_arrays(index, rows, out, at)
        else:
            out[slice(None) if at is None else at] = self.index.columns[field][rows]
        return ArrayColumn(out)

    def value(self, row: int, field: str) -> memoryview | NDArray[Any] | None:
        """One value: an array of its own where the field holds arrays alike, else a view of the stored bytes."""
        index = self.index.fields.get(field)
        if index is not None and index.is_array:
            out = np.empty((1, *index.shape), index.dtype)  # type: ignore[misc]
            self._copy_arrays(index, np.array([row]), out, None)
            return out[0, ...]
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

    def _copy_arrays(self, index: FieldIndex, rows: Rows, out: NDArray[Any], at: NDArray[np.int64] | None) -> None:
        size = index.item_bytes
        if size == 0 or len(rows) == 0:
            return
        starts = index.offsets[rows] + index.skip
        if size < LARGE_ITEM:
            # Every place of the map as one item, overlapping; picking from it copies just the items picked.
            windows = np.ndarray((self._bytes.size - size + 1,), f"V{size}", self._bytes, strides=(1,))
            out.reshape(len(out), -1).view(f"V{size}")[slice(None) if at is None else at, 0] = windows[starts]
            return
        items = out.reshape(len(out), -1).view(np.uint8)
        places: Sequence[int] | range = range(len(rows)) if at is None else at.tolist()
        for place, start in zip(places, starts.tolist(), strict=True):
            items[place] = self._bytes[start : start + size]

    def _check_out(self, field: str, layout: Layout | None, out: NDArray[Any]) -> None:
        if not out.flags.c_contiguous:
            raise UsageError(f"memory with strides {out.strides} for the field '{field}'; it must be C-contiguous")
        if layout != (out.dtype, out.shape[1:]):
            here = "no values alike" if layout is None else f"{layout[0].name}{list(layout[1])}"
            raise BadIndex(
                f"holds {here} where the set says {out.dtype.name}{list(out.shape[1:])}",
                fix="Shard, index and manifest are not of one set; copy it again or pack it again",
                shard=self.name, field=field,
            )  # fmt: skip


def _map(path: str | os.PathLike[str], index: ShardIndex, name: str) -> memoryview:
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            index.check(name, size)
            return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b"")
    except FileNotFoundError:
        raise MissingShard(
            f"{os.fspath(path)} is not there", fix="Copy the set again or pack it again", shard=name
        ) from None
    except OSError as error:
        raise StorageError(f"{os.fspath(path)} cannot be read: {error.strerror}", shard=name) from error
