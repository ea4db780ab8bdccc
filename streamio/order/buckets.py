"""Batches of a fixed number of samples of similar length, so that little of a padded batch is padding.

The order is cut into windows of some thousand positions, anchored at the beginning of the epoch. The samples of a
window are sorted by length and cut into runs, and the runs come in random order. A window is computed as a whole,
by every process that needs a batch of it: about 0.1 µs for each of its samples.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamio.errors import UsageError
from streamio.order.base import Order, Picks
from streamio.order.permutation import derive_key, permute
from streamio.order.plan import check_count
from streamio.types import Rows

WINDOW_SAMPLES = 1 << 14
WINDOWS_KEPT = 4
"""A batch at a border needs two windows, and looking ahead one more."""

_WINDOW_RUNS = 100

_RUNS = 20  # which permutation a key is for


def default_window(run: int) -> int:
    """100 runs, and at least 2^14 samples, in whole runs."""
    return run * max(_WINDOW_RUNS, -(-WINDOW_SAMPLES // run))


class BucketOrder:
    """An `Order` with its samples rearranged: every `run` consecutive positions hold samples of similar length.

    run = batch_size x world_size makes each step of a `Plan` one run. Seven samples, runs of 2, one window:

        lengths by position of `order`     5 9 1 7 2 4 3
        sorted and cut                     1 2 | 3 4 | 5 | 7 9     a short run is any of them, at random,
        as they come                       7 9 | 1 2 | 3 4 | 5     and comes last

    lengths: whole numbers (rows of the set,).
    window:  positions that are sorted together, a multiple of `run`; None: 100 runs, and at least 2^14. Larger
             ones leave less padding and put samples of one length closer together.

    `run` and `window` belong to the order: an epoch that is resumed with others is another epoch.
    """

    def __init__(
        self,
        order: Order,
        lengths: NDArray[np.integer[Any]],
        run: int,
        window: int | None = None,
        *,
        seed: int = 0,
        epoch: int = 0,
    ) -> None:
        check_count("run", run)
        if window is None:
            window = default_window(run)
        check_count("window", window)
        if window % run:
            raise UsageError(f"window={window} is no multiple of run={run}", fix=f"Use {window // run * run + run}")
        check_lengths(lengths)
        self.samples, self.run, self.window = order.samples, run, window
        self._order, self._lengths, self._seed, self._epoch = order, lengths, seed, epoch
        self._window = lru_cache(WINDOWS_KEPT)(self._make_window)

    def __call__(self, positions: Rows) -> Picks:
        rows, visits = np.empty_like(positions), np.empty_like(positions)
        windows = positions // self.window
        for number in np.unique(windows).tolist():
            here = windows == number
            picks = self._window(number)
            places = positions[here] - number * self.window
            rows[here], visits[here] = picks.rows[places], picks.visits[places]
        return Picks(rows, visits)

    def _make_window(self, number: int) -> Picks:
        rows, visits = self._order(positions_of(number, self.window, self.samples))
        places = by_length(np.asarray(self._lengths)[rows])
        runs, rest = -(-len(rows) // self.run), len(rows) % self.run
        coming = shuffled_places(runs, derive_key(self._seed, self._epoch, _RUNS, number))
        sizes = np.full(runs, self.run, np.int64)
        if rest:
            sizes[coming[-1]] = rest
        begins, sizes = (np.cumsum(sizes) - sizes)[coming], sizes[coming]
        places = places[np.repeat(begins - (np.cumsum(sizes) - sizes), sizes) + np.arange(len(rows))]
        return Picks(rows[places], visits[places])


def check_lengths(lengths: NDArray[np.integer[Any]]) -> None:
    """Raise UsageError for what is no array of whole numbers, one a sample."""
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or lengths.dtype == np.uint64:
        raise UsageError(
            f"lengths have shape {lengths.shape} and kind {lengths.dtype}",
            fix="Give one whole number for each sample, signed where it has 64 bits",
        )


def positions_of(number: int, window: int, samples: int) -> Rows:
    """The positions of a window, int64; the last one may be shorter."""
    return np.arange(number * window, min((number + 1) * window, samples), dtype=np.int64)


def shuffled_places(n: int, key: int) -> Rows:
    """The places 0 … n - 1 in random order, int64."""
    return permute(np.arange(n, dtype=np.int64), n, key)


def by_length(lengths: NDArray[np.integer[Any]]) -> Rows:
    """Places in the order of length, and of place where lengths are equal, int64."""
    bits = len(lengths).bit_length()
    # Sorting the two as one number is ten times as fast as a stable argsort.
    if len(lengths) and -(1 << 62 - bits) <= int(lengths.min()) and int(lengths.max()) < 1 << 62 - bits:
        both = (lengths.astype(np.int64) << bits) | np.arange(len(lengths), dtype=np.int64)
        both.sort()
        return both & ((1 << bits) - 1)
    return np.argsort(lengths, kind="stable").astype(np.int64, copy=False)
