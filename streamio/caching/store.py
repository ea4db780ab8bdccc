"""A store: values by the number of their slot, in one file that any number of processes read and fill at once.

    offset 0       magic; slots, units that are taken (int64 each)
           4096    a word for each slot: 0, or where its value is and how long: units << 24 | units
           …       values, one after the other, each from a multiple of 64 bytes (a unit) on

A value is written first; then its word, in one store of 8 bytes. So who reads finds all of it or nothing, whoever
is killed when; and its checksum, which is made with the number of the slot, speaks for it even where power failed
between the two. Two processes that write the same slot waste the room of one value. Nothing is locked but the
taking of room, for microseconds, by a lock that the kernel drops with the process that holds it.

Values are read and written by system calls and not through a map: a full disk is then an error and no SIGBUS, a
file that was cut is a value that is not there, and a process needs no page tables for what it reads.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamio.caching.packed import UNIT, Packed, aligned, checksum, is_array, unpacked

_log = logging.getLogger("streamio")

MAGIC = b"streamio values1"
TABLE = 4096
_SLOTS, _TAKEN = 2, 3  # int64 words of the first page
_LENGTH_BITS = 24
_MOST_BYTES = UNIT << _LENGTH_BITS
_MOST_PIECES = 256

_threads = threading.Lock()


def data_start(slots: int) -> int:
    """Bytes in front of the values: what a store of so many slots takes while it is empty."""
    return aligned(TABLE + 8 * slots)


def begin(fd: int, slots: int) -> None:
    """Make an empty file a store. It is one when its magic is there, which comes last."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, data_start(slots))  # the map of it must never meet a full disk
    else:
        os.ftruncate(fd, data_start(slots))
    facts = np.array([slots, data_start(slots) // UNIT], np.int64)
    os.pwrite(fd, facts.tobytes(), 8 * _SLOTS)
    os.pwrite(fd, MAGIC, 0)


def is_store(fd: int, slots: int) -> bool:
    """Whether the file is a store of so many slots."""
    if os.fstat(fd).st_size < data_start(slots):
        return False
    return os.pread(fd, len(MAGIC) + 8, 0) == MAGIC + np.int64(slots).tobytes()


class Store:
    """fd: of a file that `begin` made a store; closed when the store is gone.

    has_room: whether the file may reach up to this byte; called by one process at a time.
    """

    def __init__(self, fd: int, slots: int, has_room: Callable[[int], bool]) -> None:
        self.fd, self.slots = fd, slots
        self._has_room = has_room
        self._map = mmap.mmap(fd, data_start(slots))
        self._facts = np.frombuffer(self._map, np.int64, 4)
        self._words = np.frombuffer(self._map, np.int64, slots, TABLE)
        self._too_large = _MOST_BYTES
        self._close = weakref.finalize(self, os.close, fd)
        self._close.atexit = False

    def used_bytes(self) -> int:
        """Bytes that are taken, by all processes, the table included."""
        return int(self._facts[_TAKEN]) * UNIT

    def words(self, slots: NDArray[np.int64]) -> list[Any]:
        """What `read` needs to know of these slots, in the same shape; 0 where there is no value."""
        words: list[Any] = self._words[slots].tolist()
        return words

    def read(self, slot: int, word: int, out: NDArray[Any] | None = None) -> tuple[Any] | None:
        """The value of a slot, in a tuple; None where there is none, or none that is whole.

        out: is filled, and is the value. One that is no array of its dtype and shape counts as not there; the
             contents of `out` are then undefined.
        """
        start, size = _place(word)
        if out is not None and self._read_into(slot, start, size, out):
            return (out,)
        data = np.empty(size, np.uint8)
        value = unpacked(data, slot) if self._fill([data], start, size) else None
        if value is None and word:
            self._words[slot] = 0  # it will be made again
        return value if out is None else None

    def _read_into(self, slot: int, start: int, size: int, out: NDArray[Any]) -> bool:
        """Straight to where it is wanted, for all of it is one array of this dtype and shape, most likely."""
        if not out.flags.c_contiguous or size < UNIT + aligned(out.nbytes):
            return False
        flat = out.reshape(-1).view(np.uint8)
        head, tail = np.empty(size - aligned(out.nbytes), np.uint8), np.empty(-out.nbytes % UNIT, np.uint8)
        return (
            self._fill([head, flat, tail], start, size)
            and head[:8].tobytes() == checksum(slot, [head[8:], flat, tail])
            and is_array(head, out)
        )

    def write(self, slot: int, value: Any) -> int:
        """Keep a value, if there is room for it; gives the bytes that it took.

        Raises UsageError for one of a kind that cannot be kept.
        """
        packed = Packed(value)
        if packed.size >= self._too_large or self._words[slot]:
            return 0
        try:
            start = self._take(packed.size)
            if start is None:
                self._too_large = packed.size
                return 0
            _write_all(self.fd, packed.pieces(slot), start)
        except OSError as error:  # a full disk, mostly, or a folder that was removed
            self._too_large = 0
            _log.warning("a cache of decoded values is filled no further: %s", error.strerror)
            return 0
        self._words[slot] = start // UNIT << _LENGTH_BITS | packed.size // UNIT
        return packed.size

    def _take(self, size: int) -> int | None:
        """The start of so many bytes that nobody else will write to; None where there are no more."""
        with _alone(self.fd):
            start = self.used_bytes()
            if not self._has_room(start + size):
                return None
            self._facts[_TAKEN] = (start + size) // UNIT
        return start

    def _fill(self, buffers: list[Any], start: int, size: int) -> bool:
        try:
            return size > 0 and os.preadv(self.fd, buffers, start) == size
        except OSError:
            return False


def _place(word: int) -> tuple[int, int]:
    """(start, bytes) of a value."""
    return (word >> _LENGTH_BITS) * UNIT, (word & (1 << _LENGTH_BITS) - 1) * UNIT


def _write_all(fd: int, pieces: list[Any], start: int) -> None:
    if len(pieces) > _MOST_PIECES:
        pieces = [b"".join(bytes(piece) for piece in pieces)]
    written, size = os.pwritev(fd, pieces, start), sum(memoryview(piece).nbytes for piece in pieces)
    if written < size:  # a signal, or a disk that is nearly full
        rest = memoryview(b"".join(bytes(piece) for piece in pieces))
        while written < size:
            written += os.pwrite(fd, rest[written:], start + written)


@contextmanager
def _alone(fd: int) -> Iterator[None]:
    """One process at a time, and one thread of it."""
    with _threads:
        fcntl.lockf(fd, fcntl.LOCK_EX, 1)
        try:
            yield
        finally:
            fcntl.lockf(fd, fcntl.LOCK_UN, 1)


def _after_fork() -> None:
    global _threads
    _threads = threading.Lock()  # a thread of the parent may have held the other


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
