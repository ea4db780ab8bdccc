"""One epoch's order: position -> row, for arrays of positions.

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
Order: TypeAlias = Callable[[Rows], Rows]

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


def make_order(
    sizes: NDArray[np.int64], shuffle: Shuffle, seed: int, epoch: int, block: int = BLOCK_SAMPLES
) -> Order:
    """The order of one epoch over shards of these sizes (int64, samples of each shard)."""
    total = int(sizes.sum())
    if shuffle == "none":
        return np.copy
    if shuffle == "global":
        key = derive_key(seed, epoch, _SAMPLES)
        return lambda positions: permute(positions, total, key)
    return _ShardwiseOrder(sizes, seed, epoch, block if shuffle == "block" else None)


class _ShardwiseOrder:
    """Shards in random order, end to end on a line; mixed within blocks of that line, if asked.

    Worked example: shards A (3 rows: 0 1 2), B (2: 3 4), C (2: 5 6), in random order C A B; block = 4:

        line      0  1  2  3  4  5  6
        shard     C  C  A  A  A  B  B       blocks end with a shard: [0, 5) has the first 4 or more samples,
        block     0  0  0  0  0  0  0       and the rest (2) is too small for one of its own, so it joins
        row       5  6  0  1  2  3  4
    """

    def __init__(self, sizes: NDArray[np.int64], seed: int, epoch: int, block: int | None) -> None:
        count = len(sizes)
        shards = permute(np.arange(count, dtype=np.int64), count, derive_key(seed, epoch, _SHARDS))
        self._line_starts = _starts(sizes[shards])
        self._row_starts = _starts(sizes)[shards]
        self._blocks = None if block is None else _block_edges(self._line_starts, int(sizes.sum()), block)
        self._seed, self._epoch = seed, epoch

    def __call__(self, positions: Rows) -> Rows:
        line = positions if self._blocks is None else self._mix(positions, self._blocks)
        # Empty shards share their start with the next one; "right" finds the last, which has the row.
        shard = np.searchsorted(self._line_starts, line, side="right") - 1
        rows: Rows = self._row_starts[shard] + (line - self._line_starts[shard])
        return rows

    def _mix(self, positions: Rows, edges: NDArray[np.int64]) -> Rows:
        block = np.searchsorted(edges, positions, side="right") - 1
        line = np.empty_like(positions)
        for b in np.unique(block).tolist():
            here = block == b
            start, stop = int(edges[b]), int(edges[b + 1])
            key = derive_key(self._seed, self._epoch, _SAMPLES, b)
            line[here] = start + permute(positions[here] - start, stop - start, key)
        return line


def _starts(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)[:-1]])


def _block_edges(line_starts: NDArray[np.int64], total: int, block: int) -> NDArray[np.int64]:
    """Edges of blocks of whole shards with at least `block` samples each (fewer only if the set has fewer)."""
    edges = [0]
    while total - edges[-1] >= 2 * block:
        after = int(np.searchsorted(line_starts, edges[-1] + block, side="left"))
        if after == len(line_starts) or total - int(line_starts[after]) < block:
            break
        edges.append(int(line_starts[after]))
    return np.array([*edges, total], np.int64)
