"""Sources among the sets of a mixture: each stands there as a table whose rows come when batches ask for them.

The order of a mixture knows rows. A source has none, so it stands for 2^40 of them: sample number i that the
mixture takes of it is row i, whatever came. A worker draws what came for its batches (`DrawnBatch`), and while one
is made the source's reader finds it in those rows. So there is one order, and one way to read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamio.batching.joining import read_batch
from streamio.batching.picked import Picked
from streamio.errors import UsageError
from streamio.order.base import Order
from streamio.order.plan import BatchRows
from streamio.order.settings import OrderSettings
from streamio.sources.base import Source
from streamio.sources.dataset import SourceDataset
from streamio.sources.feed import Fed, Feed, FeedState, FeedWork, Marks
from streamio.sources.state import SourceState
from streamio.stream import EpochStart
from streamio.types import Alloc, Rows, new_array
from streamio.world import World, from_all_ranks, from_first_rank

ROWS = 1 << 40
"""That each source stands for."""


@dataclass(frozen=True)
class EndlessRows:
    """What the order of a mixture asks of a source."""

    fingerprint: str

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.array([ROWS], np.int64)


class SourceMember:
    """A `SourceDataset` as a set of a mixture: it has what the mixture asks a `ShardDataset` for."""

    buckets = lots = None
    reads_bundles = False

    def __init__(self, name: str, data: SourceDataset) -> None:
        given = {"steps": data.steps, "max_wait": data._cuts.max_wait, "idle_timeout": data.idle_timeout}
        for option, value in given.items():
            if value is not None:
                raise UsageError(
                    f"the set '{name}' has {option}={value}", fix=f"Leave {option}= out: the mixture waits for rows"
                )
        self.name, self.data, self.source = name, data, data.source
        self.reader, self.joiner, self.delivery = data.reader, data.joiner, data.delivery
        self.table = EndlessRows(data.source.fingerprint)
        self.ordering = OrderSettings(seed=data._seed)

    @property
    def runs_user_code(self) -> bool:
        return self.data.runs_user_code

    def order(self, epoch: int) -> Order:
        return self.ordering.order(self.table.sizes, epoch)

    def make_batch(
        self, batch: BatchRows, alloc: Alloc = new_array, more: Mapping[str, NDArray[Any]] | None = None
    ) -> Any:
        """As that of `ShardDataset`."""
        picked = Picked(batch.rows, batch.visits, more or {}, batch.epoch)
        return self.delivery(read_batch(self.reader, self.joiner, picked, alloc), batch)

    def feed(self, work: FeedWork, world: World) -> Feed:
        """Its rows for one worker."""
        work.check(self.name, self.source, world)
        return Feed(self.name, self.source, work, world, self.data._drop)

    def holding(self, fed: Fed, rows: Rows) -> AbstractContextManager[None]:
        """While it is entered, the reader finds in these rows of the mixture, in this thread, what came."""
        return self.data._held.holding(fed.pieces, rows)

    def _functions(self) -> dict[str, Any]:
        return self.data._functions()

    def _totals(self) -> dict[str, int]:
        return self.data._totals()


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureStart(EpochStart):
    """What a loader tells those who make the batches of a mixture with sources, by the numbers of these."""

    works: Mapping[int, FeedWork]


class DrawnBatch(BatchRows):
    """One batch of a mixture, with the rows of its sources.

    drawn: by number of the set. mark: what is to be told when it was delivered.
    """

    drawn: Mapping[int, Fed]

    @property
    def mark(self) -> Mapping[int, Marks]:
        return {number: fed.marks for number, fed in self.drawn.items()}


class SourceMembers:
    """The sources of a mixture, by their numbers among its sets, and where they are."""

    def __init__(self, members: Mapping[int, SourceMember]) -> None:
        self._members = dict(members)
        self._epoch = 0  # that a plain DataLoader may read: it tells nobody what it delivered
        self._states = {
            number: FeedState(place=SourceState(data=member.source.fingerprint))
            for number, member in self._members.items()
        }
        self._used: dict[int, dict[str, Any]] = {number: {} for number in self._members}  # since the last commit

    def __bool__(self) -> bool:
        return bool(self._members)

    def begin(self, at: EpochStart, ranks: tuple[int, int] | None) -> MixtureStart:
        """For a loader, in its main process: an epoch begins where the sources are."""
        if ranks is None and any(state.place.world_size > 1 for state in self._states.values()):
            # Each knows where it is itself.
            self._join(from_all_ranks(self.to_json()))
        works = from_first_rank(self._works, ranks)
        world = World(rank=at.rank, world_size=at.world_size)
        for number, work in works.items():
            self._states[number] = work.begun(self._members[number].source, world)
        return MixtureStart(
            epoch=at.epoch, start=at.start, rank=at.rank, world_size=at.world_size, most=at.most, works=works
        )

    def _works(self) -> dict[int, FeedWork]:
        return {number: FeedWork.of(one.source, self._states[number]) for number, one in self._members.items()}

    def feed(
        self, batches: Iterator[BatchRows], epoch: int, works: Mapping[int, FeedWork] | None, world: World,
        set_of: Callable[[Rows], NDArray[np.int64]],
    ) -> Iterator[DrawnBatch | None]:  # fmt: skip
        """The batches of one worker with the rows that it draws for them; None where those are not there yet.

        works: None for a plain DataLoader.
        """
        if works is None:
            if epoch != self._epoch:
                raise UsageError(
                    "a second epoch of a mixture with sources in a DataLoader, which has no cursors to go on from",
                    fix='Use streamio.StreamLoader, or one epoch with stop="never"',
                )
            works = self._works()
        with ExitStack() as stack:
            feeds: dict[int, Feed] = {}
            for number, member in self._members.items():
                feeds[number] = stack.enter_context(closing(member.feed(works[number], world)))
            for batch in batches:
                counts = np.bincount(set_of(batch.rows), minlength=max(feeds) + 1)
                drawn: dict[int, Fed] = {}
                for number, feed in feeds.items():
                    for fed in feed.take(int(counts[number])):
                        if fed is None:
                            yield None
                        else:
                            drawn[number] = fed
                made = DrawnBatch(*batch)
                made.drawn = drawn
                yield made

    @contextmanager
    def holding(self, batch: BatchRows, offsets: NDArray[np.int64]) -> Iterator[None]:
        """While the block runs, in this thread, the readers of the sources find the rows of the batch."""
        with ExitStack() as stack:
            if isinstance(batch, DrawnBatch):
                for number, fed in batch.drawn.items():
                    rows = batch.rows - offsets[number]
                    own = rows[(rows >= 0) & (rows < ROWS)]
                    stack.enter_context(self._members[number].holding(fed, own))
            yield

    def delivered(self, mark: Mapping[int, Marks]) -> None:
        """For a loader: the loop got the batch that bears this."""
        for number, marks in mark.items():
            self._states[number] = self._states[number].after(marks)
            for _, one in marks:
                self._used[number] |= one.cursors

    def commit(self) -> bool:
        """Tell the servers that what was delivered since the last time was used; whether there is one to tell."""
        told = [n for n, member in self._members.items() if type(member.source).commit is not Source.commit]
        for number in told:
            self._members[number].source.commit(self._used[number])
            self._used[number] = {}
        return bool(told)

    def to_json(self) -> dict[str, Any]:
        """Where they are on this rank, by name."""
        return {self._members[number].name: state.to_json() for number, state in self._states.items()}

    def load(self, states: Sequence[Mapping[str, Any]], *, epoch: int, strict: bool) -> None:
        """Go on where they were. states: what `to_json` gave on each rank. Raises UsageError for others."""
        before = self._states
        self._join(states)
        for number, member in self._members.items() if strict else ():
            saved = self._states[number].place.data
            if saved != member.source.fingerprint:
                self._states = before
                raise UsageError(
                    f"the state was saved with {saved!r} as '{member.name}', here it is "
                    f"{member.source.fingerprint!r}",
                    fix="Read the same source, or load it with strict=False to go on at these cursors anyway",
                )
        self._epoch = epoch
        self._used = {number: {} for number in self._members}

    def _join(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Know what all ranks know."""
        for member in self._members.values():
            if any(member.name not in state for state in states):
                raise UsageError(f"the state has no '{member.name}'", fix="Mix the same sets under the same names")
        self._states = {
            number: FeedState.from_json([state[member.name] for state in states])
            for number, member in self._members.items()
        }
