"""Batches whose rows are told to the table some at a time: for tables that pay for each question."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np

from streamio.order.plan import BatchRows
from streamio.types import Rows


@runtime_checkable
class Announced(Protocol):
    """A table that wants to know which rows come next."""

    @property
    def rows_at_once(self) -> int:
        """Rows that it likes to be told together."""
        ...

    def announce(self, rows: Rows) -> None:
        """These are gathered next, in parts."""
        ...


class Shared(Protocol):
    """What is asked of a plan here; see `streamio.stream.EpochPlan`."""

    @property
    def epoch(self) -> int: ...

    @property
    def steps(self) -> int: ...

    def share(self, rank: int, worker: int = 0, workers: int = 1) -> Iterator[BatchRows | None]: ...

    def state_at(self, steps: int) -> tuple[int, Any]: ...


class AnnouncedPlan:
    """A plan that tells a table the rows of the batches that a worker makes next. Else it is the plan itself.

    The first batch is announced alone, then twice as many batches each time, up to what the table likes: the first
    one should come soon.
    """

    def __init__(self, plan: Shared, table: Announced) -> None:
        self._plan, self._table = plan, table
        self.mark = getattr(plan, "mark", ())

    @property
    def epoch(self) -> int:
        return self._plan.epoch

    @property
    def steps(self) -> int:
        return self._plan.steps

    def state_at(self, steps: int) -> tuple[int, Any]:
        return self._plan.state_at(steps)

    def share(self, rank: int, worker: int = 0, workers: int = 1) -> Iterator[BatchRows | None]:
        coming, together = self._plan.share(rank, worker, workers), 1
        while some := self._some(coming, together):
            self._table.announce(np.concatenate([batch.rows for batch in some]))
            yield from some
            together *= 2

    def _some(self, coming: Iterator[BatchRows | None], together: int) -> list[BatchRows]:
        """The next batches: so many at most, of so many rows as the table likes, but one at least."""
        some: list[BatchRows] = []
        rows = 0
        while len(some) < together and (not some or rows + len(some[-1].rows) <= self._table.rows_at_once):
            batch = next(coming, None)
            if batch is None:
                break
            some.append(batch)
            rows += len(batch.rows)
        return some
