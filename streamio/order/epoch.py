"""The order of one epoch over a whole set: shuffle, lanes and repeats together."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from streamio.order.base import Picks
from streamio.order.lanes import LaneOrder
from streamio.order.shuffle import BLOCK_SAMPLES, RowOrder, Shuffle, present, row_starts, shuffled
from streamio.types import Rows


class EpochOrder:
    """An `Order` over shards of these sizes.

    With repeat = 3 an epoch has three passes, with the orders that the epochs 3e, 3e + 1 and 3e + 2 would have:

        position   0 … N-1   N … 2N-1   2N … 3N-1
        pass       3e        3e + 1     3e + 2
    """

    def __init__(
        self,
        sizes: NDArray[np.int64],
        *,
        shuffle: Shuffle = "none",
        seed: int = 0,
        epoch: int = 0,
        lanes: int = 1,
        block_samples: int = BLOCK_SAMPLES,
        repeat: int = 1,
    ) -> None:
        self._sizes, self._shuffle, self._seed, self._lanes = sizes, shuffle, seed, lanes
        self._block, self._each = block_samples, int(sizes.sum())
        self._first_pass = epoch * repeat
        self.samples = self._each * repeat
        self._pass = cache(self._make_pass)

    def __call__(self, positions: Rows) -> Picks:
        passes = positions // self._each
        if len(passes) and passes[0] == passes[-1] and (passes == passes[0]).all():
            first = int(passes[0])
            rows = self._pass(first)(positions - first * self._each)
        else:
            rows = np.empty_like(positions)
            for number in present(passes):
                here = passes == number
                rows[here] = self._pass(number)(positions[here] - number * self._each)
        return Picks(rows, self._first_pass + passes)

    def _make_pass(self, number: int) -> RowOrder:
        epoch = self._first_pass + number
        if self._lanes > 1:
            return LaneOrder(self._sizes, self._lanes, self._shuffle, self._seed, epoch, self._block)
        return shuffled(row_starts(self._sizes), self._sizes, self._shuffle, self._seed, epoch, self._block)
