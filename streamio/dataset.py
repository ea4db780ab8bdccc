"""ShardDataset: joins order, shards and batching into an IterableDataset that yields whole batches."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from multiprocessing.context import get_spawning_popen
from types import FrameType
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from streamio.batching.collate import collate as collate_samples
from streamio.batching.collate import stack
from streamio.batching.decode import Failure, FieldDecode, FieldDecoder, Values, decode_column, make_decoders
from streamio.batching.functions import as_samples, check_picklable, takes_rng
from streamio.batching.options import Options, check_choice, check_values, report_path
from streamio.batching.tensors import as_tensors, channels_first
from streamio.codecs import MAX_PIXELS
from streamio.errors import SampleError, StreamioError, TransformError, UsageError
from streamio.order.plan import BatchRows, Plan, Tail
from streamio.order.shuffle import shuffle_mode
from streamio.order.state import State
from streamio.rng import TRANSFORM, batch_seed, generator
from streamio.seeding import seed_globals
from streamio.shards.manifest import FieldSpec
from streamio.shards.pictures import with_one_picture
from streamio.shards.shardset import ShardSet, open_shards
from streamio.types import Alloc, Column, Rows, new_array
from streamio.world import EpochCounter, World, check_ranks, current_world

_log = logging.getLogger("streamio")

KEY, VALID = "__key__", "__valid__"


class Table(Protocol):
    """What a data set reads from: rows 0 … N-1 of named fields. `ShardSet` is one.

    Used in the process that opened it or in a copy unpickled elsewhere; it opens handles by itself.
    """

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Samples of each shard; N is their sum."""
        ...

    @property
    def fields(self) -> Mapping[str, FieldSpec]: ...

    @property
    def fingerprint(self) -> str:
        """Changes with the samples; a saved state belongs to one."""
        ...

    def gather(self, rows: Rows, fields: Sequence[str], alloc: Alloc = new_array) -> dict[str, Column]:
        """The fields of these rows, in this order, repeats included."""
        ...

    def keys(self, rows: Rows) -> list[str]: ...

    def locate(self, row: int) -> tuple[str, int]:
        """(shard, row in the shard), for messages."""
        ...


class ShardDataset(IterableDataset[Any]):
    """Streams a shard set as ready-made batches, the same for any number of workers.

        ds = ShardDataset("out/train", 256, fields=("jpg", "cls"), shuffle=True, decode=RandomResizedCrop(224))
        for pictures, labels in StreamLoader(ds):      # uint8 (256, 224, 224, 3), int64 (256,)

    Use it with `StreamLoader`, or with `DataLoader(ds, batch_size=None, num_workers=…)`: batches are made here.

    source:     path or URL of a shard set, tars, a brace pattern (see `streamio.open`), or an opened ShardSet.
    batch_size: samples of one batch on one rank.
                Pictures of several kinds (`a.jpg`, `b.png`), one a sample, are one field `image`.
    fields:     a sequence of names: batches are tuples in this order (`"__key__"` is the key, `"__valid__"` the
                mask of tail "pad"). None: batches are dicts of all fields and `"__key__"`.
    shuffle:    False, True (= "block"), "global", "shards"; see `streamio.order.shuffle`. Reads ahead in no
                buffer: the order is arithmetic of seed and epoch.
    seed:       of the order and of all augmentation. The same on all ranks.
    tail:       "even" (default): every sample once *and* as many batches on every rank, the last two steps
                shared out; "drop": whole batches only; "pad": the last filled up and marked in `__valid__`.
    decode:     an operation of `streamio.image` for all pictures, or {field: operation, or a function of the
                raw bytes, or False for the raw bytes}. False: raw bytes of all fields. An operation draws the
                same numbers for every field of a sample, so a picture and its mask are cropped alike.
    layout:     of pictures: "hwc", or "chw" (no copy; torch's channels_last).
    transform:  function of one sample (a dict of arrays, numbers, strings; not tensors), or of (sample, rng)
                with a numpy Generator keyed by (seed, epoch, row). What it returns is collated; None drops the
                sample from its batch.
    collate:    function of a list of samples, instead of joining them field by field; may return anything.
                It and transform get None for a field that a sample lacks.
    on_error:   "raise", or "skip": samples that do not decode, or lack a field that becomes an array, are left
                out of their batch, logged once each
                (logger "streamio", level WARNING) and written to `error_report`.
    error_report: path of a JSON-lines file that gets shard, row, key, field and error of skipped samples; all
                workers append to it.
    max_pixels: pictures with more are refused before they are decoded.
    rank, world_size: instead of those of torch.distributed (or RANK and WORLD_SIZE); for data-parallel groups.

    Raises UsageError at construction for what cannot work, and TailError where "even" cannot be, before the
    first batch.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Sequence[str] | Table,
        batch_size: int,
        *,
        fields: Sequence[str] | None = None,
        shuffle: bool | str = False,
        seed: int = 0,
        tail: Tail = "even",
        decode: FieldDecode | Mapping[str, FieldDecode] = None,
        layout: Literal["hwc", "chw"] = "hwc",
        transform: Callable[..., Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        error_report: str | os.PathLike[str] | None = None,
        max_pixels: int = MAX_PIXELS,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self.table: Table = _open(source)
        chosen, as_tuple = _choose_fields(self.table, fields, tail)
        check_choice("layout", layout, ("hwc", "chw"))
        check_choice("on_error", on_error, ("raise", "skip"))
        check_values(seed=seed, max_pixels=max_pixels, transform=transform, collate=collate)
        self._options = Options(
            batch_size=batch_size, fields=chosen, as_tuple=as_tuple, shuffle=shuffle_mode(shuffle), seed=seed,
            tail=tail, decode=decode, layout=layout, transform=transform, collate=collate, on_error=on_error,
            error_report=None if error_report is None else report_path(error_report),
            max_pixels=max_pixels, ranks=_given_ranks(rank, world_size),
        )  # fmt: skip
        self._epochs = EpochCounter()
        self._parent_ranks: tuple[int, int] | None = None
        self._pid = os.getpid()
        _ = self._decoders
        # The tail depends on the ranks, which may not be known yet; all else is refused now.
        Plan(sizes=self.table.sizes, batch_size=batch_size, seed=seed, tail="pad")
        check_choice("tail", tail, ("even", "drop", "pad"))

    def __len__(self) -> int:
        """Batches that each rank gets in the epoch to come; exact. After a resume that is the rest of one."""
        return self._plan(self._world(), self._epochs.next).steps

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration will be; every iteration advances it by one."""
        return self._epochs.next

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next one, in this process and in workers that live on."""
        self._epochs.set(epoch)

    def state_at(self, batches: int, epoch: int | None = None) -> dict[str, Any]:
        """Where a run is after so many batches of an epoch: numbers and strings, under 1 KB, alike on all ranks.

        batches: those that the loop got since the epoch began (or was resumed), not those made ahead.
        epoch:   default: the one that runs or ran last; with 0 batches the one to come.
        """
        if epoch is None:
            epoch = max(0, self._epochs.next - (batches > 0))
        return self._state(*self._plan(self._world(), epoch).state_at(batches)).to_json()

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Go on where a state was taken, on any number of ranks and workers: every sample that is left comes once.

        With the same global batch (batch_size x world_size) the steps are those of the uninterrupted run. Raises
        UsageError, with the field that differs, for a state of other data, another seed or shuffle, unless
        `strict` is False.
        """
        saved, here = State.from_json(state), self._state(0, 0)
        if strict:
            saved.check(here)
        elif saved.position > here.samples:
            raise UsageError(f"the state is at position {saved.position:,} of {here.samples:,} samples")
        self._epochs.set(saved.epoch, saved.position)

    def _state(self, epoch: int, position: int) -> State:
        return State(
            epoch=epoch, position=position, data=self.table.fingerprint, samples=int(self.table.sizes.sum()),
            seed=self._options.seed, shuffle=self._options.shuffle,
        )  # fmt: skip

    def __iter__(self) -> Iterator[Any]:
        _refuse_batch_size(sys._getframe(1))
        world, epoch = self._world(), self._epochs.begin()
        return self._batches(self._plan(world, epoch), world)

    def _batches(self, plan: Plan, world: World) -> Iterator[Any]:
        self._epochs.started(plan.epoch)
        for step in plan.batches(range(world.worker, plan.steps, world.workers), world.rank):
            if self._user_code and get_worker_info() is not None:
                seed_globals(batch_seed(plan.seed, plan.epoch, step.step, world.rank))
            yield self.make_batch(step, plan.epoch)

    def batch_bytes(self) -> int:
        """About how much memory one batch takes, for deciding how many to make ahead."""
        each = sum(d.value_bytes(self.table.fields[name]) for name, d in self._decoders.items())
        return each * self._options.batch_size

    def make_batch(self, batch: BatchRows, epoch: int, alloc: Alloc = new_array) -> Any:
        """The batch of these rows: read, decode, transform, collate. The same wherever it is made."""
        rows, valid = batch.rows, batch.valid
        values, failures = self._read(rows, epoch, alloc)
        if failures:
            kept = self._left(rows, failures)
            rows, valid = rows[kept], None if valid is None else valid[kept]
            values = {name: _take(value, kept) for name, value in values.items()}
        if self._options.transform is not None or self._options.collate is not None:
            return as_tensors(self._join_samples(values, rows, valid, epoch, alloc))
        keys = _Keys(self.table, rows)
        joined = {n: v if isinstance(v, np.ndarray) else stack(n, v, keys, alloc) for n, v in values.items()}
        if KEY in self._options.fields:
            joined[KEY] = self.table.keys(rows)
        if valid is not None:
            joined[VALID] = valid
        return self._shape(as_tensors(joined))

    def _read(self, rows: Rows, epoch: int, alloc: Alloc) -> tuple[dict[str, Values], list[Failure]]:
        seed = self._options.seed
        columns = self.table.gather(rows, list(self._decoders), alloc)
        values: dict[str, Values] = {}
        failures: list[Failure] = []
        for name, decoder in self._decoders.items():
            values[name], failed = decode_column(
                decoder, columns[name], lambda i: generator(seed, epoch, int(rows[i])), alloc,
                joined=self._options.transform is None and self._options.collate is None,
            )  # fmt: skip
            failures += failed
        return values, failures

    def _left(self, rows: Rows, failures: list[Failure]) -> NDArray[np.int64]:
        """Indices that remain after failures: raised, or logged and reported, as the user wants."""
        for failure in failures:
            shard, row = self.table.locate(int(rows[failure.index]))
            key = _Keys(self.table, rows)[failure.index]
            place = {"shard": shard, "row": row, "key": key, "field": failure.field}
            failure.error.where = {**place, **failure.error.where}
            if self._options.on_error == "raise":
                raise failure.error
            _log.warning("skipped %s: %s", type(failure.error).__name__, failure.error)
            self._report(place, failure.error)
        kept = np.setdiff1d(np.arange(len(rows)), [failure.index for failure in failures])
        if kept.size == 0:
            raise SampleError(
                f"none of the {len(rows)} samples of a batch decodes; the first: {failures[0].error}",
                fix="With on_error='skip' a batch may get smaller, not empty: look at the data or the decoder",
            )
        return kept

    def _report(self, place: dict[str, Any], error: StreamioError) -> None:
        if self._options.error_report is not None:
            line = json.dumps({**place, "error": f"{type(error).__name__}: {error.found}"}, default=str)
            with open(self._options.error_report, "a", encoding="ascii") as file:
                file.write(line + "\n")

    def _join_samples(
        self, values: Mapping[str, Values], rows: Rows, valid: NDArray[np.bool_] | None, epoch: int, alloc: Alloc
    ) -> Any:
        """The way of the user's functions: one sample at a time."""
        options = self._options
        keys = self.table.keys(rows)
        values = {**values, KEY: keys, **({} if valid is None else {VALID: valid})}
        samples = as_samples(values, len(rows))
        if options.transform is not None:
            made = [self._transform(sample, int(row), epoch) for sample, row in zip(samples, rows, strict=True)]
            kept = [i for i, sample in enumerate(made) if sample is not None]
            if not kept:
                raise SampleError(f"transform returned None for all {len(samples)} samples of a batch")
            samples, keys = [made[i] for i in kept], [keys[i] for i in kept]
            valid = None if valid is None else valid[kept]
        if options.collate is not None:
            try:
                return options.collate(samples)
            except Exception as error:
                raise TransformError(
                    f"collate raised {type(error).__name__}: {error}; the batch starts with '{keys[0]}'"
                ) from error
        joined = collate_samples(samples, keys, alloc)
        if not isinstance(joined, dict):
            return joined
        if valid is not None:  # a transform may have left it out; a padded batch without it is a wrong one
            joined[VALID] = valid
        return self._as_tuple(joined) if options.as_tuple else joined

    def _transform(self, sample: dict[str, Any], row: int, epoch: int) -> Any:
        transform = self._options.transform
        assert transform is not None
        try:
            if self._transform_takes_rng:
                return transform(sample, generator(self._options.seed, epoch, row, TRANSFORM))
            return transform(sample)
        except Exception as error:
            shard, local = self.table.locate(row)
            raise TransformError(
                f"transform raised {type(error).__name__}: {error}", shard=shard, row=local, key=sample[KEY]
            ) from error

    def _shape(self, batch: dict[str, Any]) -> Any:
        """A batch of decoded fields in the layout and form that the user wants."""
        if self._options.layout == "chw":
            for name, decoder in self._decoders.items():
                if decoder.is_picture and getattr(batch[name], "ndim", 0) == 4:
                    batch[name] = channels_first(batch[name])
        return self._as_tuple(batch) if self._options.as_tuple else batch

    def _as_tuple(self, batch: Mapping[str, Any]) -> tuple[Any, ...]:
        missing = [name for name in self._options.fields if name not in batch]
        if missing:
            raise UsageError(
                f"the transform returned no {', '.join(missing)}, which fields= asks for",
                fix="Return them, or return a tuple in the order you want",
            )
        return tuple(batch[name] for name in self._options.fields)

    def _plan(self, world: World, epoch: int) -> Plan:
        o = self._options
        return Plan(
            sizes=self.table.sizes, batch_size=o.batch_size, world_size=world.world_size, seed=o.seed, epoch=epoch,
            shuffle=o.shuffle, tail=o.tail, start=self._epochs.start_of(epoch),
        )  # fmt: skip

    def _world(self) -> World:
        # Who unpickled us is a worker of the process that pickled us; its own forks have the facts themselves.
        return current_world(self._options.ranks, self._parent_ranks if self._pid == os.getpid() else None)

    @cached_property
    def _decoders(self) -> dict[str, FieldDecoder]:
        specs = {name: self.table.fields[name] for name in self._options.fields if name not in (KEY, VALID)}
        return make_decoders(specs, self._options.decode, self._options.max_pixels)

    @property
    def _user_code(self) -> bool:
        """Whether a function of the user's runs here, which may draw from global generators."""
        return bool(
            self._options.transform or self._options.collate or any(d.function for d in self._decoders.values())
        )

    @cached_property
    def _transform_takes_rng(self) -> bool:
        return takes_rng(self._options.transform) if self._options.transform is not None else False

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None:  # on the way to a worker; other copies may share a lambda
            check_picklable(self._options.functions())
        world = self._world()
        return {
            "table": self.table, "_options": self._options, "_epochs": self._epochs,
            "_parent_ranks": (world.rank, world.world_size),
        }  # fmt: skip

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _pid=os.getpid())

    def __repr__(self) -> str:
        o = self._options
        return f"ShardDataset({self.table!r}, batch_size={o.batch_size}, shuffle={o.shuffle!r}, tail={o.tail!r})"


def _open(source: Any) -> Table:
    """The source itself if it is a table of the user's, else the shard set at that place."""
    if not isinstance(source, ShardSet) and hasattr(source, "gather"):
        table: Table = source
        return table
    return with_one_picture(source if isinstance(source, ShardSet) else open_shards(source))


def _choose_fields(table: Table, fields: Sequence[str] | None, tail: str) -> tuple[tuple[str, ...], bool]:
    """(fields to deliver, whether as a tuple). Raises UsageError for names that are not there."""
    if fields is None:
        return (*table.fields, KEY), False
    if isinstance(fields, str):
        raise UsageError(f"fields={fields!r}", fix=f"Give a sequence of names: fields=({fields!r},)")
    if not fields:
        raise UsageError(
            "fields is empty", fix=f"Name some of {', '.join(table.fields)}, or leave fields= out for all"
        )
    unknown = [name for name in fields if name not in table.fields and name not in (KEY, VALID)]
    if unknown:
        raise UsageError(
            f"no field {', '.join(map(repr, unknown))}", fix=f"Fields: {', '.join(table.fields)}, {KEY}"
        )
    if (tail == "pad") != (VALID in fields):
        raise UsageError(
            f"tail={tail!r} with fields={tuple(fields)!r}",
            fix=f"Batches of tail='pad' need their mask: name '{VALID}' in fields (and only with 'pad')",
        )
    return tuple(fields), True


def _given_ranks(rank: int | None, world_size: int | None) -> tuple[int, int] | None:
    if rank is None and world_size is None:
        return None
    if rank is None or world_size is None:
        raise UsageError(f"rank={rank}, world_size={world_size}", fix="Give both or none")
    return check_ranks(rank, world_size)


def _refuse_batch_size(caller: FrameType) -> None:
    """Raise if a DataLoader is about to collect our batches into batches of batches.

    A data set is told nothing about the loader that reads it; the loader's fetcher, which calls `__iter__`, knows.
    """
    if caller.f_locals.get("auto_collation") is True:
        raise UsageError(
            "the DataLoader has a batch_size (1 if none is given), but ShardDataset makes whole batches",
            fix="Write DataLoader(dataset, batch_size=None, …); the size of a batch is ShardDataset's batch_size",
        )


class _Keys(Sequence[str]):
    """The keys of a batch, read only when a message needs one."""

    def __init__(self, table: Table, rows: Rows) -> None:
        self._table, self._rows = table, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        keys = self._table.keys(np.atleast_1d(self._rows[index]))
        return keys if isinstance(index, slice) else keys[0]


def _take(values: Values, kept: NDArray[np.int64]) -> Values:
    return values[kept] if isinstance(values, np.ndarray) else [values[i] for i in kept]
