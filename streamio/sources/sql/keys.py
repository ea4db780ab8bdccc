"""The keys of all rows in their order, in a file without a name that workers share: from the row to its key.

Whole numbers without gaps take no file: they are counted from the first.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Sequence
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from streamio.errors import UsageError
from streamio.extras import extra
from streamio.types import Rows

_SPAN = 4096
"""Bytes for each key that is asked for, up to which all between the first and the last is read at once."""


class KeyColumn:
    """The values of one key column, by row. Written once from Arrow arrays, then read by any process and thread.

    kind: the Arrow type.
    """

    def __init__(self, kind: Any, name: str) -> None:
        pa = extra("pyarrow", "sql")
        t = pa.types
        self.kind = kind
        of_any_length = (t.is_string, t.is_binary, t.is_large_string, t.is_large_binary)
        self.is_text = any(is_one(kind) for is_one in of_any_length)
        has_width = t.is_primitive(kind) or t.is_decimal(kind)
        if not self.is_text and (not has_width or kind.bit_width % 8):
            fix = "Cast it in a query=, or use another column"
            raise UsageError(f"{kind} cannot be a key", fix=fix, field=name)
        self._first: int | None = None
        self._dense = bool(t.is_int64(kind))
        self._count, self._bytes = 0, 0
        self._file, self._ends = _File(), _File() if self.is_text else None
        self._hash: Any = xxhash.xxh3_64()

    def append(self, array: Any) -> None:
        """The keys of the next rows, without NULL."""
        pa = extra("pyarrow", "sql")
        if self.is_text:
            array = array.cast(pa.large_binary())
            _, offsets, data = array.buffers()
            places = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
            piece = memoryview(data or b"")[int(places[0]) : int(places[-1])]
            ends = places[1:] - places[0] + self._bytes
            assert self._ends is not None
            self._ends.write(ends)
            self._hash.update(ends)
            self._bytes += len(piece)
        else:
            width = self.kind.bit_width // 8
            piece = memoryview(array.buffers()[1])[array.offset * width : (array.offset + len(array)) * width]
            self._note_gaps(piece)
        self._hash.update(piece)
        self._file.write(piece)
        self._count += len(array)

    def _note_gaps(self, piece: memoryview) -> None:
        if not self._dense or not len(piece):
            return
        numbers = np.frombuffer(piece, np.int64)
        if self._first is None:
            self._first = int(numbers[0])
        expected = np.arange(self._count, self._count + len(numbers)) + self._first
        self._dense = bool((numbers == expected).all())

    def finish(self) -> None:
        """No more comes."""
        if self._dense:
            self._file.close()

    def __len__(self) -> int:
        return self._count

    @property
    def is_here(self) -> bool:
        return self._dense or self._file.is_open

    @property
    def digest(self) -> str:
        """16 hex digits that change with any key."""
        return str(self._hash.hexdigest())

    def read(self, rows: Rows) -> Any:
        """The keys of these rows, an Arrow array in their order."""
        pa = extra("pyarrow", "sql")
        if self._dense:
            assert self._first is not None
            return pa.array(rows + self._first)
        if self._ends is None:
            made = self._file.take(rows, self.kind.bit_width // 8)
            return pa.Array.from_buffers(self.kind, len(rows), [None, pa.py_buffer(made)])
        ends = self._ends.take(np.concatenate([rows - 1, rows]), 8, before=0).view(np.int64)
        begins, ends = ends[: len(rows)].tolist(), ends[len(rows) :].tolist()
        values = [self._file.read(begin, end - begin) for begin, end in zip(begins, ends, strict=True)]
        return pa.array(values, pa.binary()).cast(self.kind)

    def close(self) -> None:
        """Let go of the file. Nothing can be read then, but numbers without gaps."""
        for file in (self._file, self._ends):
            if file is not None:
                file.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_hash": self.digest}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._hash = _Known(state["_hash"])


class _Known:
    """The end of a hash."""

    def __init__(self, digest: str) -> None:
        self._digest = digest

    def hexdigest(self) -> str:
        return self._digest


class _File:
    """Bytes on disk, in a file that has no name: gone with the last process that has it open."""

    def __init__(self, fd: int | None = None) -> None:
        if fd is None:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        self._fd = fd
        self._close = weakref.finalize(self, os.close, fd)
        self._handed: tuple[Any, Any] | None = None

    def write(self, data: Any) -> None:
        left = memoryview(data).cast("B")
        while len(left):
            left = left[os.write(self._fd, left) :]

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._fd, size, offset)

    def take(self, rows: Rows, width: int, before: int | None = None) -> NDArray[np.uint8]:
        """Values of one width, end to end as bytes. before: that of row -1."""
        made = np.zeros((len(rows), width), np.uint8)
        there = np.flatnonzero(rows >= 0) if before is not None else np.arange(len(rows))
        if not len(there):
            return made.reshape(-1)
        wanted = rows[there]
        low, high = int(wanted.min()), int(wanted.max()) + 1
        if (high - low) * width <= _SPAN * len(wanted):
            whole = np.frombuffer(self.read(low * width, (high - low) * width), np.uint8).reshape(-1, width)
            made[there] = whole[wanted - low]
        else:
            for at, row in zip(there.tolist(), wanted.tolist(), strict=True):
                made[at] = np.frombuffer(self.read(row * width, width), np.uint8)
        return made.reshape(-1)

    def close(self) -> None:
        self._fd = -1
        self._close()

    def __reduce__(self) -> tuple[Any, ...]:
        # To a worker the file goes open; there is no other way to it. What is sent is pickled several times, and a
        # file is to be handed on once.
        popen = get_spawning_popen()
        if popen is None or self._fd < 0:
            return _again, (None,)
        if self._handed is None or self._handed[0]() is not popen:
            self._handed = weakref.ref(popen), DupFd(self._fd)
        return _again, (self._handed[1],)


def _again(handed: Any) -> _File:
    if handed is not None:
        return _File(handed.detach())
    file = _File()
    file.close()
    return file


class Keys:
    """All key columns. columns: at least one, of the same length."""

    def __init__(self, columns: Sequence[KeyColumn]) -> None:
        self.columns = tuple(columns)

    def __len__(self) -> int:
        return len(self.columns[0])

    @property
    def digest(self) -> str:
        return "-".join(column.digest for column in self.columns)

    def read(self, rows: Rows) -> list[Any]:
        """An Arrow array of each column."""
        return [column.read(rows) for column in self.columns]

    def texts(self, rows: Rows) -> list[str]:
        """Keys for messages and `__key__`; values of several columns are joined by `/`."""
        columns = [[_text(value) for value in array.to_pylist()] for array in self.read(rows)]
        return ["/".join(values) for values in zip(*columns, strict=True)]

    @property
    def are_here(self) -> bool:
        """Whether they can be read: not after `close`, nor in a copy that was not made for a worker."""
        return all(column.is_here for column in self.columns)

    def close(self) -> None:
        for column in self.columns:
            column.close()


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def plain_key(array: Any, kind: Any) -> Any:
    """A key column as it was fetched in the type in which it is kept."""
    pa = extra("pyarrow", "sql")
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    return array if array.type == kind else array.cast(kind)


def places(wanted: Sequence[Any], found: Sequence[Any]) -> NDArray[np.int64]:
    """int64 (n,): where in what was found each wanted key is, -1 for one that is not. Both are columns of a key."""
    pa = extra("pyarrow", "sql")
    if not len(found[0]):
        return np.full(len(wanted[0]), -1, np.int64)
    if len(wanted) == 1 and pa.types.is_int64(wanted[0].type):
        return _positions(wanted[0].to_numpy(), found[0].to_numpy())
    mine, theirs = np.zeros(len(wanted[0]), np.int64), np.zeros(len(found[0]), np.int64)
    for want, have in zip(wanted, found, strict=True):
        values, codes = _codes(want, have)
        mine = mine * (values + 1) + codes[: len(mine)]
        theirs = theirs * (values + 1) + codes[len(mine) :]
        _, codes = np.unique(np.concatenate([mine, theirs]), return_inverse=True)  # numbers stay small
        mine, theirs = codes[: len(mine)], codes[len(mine) :]
    return _positions(mine, theirs)


def _codes(wanted: Any, found: Any) -> tuple[int, NDArray[np.int64]]:
    """(how many values there are, a number for each value of both, one after the other)."""
    pa = extra("pyarrow", "sql")
    codes = pa.chunked_array([wanted, found]).combine_chunks().dictionary_encode()
    return len(codes.dictionary), codes.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _positions(wanted: NDArray[np.int64], found: NDArray[np.int64]) -> NDArray[np.int64]:
    order = np.argsort(found, kind="stable")
    at = np.searchsorted(found, wanted, sorter=order).clip(max=len(found) - 1)
    made: NDArray[np.int64] = np.where(found[order[at]] == wanted, order[at], -1)
    return made
