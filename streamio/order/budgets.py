"""Batches by what they cost: at most so many padded tokens or pixels, of samples of similar length.

The order is cut into windows of some thousand positions, anchored at the beginning of the epoch. The samples of a
window are sorted by length and cut into batches, and the batches come in random order. A window is computed as a
whole, by every process that needs a batch of it: about 0.1 µs for each of its samples.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from heapq import heapify, heappop, heappush
from itertools import count, pairwise
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from streamio.errors import TailError, UsageError
from streamio.order.base import Order
from streamio.order.buckets import (
    WINDOW_SAMPLES,
    WINDOWS_KEPT,
    by_length,
    check_lengths,
    positions_of,
    shuffled_places,
)
from streamio.order.permutation import derive_key
from streamio.order.plan import BatchRows, Tail, check_count
from streamio.types import Rows

_COUNTED_SAMPLES = 1 << 24
"""Up to so many samples `BudgetPlan.steps` counts the batches, in two or three seconds."""

_BATCHES = 21  # which permutation a key is for


class _Window(NamedTuple):
    """The batches of one window.

    rows, visits: int64 (n,), from the longest sample to the shortest. A batch is a slice of them.
    begins:       int64 (batches,), where each batch begins there, in the order in which they come.
    edges:        int64 (batches + 1,), the positions between which each batch comes.
    """

    rows: Rows
    visits: NDArray[np.int64]
    begins: NDArray[np.int64]
    edges: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class BudgetPlan:
    """One epoch in batches that cost at most `budget` when padded: n samples x the longest of them.

    The samples of a window are cut into batches from the longest on. Seven samples, budget 12:

        lengths by position of `order`     5 9 1 7 2 4 3
        sorted and cut                     9 | 7 | 5 4 | 3 2 1
        as they come                       9 | 5 4 | 3 2 1 | 7
        "even" on 3 ranks, 2 steps         9, 5, 4 | 3 2, 1, 7

    Which batches there are and in which order does not depend on the ranks: step s on R ranks is the batches s x R
    to s x R + R - 1. So any number of ranks can take over after any step. Positions count samples, as in `Plan`,
    in the order in which the batches come.

    lengths:    whole numbers (rows of the set,); 0 counts as 1.
    budget:     tokens or pixels of a padded batch. A sample above it is an error before the first batch.
    batch_size: samples of a batch at most; None: as many as the budget allows.
    tail:       what becomes of the batches that do not fill a step:
                "even"  every sample once, every rank the same number of batches: the largest batches of the last
                        two steps are halved until there are enough;
                "drop"  they are left out of this epoch;
                "pad"   the last step is filled up with the first batches of the epoch, marked in `valid`.
    start:      positions done before, on whatever topology; the plan shares out the rest.
    window:     positions that are sorted together. `order`, `budget`, `batch_size`, `window`, `seed` and `epoch`
                make the batches: an epoch that is resumed with others is another epoch.

    Raises UsageError for values out of range and for samples above the budget (behind the first 2^24 samples of
    an order that leaves rows out, only when they come), and TailError where the last batches hold fewer samples
    than "even" needs (with more than 2^24 samples left, only when they come).
    """

    order: Order
    lengths: NDArray[np.integer[Any]]
    budget: int
    batch_size: int | None = None
    world_size: int = 1
    seed: int = 0
    epoch: int = 0
    tail: Tail = "even"
    start: int = 0
    window: int = WINDOW_SAMPLES

    def __post_init__(self) -> None:
        for name in ("budget", "world_size", "window"):
            check_count(name, getattr(self, name))
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size)
        if self.tail not in get_args(Tail):
            raise UsageError(f"tail={self.tail!r}", fix="Use 'even', 'drop' or 'pad'")
        if self.samples == 0:
            raise UsageError("the set has no samples", fix="Pack it again, or widen the selection")
        if not 0 <= self.start <= self.samples:
            raise UsageError(f"start={self.start:,} of {self.samples:,} samples")
        check_lengths(self.lengths)
        if self.lengths.max() > self.budget or self.lengths.min() < 0:
            self._refuse_lengths_that_come()
        if self.tail == "even" and self.left <= _COUNTED_SAMPLES and not self._end_is_large:
            _ = self._last_edges

    @property
    def samples(self) -> int:
        """Positions of the epoch."""
        return self.order.samples

    @property
    def left(self) -> int:
        """Positions from `start` on."""
        return self.samples - self.start

    @property
    def steps(self) -> int:
        """Batches that every rank gets. Counts all windows from `start` on: about 0.1 µs a sample, once.

        Raises TypeError for more than 2^24 samples, unless the epoch was iterated to its end before.
        """
        if self.left > _COUNTED_SAMPLES and self._windows_known < self._windows:
            raise TypeError(
                f"how many batches {self.left:,} samples make under a budget of {self.budget:,} is only known "
                f"after a pass over their lengths, made for up to {_COUNTED_SAMPLES:,}. Iterate without len()"
            )
        full, rest = divmod(self._batches, self.world_size)
        return full if self.tail == "drop" or rest == 0 else full + 1

    def state_at(self, steps: int) -> tuple[int, int]:
        """(epoch, start) of what is left after this many steps; the next epoch where nothing is.

        With as many ranks, a plan from there on makes the very batches that this one would.
        Cheap for the steps that were made last; the first time, all windows up to there are counted.
        """
        span = self._span(steps, 0) if steps >= 0 else None
        if span is not None:
            return self.epoch, span[0]
        if steps != self.steps:
            raise IndexError(f"{steps} steps done of {self.steps}")
        return self.epoch + 1, 0

    def rows(self, step: int, rank: int) -> Rows:
        """The rows of one batch, int64 (n,)."""
        batch = self._batch(step, rank) if step >= 0 else None
        if batch is None:
            raise IndexError(f"step {step} of {self.steps}")
        return batch.rows

    def share(self, rank: int, worker: int = 0, workers: int = 1) -> Iterator[BatchRows]:
        """The batches that one of a rank's workers makes: every `workers`-th step. Never needs `steps`."""
        for step in count(worker, workers):
            batch = self._batch(step, rank)
            if batch is None:
                return
            yield batch

    def _batch(self, step: int, rank: int) -> BatchRows | None:
        if not 0 <= rank < self.world_size:
            raise IndexError(f"rank {rank} of {self.world_size}")
        span = self._span(step, rank)
        if span is None:
            return None
        start, stop = span
        window = self._window(start // self.window)
        batch = int(np.searchsorted(window.edges, start, side="right")) - 1
        begin = int(window.begins[batch] - window.edges[batch]) + start
        here = slice(begin, begin + stop - start)
        real = step * self.world_size + rank < self._batches_known
        valid = np.full(stop - start, real) if self.tail == "pad" else None
        return BatchRows(step, window.rows[here].copy(), window.visits[here].copy(), valid, self.epoch)

    def _span(self, step: int, rank: int) -> tuple[int, int] | None:
        """Positions [start, stop) of one batch; None behind the last step."""
        batch = step * self.world_size
        if self._has(batch + self.world_size * (2 if self.tail == "even" else 1)):
            return self._edges_of(batch + rank)
        if step >= self.steps:  # all windows are counted by now
            return None
        edges = self._last_edges
        place = len(edges) - 1 - (self.steps - step) * self.world_size + rank
        if place >= 0:
            return edges[place], edges[place + 1]
        if batch + rank < self._batches:
            return self._edges_of(batch + rank)
        return self._first_again(batch + rank - self._batches)

    def _first_again(self, batch: int) -> tuple[int, int]:
        """A batch from the beginning of the epoch, round and round."""
        whole = self if self.start == 0 else replace(self, start=0)
        return whole._edges_of(batch if whole._has(batch + 1) else batch % whole._batches)

    @cached_property
    def _last_edges(self) -> list[int]:
        """Edges of the batches of the last steps, two or the only one, where these share an odd rest; else none."""
        full, rest = divmod(self._batches, self.world_size)
        if self.tail != "even" or rest == 0:
            return []
        steps = min(full + 1, 2)
        first = self._batches - rest - (steps - 1) * self.world_size
        edges = [self._edges_of(batch)[0] for batch in range(first, self._batches)] + [self.samples]
        if self.samples - edges[0] < steps * self.world_size:
            raise TailError(
                f"the last {self.samples - edges[0]:,} samples, in {len(edges) - 1} batches of up to "
                f"{self.budget:,}, cannot go once each to {self.world_size} ranks in equal numbers of batches",
                fix=f"Use tail='pad' (some samples twice, marked) or tail='drop' (leaves out "
                f"{self.samples - edges[-1 - rest]:,}), or a larger budget",
            )
        if steps == 1:
            return _halved(edges, self.world_size)
        # Each step is cut by itself, so that a plan which starts at the last one cuts it the same way.
        border = _halved(edges, 2 * self.world_size)[self.world_size]
        before = _halved([edge for edge in edges if edge < border] + [border], self.world_size)
        after = _halved([border] + [edge for edge in edges if edge > border], self.world_size)
        return before + after[1:]

    @property
    def _end_is_large(self) -> bool:
        """Whether "even" can be whatever the number of batches: the last R + 1 hold 2 R samples or more."""
        sizes: list[int] = []
        for number in reversed(range(self._first_window, self._windows)):
            sizes += np.diff(self._edges(number))[::-1].tolist()
            if len(sizes) > self.world_size:
                break
        return sum(sizes[: self.world_size + 1]) >= 2 * self.world_size

    # Batches are numbered from `start` on.

    def _edges_of(self, batch: int) -> tuple[int, int]:
        """Positions of a batch that `_has` has found."""
        found = range(self._first_window, self._windows_known)
        number = found[bisect_right(found, batch, key=self._ends.__getitem__)]
        edges = self._edges(number)
        place = batch - self._ends[number - 1]
        return int(edges[place]), int(edges[place + 1])

    def _has(self, batches: int) -> bool:
        """Whether there are so many from `start` on; counts as many windows as it takes to know."""
        number = self._windows_known
        while self._ends[number - 1] < batches and number < self._windows:
            self._ends[number] = self._ends[number - 1] + len(self._edges(number)) - 1
            number += 1
        return self._ends[number - 1] >= batches

    @property
    def _batches(self) -> int:
        """All from `start` on."""
        self._has(self.left + 1)
        return self._batches_known

    @property
    def _batches_known(self) -> int:
        return self._ends[self._windows_known - 1]

    @property
    def _windows_known(self) -> int:
        return self._first_window + len(self._ends) - 1

    @cached_property
    def _ends(self) -> dict[int, int]:
        """Window -> batches from `start` up to its end, for all windows that were counted."""
        return {self._first_window - 1: 0}

    @property
    def _first_window(self) -> int:
        return self.start // self.window

    @cached_property
    def _windows(self) -> int:
        return -(-self.samples // self.window)

    def _edges(self, number: int) -> NDArray[np.int64]:
        """Positions between which the batches of a window come, from `start` on."""
        edges = self._window(number).edges
        if edges[0] >= self.start:
            return edges
        return np.concatenate([np.array([self.start], np.int64), edges[edges > self.start]])

    @cached_property
    def _window(self) -> Callable[[int], _Window]:
        return lru_cache(WINDOWS_KEPT)(self._make_window)

    def _make_window(self, number: int) -> _Window:
        rows, visits = self.order(positions_of(number, self.window, self.samples))
        lengths = np.asarray(self.lengths)[rows].astype(np.int64)
        places = by_length(lengths)[::-1]
        rows, visits, lengths = rows[places], visits[places], lengths[places]
        self._refuse(lengths, rows)
        cuts = self._cut(lengths)
        coming = shuffled_places(len(cuts) - 1, derive_key(self.seed, self.epoch, _BATCHES, number))
        edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.diff(cuts)[coming])])
        return _Window(rows, visits, cuts[coming], edges + number * self.window)

    def _cut(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the batches begin among lengths that fall, and the end: each is as large as it may be."""
        cuts, at, most = [], 0, self.batch_size or len(lengths)
        while at < len(lengths):
            cuts.append(at)
            at += min(self.budget // max(int(lengths[at]), 1), most)
        return np.array([*cuts, len(lengths)], np.int64)

    def _refuse_lengths_that_come(self) -> None:
        """The set has lengths that no batch can hold: look whether the order leaves these rows out."""
        windows = range(self._first_window, self._windows)
        for number in windows[: -(-_COUNTED_SAMPLES // self.window)]:
            self._window(number)

    def _refuse(self, lengths: NDArray[np.int64], rows: Rows) -> None:
        """Raise UsageError unless these lengths, from the longest on, are known and within the budget."""
        if lengths[-1] < 0:
            raise UsageError(
                f"length {lengths[-1]}", fix="Leave out samples of unknown length with where=…", row=int(rows[-1])
            )
        if lengths[0] > self.budget:
            raise UsageError(
                f"length {lengths[0]:,}, and a batch may have {self.budget:,}",
                fix="Give a larger budget, leave such samples out with where=…, or pack them shorter",
                row=int(rows[0]),
            )


def _halved(edges: list[int], parts: int) -> list[int]:
    """Halve the largest part, the first of equal ones, until there are as many. They hold `parts` or more."""
    heap = [(start - stop, start, stop) for start, stop in pairwise(edges)]
    heapify(heap)
    while len(heap) < parts:
        _, start, stop = heappop(heap)
        middle = (start + stop + 1) // 2
        heappush(heap, (start - middle, start, middle))
        heappush(heap, (middle - stop, middle, stop))
    return [*sorted(start for _, start, _ in heap), edges[-1]]
