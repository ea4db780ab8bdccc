"""SlotRing: batches made in memory that is used again and again, and handed over without a copy."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamio.handover.leases import view
from streamio.handover.segment import Address, Loan, Located, Place, Segment, joined, packed
from streamio.handover.structure import put_together, take_apart
from streamio.memory import address
from streamio.types import Alloc, new_array

_log = logging.getLogger("streamio")

_SLACK = 2
"""Slots are so many times larger than the batch that they were made for; what is not used takes no memory."""

_ALWAYS = 4
"""Slots that there may be whatever the memory: one in use, one on the way, one being made, and one to spare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingCounts:
    """segments, slots, bytes: there are now (bytes: of memory). in_use: slots that are not free.

    in_slots, in_pickles: batches that were handed over in a slot, and inside the pickle.
    """

    segments: int
    slots: int
    bytes: int
    in_use: int
    in_slots: int
    in_pickles: int


class SlotRing:
    """Of one process, for one user of its batches; one thread at a time may call `make`.

    slots:        at most so many in use. A loop that keeps more batches gets the others in ordinary memory.
    max_bytes:    memory of all slots, likewise; but for `_ALWAYS` of them.
    pickle_bytes: smaller batches travel inside the pickle, which is cheaper then.
    """

    def __init__(self, *, slots: int = 64, max_bytes: int = 1 << 30, pickle_bytes: int = 1 << 16) -> None:
        self.pid = os.getpid()
        self._slots, self._max_bytes, self._pickle_bytes = slots, max_bytes, pickle_bytes
        self._segments: list[Segment] = []
        self._expected = 0
        self._works = _can_share()
        self._in_slots = self._in_pickles = 0
        weakref.finalize(self, _let_go, self._segments).atexit = False

    def make(self, function: Callable[[Alloc], Any]) -> Handed:
        """What the function makes, ready to be handed over. It gets memory of a slot to make arrays in.

        Whatever it makes elsewhere is copied. What somebody keeps of it here keeps the slot, too.
        """
        loan = self._loan(self._expected)
        body, arrays = take_apart(function(new_array if loan is None else loan.alloc))
        ranges = [(address(array), len(array)) for array in arrays]
        # Tensors that share their memory go on to share it.
        distinct = {place: (place[0], array) for place, array in zip(ranges, arrays, strict=True)}
        loan, places, memory = self._place(list(distinct.values()), loan)
        where = dict(zip(distinct, places, strict=True))
        return Handed(body, [where[one] for one in ranges], loan or memory)

    def _place(self, arrays: list[Located], loan: Loan | None) -> tuple[Loan | None, list[Place], bytes]:
        """The arrays in the slot they were made in, or in another, or in ordinary bytes."""
        size = packed(arrays)
        self._expected = size if loan is None or size < self._pickle_bytes else loan.needed(arrays)
        if size >= self._pickle_bytes:
            places = None if loan is None else loan.place(arrays)
            if places is None and (loan := self._loan(size)) is not None:
                places = loan.place(arrays)
            if places is not None:
                self._in_slots += 1
                return loan, places, b""
        self._in_pickles += 1
        return None, *joined(arrays)

    def stats(self) -> RingCounts:
        return RingCounts(
            segments=len(self._segments),
            slots=sum(segment.used_slots() for segment in self._segments),
            bytes=sum(segment.used_bytes() for segment in self._segments),
            in_use=sum(segment.in_use() for segment in self._segments),
            in_slots=self._in_slots,
            in_pickles=self._in_pickles,
        )

    def _loan(self, size: int) -> Loan | None:
        """A slot for so many bytes; None where they are few, or where there may be no further slot."""
        if size < self._pickle_bytes or not self._works:
            return None
        try:
            segment = self._segment(size)
        except (OSError, ValueError) as error:
            self._works = False
            _log.warning("no shared memory of %d bytes a batch, batches are copied through pipes: %s", size, error)
            return None
        slot = segment.free_slot() or (segment.new_slot() if self._room(segment, size) else None)
        return None if slot is None else slot.lend()

    def _segment(self, size: int) -> Segment:
        """The one whose slots are used now; a new one where a batch does not fit into them."""
        if not self._segments or self._segments[-1].slot_bytes < size:
            for outgrown in self._segments:
                outgrown.retire()
            self._segments.append(Segment(self._slots, _SLACK * size))
        self._segments[:-1] = [outgrown for outgrown in self._segments[:-1] if outgrown.in_use()]
        return self._segments[-1]

    def _room(self, segment: Segment, size: int) -> bool:
        taken = sum(segment.used_bytes() for segment in self._segments)
        return segment.used_slots() < _ALWAYS or taken + size <= self._max_bytes


class Handed:
    """A batch on its way. It pickles once; what comes out on the other side is the batch itself.

    Not for a third process: the slot goes back when the first one that unpickled it needs it no more.
    """

    def __init__(self, body: bytes, places: list[Place], memory: Loan | bytes) -> None:
        self._recipe = body, places
        self._memory: Loan | bytes | None = memory

    def __reduce__(self) -> tuple[Any, ...]:
        memory, self._memory = self._memory, None
        if memory is None:
            raise RuntimeError("a batch is handed over once; it was pickled before")
        if isinstance(memory, bytes):
            return _received, (*self._recipe, memory)
        memory.slot.hand_over()
        return _received, (*self._recipe, memory.slot.address())


_ending: list[Segment] = []
"""Segments of rings that are gone, with batches on their way to a process that may have to open them yet."""


def _let_go(segments: list[Segment]) -> None:
    for segment in segments:
        segment.retire()
    _ending[:] = [segment for segment in [*_ending, *segments] if segment.is_awaited()]


def _received(body: bytes, places: list[Place], memory: bytes | Address) -> Any:
    slot = np.frombuffer(bytearray(memory), np.uint8) if isinstance(memory, bytes) else view(memory)
    return put_together(body, [slot[start : start + length] for start, length in places])


def _can_share() -> bool:
    """Whether the process that started this one can likely open its memory: whether this one can open the other's.

    Not on systems without memfd, nor where /proc is hidden or its files are closed to other processes.
    """
    if not hasattr(os, "memfd_create"):
        return False
    try:
        os.readlink(f"/proc/{os.getppid()}/cwd")  # asks for the same right
    except OSError as error:
        _log.warning("other processes' memory cannot be opened, batches are copied through pipes: %s", error)
        return False
    return True
