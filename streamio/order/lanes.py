"""Lanes: the order cut into L parallel orders over shards of their own, so that a node needs only some shards.

The shards, in an order that the seed makes and that no epoch changes, lie end to end on a line; the line is cut
into L lanes of equal length (within one sample), and each lane is shuffled by itself. A position of the epoch
belongs to the lane `position % L`. Seven samples in shards A (0 1 2), B (3 4), C (5 6), two lanes, no shuffle:

    lane 0     A0 A1 A2 B3         position   0  1  2  3  4  5  6
    lane 1     B4 C5 C6            lane       0  1  0  1  0  1  0
                                   row        0  4  1  5  2  6  3

So every step holds samples of all lanes, whatever the ranks, and the share of each rank is one residue of the
positions: on two ranks, rank 0 takes 0 2 4 6 and reads A and B. A shard on the border is read by two lanes.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from streamio.order.permutation import derive_key, permute
from streamio.order.shuffle import RowOrder, Shuffle, present, row_starts, shuffled
from streamio.types import Rows

_LANES = 3  # which permutation a key is for


class LaneOrder:
    """The order of one epoch in lanes: place -> row. A lane is made when a place of it is first asked for."""

    def __init__(
        self, sizes: NDArray[np.int64], lanes: int, shuffle: Shuffle, seed: int, epoch: int, block: int
    ) -> None:
        self._lanes, self._shuffle, self._seed, self._epoch, self._block = lanes, shuffle, seed, epoch, block
        self._samples = int(sizes.sum())
        starts = row_starts(sizes)
        if shuffle != "none":
            order = permute(np.arange(len(sizes), dtype=np.int64), len(sizes), derive_key(seed, _LANES))
            starts, sizes = starts[order], sizes[order]
        self._starts, self._edges = starts, np.append(row_starts(sizes), self._samples)
        self._lane = cache(self._make_lane)

    def __call__(self, places: Rows) -> Rows:
        lanes = places % self._lanes
        rows = np.empty_like(places)
        for lane in present(lanes):
            here = lanes == lane
            rows[here] = self._lane(lane)(places[here] // self._lanes)
        return rows

    def _make_lane(self, lane: int) -> RowOrder:
        starts, sizes = self.pieces(lane)
        seed = derive_key(self._seed, _LANES, lane)
        return shuffled(starts, sizes, self._shuffle, seed, self._epoch, self._block)

    def pieces(self, lane: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(first row, rows) of the pieces of shards that make up a lane; int64."""
        begin, end = self._border(lane), self._border(lane + 1)
        first = int(np.searchsorted(self._edges, begin, side="right")) - 1
        last = int(np.searchsorted(self._edges, end, side="left"))
        cuts = np.clip(self._edges[first : last + 1], begin, end)
        return self._starts[first:last] + (cuts[:-1] - self._edges[first:last]), np.diff(cuts)

    def _border(self, lane: int) -> int:
        """Where a lane begins on the line: the first N mod L lanes have one sample more."""
        each, more = divmod(self._samples, self._lanes)
        return lane * each + min(lane, more)


def residue(rank: int, world_size: int, lanes: int) -> int:
    """Rank r of R takes the positions that leave this rest when divided by R.

    Where L divides R, the ranks of a node (R / L neighbours) share one lane; where R divides L, a rank has L / R
    lanes of its own. Else each rank reads from many lanes.
    """
    if world_size % lanes:
        return rank
    ranks_of_lane = world_size // lanes
    return (rank % ranks_of_lane) * lanes + rank // ranks_of_lane


def lanes_are_kept(world_size: int, lanes: int) -> bool:
    """Whether each rank reads only from lanes of its own, or of its node."""
    return world_size % lanes == 0 or lanes % world_size == 0
