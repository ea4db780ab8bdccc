"""Chunks -> batches of rows: cut at the batch size, at the time limit, and at the end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamio.sources.base import Chunk
from streamio.sources.held import Mark, Piece

Drop = Callable[[Chunk], None]
"""Told a chunk with bad rows, which are left out if this does not raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How batches are cut.

    size:     rows of the next one, given how many batches were cut: at least 1.
    max_wait: seconds from the first row of a batch after which it is given as it is; None: never.
    looks_ahead: whether a batch waits until it is known if anything comes behind it.
    drop_rest: whether what is left at the end is not given.
    """

    size: Callable[[int], int]
    max_wait: float | None = None
    looks_ahead: bool = True
    drop_rest: bool = False


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
        self._rows = self._cut_so_far = 0
        self._ended: list[str] = []
        self._forget: list[str] = []
        self._since: float | None = None
        self._exhausted = False

    def batches(self) -> Iterator[tuple[Sequence[Piece], Mark] | None]:
        """(rows, mark) of each batch; None where nothing is there now."""
        while True:
            size = self._limits.size(self._cut_so_far)
            while not self._exhausted and not self._is_enough(size):
                if not self._take():
                    if self._is_over():
                        self._exhausted = True
                    elif self._is_due():
                        break
                    else:
                        yield None
            if self._rows == 0 or (self._exhausted and self._limits.drop_rest and self._rows < size):
                return
            yield self._cut(min(size, self._rows))

    def _is_enough(self, size: int) -> bool:
        return self._rows >= size + self._limits.looks_ahead

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
        if chunk.bad:
            self._drop(chunk)
            good = np.setdiff1d(np.arange(len(chunk)), np.array(list(chunk.bad), np.int64))
            chunk = chunk.kept(good)
        if len(chunk):
            self._since = time.monotonic() if self._since is None else self._since
            self._waiting.append(Piece(chunk, 0, len(chunk)))
            self._rows += len(chunk)
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
        self._cut_so_far += 1
        self._since = time.monotonic() if self._rows else None
        return pieces, Mark(cursors=cursors, ended=self._ended_now(), forget=self._forgotten())

    def _ended_now(self) -> list[str]:
        """Partitions that have ended and have no row that waits."""
        waiting = {piece.chunk.partition for piece in self._waiting}
        now = [name for name in self._ended if name not in waiting]
        self._ended = [name for name in self._ended if name in waiting]
        return now

    def _forgotten(self) -> list[str]:
        forget, self._forget = self._forget, []
        return forget
