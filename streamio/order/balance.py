"""Drawing: samples come by class or by weight, not once each. A function of the position, like every order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from streamio.errors import UsageError
from streamio.order.base import Picks
from streamio.order.columns import ColumnOf, Columns, column_of, fingerprint
from streamio.order.permutation import derive_key, permute, uniform
from streamio.order.shuffle import RowOrder
from streamio.types import Rows

How = Literal["even", "independent", "once"]

_WHICH, _ORDER = 4, 5  # which draw a key is for


@dataclass(frozen=True, kw_only=True)
class Draw:
    """How often each sample comes in an epoch: `ShardDataset(…, draw=Draw(classes="cls"))`.

    classes: column of whole numbers: all classes come equally often, and so do the samples of a class.
    weights: column of numbers of at least 0: samples come in proportion. Either this or `classes`.
             A column is the name of one (`streamio.open(path).columns`), a value for each sample, or a function of
             the columns.
    samples: how many an epoch has; None: as many as the set.
    how:     "even"         each sample comes samples x weight / sum times, rounded up or down; a class likewise;
             "independent"  each draw for itself, with replacement, as torch's WeightedRandomSampler;
             "once"         no sample twice: a draw without replacement, in random order.

    Needs 8 to 24 bytes a sample in each process, and "once" sorts them at the beginning of an epoch.
    """

    classes: ColumnOf | None = None
    weights: ColumnOf | None = None
    samples: int | None = None
    how: How = "even"

    def __post_init__(self) -> None:
        if (self.classes is None) == (self.weights is None):
            raise UsageError("a draw goes by classes or by weights", fix="Give classes=… or weights=…, one of them")
        if self.how not in get_args(How):
            raise UsageError(f"how={self.how!r}", fix="Use 'even', 'independent' or 'once'")
        if self.samples is not None and (not isinstance(self.samples, int) or self.samples < 1):
            raise UsageError(f"samples={self.samples!r}", fix="Give a whole number of at least 1, or None")

    def of(self, columns: Columns, samples: int) -> Lots:
        """The draw over a set with these columns. Raises UsageError for columns that cannot be drawn by."""
        if self.classes is not None:
            classes = column_of("classes", self.classes, columns, samples)
            grouped, weights = _class_weights(classes)
        else:
            assert self.weights is not None
            grouped, weights = None, column_of("weights", self.weights, columns, samples).astype(np.float64)
        if not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
            raise UsageError("weights must be finite, at least 0, and not all 0", fix="Look at the column")
        count = samples if self.samples is None else self.samples
        possible = int(np.count_nonzero(weights))
        if self.how == "once" and count > possible:
            raise UsageError(
                f"draws {count:,} samples without replacement, {possible:,} have a weight above 0",
                fix="Give samples= of at most that, or how='even'",
            )
        return Lots(grouped, weights, count, self.how)


class Lots:
    """A draw over a set.

    rows:    int64 (N,), the rows in the order of `weights`; None: as they are stored.
    weights: float64 (N,).
    """

    def __init__(self, rows: Rows | None, weights: NDArray[np.float64], samples: int, how: How) -> None:
        self.samples, self.how = samples, how
        self.rows, self.weights = rows, weights
        self.fingerprint = fingerprint(weights, rows if rows is not None else "", samples, how)
        self._sums = np.cumsum(weights)

    def order(self, seed: int, epoch: int) -> DrawOrder:
        """The draw of one epoch."""
        make: Callable[[int], RowOrder] = {
            "even": self._even, "independent": self._independent, "once": self._once
        }[self.how]  # fmt: skip
        mixed = derive_key(seed, epoch, _ORDER)
        drawn = make(derive_key(seed, epoch, _WHICH))

        def rows(positions: Rows) -> Rows:
            places = drawn(permute(positions, self.samples, mixed))
            return places if self.rows is None else self.rows[places]

        return DrawOrder(self.samples, epoch, rows)

    def at(self, shares: NDArray[np.float64]) -> Rows:
        """The rows at these shares, in [0, 1), of all weights end to end: one draw each, with replacement."""
        places = self._place(shares * self._sums[-1])
        return places if self.rows is None else self.rows[places]

    @property
    def possible(self) -> Rows:
        """The rows that have a weight above 0, int64."""
        places = np.flatnonzero(self.weights)
        return places if self.rows is None else self.rows[places]

    def _even(self, key: int) -> RowOrder:
        """A comb of evenly spaced points over the weights end to end, with a random start ("systematic sampling").

        Weights 2 1 1 and 8 draws: the points are 1/2 apart, and 4, 2 and 2 of them fall on the three samples.
        """
        start = float(uniform(np.zeros(1, np.int64), key)[0])
        spacing = self._sums[-1] / self.samples
        return lambda draws: self._place((draws + start) * spacing)

    def _independent(self, key: int) -> RowOrder:
        return lambda draws: self._place(uniform(draws, key) * self._sums[-1])

    def _once(self, key: int) -> RowOrder:
        """The samples with the least waiting times, exponential with rate `weight` (Efraimidis and Spirakis,
        "Weighted random sampling with a reservoir", Information Processing Letters 97, 2006)."""
        some = np.flatnonzero(self.weights)
        waits = -np.log1p(-uniform(some, key)) / self.weights[some]
        first = some[np.argsort(waits, kind="stable")[: self.samples]]
        return lambda draws: first[draws]

    def _place(self, points: NDArray[np.float64]) -> Rows:
        # The last sum may be missed by rounding, and samples of weight 0 behind it must not come.
        last = int(np.searchsorted(self._sums, self._sums[-1], side="left"))
        places: Rows = np.minimum(np.searchsorted(self._sums, points, side="right"), last)
        return places


class DrawOrder:
    """An `Order` that is drawn. Each draw is a visit of its own: a sample that comes twice is augmented twice."""

    def __init__(self, samples: int, epoch: int, rows: RowOrder) -> None:
        self.samples, self._first, self._rows = samples, epoch * samples, rows

    def __call__(self, positions: Rows) -> Picks:
        return Picks(self._rows(positions), self._first + positions)


def _class_weights(classes: NDArray[np.generic]) -> tuple[Rows, NDArray[np.float64]]:
    """Rows grouped by class, and weights that give each class the same sum."""
    if classes.dtype.kind not in "biu":
        raise UsageError(f"classes are {classes.dtype}", fix="Give whole numbers, or draw by weights=…")
    rows = np.argsort(classes, kind="stable").astype(np.int64, copy=False)
    counts = np.unique(classes, return_counts=True)[1]
    return rows, np.repeat(1 / counts, counts)
