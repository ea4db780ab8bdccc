"""BatchStream: what all data sets share: epochs, ranks, workers, states. They differ in plan and batches."""

from __future__ import annotations

import os
import pickle
import sys
import warnings
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from multiprocessing.context import get_spawning_popen
from types import FrameType
from typing import Any, Protocol, Self

from torch.utils.data import IterableDataset, default_convert, get_worker_info

from streamio.batching.caching import ADDED_BYTES, HITS, MISSES
from streamio.batching.calls import Call
from streamio.batching.checks import check_tensors
from streamio.batching.delivery import Delivery
from streamio.batching.failures import SKIPPED, SUBSTITUTED
from streamio.batching.functions import go_by_value
from streamio.batching.joining import Joiner
from streamio.batching.reading import DROPPED, SampleReader
from streamio.batching.stages import BATCHES, SAMPLES, STAGES
from streamio.callers import refuse_batch_size, refuse_second_split
from streamio.errors import UsageError
from streamio.handover.ring import SlotRing
from streamio.mainguard import check_main_guard
from streamio.order.bundles import Bundle, bundle_size, bundled
from streamio.order.plan import BatchRows
from streamio.order.state import Facts, State
from streamio.pickling import dumps_by_value, is_by_value
from streamio.rng import batch_seed
from streamio.seeding import seed_globals
from streamio.types import Alloc, new_array
from streamio.world import EpochCounter, SharedCounts, World, check_ranks, current_world, this_worker

Start = tuple[int, ...]

_COUNTED = (SKIPPED, SUBSTITUTED, DROPPED, SAMPLES, BATCHES, HITS, MISSES, ADDED_BYTES, *STAGES)


class EpochPlan(Protocol):
    """One epoch on one topology, from where it begins to its end."""

    @property
    def epoch(self) -> int: ...

    @property
    def steps(self) -> int:
        """Batches of every rank, exactly. Raises TypeError where they cannot be known, or have no end."""
        ...

    def share(self, rank: int, worker: int = 0, workers: int = 1) -> Iterator[BatchRows | None]:
        """The batches of one worker of a rank: the steps worker, worker + workers, … None: none is there now."""
        ...

    def state_at(self, steps: int) -> tuple[int, Any]:
        """(epoch, start) after so many steps; start is a position, 0 at the beginning, or words of its own."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochStart:
    """What a loader tells those who make its batches: one epoch from `start` on, for one rank.

    most: batches that the loop is to get, where more could come; None: all that there are.
    """

    epoch: int
    start: Start
    rank: int
    world_size: int
    most: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataStats:
    """What a data set did so far: in all epochs, workers and loaders, also of batches made ahead.

    samples, batches: that were made.
    skipped: bad samples that were left out, with on_error="skip".
    substituted: bad samples that others took the places of.
    dropped: samples for which prepare or transform returned None, or that lack a field that missing= skips.
    cache_hits, cache_misses: decoded values that were in the cache, and that were not.
    cache_bytes: that were put into the cache.
    seconds: in each stage ("read", "decode", "transform", "collate"), of all workers and threads together.
    """

    samples: int
    batches: int
    skipped: int
    substituted: int
    dropped: int
    cache_hits: int
    cache_misses: int
    cache_bytes: int
    seconds: Mapping[str, float]


class BatchStream(IterableDataset[Any]):
    """Yields whole batches in an order that is arithmetic; base of `ShardDataset` and `Mixture`.

    seed:  of the order and of all randomness.
    ranks: (rank, world_size) instead of those of torch.distributed.
    """

    in_any_order = True
    """Whether any process or thread can make any batch. Else each worker makes its own, one after the other, and
    torchdata, which asks iterators for a state, must read again."""

    threads_may_make = True
    """Whether the batches that `share` gives one after the other can be made side by side."""

    as_they_come = False
    """Whether the loop takes batches from whichever worker has one, and not from each in its turn."""

    marks_batches = False
    """Whether `make_seeded` gives a `Marked`, and `delivered` and `epoch_ended` are to be told."""

    _call: Call

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        made = super().__new__(cls)
        made._call = Call(arguments, options)
        return made

    def __init__(self, *, seed: int, ranks: tuple[int, int] | None) -> None:
        self._seed, self._ranks = seed, ranks
        self._epochs = EpochCounter()
        self._counts = SharedCounts(_COUNTED)
        self._parent_ranks: tuple[int, int] | None = None
        self._pid = os.getpid()
        self._planned: tuple[Any, EpochPlan] | None = None
        self._ring: SlotRing | None = None
        self._reads_alone = False

    @abstractmethod
    def _plan(self, world: World, epoch: int, start: Start) -> EpochPlan:
        """The plan of an epoch from `start` on."""

    @abstractmethod
    def make_batch(self, batch: BatchRows, alloc: Alloc = new_array) -> Any:
        """The batch of these rows: read, decode, transform, collate. The same wherever it is made."""

    @property
    def bundle_batches(self) -> int:
        """Batches that are best made at once."""
        return bundle_size(self.batch_bytes()) if self.reads_bundles else 1

    @property
    def reads_bundles(self) -> bool:
        """Whether several batches can be read at once. Not where a function of the user's runs, which may count."""
        return False

    def make_bundle(self, bundle: Bundle, alloc: Alloc = new_array) -> list[Any]:
        """The batches of a bundle of more than one, as `make_batch` makes them; see `reads_bundles`.

        What is wrong with one of them is raised for all: an error comes before up to so many batches that could
        have been made. A state does not count them, as the loop did not get them.
        """
        made = None if self._reads_alone else self._read_bundle(bundle, alloc)
        if made is None:
            self._reads_alone = True  # where one cannot be, others likely cannot, and all would be read twice
            return [self.make_batch(batch, alloc) for batch in bundle]
        return made

    def _read_bundle(self, bundle: Bundle, alloc: Alloc) -> list[Any] | None:
        """Its batches, read at once; None where that cannot be, as where a sample is bad."""
        return None

    @abstractmethod
    def batch_bytes(self) -> int:
        """About how much memory one batch takes, for deciding how many to make ahead."""

    @abstractmethod
    def _facts(self) -> tuple[str, int, Facts]:
        """(fingerprint of the data, positions of an epoch, what makes the order): what a state belongs to."""

    @abstractmethod
    def _functions(self) -> dict[str, Any]:
        """What of the user's goes to workers, functions above all, by the words for it in the call."""

    @property
    @abstractmethod
    def runs_user_code(self) -> bool:
        """Whether a function of the user's runs, which may draw from global generators."""

    def delivered(self, mark: Any) -> None:
        """For a loader, of a stream that `marks_batches`: the loop got the batch that bears this."""

    def epoch_ended(self) -> None:
        """For a loader, of a stream that `marks_batches`: the loop has got all of the epoch."""

    def commit(self) -> None:
        """Tell a message broker that what a `StreamLoader` gave to the loop was used."""
        raise UsageError(
            f"a {type(self).__name__} has nothing to commit to", fix="Save loader.state_dict() with the checkpoint"
        )

    def with_(self, **options: Any) -> Self:
        """A new data set with some options changed, that reads from the same opened files: for validation, say.

            val = train.with_(decode=CenterCrop(224), transform=None, shuffle=False)

        All that was not changed is as this one was made. It begins at epoch 0, and has counts of its own. Raises
        UsageError for what is no option.
        """
        kind: Any = type(self)
        source, given = self._call.again(kind, options)
        made: Self = kind(self._opened(source), **given)
        return made

    def _opened(self, source: Any) -> Any:
        """What the constructor was told to read, as it is open now."""
        return source

    def begin_epoch(self) -> EpochStart:
        """For a loader, in its main process: the next epoch begins, and is followed by another."""
        epoch, world = self._epochs.begin(), self._world()
        self._epochs.started(epoch)
        start = self._epochs.start_of(epoch)
        return EpochStart(epoch=epoch, start=start, rank=world.rank, world_size=world.world_size)

    def share(
        self, at: EpochStart, *, worker: int = 0, workers: int = 1, first: int = 0
    ) -> Iterator[BatchRows | None]:
        """The steps first + worker, first + worker + workers, … of an epoch, wherever it began.

        Unless `threads_may_make`, each is to be made before the next one is asked for. None: nothing is there now;
        whoever asked may look after something else, and asks again.
        """
        world = World(rank=at.rank, world_size=at.world_size, worker=worker, workers=workers)
        return self._plan(world, at.epoch, at.start).share(at.rank, first + worker, workers)

    def bundles(
        self, at: EpochStart, most: int, *, worker: int = 0, workers: int = 1, first: int = 0
    ) -> Iterator[Bundle | None]:
        """The same as `share`, up to `most` at a time; the first one comes alone."""
        return bundled(self.share(at, worker=worker, workers=workers, first=first), most)

    def make_all(self, at: EpochStart, bundle: Bundle, alloc: Alloc = new_array) -> list[Any]:
        """The batches of a bundle that `bundles` gave."""
        if len(bundle) == 1:
            return [self.make_seeded(at, bundle[0], alloc)]
        return self.make_bundle(bundle, alloc)

    def make_seeded(self, at: EpochStart, batch: BatchRows, alloc: Alloc = new_array) -> Any:
        """`make_batch`; in a worker process the global generators are seeded for the user's functions first."""
        self.seed_for(batch)
        return self._checked(self.make_batch(batch, alloc))

    def _checked(self, batch: Any) -> Any:
        """The batch as it is. Raises SampleError for tensors from a function of the user's that nobody can use."""
        if self.runs_user_code:
            check_tensors(batch, to_be_sent=this_worker() is not None)
        return batch

    def seed_for(self, batch: BatchRows) -> None:
        """Seed the global generators for a batch, if a function of the user's may draw from them in a worker."""
        if self.runs_user_code and this_worker() is not None:
            seed_globals(batch_seed(self._seed, int(batch.visits[0]), int(batch.rows[0])))

    def __len__(self) -> int:
        """Batches that each rank gets in the epoch to come; exact. After a resume that is the rest of one."""
        return self._plan_of(self._epochs.next).steps

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration will be; every iteration advances it by one."""
        return self._epochs.next

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next one, in this process and in workers that live on.

        A state that was loaded stays: where it is in the middle of this epoch, that is where it begins. Raises
        UsageError where it is in another one, whose rest would be left out.
        """
        refuse_second_split(sys._getframe(1), self._world().world_size)
        resumed, start = self._epochs.last_set()
        waits = bool(start) and resumed == self._epochs.next
        if waits and epoch != resumed:
            raise UsageError(
                f"set_epoch({epoch}), but a state was loaded that goes on in epoch {resumed}",
                fix=f"Begin the loop over epochs with {resumed}, or load the state after set_epoch",
            )
        self._epochs.set(epoch, start if waits else ())

    def step_samples(self) -> int:
        """Samples of a global batch, where they are as many in each; else its batches."""
        return int(getattr(self, "batch_size", None) or 1) * self._world().world_size

    def stats(self) -> DataStats:
        """How many samples were made and left out so far, and how long each stage took."""
        totals = self._totals()
        seconds = {stage: totals.pop(stage) / 1e9 for stage in STAGES}
        return DataStats(**totals, seconds=seconds)

    def _totals(self) -> dict[str, int]:
        return self._counts.totals()

    def state_at(self, batches: int, epoch: int | None = None) -> dict[str, Any]:
        """Where a run is after so many batches of an epoch: numbers and strings, under 1 KB, alike on all ranks.

        batches: those that the loop got since the epoch began (or was resumed), not those made ahead.
        epoch:   default: the one that runs or ran last; with 0 batches the one to come.
        """
        if epoch is None:
            epoch = max(0, self._epochs.next - (batches > 0))
        return self._json_at(self._plan_of(epoch), batches)

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Go on where a state was taken, on any number of ranks and workers: every sample that is left comes once.

        With the same global batch (batch_size x world_size) the steps are those of the uninterrupted run. Raises
        UsageError, with the field that differs, for a state of other data, another seed or shuffle, unless
        `strict` is False.
        """
        saved = State.from_json(_of_torchdata(state))
        self._recall(saved)
        if strict:
            saved.check(self._state(0, ()))
        self._check_start(saved)
        self._epochs.set(saved.epoch, saved.start)

    def _recall(self, saved: State) -> None:
        """Before a state is checked: be what it was saved of, where the data has changed since in a known way."""

    def _check_start(self, saved: State) -> None:
        """Raise UsageError for a start that this data set cannot begin at."""
        self._plan(self._world(), saved.epoch, saved.start)

    def _json_at(self, plan: EpochPlan, batches: int) -> dict[str, Any]:
        epoch, start = plan.state_at(batches)
        if not isinstance(start, tuple):
            start = (start, *getattr(plan, "mark", ())) if start else ()
        return self._state(epoch, start).to_json()

    def _state(self, epoch: int, start: Start) -> State:
        data, samples, order = self._facts()
        return State(epoch=epoch, start=start, data=data, samples=samples, order=order)

    def __iter__(self) -> Iterator[Any]:
        caller = sys._getframe(1)
        self._check_caller(caller)
        if self.marks_batches and this_worker() is None:
            return self._marked_here()
        ring = self._own_ring() if _hands_over(caller) else None
        batches = Batches(self, self._plan_of(self._epochs.begin()), self._world(), ring)
        return batches if self.in_any_order else (batch for batch in batches)

    def _marked_here(self) -> Iterator[Any]:
        """The batches of an epoch, all made here: each is delivered as it is made."""
        at = self.begin_epoch()
        for rows in self.share(at):
            if rows is None:
                continue
            batch, mark = self.make_seeded(at, rows)
            self.delivered(mark)
            yield batch
        self.epoch_ended()

    def _check_caller(self, caller: FrameType) -> None:
        """Raise UsageError for a loader that would not do what it seems to."""
        refuse_batch_size(caller)
        refuse_second_split(caller, self._world().world_size)

    def _own_ring(self) -> SlotRing:
        """That of this process: a copy that was forked must not write into the slots of another."""
        if self._ring is None or self._ring.pid != os.getpid():
            self._ring = SlotRing()
        return self._ring

    def _plan_of(self, epoch: int) -> EpochPlan:
        """The plan of an epoch here and now; the last one is kept, since some are costly to make."""
        world = self._world()
        facts = (world.world_size, epoch, self._epochs.last_set())
        if self._planned is None or self._planned[0] != facts:
            self._planned = facts, self._plan(world, epoch, self._epochs.start_of(epoch))
        return self._planned[1]

    def _world(self) -> World:
        # Who unpickled us is a worker of the process that pickled us; its own forks have the facts themselves.
        return current_world(self._ranks, self._parent_ranks if self._pid == os.getpid() else None)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if get_spawning_popen() is None or is_by_value():  # other copies may share a lambda
            return super().__reduce_ex__(protocol)
        check_main_guard()
        if go_by_value(self._functions()):
            return pickle.loads, (dumps_by_value(self),)
        return super().__reduce_ex__(protocol)

    def __getstate__(self) -> dict[str, Any]:
        world = self._world()
        left = ("_pid", "_planned", "_ring")
        kept = {name: value for name, value in self.__dict__.items() if name not in left}
        return {**kept, "_parent_ranks": (world.rank, world.world_size)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _pid=os.getpid(), _planned=None, _ring=None)


class ReadingStream(BatchStream):
    """One that reads its samples itself, in one way: all but mixtures."""

    reader: SampleReader
    joiner: Joiner
    delivery: Delivery

    @cached_property
    def runs_user_code(self) -> bool:
        """Whether a function of the user's runs, which may draw from global generators."""
        functions = (self.joiner.options.collate, self.delivery.function)
        return self.reader.runs_user_code or any(function is not None for function in functions)

    def _functions(self) -> dict[str, Any]:
        functions = {"collate": self.joiner.options.collate, "batch_transform": self.delivery.function}
        return {**self.reader.options.functions(), **functions}


class Batches(Iterator[Any]):
    """One worker's batches of an epoch.

    torchdata's StatefulDataLoader calls `state_dict` in the worker after each batch, and gives it back to the same
    worker of a later run, to an iterator that was just made. A worker knows only of its own batches: `after` is
    where the run is when its last one has been delivered.
    """

    def __init__(self, stream: BatchStream, plan: EpochPlan, world: World, ring: SlotRing | None) -> None:
        self._stream, self._world, self._ring = stream, world, ring
        self._started = False
        self._made: deque[tuple[int, Any]] = deque()
        """Steps and their batches, made and not yet asked for."""
        self._go_on(plan, world.worker)

    def _go_on(self, plan: EpochPlan, step: int) -> None:
        self._plan, self._next = plan, step
        self._bundles = bundled(
            plan.share(self._world.rank, step, self._world.workers), self._stream.bundle_batches
        )
        self._made.clear()

    def __next__(self) -> Any:
        stream = self._stream
        if not self._started:
            self._started = True
            stream._epochs.started(self._plan.epoch)
        if not self._made:
            bundle = _next_there(self._bundles)
            steps = (batch.step for batch in bundle)
            self._made.extend(zip(steps, self._make(bundle), strict=True))
        step, made = self._made.popleft()
        self._next = step + self._world.workers
        return made

    def _make(self, bundle: Bundle) -> Iterable[Any]:
        stream, ring, batch = self._stream, self._ring, bundle[0]
        if len(bundle) > 1:
            made = stream.make_bundle(bundle)
            return made if ring is None else [ring.make(partial(_converted, each)) for each in made]
        stream.seed_for(batch)
        if ring is None:
            return [stream._checked(stream.make_batch(batch))]
        return [ring.make(lambda alloc: _converted(stream._checked(stream.make_batch(batch, alloc))))]

    def state_dict(self) -> dict[str, Any]:
        """Where this worker is; JSON-able."""
        return {"base": self._stream._json_at(self._plan, 0), "next": self._next, "after": self._after()}

    def _after(self) -> dict[str, Any]:
        return self._stream._json_at(self._plan, max(0, self._next - self._world.workers + 1))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on there. Raises UsageError where the steps of that run are not those of this one."""
        stream, base = self._stream, State.from_json(state["base"])
        stream._recall(base)
        base.check(stream._state(0, ()))
        self._go_on(stream._plan(self._world, base.epoch, base.start), state["next"])
        if self._after() != state["after"]:
            raise UsageError(
                "the state was saved with another global batch (batch_size x ranks)",
                fix="Give it to the data set, dataset.load_state_dict(state), and make a new StatefulDataLoader",
            )
        stream._epochs.resumed(base.epoch)
        self._started = True


def _next_there(bundles: Iterator[Bundle | None]) -> Bundle:
    while (bundle := next(bundles)) is None:
        pass
    return bundle


def _of_torchdata(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state of ours in one of torchdata's StatefulDataLoader; any other as it is."""
    if not isinstance(state, Mapping) or "_iterator_finished" not in state:
        return state
    worker = state
    if "_snapshot" in state:
        if state["_steps_since_snapshot"]:
            raise UsageError(
                "the state is of some batches ago", fix="Save with snapshot_every_n_steps=1, the default"
            )
        snapshot = state["_snapshot"]
        worker = snapshot["_worker_snapshots"][f"worker_{snapshot['_last_yielded_worker_id']}"]
    after: Mapping[str, Any] = worker["fetcher_state"]["dataset_iter_state"]["after"]
    return after


def given_ranks(rank: int | None, world_size: int | None) -> tuple[int, int] | None:
    """The pair, if both are given. Raises UsageError for one of them."""
    if rank is None and world_size is None:
        return None
    if rank is None or world_size is None:
        raise UsageError(f"rank={rank}, world_size={world_size}", fix="Give both or none")
    return check_ranks(rank, world_size)


def warn_once(message: str, seen: set[str]) -> None:
    """A warning of what streamio does otherwise than asked: once, and in the main process."""
    if message not in seen and this_worker() is None:
        seen.add(message)
        warnings.warn(message, UserWarning, stacklevel=2)


def _hands_over(caller: FrameType) -> bool:
    """Whether what we yield goes straight from this worker of a DataLoader to the process that started it.

    It does where the loader's fetcher calls `__iter__`, as above, and nothing of the user's comes after us; torch's
    own conversion lets a `Handed` through as it is.
    """
    return get_worker_info() is not None and caller.f_locals.get("collate_fn") is default_convert


def _converted(batch: Any, _: Alloc = new_array) -> Any:
    """What torch's DataLoader makes of a batch that needs no collating: lists of tuples, for one."""
    return default_convert(batch)  # type: ignore[no-untyped-call]
