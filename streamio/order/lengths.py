"""Buckets: what a user says about lengths, and what becomes of it over a set: a plan for each epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamio.errors import UsageError
from streamio.order.base import Order
from streamio.order.buckets import WINDOW_SAMPLES, BucketOrder, default_window
from streamio.order.budgets import BudgetPlan
from streamio.order.columns import ColumnOf, Columns, column_of, fingerprint
from streamio.order.plan import Plan, Tail, check_count


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """Batches of samples of similar length: `ShardDataset(…, buckets=Buckets(lengths="txt.bytes"))`.

    The order of the epoch is cut into windows; the samples of a window are sorted by length and cut into batches,
    which come in random order. Everything else that the order promises holds.

    lengths:    one whole number for each sample: the name of a column (`streamio.open(path).columns`; `x.bytes` is
                the stored size of field x), a value for each sample, or a function of the columns. For
                `max_pixels` it may be the name of a picture field: width x height.
    max_tokens: what a batch may cost: its number of samples times the longest of them. `batch_size` is then the
                most samples of a batch, or None.
    max_pixels: the same, in pixels. Bounds what padding to the largest height and width costs only as far as
                pictures have similar proportions.
    window:     samples that are sorted together; None: 16,384, and at least 100 global batches. Larger ones leave
                less padding, and put samples of one length closer together.
    """

    lengths: ColumnOf
    max_tokens: int | None = None
    max_pixels: int | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_pixels is not None:
            raise UsageError("max_tokens and max_pixels are both given", fix="Give one of them, or none")
        for name in ("max_tokens", "max_pixels", "window"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))

    @property
    def budget(self) -> int | None:
        """What a batch may cost; None where it has a fixed number of samples."""
        return self.max_pixels if self.max_tokens is None else self.max_tokens

    def of(self, columns: Columns, samples: int) -> Bucketing:
        """Over a set with these columns. Raises UsageError for columns that are no lengths."""
        wanted = self.lengths
        if self.max_pixels is not None and isinstance(wanted, str) and f"{wanted}.width" in columns:
            values = columns[f"{wanted}.width"] * columns[f"{wanted}.height"]
        else:
            values = column_of("lengths", wanted, columns, samples)
        if values.dtype.kind not in "iu":
            raise UsageError(f"lengths are {values.dtype}", fix="Give whole numbers")
        if len(values) and int(values.min()) < 0:
            row = int(values.argmin())
            raise UsageError(
                f"row {row} has the length {values[row]}: it is not known, or the sample has no such field",
                fix="Leave such samples out with where(…), or give lengths of your own",
            )
        return Bucketing(self, values.astype(np.int64, copy=False))


class Bucketing:
    """Buckets over a set. lengths: int64 (N,)."""

    def __init__(self, buckets: Buckets, lengths: NDArray[np.int64]) -> None:
        self.budget, self.lengths, self._window = buckets.budget, lengths, buckets.window
        self.fingerprint = fingerprint(lengths)
        self._mean = max(1.0, float(lengths.mean())) if len(lengths) else 1.0

    def facts(self, batch_size: int | None) -> dict[str, int | str]:
        """What a state must know again."""
        if self.budget is None:
            return {"lengths": self.fingerprint}
        window = self._window or WINDOW_SAMPLES
        return {"lengths": self.fingerprint, "budget": self.budget, "batch_size": batch_size or 0, "window": window}

    def samples_of_a_batch(self, batch_size: int | None) -> int:
        """About how many."""
        fit = batch_size if self.budget is None else max(1, int(self.budget / self._mean))
        return min(n for n in (fit, batch_size) if n is not None)

    def plan(
        self, order: Order, *, batch_size: int | None, world_size: int, seed: int, epoch: int, tail: Tail,
        start: tuple[int, ...],
    ) -> Plan | BudgetPlan:  # fmt: skip
        """The plan of one epoch. start: () or (position,), and with batches of a fixed size the run and the window
        of the epoch, which it keeps on other numbers of ranks."""
        position = start[0] if start else 0
        if self.budget is not None:
            return BudgetPlan(
                order=order, lengths=self.lengths, budget=self.budget, batch_size=batch_size, world_size=world_size,
                seed=seed, epoch=epoch, tail=tail, start=position, window=self._window or WINDOW_SAMPLES,
            )  # fmt: skip
        assert batch_size is not None
        run, window = start[1:] or (batch_size * world_size, None)
        if window is None:
            window = default_window(run) if self._window is None else max(1, self._window // run) * run
        buckets = BucketOrder(order, self.lengths, run, window, seed=seed, epoch=epoch)
        return Plan(
            order=buckets, batch_size=batch_size, world_size=world_size, epoch=epoch, tail=tail, start=position,
            mark=(run, window),
        )  # fmt: skip


def check_batch_size(batch_size: Any, buckets: Buckets | None) -> None:
    """Raise UsageError for no batch size where there is no budget either."""
    if batch_size is None and (buckets is None or buckets.budget is None):
        raise UsageError("batch_size=None", fix="Give a number of samples, or Buckets(max_tokens=…)")
    if batch_size is not None:
        check_count("batch_size", batch_size)
