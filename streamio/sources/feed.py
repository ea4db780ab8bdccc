"""Rows of a source for a mixture: as many as its batches ask for, without an end, and where they came to.

An endless source waits for its rows. A bounded one begins anew when it has ended; each partition counts its
*visits*, as readers are through with theirs at different times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from streamio.errors import UsageError
from streamio.sources.base import Source, Work
from streamio.sources.collecting import Collector, Drop, Limits
from streamio.sources.epochs import EpochWork
from streamio.sources.held import Mark, Piece
from streamio.sources.state import SourceState, joined
from streamio.world import World

Marks = Sequence[tuple[int, Mark]]
"""What was read, in order: the visit, and where it came to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedState:
    """Where a source is in a mixture.

    place:  cursors of this rank; of a bounded source the partitions of all ranks.
    visits: how often a partition of a bounded one was read to its end.
    """

    place: SourceState
    visits: Mapping[str, int] = field(default_factory=dict)

    def after(self, marks: Marks) -> FeedState:
        """When the rows that these marks are of were delivered."""
        cursors, visits = dict(self.place.cursors), dict(self.visits)
        for visit, mark in marks:
            cursors |= mark.cursors
            for name in {*mark.ended, *mark.forget}:
                cursors.pop(name, None)
            if self.place.partitions is not None:
                visits |= dict.fromkeys(mark.ended, visit + 1)
        return FeedState(place=replace(self.place, cursors=cursors), visits=visits)

    def to_json(self) -> dict[str, Any]:
        starts = {one.name: one.start for one in self.place.partitions or ()}
        return {**self.place.to_json(), "visits": dict(self.visits), "starts": starts}

    @classmethod
    def from_json(cls, states: Sequence[Any]) -> FeedState:
        """Those of all ranks as one. Raises UsageError where they do not belong together."""
        place = joined(states)
        if place.partitions is not None:
            starts = states[0]["starts"]
            once = {one.name: replace(one, start=starts[one.name]) for one in place.partitions}
            place = replace(place, partitions=tuple(once.values()))
        return cls(place=place, visits={name: visit for one in states for name, visit in one["visits"].items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedWork:
    """What all readers are to read, where to go on, and in which visits."""

    work: EpochWork
    visits: Mapping[str, int]

    @classmethod
    def of(cls, source: Source, state: FeedState) -> FeedWork:
        """What is there now."""
        place = state.place
        partitions = source.partitions() if place.partitions is None else place.partitions
        if place.cursors:
            partitions = source.found_again(partitions, place.cursors)
        work = EpochWork.of(source, partitions, place.cursors, epoch=0, steps=1, world_size=1)
        return cls(work=work, visits=state.visits)

    def begun(self, source: Source, world: World) -> FeedState:
        """The state of a rank that begins with it."""
        partitions, cursors = self.work.partitions, self.work.cursors_of_rank(world)
        own = {one.name for one in self.work.of_rank(world)}
        place = SourceState(
            data=source.fingerprint, partitions=None if source.endless else partitions, cursors=cursors,
            rank=world.rank, world_size=world.world_size,
        )  # fmt: skip
        return FeedState(place=place, visits={name: v for name, v in self.visits.items() if name in own})

    def check(self, name: str, source: Source, world: World) -> None:
        """Raise UsageError where a reader would have nothing to read, and its batches would wait for ever."""
        readers, there = world.world_size * world.workers, len(self.work.partitions)
        if there >= readers or (source.endless and readers == 1):
            return
        if source.endless and not there:
            found = f"'{name}' finds its partitions while it is read, and {readers} workers may not all have one"
        else:
            found = f"'{name}' has {there} partitions, and {readers} workers of all ranks are to have one each"
        most = max(1, there // world.world_size)
        raise UsageError(found, fix=f"Give the loader num_workers={most} at most; threads= of it may be more")


class Fed(NamedTuple):
    """Rows that were asked for. pieces: they themselves, in order."""

    pieces: list[Piece]
    marks: list[tuple[int, Mark]]


class Feed:
    """The rows of one worker's share.

    drop: told chunks with bad rows, which are left out.
    """

    def __init__(self, name: str, source: Source, work: FeedWork, world: World, drop: Drop) -> None:
        self._name, self._source, self._drop = name, source, drop
        self._work, self._visits = work.work.of_worker(world, lambda: False), work.visits
        self._wanted = 0
        self._cuts = self._read()

    def take(self, rows: int) -> Iterator[Fed | None]:
        """So many rows, once they are there; None as long as they are not."""
        fed, left = Fed([], []), rows
        while left:
            self._wanted = left
            got = next(self._cuts)
            if got is None:
                yield None
                continue
            visit, (pieces, mark) = got
            fed.pieces.extend(pieces)
            fed.marks.append((visit, mark))
            left -= sum(piece.end - piece.begin for piece in pieces)
        yield fed

    def close(self) -> None:
        """Close the connections of the source."""
        self._cuts.close()

    def _read(self) -> Any:
        """(visit, the rows wanted, or what is left of the visit); None where nothing is there now."""
        endless = self._source.endless
        for visit, work, is_whole in self._parts():
            came = False
            with closing(self._source.read(work)) as chunks:  # type: ignore[type-var]
                limits = Limits(size=self._wanted, looks_ahead=not endless)
                collector = Collector(chunks, limits, self._drop, lambda: False)
                for batch in collector.batches():
                    came = came or batch is not None
                    yield None if batch is None else (visit, batch)
                    collector.resize(self._wanted)
            if endless:
                raise UsageError(f"'{self._name}' ended, and was to have no end", fix="Leave it out of the mixture")
            if is_whole and not came:
                raise UsageError(f"'{self._name}' has no rows for a worker", fix="Leave it out of the mixture")

    def _parts(self) -> Iterator[tuple[int, Work, bool]]:
        """(visit, what to read in it, whether that is all of it)."""
        if self._source.endless:
            yield 0, self._work, True
            return
        partitions = self._work.partitions
        visits = {one.name: self._visits.get(one.name, 0) for one, _ in partitions}
        cursors = {one.name: cursor for one, cursor in partitions if cursor is not None}
        while True:
            visit = min(visits.values())
            due = [(one, cursors.pop(one.name, one.start)) for one, _ in partitions if visits[one.name] == visit]
            yield visit, replace(self._work, partitions=due), len(due) == len(partitions)
            visits |= {one.name: visit + 1 for one, _ in due}
