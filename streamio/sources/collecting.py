"""Chunks -> batches of rows: cut at the batch size, at the time limit, and at the end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamio.sources.base import Chunk
from streamio.sources.held import Mark, Piece

Drop = Callable[[Chunk], None]
"""Told a chunk with bad rows, which are left out if this does not raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How batches are cut.

    size:     rows of one, at most.
    batches:  how many there are to be; None: as many as it takes. They are of even size.
    counted:  rows that there are for them, or more.
    max_wait: seconds from the first row of a batch after which it is given as it is; None: never.
    looks_ahead: whether a batch waits until it is known if anything comes behind it.
    drop_rest: whether what is left at the end is not given.
    """

    size: int
    batches: int | None = None
    counted: int = 0
    max_wait: float | None = None
    looks_ahead: bool = True
    drop_rest: bool = False


class EvenSizes:
    """Sizes of a fixed number of batches, as even as can be, of rows that were counted, or of fewer.

    batches, counted: of all. most: rows of one batch, which is enough for all that were counted.

    What was counted and does not come (gaps, rows that are left out) makes batches smaller: as it was so far, it is
    taken to be in what is still to come. Some rows are kept back for the case that nothing comes any more.
    """

    def __init__(self, batches: int, counted: int, most: int) -> None:
        self._left, self._unread, self._most = batches, counted, most
        self._came = self._passed = 0

    def came(self, rows: int, passed: int) -> None:
        """So many rows were read, which stand for so many that were counted."""
        self._came, self._passed = self._came + rows, self._passed + passed
        self._unread = max(0, self._unread - passed)

    def cut(self) -> None:
        """A batch was cut."""
        self._left -= 1

    def reserve(self) -> int:
        """Rows to keep back: one for each further batch, but not too many."""
        return min(max(0, self._left - 1), self._most)

    def next(self, waiting: int, exhausted: bool) -> int:
        """Rows of the next batch, at least 1. waiting: rows that are read."""
        batches, unread = max(1, self._left), 0 if exhausted else self._unread
        likely = waiting + unread * self._came // max(1, self._passed)
        needed = waiting + unread - (batches - 1) * self._most  # else the others could not take all
        return max(1, needed, -(-likely // batches))


class Collector:
    """Cuts what a source gives into batches.

    chunks:  None where nothing is there now.
    is_over: asked where nothing is there: whether to give what there is and end.
    """

    def __init__(
        self, chunks: Iterator[Chunk | None], limits: Limits, drop: Drop, is_over: Callable[[], bool]
    ) -> None:
        self._chunks, self._limits, self._drop, self._is_over = chunks, limits, drop, is_over
        self._waiting: deque[Piece] = deque()
        self._rows = 0
        self._sizes = None if limits.batches is None else EvenSizes(limits.batches, limits.counted, limits.size)
        self._behind: dict[str, Any] = {}
        self._ended: list[str] = []
        self._forget: list[str] = []
        self._since: float | None = None
        self._exhausted = False

    def batches(self) -> Iterator[tuple[Sequence[Piece], Mark] | None]:
        """(rows, mark) of each batch; None where nothing is there now."""
        while True:
            while not self._exhausted and not self._is_enough():
                if not self._take():
                    if self._is_over():
                        self._exhausted = True
                    elif self._is_due():
                        break
                    else:
                        yield None
            size = self._size()
            if self._rows == 0 or (self._exhausted and self._limits.drop_rest and self._rows < size):
                return
            yield self._cut(min(size, self._rows))

    def resize(self, size: int) -> None:
        """Let the next batches have so many rows."""
        self._limits = replace(self._limits, size=size)

    def _size(self) -> int:
        return self._limits.size if self._sizes is None else self._sizes.next(self._rows, self._exhausted)

    def _is_enough(self) -> bool:
        reserve = int(self._limits.looks_ahead)
        if self._sizes is not None:
            reserve = max(reserve, self._sizes.reserve())
        return self._rows >= self._size() + reserve

    def _is_due(self) -> bool:
        wait = self._limits.max_wait
        return wait is not None and self._since is not None and time.monotonic() - self._since >= wait

    def _take(self) -> bool:
        """Take the next chunk, if one is there."""
        chunk = next(self._chunks, self._chunks)
        if chunk is self._chunks:
            self._exhausted = True
            return True
        if chunk is None:
            return False
        assert isinstance(chunk, Chunk)
        passed = len(chunk) if chunk.passed is None else chunk.passed
        if chunk.behind is not None or len(chunk):
            self._behind[chunk.partition] = chunk.cursor(-1) if chunk.behind is None else chunk.behind
        if chunk.bad:
            self._drop(chunk)
            good = np.setdiff1d(np.arange(len(chunk)), np.array(list(chunk.bad), np.int64))
            chunk = chunk.kept(good)
        if len(chunk):
            self._since = time.monotonic() if self._since is None else self._since
            self._waiting.append(Piece(chunk, 0, len(chunk)))
            self._rows += len(chunk)
        if self._sizes is not None:
            self._sizes.came(len(chunk), passed)
        self._ended += [chunk.partition] if chunk.ended else []
        self._forget += chunk.forget
        return True

    def _cut(self, size: int) -> tuple[Sequence[Piece], Mark]:
        pieces, cursors = [], dict[str, Any]()
        left = size
        while left:
            chunk, begin, end = self._waiting.popleft()
            cut = min(end, begin + left)
            if cut < end:
                self._waiting.appendleft(Piece(chunk, cut, end))
            pieces.append(Piece(chunk, begin, cut))
            cursors[chunk.partition] = chunk.cursor(cut - 1)
            left -= cut - begin
        self._rows -= size
        if self._sizes is not None:
            self._sizes.cut()
        self._since = time.monotonic() if self._rows else None
        waiting = {piece.chunk.partition for piece in self._waiting}
        cursors |= {name: self._behind.pop(name) for name in list(self._behind) if name not in waiting}
        return pieces, Mark(cursors=cursors, ended=self._ended_now(waiting), forget=self._forgotten(waiting))

    def _ended_now(self, waiting: set[str]) -> list[str]:
        """Partitions that have ended and have no row that waits."""
        now = [name for name in self._ended if name not in waiting]
        self._ended = [name for name in self._ended if name in waiting]
        return now

    def _forgotten(self, waiting: set[str]) -> list[str]:
        """Partitions to forget that have no row that waits."""
        forget = [name for name in self._forget if name not in waiting]
        self._forget = [name for name in self._forget if name in waiting]
        return forget
