"""A segment: memory of one process that another can map, in slots of one size. This is the maker's side.

    offset 0             16 random bytes, by which the other side knows that it has opened what was meant
           16            1 when the maker will use the segment no more
           64            state of slot 0, slot 1, …: one byte each
           HEADER        slot 0, slot 1, …

A segment is a memfd: it has no name, so nothing of it can be left behind, whoever is killed; it lies in no mounted
file system, so a small /dev/shm does not matter. It is sparse: memory is taken where something was written, so
slots may be far apart, which lets them grow.

A state has one writer at a time, and a byte is written at once, so there is no lock: the maker turns FREE into
HANDED, the user HANDED into HELD and HELD into FREE. A message between them, through a pipe, orders the rest.
"""

from __future__ import annotations

import math
import mmap
import os
import weakref
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamio.memory import ALIGNMENT, address, aligned_array

RETIRED, STATES, HEADER = 16, 64, 4096
FREE, HANDED, HELD = 0, 1, 2
MOST_SLOTS = HEADER - STATES

Bytes: TypeAlias = NDArray[np.uint8]
"""Memory, shape (n,)."""

Located: TypeAlias = "tuple[int, Bytes]"
"""Memory with its address, which takes long to ask for."""

Place: TypeAlias = tuple[int, int]
"""Of an array in a slot: offset, bytes."""

Address: TypeAlias = tuple[int, int, bytes, int, int, int, int]
"""Of a slot: process, file descriptor, token and length of the segment; number, offset and length of the slot."""


class Segment:
    """slots: how many there may be. slot_bytes: of each, rounded up to whole pages.

    Raises OSError or ValueError where the system does not give such memory.
    """

    def __init__(self, slots: int, slot_bytes: int) -> None:
        assert 0 < slots <= MOST_SLOTS
        self.slots, self.slot_bytes = slots, -(-slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.length = HEADER + slots * self.slot_bytes
        self.token = os.urandom(16)
        self._fd = os.memfd_create("streamio")
        self._close = weakref.finalize(self, os.close, self._fd)
        self._close.atexit = False
        os.ftruncate(self._fd, self.length)
        self.map = mmap.mmap(self._fd, self.length)
        self.map[: len(self.token)] = self.token
        self._used: list[Slot] = []

    def free_slot(self) -> Slot | None:
        """The first free one of those that were used before: its memory is there, and likely in a cache."""
        return next((slot for slot in self._used if slot.is_free()), None)

    def new_slot(self) -> Slot | None:
        """One that was not used before, if any is left."""
        if len(self._used) == self.slots:
            return None
        self._used.append(Slot(self, len(self._used)))
        return self._used[-1]

    def used_slots(self) -> int:
        return len(self._used)

    def used_bytes(self) -> int:
        """Memory that the segment takes."""
        return HEADER + sum(slot.peak for slot in self._used)

    def in_use(self) -> int:
        """Slots that are not free."""
        return sum(not slot.is_free() for slot in self._used)

    def is_awaited(self) -> bool:
        """Whether a batch is on its way, so that the other side may have to open the segment."""
        return HANDED in self.map[STATES : STATES + len(self._used)]

    def retire(self) -> None:
        """Say that no slot will be handed over any more, so that the other side lets go of the segment as well."""
        self.map[RETIRED] = 1

    def address(self, number: int) -> Address:
        start = HEADER + number * self.slot_bytes
        return os.getpid(), self._fd, self.token, self.length, number, start, self.slot_bytes


class Slot:
    """Memory for one batch at a time."""

    def __init__(self, segment: Segment, number: int) -> None:
        self._segment, self.number = segment, number
        self.peak = 0
        self._loan: weakref.ref[Any] | None = None

    def is_free(self) -> bool:
        """Whether neither side has anything in it: here, too, somebody may have kept a part of his batch."""
        lent = self._loan is not None and self._loan() is not None
        return not lent and self._segment.map[STATES + self.number] == FREE

    def lend(self) -> Loan:
        """The use of the slot for one batch."""
        *_, start, length = self.address()
        # Not a slice of one array over all: numpy would let views of it refer to that array, and forget this one.
        memory = np.frombuffer(self._segment.map, np.uint8, length, start)
        self._loan = weakref.ref(memory)
        return Loan(self, memory)

    def hand_over(self) -> None:
        self._segment.map[STATES + self.number] = HANDED

    def address(self) -> Address:
        return self._segment.address(self.number)


class Loan:
    """A slot while a batch is made in it; over when the last array in it is gone.

    memory: of the whole slot.
    used:   bytes of it that are given away, from the start.
    asked:  bytes that were asked for, whether they could be given or not.
    """

    def __init__(self, slot: Slot, memory: Bytes) -> None:
        self.slot, self.memory = slot, memory
        self._start = address(memory)
        self.used = self.asked = 0

    def alloc(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An `Alloc`: memory of the slot as long as there is some, ordinary memory then."""
        size = dtype.itemsize * math.prod(shape)
        self.asked += aligned(size)
        if dtype.hasobject or self.used + size > len(self.memory):
            return aligned_array(shape, dtype)
        array: NDArray[Any] = np.ndarray(shape, dtype, buffer=self.memory, offset=self.used)
        self._grow(size)
        return array

    def place(self, arrays: list[Located]) -> list[Place] | None:
        """Where in the slot these arrays are (offset, length), copied there unless they are there already.

        None, and nothing is copied, if they do not fit.
        """
        if self.used + self._missing(arrays) > len(self.memory):
            return None
        return [
            (at - self._start if self._has(at, array) else self._put(array), len(array)) for at, array in arrays
        ]

    def needed(self, arrays: list[Located]) -> int:
        """Bytes that would do for all that was asked for, used or not, and for what of these was made elsewhere."""
        return max(packed(arrays), self.asked + self._missing(arrays))

    def _missing(self, arrays: list[Located]) -> int:
        return sum(aligned(len(array)) for at, array in arrays if not self._has(at, array))

    def _put(self, array: Bytes) -> int:
        offset = self.used
        self.memory[offset : offset + len(array)] = array
        self._grow(len(array))
        return offset

    def _has(self, at: int, array: Bytes) -> bool:
        return 0 <= at - self._start <= len(self.memory) - len(array)

    def _grow(self, size: int) -> None:
        self.used += aligned(size)
        self.slot.peak = max(self.slot.peak, min(self.used, len(self.memory)))


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def packed(arrays: list[Located]) -> int:
    """Bytes that they take one after the other."""
    return sum(aligned(len(array)) for _, array in arrays)


def joined(arrays: list[Located]) -> tuple[list[Place], bytes]:
    """Where each of them is, and the bytes of all of them one after the other."""
    places, pieces, end = [], list[Any](), 0
    for _, array in arrays:
        places.append((end, len(array)))
        gap = aligned(len(array)) - len(array)
        pieces += [array, bytes(gap)]
        end += len(array) + gap
    return places, b"".join(pieces)
