"""A block of bytes as lines: where each begins and ends, in arrays."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.int64]

_BEFORE = re.compile(rb"(?:\0++|\xef\xbb\xbf)*+")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """The n lines of a block that are not blank.

        block     \\n  {"a": 1} \\r \\n  \\n  {"a": 2}
        starts        ^1                    ^12
        stops                  ^9                   ^20
        ends                                ^12     ^20
        numbers       1                     3

    starts, stops: int64 (n,): the bytes of each, without its line end, a byte order mark, and NUL bytes before it.
    ends:          int64 (n,): where the next one begins; behind the last one the end of the block. So blank lines
                   belong to the line before, and those at the start to the first one.
    numbers:       int64 (n,): of each, counted from 0 with the blank ones.
    total:         lines in the block, blank ones too.
    holes:         (begin, end) of runs of NUL bytes that were left out.
    """

    block: bytes
    starts: Places
    stops: Places
    ends: Places
    numbers: Places
    total: int
    holes: tuple[tuple[int, int], ...] = ()

    def __len__(self) -> int:
        return len(self.starts)

    def pieces(self) -> list[bytes]:
        """The bytes of each line."""
        block = self.block
        return [block[a:b] for a, b in zip(self.starts.tolist(), self.stops.tolist(), strict=True)]

    def kept(self, keep: NDArray[np.bool_]) -> Lines:
        """Those for which `keep`, bool (n,), is true; the others count as blank ones."""
        starts = self.starts[keep]
        return Lines(
            block=self.block, starts=starts, stops=self.stops[keep], ends=_ends(self.block, starts),
            numbers=self.numbers[keep], total=self.total, holes=self.holes,
        )  # fmt: skip


def split_lines(block: bytes) -> Lines:
    """The lines of a block that ends with a line, with or without its line end: `\\n` or `\\r\\n`.

    Blank are lines of nothing but blanks, tabs, `\\r` and NUL bytes.
    """
    data = np.frombuffer(block, np.uint8)
    breaks = np.flatnonzero(data == 10)
    if not block or block.endswith(b"\n"):
        starts, stops = np.concatenate([[0], breaks + 1])[:-1], breaks
    else:
        starts, stops = np.concatenate([[0], breaks + 1]), np.append(breaks, len(block))
    if b"\r" in block:
        stops = stops - _returns(data, starts, stops)
    full = stops > starts
    lines = Lines(
        block=block, starts=starts[full], stops=stops[full], ends=starts[full], numbers=np.flatnonzero(full),
        total=len(starts),
    )  # fmt: skip
    first = data[lines.starts]
    odd = np.flatnonzero((first <= 32) | (first == _BOM[0]))
    if not len(odd):
        return lines.kept(np.ones(len(lines), np.bool_))
    return _without_odd(lines, odd)


def _returns(data: NDArray[np.uint8], starts: Places, stops: Places) -> NDArray[np.bool_]:
    """Which lines end with `\\r`."""
    found = stops > starts
    found[found] = data[stops[found] - 1] == 13
    return found


def _without_odd(lines: Lines, odd: Places) -> Lines:
    """Without lines of blanks, and without what stands before a line: NUL bytes, a byte order mark.

    odd: indices of lines that may have any of it.
    """
    block, starts, keep, holes = lines.block, lines.starts.copy(), np.ones(len(lines), np.bool_), []
    for i in odd.tolist():
        begin, stop = int(starts[i]), int(lines.stops[i])
        before = _BEFORE.match(block, begin, stop)
        assert before is not None
        if block.find(b"\0", begin, before.end()) >= 0:
            holes.append(before.span())
        starts[i] = begin = before.end()
        keep[i] = begin < stop and not (block[begin] <= 32 and block[begin:stop].isspace())
    changed = Lines(
        block=block, starts=starts, stops=lines.stops, ends=lines.ends, numbers=lines.numbers, total=lines.total,
        holes=tuple(holes),
    )  # fmt: skip
    return changed.kept(keep)


def _ends(block: bytes, starts: Places) -> Places:
    return np.append(starts[1:], len(block))[: len(starts)]
