"""ShardDataset: joins order, shards and batching into an IterableDataset that yields whole batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streamio.batching.declared import Collate, added_fields, as_declaration, as_function, check_declaration
from streamio.batching.decode import FieldDecode
from streamio.batching.delivery import Delivery
from streamio.batching.joining import Joiner, choose_fields, read_batch, read_bundle
from streamio.batching.missing import WhenMissing, as_rules, check_rules
from streamio.batching.options import (
    JoinOptions,
    OnError,
    ReadOptions,
    check_choice,
    check_errors,
    check_values,
    report_path,
)
from streamio.batching.picked import ADDED, VALID, Picked, Table
from streamio.batching.reading import SampleReader
from streamio.caching.keyed import CacheOptions
from streamio.codecs import MAX_PIXELS
from streamio.errors import UsageError
from streamio.growth import Growth
from streamio.order.announced import Announced, AnnouncedPlan
from streamio.order.balance import Draw, Lots
from streamio.order.base import Order
from streamio.order.bundles import Bundle, joined, spans
from streamio.order.columns import Columns
from streamio.order.lanes import lanes_are_kept
from streamio.order.lengths import Bucketing, Buckets, check_batch_size
from streamio.order.plan import BatchRows, Plan, Tail
from streamio.order.settings import OrderSettings
from streamio.order.shuffle import BLOCK_SAMPLES, shuffle_mode
from streamio.order.standins import TableStandIns
from streamio.order.state import Facts, State
from streamio.shards.concat import Concat
from streamio.shards.pictures import OnePicture, with_one_picture
from streamio.shards.shardset import ShardSet, open_shards
from streamio.sizes import parse_size
from streamio.stream import EpochPlan, ReadingStream, Start, given_ranks, warn_once
from streamio.types import Alloc, new_array
from streamio.world import World, from_first_rank


class ShardDataset(ReadingStream):
    """Streams a shard set as ready-made batches, the same for any number of workers.

        ds = ShardDataset("out/train", 256, fields=("jpg", "cls"), shuffle=True, decode=RandomResizedCrop(224))
        for pictures, labels in StreamLoader(ds):      # uint8 (256, 224, 224, 3), int64 (256,)

    Use it with `StreamLoader`, or with `DataLoader(ds, batch_size=None, num_workers=…)`: batches are made here.

    source:     path or URL of a shard set, tars, a brace pattern (see `streamio.open`), or an opened ShardSet; or
                {name: one of these}, several sets end to end as one. Of one that grows (`streamio.capture`) it has
                the shards that were there, and further ones after `refresh`.
    batch_size: samples of one batch on one rank; None where `buckets` has a budget.
                Pictures of several kinds (`a.jpg`, `b.png`), one a sample, are one field `image`.
    fields:     a sequence of names: batches are tuples in this order (`"__key__"` is the key, `"__valid__"` the
                mask of tail "pad"). None: batches are dicts of all fields and `"__key__"`.
    shuffle:    False, True (= "block"), "global", "shards"; see `streamio.order.shuffle`. Reads ahead in no
                buffer: the order is arithmetic of seed and epoch.
    block_samples: samples that are mixed with each other under "block", at least.
    lanes:      cut the order into so many parallel ones over shards of their own, so that a node fetches only the
                shards of its ranks; a multiple of the number of ranks, or of nodes. See `streamio.order.lanes`.
    repeat:     passes over the set in one epoch, each in an order of its own.
    draw:       samples by class or weight instead of once each, in random order; see `streamio.Draw`.
    buckets:    batches of samples of similar length, or within a budget of tokens; see `streamio.Buckets`.
    seed:       of the order and of all augmentation. The same on all ranks.
    tail:       "even" (default): every sample once *and* as many batches on every rank, the last two steps
                shared out; "drop": whole batches only; "pad": the last filled up and marked in `__valid__`.
    decode:     an operation of `streamio.image` for all pictures, or {field: operation, or a function of the
                raw bytes, or False for the raw bytes}. False: raw bytes of all fields. An operation draws the
                same numbers for every field of a sample, so a picture and its mask are cropped alike.
    layout:     of pictures: "hwc", or "chw" (no copy; torch's channels_last). prepare and transform get (H, W, C)
                in any case; arrays that they, or functions in decode, return so, under the field's name, are
                turned for "chw".
    prepare:    function of one decoded sample (a dict of arrays, numbers, strings) that draws nothing and returns
                one; None drops it. It comes before transform. With cache= what it returns is kept, and nothing of
                the sample is read or decoded again.
    transform:  function of one sample (a dict of arrays, numbers, strings; not tensors), or of (sample, rng)
                with a numpy Generator keyed by (seed, epoch, row). What it returns is collated; None drops the
                sample from its batch.
    collate:    {field: how its values are joined}: "stack" (one array), "list", `streamio.Pad(…)` or
                `streamio.Ragged(…)`; fields that are not named stack where they can. Masks, lengths and offsets
                come as further fields, which `fields` may name. Or a function of a list of samples; it may return
                anything. It and transform get None for a field that a sample lacks.
    missing:    {field: "error", "skip" or `streamio.Fill(value)`} for samples that lack it: an error (or what
                on_error says), left out of the batch (counted as dropped), or filled, and marked in
                `<field>_filled`. For fields of the set before transform sees them; for others, which it
                makes, after.
    batch_transform: function of a batch as the loop would get it (tensors in a dict or tuple), or of (batch, rng)
                with a generator keyed by (seed, epoch, first row). What it returns is delivered instead. See
                `streamio.MixUp`, `streamio.CutMix` and `streamio.RandomChoice`.
    on_error:   for samples that do not decode, lack a field that becomes an array, or that prepare or transform
                raise on:
                "raise" the error of the first; "skip": they are left out of their batch, which gets smaller (but
                not empty: of a batch of nothing but bad samples all are substituted); "substitute": others take
                their places, so that batches stay whole. Each is logged once in a process (logger "streamio").
    max_errors: how many samples of an epoch may be bad, on each rank: a number, or a share of those read so far
                (of 1,000 at least). More raise TooManyBadSamples.
    error_report: path of a JSON-lines file to which all workers append shard, row, key, field and error of each
                bad sample, the epoch, what was done, and by which sample it was substituted.
    max_pixels: pictures with more are refused before they are decoded.
    cache:      "memory" or "disk:/folder": keep what is decoded (or prepared) for the next epochs, as it is before
                anything is drawn at random; batches are the same to the bit. In memory that all workers share (and
                the ranks that torchrun starts), gone with the data set; or in files that all jobs of the machine
                share.
    cache_bytes: that it may take (`"8GB"`); None: half of the memory that is available, or of the free disk. What
                does not fit is decoded in each epoch.
    cache_key:  instead of the code of prepare= and the functions in decode= (and what missing= fills in for
                prepare=), a text that is to change when what they do changes.
    rank, world_size: instead of those of torch.distributed (or RANK and WORLD_SIZE); for data-parallel groups.

    Raises UsageError at construction for what cannot work, and TailError where "even" cannot be, before the
    first batch.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Sequence[str] | Table | Mapping[str, Any],
        batch_size: int | None,
        *,
        fields: Sequence[str] | None = None,
        shuffle: bool | str = False,
        block_samples: int = BLOCK_SAMPLES,
        lanes: int = 1,
        repeat: int = 1,
        draw: Draw | None = None,
        buckets: Buckets | None = None,
        seed: int = 0,
        tail: Tail = "even",
        decode: FieldDecode | Mapping[str, FieldDecode] = None,
        layout: Literal["hwc", "chw"] = "hwc",
        prepare: Callable[[dict[str, Any]], Any] | None = None,
        transform: Callable[..., Any] | None = None,
        collate: Collate | None = None,
        missing: Mapping[str, WhenMissing] | None = None,
        batch_transform: Callable[..., Any] | None = None,
        on_error: OnError = "raise",
        max_errors: int | float | None = None,
        error_report: str | os.PathLike[str] | None = None,
        max_pixels: int = MAX_PIXELS,
        cache: str | None = None,
        cache_bytes: int | str | None = None,
        cache_key: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        table, shards = _apart(open_table(source))
        declared, rules = as_declaration(collate), as_rules(missing)
        added = added_fields(declared, rules)
        chosen, as_tuple = choose_fields(tuple(table.fields), fields, tail, added)
        stored = tuple(name for name in chosen if name not in added)
        makes_more = transform is not None or prepare is not None
        check_rules(rules, tuple(table.fields), stored, makes_more=makes_more)
        check_choice("layout", layout, ("hwc", "chw"))
        check_errors(on_error, max_errors)
        check_choice("tail", tail, ("even", "drop", "pad"))
        check_values(
            seed=seed, max_pixels=max_pixels, prepare=prepare, transform=transform, collate=as_function(collate)
        )
        super().__init__(seed=seed, ranks=given_ranks(rank, world_size))
        self.table: Table = table
        self._growth = Growth(shards)
        check_batch_size(batch_size, buckets)
        self.batch_size, self.tail, self.buckets = batch_size, tail, buckets
        self.ordering = OrderSettings(
            seed=seed, shuffle=shuffle_mode(shuffle), block_samples=block_samples, lanes=lanes, repeat=repeat,
            draw=draw,
        )  # fmt: skip
        size = None if cache_bytes is None else parse_size(cache_bytes)
        read = ReadOptions(
            fields=stored, decode=decode, prepare=prepare, transform=transform, on_error=on_error,
            max_pixels=max_pixels, missing=rules, max_errors=max_errors,
            error_report=None if error_report is None else report_path(error_report),
            cache=CacheOptions.checked(cache, size, cache_key),
        )  # fmt: skip
        self.reader = SampleReader(table, read, seed, self._counts.add, TableStandIns(table, seed, draw, buckets))
        pictures = frozenset(name for name, decoder in self.reader.decoders.items() if decoder.is_picture)
        declared = check_declaration(
            declared, self.reader.decoders, missing=rules, asked=chosen if as_tuple else None,
            others=(*table.fields, *ADDED), has_transform=makes_more,
        )  # fmt: skip
        join = JoinOptions(
            fields=chosen, as_tuple=as_tuple, layout=layout, collate=as_function(collate), declared=declared
        )
        self.joiner = Joiner(join, pictures)
        self.delivery = Delivery(
            batch_transform, seed=seed, names=chosen if as_tuple else None, count=self._counts.add
        )
        self._warned: set[str] = set()
        if buckets is not None and lanes > 1:
            raise UsageError(f"buckets in {lanes} lanes", fix="Leave one of them out")
        # The tail depends on the ranks, which may not be known yet; all else is refused now.
        self._plan_with("pad", World(), 0, ())

    def order(self, epoch: int) -> Order:
        """The order of an epoch, on whatever topology."""
        return self.ordering.order(self._sizes(epoch), epoch, self.lots)

    def refresh(self, shards: int | None = None) -> int:
        """Let the next epoch have the shards that came meanwhile to a set that grows; how many there are then.

            for epoch in range(100):
                ds.refresh()
                for batch in loader: ...

        For all workers, those that live on too, and for all ranks, which must all call it: rank 0 looks. The epoch
        that runs keeps its shards, and so does one that a state goes on in the middle of. Rows keep their numbers.

        shards: so many instead of all. To be given, the same on all ranks, where rank= and world_size= were.

        Raises UsageError for a set that does not grow, and with draw=, buckets= and cache=, which were made for
        the shards that there were.
        """
        table = _growing(self.table)
        others = {"draw": self.ordering.draw, "buckets": self.buckets, "cache": self.reader.options.cache}
        given = [name for name, value in others.items() if value is not None]
        if table is None or given:
            found = f"{given[0]}= over a set that grows" if table else f"{self.table!r} does not grow"
            raise UsageError(found, fix="Make the data set anew" if table else "Leave refresh() out")
        now = from_first_rank(lambda: table.shards_now() if shards is None else shards, self._ranks)
        epoch, start = self._epochs.next, self._epochs.start_of(self._epochs.next)
        first = epoch + 1 if start else epoch
        if now < self._growth.of(first):
            raise UsageError(f"{now} shards, and there were {self._growth.of(first)}", fix="Shards only come")
        table.first(now)  # it raises where they are not all there
        self._growth.set(first, now)
        self._planned = None
        return now

    def _sizes(self, epoch: int) -> NDArray[np.int64]:
        """Samples of each shard that an epoch has."""
        shards = self._growth.of(epoch)
        if not shards:
            return self.table.sizes
        table = _growing(self.table)
        if table is not None and shards > len(table.sizes):
            table.take_over(table.first(shards))
        return self.table.sizes[:shards]

    @cached_property
    def lots(self) -> Lots | None:
        """The draw over this set."""
        if self.ordering.draw is None:
            return None
        return self.ordering.draw.of(*self._columns)

    @cached_property
    def bucketing(self) -> Bucketing | None:
        """The buckets over this set."""
        return None if self.buckets is None else self.buckets.of(*self._columns)

    @property
    def _columns(self) -> tuple[Columns, int]:
        return getattr(self.table, "columns", {}), int(self.table.sizes.sum())

    def _plan(self, world: World, epoch: int, start: Start) -> EpochPlan:
        lanes = self.ordering.lanes
        if not lanes_are_kept(world.world_size, lanes):
            warn_once(
                f"lanes={lanes} on {world.world_size} ranks: neither divides the other, so each rank reads from "
                "many lanes. Give a multiple of the ranks or of the nodes",
                self._warned,
            )
        plan = self._plan_with(self.tail, world, epoch, start)
        return AnnouncedPlan(plan, self.table) if isinstance(self.table, Announced) else plan

    def _plan_with(self, tail: Tail, world: World, epoch: int, start: Start) -> EpochPlan:
        size, ranks, lanes = self.batch_size, world.world_size, self.ordering.lanes
        if self.bucketing is not None:
            return self.bucketing.plan(
                self.order(epoch), batch_size=size, world_size=ranks, seed=self.ordering.seed, epoch=epoch,
                tail=tail, start=start,
            )  # fmt: skip
        assert size is not None
        return Plan(
            order=self.order(epoch), batch_size=size, world_size=ranks, epoch=epoch, tail=tail, lanes=lanes,
            start=start[0] if start else 0,
        )  # fmt: skip

    def _facts(self) -> tuple[str, int, Facts]:
        facts = self.ordering.facts(self.lots)
        if self.bucketing is not None:
            facts |= self.bucketing.facts(self.batch_size)
        return self.table.fingerprint, self.ordering.samples(self.table.sizes), facts

    def _state(self, epoch: int, start: Start) -> State:
        state, table, shards = super()._state(epoch, start), _growing(self.table), self._growth.of(epoch)
        if table is None:
            return state
        samples = self.ordering.samples(self._sizes(epoch))
        order = {**state.order, "shards": shards}
        return replace(state, data=table.fingerprint_of(shards), samples=samples, order=order)

    def _recall(self, saved: State) -> None:
        shards = saved.order.get("shards")
        if _growing(self.table) is not None and isinstance(shards, int):
            self._growth.set(0, shards)
            self._planned = None

    def batch_bytes(self) -> int:
        """About how much memory one batch takes, for deciding how many to make ahead."""
        size = self.batch_size if self.bucketing is None else self.bucketing.samples_of_a_batch(self.batch_size)
        assert size is not None
        return self.reader.sample_bytes * size

    def make_batch(
        self, batch: BatchRows, alloc: Alloc = new_array, more: Mapping[str, NDArray[Any]] | None = None
    ) -> Any:
        """The batch of these rows: read, decode, transform, collate. The same wherever it is made.

        more: further fields, a value for each row; those of the samples that are left are in the batch.
        """
        return self.delivery(read_batch(self.reader, self.joiner, _picked(batch, more), alloc), batch)

    @property
    def reads_bundles(self) -> bool:
        """Whether several batches can be read at once."""
        return self.reader.reads_bundles and not (self.runs_user_code or isinstance(self.table, Announced))

    def _read_bundle(self, bundle: Bundle, alloc: Alloc) -> list[Any] | None:
        made = read_bundle(self.reader, self.joiner, _picked(joined(bundle)), alloc, spans(bundle))
        return made and [self.delivery(batch, rows) for batch, rows in zip(made, bundle, strict=True)]

    def _functions(self) -> dict[str, Any]:
        draw, buckets = self.ordering.draw, self.buckets
        return {
            "source": self.table, **super()._functions(),
            "draw": draw and (draw.classes or draw.weights), "buckets": buckets and buckets.lengths,
        }  # fmt: skip

    def _opened(self, source: Any) -> Any:
        return self.table

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name not in ("lots", "bucketing")}

    def __repr__(self) -> str:
        shuffle = self.ordering.shuffle
        return (
            f"ShardDataset({self.table!r}, batch_size={self.batch_size}, shuffle={shuffle!r}, tail={self.tail!r})"
        )


def _picked(batch: BatchRows, more: Mapping[str, NDArray[Any]] | None = None) -> Picked:
    valid = {} if batch.valid is None else {VALID: batch.valid}
    return Picked(batch.rows, batch.visits, {**valid, **(more or {})}, batch.epoch)


def _growing(table: Table) -> ShardSet | None:
    """The set behind a table, if shards may come to it."""
    base = table.base if isinstance(table, OnePicture) else table
    return base if isinstance(base, ShardSet) and base.grows and not base.is_selection else None


def _apart(table: Table) -> tuple[Table, int]:
    """(table, its shards) of a set that grows, so that nobody else's grows with it; others as they are, and 0."""
    base = _growing(table)
    if base is None:
        return table, 0
    return with_one_picture(base.first(len(base.sizes))), len(base.sizes)


def open_table(source: Any) -> Table:
    """The source itself if it is a table of the user's, else the shard set at that place."""
    if not isinstance(source, ShardSet) and hasattr(source, "gather"):
        table: Table = source
        return table
    if isinstance(source, Mapping):
        return Concat(tuple(source), [open_table(one) for one in source.values()])
    return with_one_picture(source if isinstance(source, ShardSet) else open_shards(source))
