"""One epoch of a source: what is left of it, who reads what, and the batches of one worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from streamio.errors import UsageError
from streamio.order.dealing import dealt, even_batches
from streamio.sources.base import Cursor, Partition, Share, Source, Work
from streamio.sources.collecting import Collector, Drop, Limits
from streamio.sources.held import SourceBatch
from streamio.stream import EpochStart
from streamio.world import World, shared


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochWork:
    """What is left of an epoch, for all readers.

    partitions: in the order in which they are dealt. cursors: where to go on in them, and all else that is known.
    steps:      batches that each rank has still to get; None: until all is read.
    counts:     rows that each partition has left, where several ranks are to make as many batches.
    """

    epoch: int
    partitions: tuple[Partition, ...]
    cursors: Mapping[str, Cursor] = field(default_factory=dict)
    steps: int | None = None
    counts: tuple[int, ...] | None = None

    @classmethod
    def of(
        cls, source: Source, partitions: Sequence[Partition], cursors: Mapping[str, Cursor], *, epoch: int,
        steps: int | None, world_size: int,
    ) -> EpochWork:  # fmt: skip
        """Raises UsageError where ranks would get unequal numbers of batches."""
        cursors = {**{one.name: one.start for one in partitions if one.start is not None}, **cursors}
        counts = None
        if world_size > 1 and steps is None:
            if source.endless:
                raise UsageError(
                    f"{world_size} ranks read what has no end, and would get unequal numbers of batches",
                    fix="Give steps=, the batches of an epoch on each rank",
                )
            counts = tuple(source.count(one, cursors.get(one.name)) for one in partitions)
        return cls(epoch=epoch, partitions=tuple(partitions), cursors=cursors, steps=steps, counts=counts)

    def of_rank(self, world: World) -> tuple[Partition, ...]:
        return self.partitions[world.rank :: world.world_size]

    def cursors_of_rank(self, world: World) -> dict[str, Cursor]:
        """Those that belong into the state of this rank: of its partitions, and its part of what nobody reads."""
        share = Share(world.rank, world.world_size)
        own, dealt = {one.name for one in self.of_rank(world)}, {one.name for one in self.partitions}
        return {
            name: cursor
            for name, cursor in self.cursors.items()
            if name in own or (name not in dealt and share.owns(name))
        }

    def of_worker(self, world: World, stopped: Callable[[], bool]) -> Work:
        mine = [self.partitions[i] for i in self._dealt(world, world.rank, world.worker)]
        return Work(
            partitions=[(one, self.cursors.get(one.name)) for one in mine], cursors=self.cursors, stopped=stopped,
            share=Share(world.rank + world.worker * world.world_size, world.world_size * world.workers),
        )  # fmt: skip

    def batches_of(self, world: World, batch_size: int) -> tuple[int, int] | None:
        """(batches, samples) of one worker, where that is fixed."""
        if self.counts is None:
            return None
        samples = [
            [sum(self.counts[i] for i in self._dealt(world, rank, worker)) for worker in range(world.workers)]
            for rank in range(world.world_size)
        ]
        return even_batches(samples, batch_size)[world.rank][world.worker], samples[world.rank][world.worker]

    def _dealt(self, world: World, rank: int, worker: int) -> range:
        return dealt(len(self.partitions), rank, world.world_size, worker, world.workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStart(EpochStart):
    """What a loader tells those who make its batches."""

    work: EpochWork


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """How the user wants batches cut; see `SourceDataset`."""

    batch_size: int
    drop_rest: bool = False
    max_wait: float | None = None
    idle_timeout: float | None = None


class Pulse:
    """When a row came last, in whatever worker, and whether the user wants the epoch to end."""

    def __init__(self) -> None:
        self._setup(shared(2))  # nanoseconds of the clock that all processes have; 1 when it is to end

    def _setup(self, cell: Any) -> None:
        self._cell, self._numbers = cell, cell.numpy()  # a tensor takes long to write one number to

    def begin(self) -> None:
        self._numbers[1] = 0
        self.beat()

    def beat(self) -> None:
        self._numbers[0] = time.monotonic_ns()

    def stop(self) -> None:
        self._numbers[1] = 1

    def stopped(self) -> bool:
        return bool(self._numbers[1])

    def silence(self) -> float:
        """Seconds since then."""
        return (time.monotonic_ns() - int(self._numbers[0])) / 1e9

    def __getstate__(self) -> dict[str, Any]:
        return {"_cell": self._cell}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Between processes torch hands over the shared cell; a plain copy gets its own.
        cell = state["_cell"]
        self._setup(cell if cell.is_shared() else cell.clone().share_memory_())


class SourcePlan:
    """One epoch on one topology. Its batches are read in order; who decodes them is left open.

    drop:  told chunks with bad rows.
    alone: whether nobody counts the batches of all workers, so that each takes its part of `steps`.
    """

    def __init__(
        self, source: Source, work: EpochWork, world: World, cuts: Cuts, pulse: Pulse, drop: Drop, *, alone: bool
    ) -> None:
        self.work, self.epoch, self._alone = work, work.epoch, alone
        self._source, self._world, self._cuts, self._pulse, self._drop = source, world, cuts, pulse, drop

    @property
    def steps(self) -> int:
        if self.work.steps is None:
            raise TypeError(
                f"a {type(self._source).__name__} has no length without steps=: it shows when it was read"
            )
        return self.work.steps

    def state_at(self, steps: int) -> tuple[int, Any]:
        raise UsageError(
            "where a source is does not follow from a number of batches",
            fix="Take loader.state_dict() of a StreamLoader, which has seen what each batch says",
        )

    def share(self, rank: int, worker: int = 0, workers: int = 1) -> Iterator[SourceBatch | None]:
        """The batches of one worker; None where none is there now."""
        world = replace(self._world, rank=rank, worker=worker, workers=workers)
        work = self.work.of_worker(world, self._pulse.stopped)
        quota, limits = self._limits(world)
        if quota == 0 or not (work.partitions or self._source.endless):
            return
        visit = 0 if self._source.endless else self.epoch
        self._pulse.beat()  # starting a worker is no silence
        with closing(self._source.read(work)) as chunks:  # type: ignore[type-var]
            made = 0
            for batch in Collector(chunks, limits, self._drop, self._is_over).batches():
                if batch is None:
                    yield None
                    continue
                self._pulse.beat()
                yield SourceBatch.of(made * workers + worker, self.epoch, visit, *batch)
                made += 1
                if made == quota:
                    return
        if limits.batches is not None and not self._pulse.stopped():
            raise UsageError(
                f"worker {worker} of rank {rank} has no more rows after {made:,} of {limits.batches:,} batches, "
                f"and the other ranks would wait: {limits.counted:,} rows were counted, and far fewer came",
                fix="Give steps=, the batches of an epoch on each rank",
            )

    def _limits(self, world: World) -> tuple[int | None, Limits]:
        """(batches that this worker makes at most, how they are cut)."""
        cuts = self._cuts
        fixed = self.work.batches_of(world, cuts.batch_size)
        limits = Limits(
            size=cuts.batch_size, max_wait=cuts.max_wait, looks_ahead=not self._source.endless,
            drop_rest=cuts.drop_rest,
        )  # fmt: skip
        if fixed is None and self.work.steps is not None and self._alone:
            return len(range(world.worker, self.work.steps, world.workers)), limits
        if fixed is None:
            return self.work.steps, limits
        batches, counted = fixed
        return batches, replace(limits, batches=batches, counted=counted, max_wait=None, drop_rest=False)

    def _is_over(self) -> bool:
        if self._pulse.stopped():
            return True
        limit = self._cuts.idle_timeout
        return limit is not None and self._pulse.silence() > limit
