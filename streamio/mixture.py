"""Mixture: batches of several data sets, each with its share; an order over all, and no second way to read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import FrameType
from typing import Any, Literal, TypeAlias

import numpy as np

from streamio.batching.declared import Collate, as_function
from streamio.batching.delivery import Delivery
from streamio.batching.joining import Joiner
from streamio.batching.options import check_choice, check_values
from streamio.batching.picked import SOURCE, VALID, Picked
from streamio.batching.sharing import Parts, common_joiner, in_places, join_bundle, join_fields, join_samples
from streamio.batching.stages import Count
from streamio.callers import refuse_replay
from streamio.dataset import ShardDataset
from streamio.errors import UsageError
from streamio.order.bundles import Bundle, joined, spans
from streamio.order.columns import fingerprint
from streamio.order.mixing import Anchor, MixtureOrder, Schedule, Stop, Weights, length, shares
from streamio.order.mixplan import MixturePlan, Place
from streamio.order.plan import BatchRows, Plan, Tail, check_count
from streamio.order.state import Facts, State
from streamio.sources.dataset import SourceDataset
from streamio.sources.feed import FeedWork
from streamio.sources.held import Marked
from streamio.sources.members import DrawnBatch, MixtureStart, SourceMember, SourceMembers
from streamio.stream import BatchStream, EpochPlan, EpochStart, Start, given_ranks
from streamio.types import Alloc, Rows, new_array
from streamio.world import World

_ENDLESS = 1 << 62

Member: TypeAlias = ShardDataset | SourceMember
Sets: TypeAlias = Mapping[str, tuple[ShardDataset | SourceDataset, float]]


class Mixture(BatchStream):
    """Batches of several data sets, each with its share, in an order that is arithmetic.

        mix = Mixture({"web": (web, 0.7), "code": (code, 0.3)}, 256)
        for batch in StreamLoader(mix):
            batch["__source__"]                  # int64 (256,): 0 where the sample is of "web", 1 of "code"

    In every 1,000 samples the number of each set is its share, rounded up or down; any few samples on end come
    close to it too. Each set goes through its own epochs in its own order: nothing of
    it comes twice before all of it came. Epochs of the mixture continue: the next one goes on where each set is.

    Sets may be sources too, with stop="never" or a number: then a sample of theirs is the next row of the worker
    that makes the batch. An endless one waits for its rows; one with an end begins anew behind it. Each worker
    needs a partition of each. Their cursors are in the state, and with several ranks all states are needed, as for
    a source alone (`streamio.gather_states`).

    sets:       name -> (ShardDataset, or one over a source, and weight). A set brings its fields, decode, prepare,
                transform, cache, shuffle, seed and error policy; batch_size, tail and ranks are those of the
                mixture. Weights are taken to a millionth.
    batch_size: samples of one batch on one rank.
    weights:    function of the step (global batches so far, over all epochs) that gives one weight for each set,
                in the place of those in `sets`; asked for every 1,000 draws.
    batches:    "mixed": samples of all sets in each batch; they need the same fields. "single": each batch, on all
                ranks of a step, of one set; fields may differ. The shares then hold for batches.
    stop:       when an epoch ends: "all" sets gave all of their samples; "first": before any set would repeat one;
                a number of samples; "never": one epoch without end.
    tail:       as in `ShardDataset`; for "single" an epoch has whole batches only.
    collate:    as in `ShardDataset`. A declaration may be that of the sets instead, if all have the same one.
    batch_transform: function of a batch, as in `ShardDataset`. For "single" the sets have their own.

    Weights, `batches`, batch size, ranks and workers may change on resume: each set goes on at its next sample.
    Only the sets and what makes their orders must be the same.

    Raises UsageError for sets that do not go together, before the first batch.
    """

    def __init__(
        self,
        sets: Sets,
        batch_size: int,
        *,
        weights: Callable[[int], Sequence[float]] | None = None,
        batches: Literal["mixed", "single"] = "mixed",
        stop: Literal["all", "first", "never"] | int = "all",
        tail: Tail = "even",
        collate: Collate | None = None,
        batch_transform: Callable[..., Any] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self.sets, constant = _parts(sets)
        check_count("batch_size", batch_size)
        check_choice("batches", batches, ("mixed", "single"))
        check_choice("tail", tail, ("even", "drop", "pad"))
        if isinstance(stop, str):
            check_choice("stop", stop, ("all", "first", "never"))
        else:
            check_count("stop", stop)
        check_values(seed=0, max_pixels=1, weights=weights, collate=as_function(collate))
        members = list(self.sets.values())
        super().__init__(seed=members[0].ordering.seed, ranks=given_ranks(rank, world_size))
        self.batch_size, self.batches, self.stop, self.tail = batch_size, batches, stop, tail
        self._weights: Weights = constant if weights is None else weights
        self._sources = SourceMembers({i: one for i, one in enumerate(members) if isinstance(one, SourceMember)})
        self.in_any_order, self.marks_batches = not self._sources, bool(self._sources)
        self._check_sources()
        self._joiner = _joiner(self.sets, collate) if batches == "mixed" else None
        for name, given in {"collate": collate, "batch_transform": batch_transform}.items():
            if batches == "single" and given is not None:
                raise UsageError(f"{name} with batches='single'", fix="Give it to the data sets")
        self._delivery = _delivery(self._joiner, batch_transform, self._seed, self._counts.add)
        if tail == "pad" and any(member.joiner.options.as_tuple for member in members):
            raise UsageError("tail='pad' needs batches that are dicts", fix="Leave out fields= of the data sets")
        ends = np.cumsum([int(member.table.sizes.sum()) for member in members])
        self._offsets = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        self._sizes = [member.ordering.samples(member.table.sizes) for member in members]
        self._plan(World(), 0, ())

    def _check_sources(self) -> None:
        """Raise UsageError for what needs an end that sources do not have."""
        if self._sources and self.stop in ("all", "first"):
            raise UsageError(
                f"stop={self.stop!r} of a mixture with sources, whose rows nobody has counted",
                fix='Use stop="never", or a number of samples',
            )
        if self._sources and self.tail == "pad":
            raise UsageError("tail='pad' of a mixture with sources, whose rows come once", fix="Use tail='even'")

    def _opened(self, source: Any) -> Any:
        return {name: (member.with_(), weight) for name, (member, weight) in source.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sets: `names[i]` is the one that `__source__` calls i."""
        return tuple(self.sets)

    def __len__(self) -> int:
        """Batches that each rank gets in the epoch to come; exact. TypeError with stop="never"."""
        if self.stop == "never":
            raise TypeError(
                "a mixture with stop='never' has no length: count steps, or give stop= a number of samples"
            )
        return super().__len__()

    def begin_epoch(self) -> EpochStart:
        """For a loader, in its main process: the next epoch begins, where its sources are."""
        at = super().begin_epoch()
        return self._sources.begin(at, self._ranks) if self._sources else at

    def share(
        self, at: EpochStart, *, worker: int = 0, workers: int = 1, first: int = 0
    ) -> Iterator[BatchRows | None]:
        """The steps of one worker; None where a source has no row for it yet."""
        world = World(rank=at.rank, world_size=at.world_size, worker=worker, workers=workers)
        works = at.works if isinstance(at, MixtureStart) else None
        return self._plan(world, at.epoch, at.start, works).share(at.rank, first + worker, workers)

    def _plan(
        self, world: World, epoch: int, start: Start, works: Mapping[int, FeedWork] | None = None
    ) -> EpochPlan:
        """works: what a loader said of the sources."""
        place = self._place(world, epoch, start)
        order = MixtureOrder(
            place.schedule, first=place.first, samples=place.end, sizes=self._sizes, offsets=self._offsets,
            orders=[member.order for member in self.sets.values()],
        )  # fmt: skip
        plan = Plan(
            order=order, batch_size=self.batch_size, world_size=world.world_size, epoch=epoch, tail=self.tail,
            start=place.position, fill_from=place.position,
        )  # fmt: skip

        def drawn(batches: Iterator[BatchRows], rank: int, worker: int, workers: int) -> Iterator[BatchRows | None]:
            if not self._sources:
                return batches
            reader = World(rank=rank, world_size=world.world_size, worker=worker, workers=workers)
            return self._sources.feed(batches, epoch, works, reader, self._sets_of)

        return MixturePlan(plan, place, self._end_of, drawn)

    def _sets_of(self, rows: Rows) -> Rows:
        """The set of each row, by its number."""
        return np.searchsorted(self._offsets, rows, side="right") - 1

    def _place(self, world: World, epoch: int, start: Start) -> Place:
        """Where an epoch is in the run: known from `start`, or from what was set last, or from the zero of the run.

        Epochs end where the stop rule says, so a later one is found by going through those before it.
        """
        last, words = self._epochs.last_set()
        if start:
            last, words = epoch, start
        elif not words or epoch < last:
            last, words = 0, ()
        anchor = Anchor.from_words(words[2:]) if words else None
        schedule = self._schedule(self.batch_size * world.world_size, anchor)
        at = Place(schedule, 0, 0, self._end_of(schedule, 0)) if anchor is None else Place.of(schedule, words)
        at = at.with_whole_draws()
        for _ in range(epoch - last):
            begin = at.first + at.end
            at = Place(schedule, begin, 0, self._end_of(schedule, begin)).with_whole_draws()
        return at

    def _schedule(self, step_samples: int, anchor: Anchor | None) -> Schedule:
        unit = step_samples if self.batches == "single" else 1
        return Schedule(len(self.sets), self._weights, unit=unit, samples_per_step=step_samples, anchor=anchor)

    def _end_of(self, schedule: Schedule, begin: int) -> int:
        """Samples of an epoch that begins after so many samples of the run."""
        if self.stop == "never":
            return _ENDLESS
        if not isinstance(self.stop, str):
            return int(self.stop)
        stop: Stop = self.stop
        found = length(stop, self._sizes, self._schedule(schedule.samples_per_step, schedule.anchor_at(begin)))
        assert found is not None
        return found

    def delivered(self, mark: Any) -> None:
        """For a loader: the loop got the batch that bears this."""
        self._sources.delivered(mark)

    def commit(self) -> None:
        """Tell the servers of all sources that can be told that what a `StreamLoader` gave to the loop was used."""
        if not self._sources.commit():
            super().commit()

    def state_at(self, batches: int, epoch: int | None = None) -> dict[str, Any]:
        """As for all data sets; with sources of the last batch that a `StreamLoader` gave, and with its cursors."""
        state = super().state_at(batches, epoch)
        return {**state, "sources": self._sources.to_json()} if self._sources else state

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Any], *, strict: bool = True) -> None:
        """As for all data sets. state: with sources and several ranks the list of those of all ranks."""
        if not self._sources:
            super().load_state_dict(state, strict=strict)  # type: ignore[arg-type]
            return
        states = [state] if isinstance(state, Mapping) else list(state)
        if not states or any("sources" not in one or one["start"] != states[0]["start"] for one in states):
            raise UsageError(
                "the states are not those of all ranks of a mixture with sources after one step",
                fix="Give what streamio.gather_states(loader) returned",
            )
        super().load_state_dict(states[0], strict=strict)
        self._sources.load([one["sources"] for one in states], epoch=self._epochs.next, strict=strict)

    def _check_caller(self, caller: FrameType) -> None:
        super()._check_caller(caller)
        if self._sources:
            refuse_replay(caller)

    def _check_start(self, saved: State) -> None:
        if len(saved.start) < 2:
            raise UsageError("the state is not that of a mixture", fix="Give what its state_dict() returned")
        self._plan(self._world(), saved.epoch, saved.start)

    def _facts(self) -> tuple[str, int, Facts]:
        members = self.sets.values()
        data = fingerprint(*[member.table.fingerprint for member in members])
        order = fingerprint(*[member.ordering.facts(member.lots) for member in members])
        return data, sum(self._sizes), {"sets": ", ".join(self.names), "orders": order}

    def _totals(self) -> dict[str, int]:
        """Those of all sets, too, which read their samples themselves."""
        parts = [super()._totals(), *(member._totals() for member in self.sets.values())]
        return {name: sum(part[name] for part in parts) for name in parts[0]}

    def batch_bytes(self) -> int:
        """About how much memory one batch takes, for deciding how many to make ahead."""
        return max(member.reader.sample_bytes for member in self.sets.values()) * self.batch_size

    def make_seeded(self, at: EpochStart, batch: BatchRows, alloc: Alloc = new_array) -> Any:
        """As for all data sets; with sources, with what the loader is to tell when it was delivered."""
        made = super().make_seeded(at, batch, alloc)
        return Marked(made, batch.mark) if isinstance(batch, DrawnBatch) else made

    def make_batch(self, batch: BatchRows, alloc: Alloc = new_array) -> Any:
        """The batch of these rows: each set reads its own, and they are joined in the order of the batch."""
        with self._sources.holding(batch, self._offsets):
            return self._made(batch, alloc)

    def _made(self, batch: BatchRows, alloc: Alloc) -> Any:
        source = self._sets_of(batch.rows)
        if self._joiner is None:
            number = int(source[0])
            own = batch._replace(rows=batch.rows - self._offsets[number])
            return self._member(number).make_batch(own, alloc, {SOURCE: source})
        join = join_samples if self._by_sample else join_fields
        return self._delivery(join(self._joiner, self._parts(batch, source), alloc, self._counts.add), batch)

    def _parts(self, batch: BatchRows, source: Rows) -> Parts:
        """Which set reads which samples of a batch. source: the set of each."""
        more: dict[str, Any] = {SOURCE: source}
        if batch.valid is not None:
            more[VALID] = batch.valid
        picked = in_places(Picked(batch.rows, batch.visits, more, batch.epoch))
        return [
            (self._member(number).reader, self._own(number, picked.take(np.flatnonzero(source == number))))
            for number in np.unique(source).tolist()
        ]

    @property
    def reads_bundles(self) -> bool:
        """Whether several batches can be read at once."""
        apart = self._joiner is None or bool(self._sources) or self.runs_user_code
        return not apart and all(member.reads_bundles for member in self.sets.values())

    def _read_bundle(self, bundle: Bundle, alloc: Alloc) -> list[Any] | None:
        assert self._joiner is not None
        whole = joined(bundle)
        parts = self._parts(whole, self._sets_of(whole.rows))
        made = join_bundle(self._joiner, parts, alloc, self._counts.add, spans(bundle))
        return made and [self._delivery(batch, rows) for batch, rows in zip(made, bundle, strict=True)]

    def _member(self, number: int) -> Member:
        return list(self.sets.values())[number]

    def _own(self, number: int, picked: Picked) -> Picked:
        """Rows of the mixture as those of the set."""
        return replace(picked, rows=picked.rows - self._offsets[number])

    @property
    def _by_sample(self) -> bool:
        assert self._joiner is not None
        by_sample = any(member.reader.options.by_sample for member in self.sets.values())
        return by_sample or self._joiner.options.collate is not None

    @cached_property
    def runs_user_code(self) -> bool:
        """Whether a function of the user's runs, which may draw from global generators."""
        collate = self._joiner is not None and self._joiner.options.collate is not None
        mine = collate or self._delivery.function is not None
        return mine or any(member.runs_user_code for member in self.sets.values())

    def _functions(self) -> dict[str, Any]:
        functions: dict[str, Any] = {"weights": self._weights if callable(self._weights) else None}
        functions["batch_transform"] = self._delivery.function
        if self._joiner is not None:
            functions["collate"] = self._joiner.options.collate
        for name, member in self.sets.items():
            functions |= {f"{name}: {what}": function for what, function in member._functions().items()}
        return functions

    def __repr__(self) -> str:
        return f"Mixture({', '.join(self.names)}, batch_size={self.batch_size}, stop={self.stop!r})"


def _parts(sets: Any) -> tuple[dict[str, Member], list[float]]:
    """Names with their sets, and the weights. Raises UsageError for what does not go into a mixture."""
    if not isinstance(sets, Mapping) or not sets:
        raise UsageError(f"sets={sets!r}", fix='Give {"name": (ShardDataset, weight), …}')
    members: dict[str, Member] = {}
    weights = []
    for name, pair in sets.items():
        is_pair = isinstance(pair, tuple | list) and len(pair) == 2
        if not is_pair or not isinstance(pair[0], ShardDataset | SourceDataset):
            raise UsageError(f"the set '{name}' is {pair!r}", fix="Give (data set, weight)")
        data, weight = pair
        member = SourceMember(name, data) if isinstance(data, SourceDataset) else data
        if member.ordering.lanes > 1:
            raise UsageError(
                f"the set '{name}' has {member.ordering.lanes} lanes", fix="Leave lanes= out in a mixture"
            )
        if member.buckets is not None:
            raise UsageError(f"the set '{name}' has buckets", fix="Leave buckets= out in a mixture")
        members[name] = member
        weights.append(weight)
    shares(weights)
    return members, weights


def _joiner(sets: Mapping[str, Member], collate: Collate | None) -> Joiner:
    """The one that joins samples of all sets. Raises UsageError where these want different things."""
    for name, member in sets.items():
        if member.delivery.function is not None:
            raise UsageError(
                f"the set '{name}' has a batch_transform= of its own", fix="Give batch_transform= to the Mixture"
            )
    return common_joiner({name: (member.reader, member.joiner) for name, member in sets.items()}, collate)


def _delivery(joiner: Joiner | None, function: Callable[..., Any] | None, seed: int, count: Count) -> Delivery:
    options = None if joiner is None else joiner.options
    names = options.fields if options is not None and options.as_tuple else None
    return Delivery(function, seed=seed, names=names, count=count)
