"""SequentialDataset: batches from shards that can only be read from front to back. The exception; see there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, count, islice
from time import perf_counter_ns
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from streamio.batching.declared import Collate, added_fields, as_declaration, as_function, check_declaration
from streamio.batching.decode import FieldDecode
from streamio.batching.delivery import Delivery
from streamio.batching.joining import Joiner, choose_fields, read_batch
from streamio.batching.options import (
    JoinOptions,
    OnError,
    ReadOptions,
    check_choice,
    check_errors,
    check_values,
    report_path,
)
from streamio.batching.picked import ADDED, Picked
from streamio.batching.reading import SampleReader
from streamio.batching.stages import READ, Count, spent
from streamio.codecs import MAX_PIXELS
from streamio.errors import ShardError, UsageError
from streamio.order.permutation import derive_key
from streamio.order.plan import BatchRows, check_count
from streamio.order.standins import ATTEMPTS, among
from streamio.order.state import Facts, State
from streamio.order.streaming import Deal, Progress, shuffled, turns
from streamio.shards.tarstream import SHARD_BITS, HeldSamples, StreamSample, stream_samples, stream_sources
from streamio.storage.pipes import STDIN, byte_stream, shown
from streamio.stream import ReadingStream, Start, given_ranks
from streamio.types import Alloc, Rows, new_array
from streamio.world import World, this_worker

_log = logging.getLogger("streamio")

Tail = Literal["even", "drop"]


class SequentialDataset(ReadingStream):
    """Streams tars that can only be read from front to back: the output of a command, a server without ranges.

        ds = SequentialDataset("pipe:zstd -dc web-{000..127}.tar.zst", 64, ("jpg", "cls"), shuffle=True, steps=500)
        for pictures, labels in StreamLoader(ds, num_workers=4): ...

    It is the exception: whatever can be indexed (tars on a disk, in a bucket, behind any web server) is better read
    with `ShardDataset`. What is lost here:

    - The order depends on the numbers of ranks and workers, and is only as random as whole shards and a buffer make
      it. How many samples there are is not known, so several ranks need `steps`.
    - A state holds counters. To resume, each worker reads its part of the epoch again up to there (it does not
      decode it), with as many ranks and workers as before: seconds to hours, so do not make epochs too long.
    - An epoch begins with the first sample of its shards, which are drawn anew each time. Make `steps` large enough
      for several shards of each worker: what lies behind the first ones is else never seen.

    source:     `pipe:COMMAND` for the output of a command, `-` for standard input (num_workers=0, one epoch), URLs,
                paths, brace patterns of all of these, globs; or a sequence. Each is a shard: a tar, gzipped or not.
                A sample is the adjacent members of one name up to the first dot of its last part.
    batch_size: samples of one batch on one rank. All have as many, but the last one of a worker without `steps`.
    fields:     names of the fields of a sample; batches are tuples in this order. `"__key__"` is the key, and
                `"image"` the first picture, of whatever kind.
    steps:      batches of one epoch on each rank. Shards that run out are read again, in another order. None: one
                pass, in which every sample comes once; for one rank only.
    tail:       what becomes of a last batch of each worker that is not whole, without `steps`: "even" keeps it
                (every sample once), "drop" leaves it out.
    shuffle:    draw the order of the shards, and of their samples from a buffer.
    buffer:     samples in it, of each worker, as stored; the first batch comes when it is full.
    seed, decode, layout, transform, collate, batch_transform, on_error, max_errors, error_report, max_pixels, rank,
    world_size: as for `ShardDataset`; but the places of bad samples go to others of their batch and the one before.

    A shard goes to one worker. There must be one for each rank; a rank's workers beyond its shards have nothing to
    do. Raises UsageError at construction for what cannot work, or before the first batch where that depends on the
    ranks; CorruptShard, naming shard and sample, for a stream that is cut or is no tar; StorageError for a command
    that fails and a server that stays away.
    """

    in_any_order = threads_may_make = False

    def __init__(
        self,
        source: str | Sequence[str],
        batch_size: int,
        fields: Sequence[str],
        *,
        steps: int | None = None,
        tail: Tail = "even",
        shuffle: bool = False,
        buffer: int = 1000,
        seed: int = 0,
        decode: FieldDecode | Mapping[str, FieldDecode] = None,
        layout: Literal["hwc", "chw"] = "hwc",
        transform: Callable[..., Any] | None = None,
        collate: Collate | None = None,
        batch_transform: Callable[..., Any] | None = None,
        on_error: OnError = "raise",
        max_errors: int | float | None = None,
        error_report: str | None = None,
        max_pixels: int = MAX_PIXELS,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        check_choice("layout", layout, ("hwc", "chw"))
        check_errors(on_error, max_errors)
        check_choice("tail", tail, ("even", "drop"))
        chosen, _ = choose_fields([] if isinstance(fields, str) else fields, fields, tail)
        declared = as_declaration(collate)
        added = added_fields(declared, {})
        stored = tuple(name for name in chosen if name not in added)
        check_values(seed=seed, max_pixels=max_pixels, transform=transform, collate=as_function(collate))
        check_count("batch_size", batch_size)
        check_count("buffer", buffer)
        if steps is not None:
            check_count("steps", steps)
        if steps is not None and tail != "even":
            raise UsageError(
                f"tail={tail!r} with steps={steps}", fix="Leave it out: with steps all batches are whole"
            )
        if not isinstance(shuffle, bool):
            raise UsageError(f"shuffle={shuffle!r}", fix="Use True or False; a stream has one way to be shuffled")
        super().__init__(seed=seed, ranks=given_ranks(rank, world_size))
        self.settings = _Settings(
            shards=stream_sources(source), batch_size=batch_size, steps=steps, tail=tail, shuffle=shuffle,
            buffer=buffer if shuffle else 1, seed=seed,
        )  # fmt: skip
        self._held = HeldSamples(tuple(name for name in stored if name not in ADDED), self.settings.shards)
        self._board = _Board()
        read = ReadOptions(
            fields=stored, decode=decode, transform=transform, on_error=on_error, max_pixels=max_pixels,
            max_errors=max_errors, error_report=None if error_report is None else report_path(error_report),
        )  # fmt: skip
        self.reader = SampleReader(self._held, read, seed, self._counts.add, _HeldStandIns(self._held, seed))
        pictures = frozenset(name for name, decoder in self.reader.decoders.items() if decoder.is_picture)
        declared = check_declaration(
            declared, self.reader.decoders, missing={}, asked=chosen, others=ADDED,
            has_transform=transform is not None,
        )  # fmt: skip
        join = JoinOptions(
            fields=chosen, as_tuple=True, layout=layout, collate=as_function(collate), declared=declared
        )
        self.joiner = Joiner(join, pictures)
        self.delivery = Delivery(batch_transform, seed=seed, names=chosen, count=self._counts.add)

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Go on where a state was taken, with as many ranks and workers: the batches are those of the run that was
        not interrupted. It takes the time to read the epoch up to there.

        Raises UsageError for a state of other shards, another seed or shuffle, and for one from the middle of an
        epoch on other ranks or with other batches; a worker raises it for another number of workers. With `strict`
        False its epoch begins again instead.
        """
        saved = State.from_json(state)
        if not strict:
            self._epochs.set(saved.epoch)
            return
        saved.check(self._state(0, ()))
        self._check_start(saved)
        self._epochs.set(saved.epoch, saved.start)

    def _check_start(self, saved: State) -> None:
        plan = self._plan(self._world(), saved.epoch, saved.start)
        if plan.begun is not None:
            _refuse(plan.begun.differs(plan.progress(plan.begun.workers, 0, {})))

    def _plan(self, world: World, epoch: int, start: Start) -> StreamPlan:
        settings = self.settings
        if world.world_size > 1 and settings.steps is None:
            raise UsageError(
                f"{world.world_size} ranks would make unequal numbers of batches of streams of unknown length",
                fix="Give steps=, the batches of an epoch on each rank; or index the shards and use ShardDataset",
            )
        if STDIN in settings.shards and this_worker() is not None:
            raise UsageError("standard input cannot be read in a worker process", fix="Use num_workers=0")
        begun = Progress.from_words(start) if start else None
        return StreamPlan(settings, world, epoch, begun, self._board, self._held, self._counts.add)

    def _facts(self) -> tuple[str, int, Facts]:
        return (
            self._held.fingerprint,
            0,
            {"kind": "sequential", "seed": self._seed, "shuffle": self.settings.shuffle},
        )

    def batch_bytes(self) -> int:
        """About how much memory one batch takes, for deciding how many to make ahead."""
        return self.reader.sample_bytes * self.settings.batch_size

    def make_batch(self, batch: BatchRows, alloc: Alloc = new_array) -> Any:
        """The batch of the samples that are held now: decode, transform, collate."""
        picked = Picked(batch.rows, batch.visits, {}, batch.epoch)
        return self.delivery(read_batch(self.reader, self.joiner, picked, alloc), batch)

    def __repr__(self) -> str:
        s = self.settings
        return f"SequentialDataset({len(s.shards)} shards, batch_size={s.batch_size}, steps={s.steps})"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """What the user asked for, checked. buffer: 1 changes nothing."""

    shards: tuple[str, ...]
    batch_size: int
    steps: int | None
    tail: Tail
    shuffle: bool
    buffer: int
    seed: int


class _Stored(NamedTuple):
    """A sample on its way, before it is decoded. row: its shard and its number there. visit: pass and epoch."""

    row: int
    visit: int
    sample: StreamSample


class StreamPlan:
    """One epoch of a stream on one topology. Its batches are made as they are read, so they come in order only.

    begun: where the epoch begins, on the same topology; None at its beginning.
    """

    def __init__(
        self,
        settings: _Settings,
        world: World,
        epoch: int,
        begun: Progress | None,
        board: _Board,
        held: HeldSamples,
        count: Count,
    ) -> None:
        self.settings, self.epoch, self.begun = settings, epoch, begun
        self._world, self._board, self._held, self._count = world, board, held, count
        self._shards_read = 0
        self._before: list[_Stored] = []  # the last ones of the batch before, which may take the places of bad ones
        self._deal(1)  # refuses what cannot be dealt

    @property
    def steps(self) -> int:
        if self.settings.steps is None:
            raise TypeError("a stream without steps= has no length: how many samples it has shows when it was read")
        return self.settings.steps - (0 if self.begun is None else self.begun.batches)

    def share(self, rank: int, worker: int = 0, workers: int = 1) -> Iterator[BatchRows]:
        """The batches of one worker, each held in `held` until the next one is asked for."""
        deal = self._deal(workers)
        coming = self._coming(deal, workers)
        self._board.begin(workers)
        if worker < len(coming):
            yield from self._batches(deal, *coming[worker])

    def state_at(self, steps: int) -> tuple[int, Any]:
        done = steps + (0 if self.begun is None else self.begun.batches)
        if self.settings.steps is not None:
            if not 0 <= done <= self.settings.steps:
                raise IndexError(f"{done} steps done of {self.settings.steps}")
            if done == self.settings.steps:
                return self.epoch + 1, 0
        if done == 0:
            return self.epoch, 0
        workers = self._board.workers or 1
        deal = self._deal(workers)
        ended = {} if self.settings.steps is not None else self._ended(deal)
        if not turns(done, deal.lanes, ended):
            return self.epoch + 1, 0
        return self.epoch, self.progress(workers, done, ended).words()

    def progress(self, workers: int, batches: int, ended: Mapping[int, int]) -> Progress:
        s = self.settings
        return Progress(
            batches=batches, workers=workers, world_size=self._world.world_size, batch_size=s.batch_size,
            buffer=s.buffer, steps=s.steps or 0, ended=ended,
        )  # fmt: skip

    def _deal(self, workers: int) -> Deal:
        s, world = self.settings, self._world
        return Deal(
            shards=len(s.shards), seed=s.seed, epoch=self.epoch, shuffle=s.shuffle, rank=world.rank,
            world_size=world.world_size, workers=workers,
        )  # fmt: skip

    def _ended(self, deal: Deal) -> dict[int, int]:
        """What lanes made in all, of those that are known to have ended."""
        before = {} if self.begun is None else dict(self.begun.ended)
        return {**before, **self._board.ended(self.epoch, deal.lanes)}

    def _coming(self, deal: Deal, workers: int) -> list[tuple[int, int]]:
        if self.begun is None:
            return turns(0, deal.lanes, {})
        _refuse(self.begun.differs(self.progress(workers, 0, {})))
        return turns(self.begun.batches, deal.lanes, self.begun.ended)

    def _batches(self, deal: Deal, lane: int, made: int) -> Iterator[BatchRows]:
        """The batches of a lane behind the first `made`, which are read and let go."""
        s = self.settings
        with closing(self._stored(deal, lane)) as stored:
            samples = shuffled(stored, s.buffer, deal.buffer_key(lane))
            self._skip(samples, made)
            while s.steps is None or made * deal.lanes + lane < s.steps:
                since = perf_counter_ns()
                batch = list(islice(samples, s.batch_size))
                spent(self._count, READ, since)
                if not batch or (s.tail == "drop" and len(batch) < s.batch_size):
                    self._board.end(self.epoch, deal.lanes, lane, made)
                    return
                yield self._hold(made * deal.lanes + lane, batch)
                made += 1
        if not self._shards_read and lane == 0:
            _log.warning(
                "epoch %d ended in the first shard of a worker: what lies behind there is never read; give more "
                "steps, or make smaller shards",
                self.epoch,
            )

    def _skip(self, samples: Iterator[_Stored], made: int) -> None:
        size = self.settings.batch_size
        gone = 0
        for gone, item in enumerate(islice(samples, made * size), 1):  # noqa: B007
            self._before = [*self._before[1 - ATTEMPTS :], item]
        if gone <= (made - 1) * size:
            raise ShardError(
                f"the state was taken after {made * size:,} samples of these shards, which have {gone:,} now",
                fix="Load it with strict=False to begin its epoch again",
            )

    def _stored(self, deal: Deal, lane: int) -> Generator[_Stored, None, None]:
        """The samples of a lane as they lie in its shards: one pass, or without end where there are steps."""
        s = self.settings
        self._shards_read = 0
        for number in count():
            empty, shards = True, deal.shard_list(lane, number)
            for shard in shards:
                with byte_stream(s.shards[shard]) as blocks:
                    for sample in stream_samples(blocks, shown(s.shards[shard])):
                        empty = False
                        yield _Stored(shard << SHARD_BITS | sample.number, number << 32 | self.epoch, sample)
                self._shards_read += 1
            if s.steps is None:
                return
            if empty:
                raise ShardError(
                    f"no sample in all {len(shards)} shards of worker {lane}", shard=shown(s.shards[shards[0]])
                )

    def _hold(self, step: int, batch: list[_Stored]) -> BatchRows:
        self._held.hold({item.row: item.sample for item in chain(self._before, batch)})
        rows, visits = np.array([(item.row, item.visit) for item in batch], np.int64).T.copy()
        self._before = batch[-ATTEMPTS:]
        return BatchRows(step, rows, visits, None, self.epoch)


class _Board:
    """What workers tell the main process, in memory that they share: how many they are, and which have ended.

    A worker that ended wrote so before its end was seen, so whoever passed it over knows what it had made. Cells:
    (workers, 0, 0), and for each lane (epoch + 1, lanes, batches in all), which say nothing of other epochs and
    topologies.
    """

    def __init__(self) -> None:
        self._cells = torch.zeros((1 + _MOST_LANES, 3), dtype=torch.int64)
        self._cells.share_memory_()  # type: ignore[no-untyped-call]

    @property
    def workers(self) -> int:
        """Of the loader that began last; 0 before any."""
        return int(self._cells[0, 0])

    def begin(self, workers: int) -> None:
        self._cells[0, 0] = workers

    def end(self, epoch: int, lanes: int, lane: int, made: int) -> None:
        self._cells[1 + lane] = torch.tensor([epoch + 1, lanes, made])

    def ended(self, epoch: int, lanes: int) -> dict[int, int]:
        cells = self._cells[1 : 1 + lanes].tolist()
        return {lane: made for lane, (e, of, made) in enumerate(cells) if (e, of) == (epoch + 1, lanes)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Between processes torch hands over the shared cells; a plain copy gets its own.
        cells = state["_cells"]
        self._cells = cells if cells.is_shared() else cells.clone().share_memory_()


_MOST_LANES = 1024


@dataclass(frozen=True, slots=True)
class _HeldStandIns:
    """What takes the place of a bad sample: others that are held with it, since a stream has no more."""

    held: HeldSamples
    seed: int

    def of(self, row: int, visit: int) -> Rows:
        return among(self.held.rows(), row, derive_key(self.seed, visit, row))


def _refuse(differs: str | None) -> None:
    if differs:
        raise UsageError(
            differs, fix="Go on with what it was saved with; or load it with strict=False to begin its epoch again"
        )
