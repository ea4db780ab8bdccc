"""Mixture: batches of several data sets, each with its share; an order over all, and no second way to read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from streamio.batching.joining import Joiner, merge, refuse_empty
from streamio.batching.options import JoinOptions, check_choice, check_values
from streamio.batching.reading import KEY, SOURCE, VALID, Picked
from streamio.batching.tensors import as_tensors
from streamio.dataset import ShardDataset
from streamio.errors import UsageError
from streamio.order.columns import fingerprint
from streamio.order.mixing import Anchor, MixtureOrder, Schedule, Stop, Weights, length, shares
from streamio.order.plan import BatchRows, Plan, Tail, check_count
from streamio.order.state import Facts, State
from streamio.stream import BatchStream, EpochPlan, SampleCounts, Start, given_ranks
from streamio.types import Alloc, Rows, new_array
from streamio.world import World

_PLACE = "__place__"  # of a sample in its batch, until the parts are put together
_ENDLESS = 1 << 62


class Mixture(BatchStream):
    """Batches of several data sets, each with its share, in an order that is arithmetic.

        mix = Mixture({"web": (web, 0.7), "code": (code, 0.3)}, 256)
        for batch in StreamLoader(mix):
            batch["__source__"]                  # int64 (256,): 0 where the sample is of "web", 1 of "code"

    In every 1,000 samples the number of each set is its share, rounded up or down; any few samples on end come
    close to it too. Each set goes through its own epochs in its own order: nothing of
    it comes twice before all of it came. Epochs of the mixture continue: the next one goes on where each set is.

    sets:       name -> (ShardDataset, weight). A set brings its fields, decode, transform, shuffle, seed and error
                policy; batch_size, tail and ranks are those of the mixture. Weights are taken to a millionth.
    batch_size: samples of one batch on one rank.
    weights:    function of the step (global batches so far, over all epochs) that gives one weight for each set,
                in the place of those in `sets`; asked for every 1,000 draws.
    batches:    "mixed": samples of all sets in each batch; they need the same fields. "single": each batch, on all
                ranks of a step, of one set; fields may differ. The shares then hold for batches.
    stop:       when an epoch ends: "all" sets gave all of their samples; "first": before any set would repeat one;
                a number of samples; "never": one epoch without end.
    tail:       as in `ShardDataset`; for "single" an epoch has whole batches only.
    collate:    function of a list of samples, instead of joining them field by field.

    Weights, `batches`, batch size, ranks and workers may change on resume: each set goes on at its next sample.
    Only the sets and what makes their orders must be the same.

    Raises UsageError for sets that do not go together, before the first batch.
    """

    def __init__(
        self,
        sets: Mapping[str, tuple[ShardDataset, float]],
        batch_size: int,
        *,
        weights: Callable[[int], Sequence[float]] | None = None,
        batches: Literal["mixed", "single"] = "mixed",
        stop: Literal["all", "first", "never"] | int = "all",
        tail: Tail = "even",
        collate: Callable[[list[Any]], Any] | None = None,
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
        check_values(seed=0, max_pixels=1, transform=weights, collate=collate)
        members = list(self.sets.values())
        super().__init__(seed=members[0].ordering.seed, ranks=given_ranks(rank, world_size))
        self.batch_size, self.batches, self.stop, self.tail = batch_size, batches, stop, tail
        self._weights: Weights = constant if weights is None else weights
        self._joiner = _joiner(self.sets, collate) if batches == "mixed" else None
        if batches == "single" and collate is not None:
            raise UsageError("collate with batches='single'", fix="Give it to the data sets")
        if tail == "pad" and any(member.joiner.options.as_tuple for member in members):
            raise UsageError("tail='pad' needs batches that are dicts", fix="Leave out fields= of the data sets")
        ends = np.cumsum([int(member.table.sizes.sum()) for member in members])
        self._offsets = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        self._sizes = [member.ordering.samples(member.table.sizes) for member in members]
        self._plan(World(), 0, ())

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

    def _plan(self, world: World, epoch: int, start: Start) -> EpochPlan:
        place = self._place(world, epoch, start)
        order = MixtureOrder(
            place.schedule, first=place.first, samples=place.end, sizes=self._sizes, offsets=self._offsets,
            orders=[member.order for member in self.sets.values()],
        )  # fmt: skip
        plan = Plan(
            order=order, batch_size=self.batch_size, world_size=world.world_size, epoch=epoch, tail=self.tail,
            start=place.position, fill_from=place.position,
        )  # fmt: skip
        return _MixturePlan(plan, place, self._end_of)

    def _place(self, world: World, epoch: int, start: Start) -> _Place:
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
        at = _Place(schedule, 0, 0, self._end_of(schedule, 0)) if anchor is None else _place_of(schedule, words)
        at = at.with_whole_draws()
        for _ in range(epoch - last):
            begin = at.first + at.end
            at = _Place(schedule, begin, 0, self._end_of(schedule, begin)).with_whole_draws()
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

    def _check_start(self, saved: State) -> None:
        if len(saved.start) < 2:
            raise UsageError("the state is not that of a mixture", fix="Give what its state_dict() returned")
        self._plan(self._world(), saved.epoch, saved.start)

    def _facts(self) -> tuple[str, int, Facts]:
        members = self.sets.values()
        data = fingerprint(*[member.table.fingerprint for member in members])
        order = fingerprint(*[member.ordering.facts(member.lots) for member in members])
        return data, sum(self._sizes), {"sets": ", ".join(self.names), "orders": order}

    def statistics(self) -> SampleCounts:
        """How many samples of all sets were left out so far."""
        counts = [member.statistics() for member in self.sets.values()]
        return SampleCounts(skipped=sum(c.skipped for c in counts), dropped=sum(c.dropped for c in counts))

    def batch_bytes(self) -> int:
        """About how much memory one batch takes, for deciding how many to make ahead."""
        return max(member.reader.sample_bytes for member in self.sets.values()) * self.batch_size

    def make_batch(self, batch: BatchRows, alloc: Alloc = new_array) -> Any:
        """The batch of these rows: each set reads its own, and they are joined in the order of the batch."""
        source = np.searchsorted(self._offsets, batch.rows, side="right") - 1
        if self._joiner is None:
            number = int(source[0])
            rows = batch.rows - self._offsets[number]
            made = list(self.sets.values())[number].make_batch(batch._replace(rows=rows), alloc)
            return {**made, SOURCE: as_tensors(np.full(len(rows), number))} if isinstance(made, dict) else made
        more: dict[str, Any] = {_PLACE: np.arange(len(batch.rows)), SOURCE: source}
        if batch.valid is not None:
            more[VALID] = batch.valid
        picked = Picked(batch.rows, batch.visits, more)
        parts = [(number, picked.take(np.flatnonzero(source == number))) for number in np.unique(source).tolist()]
        if self._by_sample:
            return as_tensors(self._join_samples(self._joiner, parts, len(batch.rows), alloc))
        return as_tensors(self._join_fields(self._joiner, parts, len(batch.rows), alloc))

    def _join_fields(self, joiner: Joiner, parts: list[tuple[int, Picked]], asked: int, alloc: Alloc) -> Any:
        read = []
        for number, picked in parts:
            reader = self._member(number).reader
            read.append((reader, *reader.values(self._own(number, picked), new_array, joined=True)))
        places = _ranks([picked.more[_PLACE] for _, picked, _ in read])
        count = sum(map(len, places))
        refuse_empty(asked, count, next((r.last_failure for r, *_ in read if r.last_failure), None))

        def field(values: Sequence[Any]) -> Any:
            return merge(list(zip(places, values, strict=True)), count, alloc)

        keys = field([list(reader.keys(picked.rows)) for reader, picked, _ in read])
        more = {
            name: field([picked.more[name] for _, picked, _ in read]) for name in read[0][1].more if name != _PLACE
        }
        if KEY in joiner.options.fields:
            more[KEY] = keys
        merged = {name: field([values[name] for *_, values in read]) for name in read[0][2]}
        return joiner.fields(merged, keys, more, alloc)

    def _join_samples(self, joiner: Joiner, parts: list[tuple[int, Picked]], asked: int, alloc: Alloc) -> Any:
        made = [(self._member(n).reader, self._member(n).reader.samples(self._own(n, p))) for n, p in parts]
        places = _ranks([part.picked.more[_PLACE] for _, part in made])
        count = sum(map(len, places))
        refuse_empty(asked, count, next((r.last_failure for r, _ in made if r.last_failure), None))

        def field(values: Sequence[Any]) -> Any:
            return merge(list(zip(places, values, strict=True)), count, new_array)

        keys = field([list(reader.keys(part.picked.rows)) for reader, part in made])
        more = {name: field([part.picked.more[name] for _, part in made]) for name in (SOURCE, VALID)
                if name in made[0][1].picked.more}  # fmt: skip
        return joiner.samples(field([part.samples for _, part in made]), keys, more, alloc)

    def _member(self, number: int) -> ShardDataset:
        return list(self.sets.values())[number]

    def _own(self, number: int, picked: Picked) -> Picked:
        """Rows of the mixture as those of the set."""
        return Picked(picked.rows - self._offsets[number], picked.visits, picked.more)

    @property
    def _by_sample(self) -> bool:
        assert self._joiner is not None
        with_transform = any(member.reader.options.transform is not None for member in self.sets.values())
        return with_transform or self._joiner.options.collate is not None

    @property
    def runs_user_code(self) -> bool:
        """Whether a function of the user's runs, which may draw from global generators."""
        collate = self._joiner is not None and self._joiner.options.collate is not None
        return collate or any(member.runs_user_code for member in self.sets.values())

    def _functions(self) -> dict[str, Any]:
        functions: dict[str, Any] = {"weights": self._weights if callable(self._weights) else None}
        if self._joiner is not None:
            functions["collate"] = self._joiner.options.collate
        for name, member in self.sets.items():
            functions |= {f"{name}: {what}": function for what, function in member._functions().items()}
        return functions

    def __repr__(self) -> str:
        return f"Mixture({', '.join(self.names)}, batch_size={self.batch_size}, stop={self.stop!r})"


@dataclass(frozen=True, slots=True)
class _Place:
    """An epoch within the run. first: samples of the run before it; position, end: where in it, and its samples."""

    schedule: Schedule
    first: int
    position: int
    end: int

    def with_whole_draws(self) -> _Place:
        """The epoch without a rest that is less than a draw: where batches are of one set each, whole batches."""
        left = (self.end - self.position) // self.schedule.unit * self.schedule.unit
        return replace(self, end=self.position + left)


def _place_of(schedule: Schedule, words: Start) -> _Place:
    position, end = words[:2]
    if not 0 <= position <= end or position > schedule.anchor.position:
        raise UsageError(f"the state of a mixture is damaged: {words!r}", fix="Give what state_dict() returned")
    return _Place(schedule, schedule.anchor.position - position, position, end)


@dataclass(frozen=True, slots=True)
class _MixturePlan:
    """The plan of one epoch of a mixture. Its starts hold position, samples of the epoch, the schedule's anchor."""

    plan: Plan
    place: _Place
    end_of: Callable[[Schedule, int], int]

    @property
    def epoch(self) -> int:
        return self.plan.epoch

    @property
    def steps(self) -> int:
        return self.plan.steps

    def share(self, rank: int, worker: int = 0, workers: int = 1) -> Any:
        return self.plan.share(rank, worker, workers)

    def state_at(self, steps: int) -> tuple[int, Start]:
        epoch, position = self.plan.state_at(steps)
        schedule, end = self.place.schedule, self.place.end
        run = self.place.first + position
        if epoch != self.plan.epoch:
            run = self.place.first + end
            end = self.end_of(schedule, run)
        return epoch, (position, end, *schedule.anchor_at(run).words())


def _parts(sets: Mapping[str, tuple[ShardDataset, float]]) -> tuple[dict[str, ShardDataset], list[float]]:
    """Names with their sets, and the weights. Raises UsageError for what does not go into a mixture."""
    if not isinstance(sets, Mapping) or not sets:
        raise UsageError(f"sets={sets!r}", fix='Give {"name": (ShardDataset, weight), …}')
    members: dict[str, ShardDataset] = {}
    weights = []
    for name, pair in sets.items():
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], ShardDataset):
            raise UsageError(f"the set '{name}' is {pair!r}", fix="Give (ShardDataset, weight)")
        member, weight = pair
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


def _joiner(sets: Mapping[str, ShardDataset], collate: Callable[[list[Any]], Any] | None) -> Joiner:
    """The one that joins samples of all sets. Raises UsageError where they have different fields or forms."""
    (first, one), *_ = sets.items()
    for name, other in sets.items():
        if other.joiner.options.collate is not None:
            raise UsageError(f"the set '{name}' has a collate= of its own", fix="Give collate= to the Mixture")
        mine, yours = one.joiner.options, other.joiner.options
        if set(mine.fields) != set(yours.fields):
            differ = ", ".join(sorted(set(mine.fields) ^ set(yours.fields)))
            raise UsageError(
                f"the sets '{first}' and '{name}' have different fields: {differ}",
                fix="Give both the same with fields=…, or use batches='single'",
            )
        forms = [(o.fields if o.as_tuple else None, o.layout) for o in (mine, yours)]
        if forms[0] != forms[1]:
            raise UsageError(
                f"the batches of '{first}' and '{name}' have different forms: {forms[0]}, {forms[1]}",
                fix="Give both the same fields= and layout=",
            )
    options = one.joiner.options
    pictures = frozenset[str]().union(*(member.joiner.pictures for member in sets.values()))
    return Joiner(
        JoinOptions(fields=options.fields, as_tuple=options.as_tuple, layout=options.layout, collate=collate),
        pictures,
    )


def _ranks(places: Sequence[Rows]) -> list[Rows]:
    """Places in a batch, of which some are gone, as places in what is left."""
    left = np.sort(np.concatenate(places))
    return [np.searchsorted(left, part) for part in places]
