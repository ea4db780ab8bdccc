"""One epoch's shuffle: place in the epoch -> row, for arrays of places.

    none     rows as they are stored
    shards   the shards in random order, each as it is stored
    block    the shards in random order; all samples mixed within each block of consecutive shards
    global   all samples mixed

Memory grows with the number of shards, never with the number of samples. The order depends on the sizes of
the shards, the seed and the epoch, and on nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamio.errors import UsageError
from streamio.order.permutation import derive_key, permute
from streamio.types import Rows

Shuffle: TypeAlias = Literal["none", "shards", "block", "global"]
RowOrder: TypeAlias = Callable[[Rows], Rows]

BLOCK_SAMPLES = 1 << 18
"""Samples that are mixed with each other under `block`: enough that a batch holds a fair draw, and few enough
that a cache of a few shards serves it."""

_SHARDS, _SAMPLES = 1, 2  # which permutation a key is for


def shuffle_mode(shuffle: bool | str) -> Shuffle:
    """The mode for what a user may say: False, True (= block), or a name. Raises UsageError."""
    if shuffle is False or shuffle == "none":
        return "none"
    if shuffle is True or shuffle == "block":
        return "block"
    if shuffle == "global":
        return "global"
    if shuffle == "shards":
        return "shards"
    raise UsageError(
        f"shuffle={shuffle!r}", fix="Use False, True, 'block' (the same as True), 'global' or 'shards'"
    )


def shuffled(
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    shuffle: Shuffle,
    seed: int,
    epoch: int,
    block: int = BLOCK_SAMPLES,
) -> RowOrder:
    """The order of one epoch over pieces of a set: a whole set is all of its shards, see `row_starts`.

    starts, sizes: int64 (pieces,), the first row and the number of rows of each.
    block:         samples that are mixed with each other under `block`, at least.
    """
    total = int(sizes.sum())
    if shuffle in ("shards", "block"):
        count = len(sizes)
        order = permute(np.arange(count, dtype=np.int64), count, derive_key(seed, epoch, _SHARDS))
        starts, sizes = starts[order], sizes[order]
    line = _Line(starts, sizes)
    if shuffle == "global":
        key = derive_key(seed, epoch, _SAMPLES)
        return lambda places: line.rows(permute(places, total, key))
    if shuffle == "block":
        return _Blocks(line, total, block, seed, epoch)
    return line.rows


def row_starts(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first row of each shard."""
    starts = np.zeros(len(sizes), np.int64)
    np.cumsum(sizes[:-1], out=starts[1:])
    return starts


class _Line:
    """Pieces end to end on a line; place on the line -> row.

    Worked example: shards A (3 rows: 0 1 2), B (2: 3 4), C (2: 5 6), in random order C A B; blocks of 4:

        line      0  1  2  3  4  5  6
        shard     C  C  A  A  A  B  B       blocks end with a shard: [0, 5) has the first 4 or more samples,
        block     0  0  0  0  0  0  0       and the rest (2) is too small for one of its own, so it joins
        row       5  6  0  1  2  3  4
    """

    def __init__(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        self._starts = starts
        self.edges = row_starts(sizes)
        self._whole = bool((starts == self.edges).all())

    def rows(self, places: Rows) -> Rows:
        if self._whole:  # nothing moved: the line is the set
            return places.copy()
        # Empty pieces share their edge with the next one; "right" finds the last, which has the row.
        piece = np.searchsorted(self.edges, places, side="right") - 1
        rows: Rows = self._starts[piece] + (places - self.edges[piece])
        return rows


class _Blocks:
    """A line, mixed within blocks of whole pieces."""

    def __init__(self, line: _Line, total: int, block: int, seed: int, epoch: int) -> None:
        self._line = line
        self._edges = _block_edges(line.edges, total, block)
        self._seed, self._epoch = seed, epoch

    def __call__(self, places: Rows) -> Rows:
        block = np.searchsorted(self._edges, places, side="right") - 1
        blocks = present(block)
        if len(blocks) == 1:  # the usual case, in half of the time
            return self._line.rows(self._mixed(places, blocks[0]))
        mixed = np.empty_like(places)
        for b in blocks:
            here = block == b
            mixed[here] = self._mixed(places[here], b)
        return self._line.rows(mixed)

    def _mixed(self, places: Rows, block: int) -> Rows:
        start, stop = int(self._edges[block]), int(self._edges[block + 1])
        key = derive_key(self._seed, self._epoch, _SAMPLES, block)
        return start + permute(places - start, stop - start, key)


def _block_edges(line_starts: NDArray[np.int64], total: int, block: int) -> NDArray[np.int64]:
    """Edges of blocks of whole pieces with at least `block` samples each (fewer only if the set has fewer)."""
    starts = np.append(line_starts, total)
    # Where a block ends that begins with a piece: the first border that leaves it `block` samples.
    ends = np.searchsorted(starts, line_starts + min(block, total), side="left").data  # quicker one by one
    last = int(np.searchsorted(starts, total - block, side="right")) - 1  # a block that ends later leaves too few
    pieces, piece = [0], ends[0]
    while piece <= last:
        pieces.append(piece)
        piece = ends[piece]
    return np.append(starts[pieces], total)


def present(numbers: NDArray[np.int64]) -> list[int]:
    """Which numbers there are, ascending; a tenth of what np.unique takes for a few small ones."""
    if len(numbers) == 0:
        return []
    least = int(numbers.min())
    return (np.flatnonzero(np.bincount(numbers - least)) + least).tolist()
