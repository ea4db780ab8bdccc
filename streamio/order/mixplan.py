"""One epoch of a mixture: where it lies in the run, and its plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from streamio.errors import UsageError
from streamio.order.mixing import Schedule
from streamio.order.plan import BatchRows, Plan

Words = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """An epoch within the run. first: samples of the run before it; position, end: where in it, and its samples."""

    schedule: Schedule
    first: int
    position: int
    end: int

    @classmethod
    def of(cls, schedule: Schedule, words: Words) -> Place:
        """Where a state was taken. Raises UsageError for words that none has."""
        position, end = words[:2]
        if not 0 <= position <= end or position > schedule.anchor.position:
            raise UsageError(f"the state of a mixture is damaged: {words!r}", fix="Give what state_dict() returned")
        return cls(schedule, schedule.anchor.position - position, position, end)

    def with_whole_draws(self) -> Place:
        """The epoch without a rest that is less than a draw: where batches are of one set each, whole batches."""
        left = (self.end - self.position) // self.schedule.unit * self.schedule.unit
        return replace(self, end=self.position + left)


@dataclass(frozen=True, slots=True)
class MixturePlan:
    """The plan of one epoch of a mixture. Its starts hold position, samples of the epoch, the schedule's anchor.

    end_of: samples of an epoch that begins after so many samples of the run.
    drawn:  (batches, rank, worker, workers) -> these with what is not there yet, and has to be waited for.
    """

    plan: Plan
    place: Place
    end_of: Callable[[Schedule, int], int]
    drawn: Callable[[Iterator[BatchRows], int, int, int], Iterator[BatchRows | None]]

    @property
    def epoch(self) -> int:
        return self.plan.epoch

    @property
    def steps(self) -> int:
        return self.plan.steps

    def share(self, rank: int, worker: int = 0, workers: int = 1) -> Iterator[BatchRows | None]:
        return self.drawn(self.plan.share(rank, worker, workers), rank, worker, workers)

    def state_at(self, steps: int) -> tuple[int, Words]:
        epoch, position = self.plan.state_at(steps)
        schedule, end = self.place.schedule, self.place.end
        run = self.place.first + position
        if epoch != self.plan.epoch:
            run = self.place.first + end
            end = self.end_of(schedule, run)
        return epoch, (position, end, *schedule.anchor_at(run).words())
