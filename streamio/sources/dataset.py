"""SourceDataset: batches from a source, from what is declared of its fields to tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any, Literal, TypedDict

import numpy as np

from streamio.batching.declared import Collate, added_fields, as_declaration, as_function, check_declaration
from streamio.batching.decode import FieldDecode
from streamio.batching.delivery import Delivery
from streamio.batching.failures import RAISED, SKIPPED, BadSample, BadSamples
from streamio.batching.joining import Joiner, choose_fields, read_batch
from streamio.batching.missing import WhenMissing, as_rules, check_rules
from streamio.batching.options import (
    JoinOptions,
    ReadOptions,
    check_choice,
    check_errors,
    check_values,
    report_path,
)
from streamio.batching.picked import ADDED, Picked
from streamio.batching.reading import SampleReader
from streamio.callers import refuse_replay
from streamio.codecs import MAX_PIXELS
from streamio.errors import UsageError
from streamio.order.plan import BatchRows, check_count
from streamio.order.state import Facts
from streamio.sources.base import Chunk, Source
from streamio.sources.epochs import Cuts, EpochWork, Pulse, SourcePlan, SourceStart
from streamio.sources.held import HeldRows, Mark, Marked, SourceBatch
from streamio.sources.state import SourceState, joined
from streamio.stream import EpochStart, ReadingStream, Start, given_ranks
from streamio.types import Alloc, Rows, new_array
from streamio.world import World, from_all_ranks, from_first_rank, this_worker


class SourceOptions(TypedDict, total=False):
    """Options of every source; see `SourceDataset`."""

    fields: Sequence[str] | None
    steps: int | None
    max_wait: float | None
    idle_timeout: float | None
    tail: Literal["even", "drop"]
    seed: int
    decode: FieldDecode | Mapping[str, FieldDecode]
    layout: Literal["hwc", "chw"]
    transform: Callable[..., Any] | None
    collate: Collate | None
    missing: Mapping[str, WhenMissing] | None
    batch_transform: Callable[..., Any] | None
    on_error: Literal["raise", "skip"]
    max_errors: int | float | None
    error_report: str | None
    max_pixels: int
    rank: int | None
    world_size: int | None


class SourceDataset(ReadingStream):
    """Streams a source as ready-made batches: the base of `LogDataset`, `SqlDataset`, `KafkaDataset` and others.

        ds = SourceDataset(MySource(…), 256)
        for batch in StreamLoader(ds, num_workers=4): ...

    Partitions are dealt to ranks and workers, so which rows share a batch depends on how many there are; each row
    comes once. What is drawn for a row is keyed by its place, and is the same everywhere. A state holds cursors,
    and may be loaded on any number of ranks and workers; with several ranks it is the list of the states of all
    (`streamio.gather_states`). Take it from a `StreamLoader`: a plain DataLoader has none.

    source:     see `streamio.Source`.
    batch_size: rows of one batch on one rank.
    fields:     a sequence of names: batches are tuples in this order (`"__key__"` is partition and place). None:
                batches are dicts of all fields and `"__key__"`.
    steps:      batches of an epoch on each rank. Needed for several ranks that read an endless source. A bounded
                one is counted first where there are several ranks and no steps, so that all make as many.
    max_wait:   seconds from the first row of a batch after which it is delivered although it is not full.
    idle_timeout: seconds without any row, in all workers, after which an epoch of an endless source ends.
    tail:       what becomes of a last batch of each worker that is not full: "even" keeps it, "drop" leaves it
                out.
    on_error:   "raise" or "skip" for rows that cannot be read or decoded; skipped ones are logged, counted and,
                with error_report=, listed.
    seed, decode, layout, transform, collate, missing, batch_transform, max_errors, error_report, max_pixels, rank,
    world_size: as for `ShardDataset`.

    Raises UsageError at construction for what cannot work, or before the first batch where that depends on the
    ranks.
    """

    in_any_order = False
    marks_batches = True

    def __init__(
        self,
        source: Source,
        batch_size: int,
        *,
        fields: Sequence[str] | None = None,
        steps: int | None = None,
        max_wait: float | None = None,
        idle_timeout: float | None = None,
        tail: Literal["even", "drop"] = "even",
        seed: int = 0,
        decode: FieldDecode | Mapping[str, FieldDecode] = None,
        layout: Literal["hwc", "chw"] = "hwc",
        transform: Callable[..., Any] | None = None,
        collate: Collate | None = None,
        missing: Mapping[str, WhenMissing] | None = None,
        batch_transform: Callable[..., Any] | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        max_errors: int | float | None = None,
        error_report: str | None = None,
        max_pixels: int = MAX_PIXELS,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        specs = {name: kind.spec(name) for name, kind in source.fields.items()}
        declared, rules = as_declaration(collate), as_rules(missing)
        added = added_fields(declared, rules)
        chosen, as_tuple = choose_fields(tuple(specs), fields, tail, added)
        stored = tuple(name for name in chosen if name not in added)
        check_rules(rules, tuple(specs), stored, makes_more=transform is not None)
        check_choice("layout", layout, ("hwc", "chw"))
        check_choice("tail", tail, ("even", "drop"))
        check_choice("on_error", on_error, ("raise", "skip"))
        check_errors(on_error, max_errors)
        check_values(seed=seed, max_pixels=max_pixels, transform=transform, collate=as_function(collate))
        check_count("batch_size", batch_size)
        if steps is not None:
            check_count("steps", steps)
        _check_seconds(max_wait=max_wait, idle_timeout=idle_timeout)
        super().__init__(seed=seed, ranks=given_ranks(rank, world_size))
        self.source, self.batch_size, self.steps, self.idle_timeout = source, batch_size, steps, idle_timeout
        self._cuts = Cuts(
            batch_size=batch_size, drop_rest=tail == "drop", max_wait=max_wait, idle_timeout=idle_timeout
        )
        self._held, self._pulse = HeldRows(specs, source.fingerprint), Pulse()
        self._progress = SourceState(data=source.fingerprint)
        self._used: dict[str, Any] = {}  # cursors that the loop has got to since the last commit
        read = ReadOptions(
            fields=stored, decode=decode, transform=transform, on_error=on_error, max_pixels=max_pixels,
            missing=rules, max_errors=max_errors,
            error_report=None if error_report is None else report_path(error_report),
        )  # fmt: skip
        self.reader = SampleReader(self._held, read, seed, self._counts.add, _NoStandIns())
        self._unread = _UnreadRows(read, self._counts.add)
        pictures = frozenset(name for name, decoder in self.reader.decoders.items() if decoder.is_picture)
        declared = check_declaration(
            declared, self.reader.decoders, missing=rules, asked=chosen if as_tuple else None,
            others=(*specs, *ADDED), has_transform=transform is not None,
        )  # fmt: skip
        join = JoinOptions(
            fields=chosen, as_tuple=as_tuple, layout=layout, collate=as_function(collate), declared=declared
        )
        self.joiner = Joiner(join, pictures)
        self.delivery = Delivery(
            batch_transform, seed=seed, names=chosen if as_tuple else None, count=self._counts.add
        )

    def __len__(self) -> int:
        """Batches that each rank gets in the epoch to come, with steps=. Raises TypeError without."""
        if self.steps is None:
            raise TypeError(f"a {type(self).__name__} has no length without steps=: it shows when it was read")
        progress = self._progress
        return max(0, self.steps - (progress.steps if progress.epoch == self._epochs.next else 0))

    @property
    def as_they_come(self) -> bool:  # type: ignore[override]
        """A worker whose partitions are silent holds up nobody; a bounded source has no silent ones."""
        return self.source.endless

    def begin_epoch(self) -> SourceStart:
        epoch, world = self._epochs.begin(), self._world()
        self._epochs.started(epoch)
        if self.source.endless and self._ranks is None:  # each knows where it is itself
            known = from_all_ranks(self._progress.cursors)
            self._progress = replace(self._progress, cursors={name: c for one in known for name, c in one.items()})
        work = from_first_rank(lambda: self._work(epoch, world), self._ranks)
        own = None if self.source.endless else work.of_rank(world)
        self._progress = SourceState(
            data=self._progress.data, epoch=epoch, partitions=own, cursors=work.cursors_of_rank(world),
            rank=world.rank, world_size=world.world_size,
            steps=self._progress.steps if self._progress.epoch == epoch else 0,
        )  # fmt: skip
        self._pulse.begin()
        return SourceStart(
            epoch=epoch, start=(), rank=world.rank, world_size=world.world_size, work=work, most=work.steps
        )

    def share(
        self, at: EpochStart, *, worker: int = 0, workers: int = 1, first: int = 0
    ) -> Iterator[BatchRows | None]:
        assert isinstance(at, SourceStart)
        world = World(rank=at.rank, world_size=at.world_size, worker=worker, workers=workers)
        return self._plan_on(world, at.work, alone=False).share(at.rank, worker, workers)

    def delivered(self, mark: Mark) -> None:
        """For a loader: the loop got the batch that bears this."""
        self._progress = self._progress.after(mark)
        self._used |= mark.cursors

    def epoch_ended(self) -> None:
        """For a loader: nothing of the epoch is left."""
        self._progress = self._progress.next_epoch(keeps_cursors=self.source.endless)

    def state_at(self, batches: int, epoch: int | None = None) -> dict[str, Any]:
        """Where the loop is, after the last batch that a `StreamLoader` gave it. batches, epoch: not needed.

        Cursors of this rank, by partition: JSON-able, as long as there are partitions.
        """
        progress = self._progress
        if progress.partitions == () or (self.steps is not None and progress.steps >= self.steps):
            progress = progress.next_epoch(keeps_cursors=self.source.endless)
        return progress.to_json()

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Any], *, strict: bool = True) -> None:
        """Go on where a state was taken, on any number of ranks and workers: every row that is left comes once.

        state: the one of a run on one rank, or the list of those of all its ranks. Raises UsageError for those of
        another source, unless `strict` is False, and where the state of a rank is missing.
        """
        saved = joined(state)
        if strict and saved.data != self.source.fingerprint:
            raise UsageError(
                f"the state was saved with data={saved.data!r}, here data is {self.source.fingerprint!r}",
                fix="Read the same source, or load it with strict=False to go on at these cursors anyway",
            )
        self._progress, self._used = saved, {}
        self._epochs.set(saved.epoch)

    def set_epoch(self, epoch: int) -> None:
        if epoch != self._epochs.next and not self.source.endless:
            self._progress = SourceState(data=self._progress.data, epoch=epoch)
        super().set_epoch(epoch)

    def stop(self) -> None:
        """End the epoch that runs, from any thread or signal handler: the loop gets what was read, and ends."""
        self._pulse.stop()

    def commit(self) -> None:
        """Tell the server that the rows of all batches which a `StreamLoader` gave to the loop were used."""
        used = dict(self._used)
        self.source.commit(used)
        self._used = {name: cursor for name, cursor in self._used.items() if cursor != used.get(name)}

    def _check_caller(self, caller: FrameType) -> None:
        super()._check_caller(caller)
        if self.source.endless:
            refuse_replay(caller)

    def _plan_of(self, epoch: int) -> SourcePlan:
        return self._plan(self._world(), epoch, ())  # a kept one would not know what was delivered since

    def _plan(self, world: World, epoch: int, start: Start) -> SourcePlan:
        """For a plain DataLoader, whose workers see what the data set knew when they were made."""
        if self.source.endless and this_worker() is not None and epoch != self._progress.epoch:
            raise UsageError(
                "a second epoch of an endless source in a DataLoader's worker, which has no cursors to go on from",
                fix="Use streamio.StreamLoader, or one epoch: leave steps= out",
            )
        return self._plan_on(world, self._work(epoch, world), alone=True)

    def _plan_on(self, world: World, work: EpochWork, *, alone: bool) -> SourcePlan:
        return SourcePlan(self.source, work, world, self._cuts, self._pulse, self._drop, alone=alone)

    def _work(self, epoch: int, world: World) -> EpochWork:
        """What is left of an epoch, here and now."""
        progress = self._progress
        goes_on = progress.epoch == epoch
        cursors = progress.cursors if goes_on or self.source.endless else {}
        if goes_on and progress.partitions is not None:
            partitions = self.source.found_again(progress.partitions, cursors)
        else:
            partitions = self.source.partitions()
            if self.source.endless and cursors:
                partitions = self.source.found_again(partitions, cursors)
        steps = None if self.steps is None else max(0, self.steps - (progress.steps if goes_on else 0))
        return EpochWork.of(self.source, partitions, cursors, epoch=epoch, steps=steps, world_size=world.world_size)

    def _drop(self, chunk: Chunk) -> None:
        self._unread.tell(chunk, self._epochs.next - 1)

    def _facts(self) -> tuple[str, int, Facts]:
        return self.source.fingerprint, 0, {"kind": "source", "seed": self._seed}

    def batch_bytes(self) -> int:
        """About how much memory one batch takes, for deciding how many to make ahead."""
        return self.reader.sample_bytes * self.batch_size

    def make_batch(self, batch: BatchRows, alloc: Alloc = new_array) -> Any:
        """The batch of these rows: decode, transform, collate."""
        assert isinstance(batch, SourceBatch)
        with self._held.holding(batch.pieces, batch.rows):
            picked = Picked(batch.rows, batch.visits, {}, batch.epoch)
            return self.delivery(read_batch(self.reader, self.joiner, picked, alloc), batch)

    def make_seeded(self, at: EpochStart, batch: BatchRows, alloc: Alloc = new_array) -> Marked:
        assert isinstance(batch, SourceBatch)
        return Marked(super().make_seeded(at, batch, alloc), batch.mark)

    def _functions(self) -> dict[str, Any]:
        return {"source": self.source, **super()._functions()}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.source!r}, batch_size={self.batch_size})"


def gather_states(loader: Any) -> list[dict[str, Any]]:
    """The states of all ranks, on every rank: what `load_state_dict` of a source wants where there are several.

    loader: a `StreamLoader`, or whatever has a `state_dict`. All ranks must call it; without torch.distributed it
    is a list of one.
    """
    return from_all_ranks(loader.state_dict())


class _UnreadRows:
    """Keeps the books of rows that could not even be read: they never come into a batch."""

    def __init__(self, options: ReadOptions, count: Callable[[str, int], None]) -> None:
        self._places: dict[int, tuple[str, Any]] = {}
        self._skip, self._keeps = options.on_error == "skip", options.max_errors is not None
        self._books = BadSamples(options, self._place, count)

    def _place(self, row: int) -> tuple[str, Any]:
        return self._places.get(row, ("", row))

    def tell(self, chunk: Chunk, epoch: int) -> None:
        """Raise the error of the first bad row, or count, log and report all."""
        rows = chunk.row_numbers()
        bad = []
        for index, error in sorted(chunk.bad.items()):
            row, place = int(rows[index]), chunk.place(index)
            self._places[row] = (chunk.partition, place)
            if "path" not in error.where:
                error.where = {"shard": chunk.partition, "row": place} | error.where
            bad.append(BadSample(index, row, f"{chunk.partition}:{place}", "", error))
        self._books.read(epoch, len(chunk))
        if not self._skip:
            self._books.found(epoch, bad[:1], RAISED)
            raise bad[0].error
        self._books.found(epoch, bad, SKIPPED)
        if not self._keeps:  # whose message names the first and the last
            self._places.clear()


class _NoStandIns:
    """A source has no other samples at hand."""

    def of(self, row: int, visit: int) -> Rows:
        return np.zeros(0, np.int64)


def _check_seconds(**options: Any) -> None:
    for name, value in options.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0):
            raise UsageError(f"{name}={value!r}", fix="Give seconds, more than 0, or None")
