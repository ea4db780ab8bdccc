"""Mixing: which of K sets each sample of a run comes from, as arithmetic of its position.

A *draw* gives one *unit* of samples to one set: one sample, or a global batch where each batch is of one set.
Draws come in windows of 1,000, in which each set has its share to one draw; `order/windows.py` says how.

    position --unit--> draw --window, pattern--> set, index in the set --its own epochs--> row
    Anchor   where the windows begin, and what each set has had: all that a checkpoint needs
    Schedule position -> set and index, from an anchor on
    length   samples of an epoch, by the stop rule
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from streamio.errors import UsageError
from streamio.order.base import Order, Picks
from streamio.order.windows import MILLION, WINDOW, Changing, Steady, Windows, cycle, extras_of, look_up, sets_of
from streamio.types import Rows

Weights: TypeAlias = Sequence[float] | NDArray[Any] | Callable[[int], Sequence[float]]
"""One number of any size for each set, or a function of the step that gives them (pure: it is asked again)."""

Stop: TypeAlias = Literal["all", "first"]

_MOST_DRAWS_CHANGING = 1_000_000_000
"""How far `length` looks under a function of the step: a million windows, one by one, take 10 to 30 seconds."""


def shares(weights: Sequence[float] | NDArray[Any]) -> NDArray[np.int64]:
    """The weights as millionths (K,) that sum to exactly 1,000,000, by largest remainder.

    Raises UsageError for what is no weight (negative, nan, inf, all zero, none at all), and for a positive one
    that would round to nothing.
    """
    found = _millionths(weights)
    for number, (weight, share) in enumerate(zip(weights, found, strict=True)):
        if weight > 0 and share == 0:
            raise UsageError(
                f"weight {weight} of set {number} is less than a millionth of all weights",
                fix="Give it more, or 0 to leave the set out",
            )
    return np.array(found, np.int64)


def _millionths(weights: Sequence[float] | NDArray[Any]) -> tuple[int, ...]:
    """Exact whatever the weights: floats are fractions of a power of two."""
    try:
        ratios = [float(weight).as_integer_ratio() for weight in weights]
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"weights {weights!r}: {error}", fix="Give one finite number for each set") from error
    scale = max((below for _, below in ratios), default=1)
    parts = [above * (scale // below) for above, below in ratios]
    total = sum(parts)
    if total == 0 or min(parts) < 0:
        raise UsageError(f"weights {weights!r}", fix="Give numbers of at least 0, one of them positive")
    found = [part * MILLION // total for part in parts]
    rests = [part * MILLION % total for part in parts]
    by_rest = sorted(range(len(parts)), key=lambda i: -rests[i])  # stable: of equal ones the first
    for i in by_rest[: MILLION - sum(found)]:
        found[i] += 1
    return tuple(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class Anchor:
    """Where a mixture is: enough to go on exactly, with the same weights or others. Travels in a checkpoint.

    unit:         samples of a draw.
    window_start: samples drawn in all when the window began in which the run is.
    window_step:  the step whose weights this window has.
    position:     samples drawn in all.
    step, step_start, samples_per_step: the step under way (steps done, where it has just begun), the position
                  where it began, and its samples; `step_start` may lie before or behind `window_start`.
    counts:       (K,) samples taken from each set at `window_start`; they sum to it.
    owed:         (K,) thousandths of a draw that each set is behind its share there; they sum to 0.
    kept:         (K,) the extra draw that each set had in the window before, -1 for none; see `order/windows.py`.
    shares:       (K,) millionths, of this window.
    """

    unit: int
    window_start: int
    window_step: int
    position: int
    step: int
    step_start: int
    samples_per_step: int
    counts: tuple[int, ...]
    owed: tuple[int, ...]
    kept: tuple[int, ...]
    shares: tuple[int, ...]

    def words(self) -> tuple[int, ...]:
        """The numbers to keep; `from_words` reads them. 7 + 4 K of them, under 1 KB of JSON for ten sets."""
        return (
            self.unit, self.window_start, self.window_step, self.position, self.step, self.step_start,
            self.samples_per_step, *self.counts, *self.owed, *self.kept, *self.shares,
        )  # fmt: skip

    @classmethod
    def from_words(cls, words: Sequence[int]) -> Anchor:
        """Raises UsageError for what `words` never gives."""
        count, rest = divmod(len(words) - 7, 4)
        whole = all(isinstance(word, int) and abs(word) < 1 << 63 for word in words)
        if not whole or rest or count < 1 or words[0] < 1 or words[6] < 1:
            raise _damaged(words)
        counts, owed, kept, of = (tuple(words[7 + part * count : 7 + (part + 1) * count]) for part in range(4))
        names = ("unit", "window_start", "window_step", "position", "step", "step_start", "samples_per_step")
        anchor = cls(**dict(zip(names, words, strict=False)), counts=counts, owed=owed, kept=kept, shares=of)
        window = range(anchor.window_start, anchor.window_start + WINDOW * anchor.unit)
        sums = (sum(counts), sum(owed), sum(of)) == (anchor.window_start, 0, MILLION)
        held = sorted(extra for extra in kept if extra != -1)
        extras = held == sorted(set(held)) and all(0 <= extra < count for extra in held)
        if not sums or not extras or min(*counts, *of, anchor.step) < 0 or anchor.position not in window:
            raise _damaged(words)
        return anchor

    def step_of(self, position: int) -> int:
        """The step that holds a position."""
        return self.step + (position - self.step_start) // self.samples_per_step

    def taken(self) -> tuple[int, ...]:
        """(K,) samples taken from each set at `position`."""
        draws, within = divmod(self.position - self.window_start, self.unit)
        sets = sets_of(self.shares, extras_of(self.owed, self.kept, self.shares))
        taken = np.bincount(sets[:draws], minlength=len(self.counts)) * self.unit
        taken[sets[draws]] += within
        return tuple((np.array(self.counts, np.int64) + taken).tolist())


def _damaged(words: object) -> UsageError:
    return UsageError(f"the state of a mixture is damaged: {words!r}", fix="Give what state_dict() returned")


class Schedule:
    """Which set every sample of a run comes from, and the how-manieth of that set it is.

    count:   K, sets.
    weights: constant, or a function of the step, which is asked for each window at the step where it begins.
             Shares of less than half a millionth are none then.
    unit:    samples of a draw: 1, or the global batch where each batch is of one set.
    samples_per_step: the global batch; it only counts the steps.
    anchor:  where to go on. With the same weights and unit, exactly as its maker would have. With others, windows
             begin anew at its position, and each set goes on at its own next sample.

    What holds, for constant weights: any 1,000 draws on end hold the share of each set, rounded up or down (those
    across a window where nothing is owed, the cycle's begin: one more at times); exact if shares are whole
    thousandths. Where windows meet, each set has had its share of all draws to within one draw. With a function,
    each window holds the shares of its own weights, and what is owed is carried from one to the next.

    Constant weights find any position at once; a function is walked through from the anchor, 10 to 30 µs a window.
    Used from any thread; pickles small.
    """

    def __init__(
        self,
        count: int,
        weights: Weights,
        *,
        unit: int = 1,
        samples_per_step: int = 1,
        anchor: Anchor | None = None,
    ) -> None:
        for name, value in (("count", count), ("unit", unit), ("samples_per_step", samples_per_step)):
            if value < 1:
                raise UsageError(f"{name}={value!r} in a mixture", fix="Give a whole number of at least 1")
        self.count, self.unit, self.samples_per_step = count, unit, samples_per_step
        self._weights = weights
        self._constant = None if callable(weights) else self._fitting(tuple(shares(weights).tolist()))
        self.anchor = self._start() if anchor is None else self._go_on(anchor)
        self._windows: Windows
        if self._constant is None:
            self._windows = Changing(self.anchor.owed, self.anchor.kept, self._shares_of_window)
        else:
            self._windows = Steady(self.anchor.shares, self.anchor.owed, self.anchor.kept)

    def __reduce__(self) -> tuple[Any, ...]:
        return _schedule, (self.count, self._weights, self.unit, self.samples_per_step, self.anchor)

    @property
    def changes(self) -> bool:
        """Whether the weights are a function."""
        return self._constant is None

    def locate(self, positions: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(set, index) of each position: the index counts the samples of that set since the run's zero.

        positions: int64 (n,), in any order, none before the anchor's. Ask for many at a time.
        """
        if positions.dtype != np.int64:
            raise TypeError(f"positions are {positions.dtype}, not int64")
        if len(positions) == 0:
            return positions.copy(), positions.copy()
        self._check_from(int(positions.min()))
        draws, within = np.divmod(positions - self.anchor.window_start, self.unit)
        sets, before = look_up(self._windows, *np.divmod(draws, WINDOW))
        return sets, np.array(self.anchor.counts, np.int64)[sets] + self.unit * before + within

    def anchor_at(self, position: int) -> Anchor:
        """Where the run is after so many samples in all."""
        self._check_from(position)
        a, position = self.anchor, int(position)
        window = (position - a.window_start) // (WINDOW * self.unit)
        found = self._windows.at(np.array([window], np.int64))
        steps = (position - a.step_start) // self.samples_per_step
        return replace(
            a, window_start=a.window_start + window * WINDOW * self.unit, window_step=self._step_of_window(window),
            position=position, step=a.step + steps, step_start=a.step_start + steps * self.samples_per_step,
            counts=tuple((np.array(a.counts, np.int64) + self.unit * found.before[0]).tolist()),
            owed=tuple(found.owed[0].tolist()), kept=tuple(found.kept[0].tolist()),
            shares=tuple(found.shares[0].tolist()),
        )  # fmt: skip

    def counts_at(self, position: int) -> NDArray[np.int64]:
        """(K,) samples taken from each set among the first `position` of the run."""
        return np.array(self.anchor_at(position).taken(), np.int64)

    def _check_from(self, position: int) -> None:
        if position < self.anchor.position:
            raise IndexError(f"position {position:,} lies before the anchor, at {self.anchor.position:,}")

    def _shares_at(self, step: int) -> tuple[int, ...]:
        if not callable(self._weights):
            assert self._constant is not None
            return self._constant
        try:
            return self._fitting(_millionths(self._weights(step)))
        except UsageError as error:
            raise UsageError(f"the schedule gives for step {step:,}: {error.found}", fix=error.fix) from error

    def _fitting(self, found: tuple[int, ...]) -> tuple[int, ...]:
        if len(found) != self.count:
            raise UsageError(f"{len(found)} weights for {self.count} sets", fix="Give one number for each set")
        return found

    def _shares_of_window(self, window: int) -> tuple[int, ...]:
        return self._shares_at(self._step_of_window(window)) if window else self.anchor.shares

    def _step_of_window(self, window: int) -> int:
        if window == 0:
            return self.anchor.window_step
        return self.anchor.step_of(self.anchor.window_start + window * WINDOW * self.unit)

    def _start(self) -> Anchor:
        nothing = (0,) * self.count
        return Anchor(
            unit=self.unit, window_start=0, window_step=0, position=0, step=0, step_start=0,
            samples_per_step=self.samples_per_step, counts=nothing, owed=nothing,
            kept=(-1,) * self.count, shares=self._shares_at(0),
        )  # fmt: skip

    def _go_on(self, anchor: Anchor) -> Anchor:
        if len(anchor.counts) != self.count:
            raise UsageError(
                f"the state is of a mixture of {len(anchor.counts)} sets, this one has {self.count}",
                fix="Mix the same sets in the same order; a weight of 0 leaves one out",
            )
        here = anchor.step_of(anchor.position)
        if anchor.samples_per_step != self.samples_per_step:
            anchor = replace(
                anchor, step=here, step_start=anchor.position, samples_per_step=self.samples_per_step
            )  # fmt: skip
        same = anchor.unit == self.unit and anchor.shares == self._shares_at(anchor.window_step)
        # What a function left owed may be no part of the cycle of constant weights.
        if same and (self.changes or cycle(anchor.shares, anchor.owed, anchor.kept).closes):
            return anchor
        return replace(
            anchor, unit=self.unit, window_start=anchor.position, window_step=here, counts=anchor.taken(),
            owed=(0,) * self.count, kept=(-1,) * self.count, shares=self._shares_at(here),
        )  # fmt: skip


def _schedule(count: int, weights: Weights, unit: int, samples_per_step: int, anchor: Anchor) -> Schedule:
    return Schedule(count, weights, unit=unit, samples_per_step=samples_per_step, anchor=anchor)


def length(stop: Stop | None, sizes: Sequence[int], schedule: Schedule) -> int | None:
    """Samples of one epoch of a mixture that begins at the schedule's anchor; it ends with a draw.

    stop:  "all": until each set (with a share) has given at least as many samples as it has;
           "first": as long as none has given more than it has, so before any sample repeats; 0 if a draw is more
           than a set has. None: endless.
    sizes: samples of each set.

    Raises UsageError where a set with a share has no samples, and, under a function of the step, where sets are
    not through after 10^9 draws.
    """
    if stop is None:
        return None
    if stop not in get_args(Stop):
        raise UsageError(f"stop={stop!r} in a mixture", fix="Use 'all', 'first' or None")
    wanted = _checked(sizes, schedule)
    a, unit = schedule.anchor, schedule.unit
    begun = schedule.counts_at(a.position)
    shared = np.ones(schedule.count, np.bool_) if schedule.changes else np.array(a.shares) > 0

    def ended(draws: int) -> bool:
        taken = schedule.counts_at(a.window_start + draws * unit) - begun
        return bool((taken > wanted).any() if stop == "first" else (taken >= wanted)[shared].all())

    first = -((a.window_start - a.position) // unit)
    draws = _least(ended, first, _MOST_DRAWS_CHANGING if schedule.changes else (1 << 61) // unit)
    end = a.window_start + (draws - (stop == "first")) * unit
    return max(0, end - a.position)


def _checked(wanted: Sequence[int], schedule: Schedule) -> NDArray[np.int64]:
    sizes = np.array(wanted, np.int64)
    if sizes.shape != (schedule.count,):
        raise UsageError(f"{sizes.size} sizes for {schedule.count} sets", fix="Give one for each set")
    for number in np.flatnonzero(sizes < 1).tolist():
        if schedule.changes or schedule.anchor.shares[number]:
            raise UsageError(f"set {number} has no samples, but a share", fix="Give it the weight 0")
    return sizes


def _least(holds: Callable[[int], bool], first: int, limit: int) -> int:
    """The least number from `first` on for which something holds that holds from there on."""
    span = 1
    while not holds(first + span):
        span *= 2
        if span > limit:
            raise UsageError(
                f"after {limit:,} draws not all sets of the mixture are through",
                fix="Give the sets larger weights, or the mixture a length",
            )
    return bisect_left(range(first + span), True, lo=first, key=holds)


class MixtureOrder:
    """One epoch of a mixture, as an `Order` over the rows of all sets end to end.

    schedule: of the run.
    first:    samples that the run drew before this epoch.
    samples:  of this epoch.
    sizes:    samples of one epoch of each set's own order.
    offsets:  (K,) the row of each set's first sample.
    orders:   for each set, own epoch -> its order. Sample i of a set is position i % size of its epoch i // size.
    """

    def __init__(
        self,
        schedule: Schedule,
        *,
        first: int,
        samples: int,
        sizes: Sequence[int],
        offsets: Sequence[int] | NDArray[np.int64],
        orders: Sequence[Callable[[int], Order]],
    ) -> None:
        self.samples = samples
        self._schedule, self._first = schedule, first
        self._sizes, self._offsets = [int(size) for size in sizes], [int(offset) for offset in offsets]
        # A batch lies in one or two epochs of a set; small sets have many.
        self._orders = [lru_cache(maxsize=4)(order_of) for order_of in orders]

    def __call__(self, positions: Rows) -> Picks:
        sets, indices = self._locate(positions)
        rows, visits = np.empty_like(positions), np.empty_like(positions)
        for number in np.unique(sets).tolist():
            here = np.flatnonzero(sets == number)
            epochs, places = np.divmod(indices[here], self._sizes[number])
            for epoch in np.unique(epochs).tolist():
                then = epochs == epoch
                picks = self._orders[number](epoch)(places[then])
                rows[here[then]] = picks.rows + self._offsets[number]
                visits[here[then]] = picks.visits
        return Picks(rows, visits)

    def sets_of(self, positions: Rows) -> NDArray[np.int64]:
        """The set of each position."""
        return self._locate(positions)[0]

    def _locate(self, positions: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if len(positions) and not 0 <= int(positions.min()) <= int(positions.max()) < self.samples:
            raise IndexError(f"positions {positions.min()} to {positions.max()} of {self.samples:,} samples")
        return self._schedule.locate(positions + self._first)
