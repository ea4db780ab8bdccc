"""Rows of a table -> values: gather, decode, prepare, transform, with what fails dealt with on the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter_ns
from typing import Any

import numpy as np

from streamio.batching import stages
from streamio.batching.caching import ValueCache
from streamio.batching.decode import (
    NUMBER_CODECS,
    Columns,
    Failure,
    FieldDecoder,
    Values,
    decode_column,
    make_decoders,
)
from streamio.batching.functions import as_samples, raised_by, takes_rng, with_fields
from streamio.batching.missing import MissingRules, with_rules
from streamio.batching.options import ReadOptions
from streamio.batching.picked import ADDED, KEY, Picked, Table
from streamio.batching.preparing import Preparing
from streamio.batching.settling import Settlement
from streamio.batching.stages import Count, spent
from streamio.errors import SampleError
from streamio.order.standins import StandIns, TableStandIns
from streamio.rng import TRANSFORM, generator
from streamio.types import Alloc, Rows, new_array

DROPPED = "dropped"

_WHOLE = ""  # the column of whole samples, where they have no fields any more


@dataclass(frozen=True, slots=True)
class Made:
    """Samples that the user's transform made: what is left of them, with the values themselves."""

    picked: Picked
    samples: list[Any]


class SampleReader:
    """Reads samples of one table as the options say.

    count:     told how many samples were left out or replaced, and why (`skipped` and `substituted` with on_error,
               `dropped` by prepare or transform, or for what they lack); and the time of each stage, see `stages`.
    stand_ins: says which samples take the places of bad ones; None: those of the table.
    """

    def __init__(
        self, table: Table, options: ReadOptions, seed: int, count: Count, stand_ins: StandIns | None = None
    ) -> None:
        self.table, self.options, self.count = table, options, count
        self._seed = seed
        self._settlement = Settlement(table, options, count, stand_ins or TableStandIns(table, seed))
        self._missing = MissingRules(options.missing, self.decoders, table)
        self.preparing = None if options.prepare is None else Preparing(options, table, self.decoders, count)
        cache = options.cache if self.preparing is None else None  # else it has the cache
        self.cache = None if cache is None else ValueCache(cache, table, self.decoders, count)

    @cached_property
    def decoders(self) -> dict[str, FieldDecoder]:
        specs = {name: self.table.fields[name] for name in self.options.fields if name not in ADDED}
        decoders = make_decoders(specs, self.options.decode, self.options.max_pixels)
        return with_rules(decoders, self.options.missing)

    @property
    def sample_bytes(self) -> int:
        """About how much memory one sample takes."""
        return sum(decoder.value_bytes(self.table.fields[name]) for name, decoder in self.decoders.items())

    @cached_property
    def runs_user_code(self) -> bool:
        """Whether a function of the user's runs here, which may draw from global generators."""
        return self.options.by_sample or any(d.function for d in self.decoders.values())

    def keys(self, rows: Rows) -> Sequence[str]:
        """The keys of a batch, read only when one is needed."""
        return _Keys(self.table, rows)

    @property
    def reads_bundles(self) -> bool:
        """Whether `at_once` may be asked."""
        options = self.options
        return not (options.by_sample or options.missing or options.cache is not None)

    def at_once(self, picked: Picked, alloc: Alloc) -> Columns | None:
        """What `values` gives for the samples of several batches; None where each is to be asked for by itself.

        So it is where a sample is bad, and where shards do not hold the numbers of a field alike: a batch of one
        shard would have another dtype.
        """
        values, failures = self._decoded(picked, alloc, joined=True)
        numbers = (values[name] for name, decoder in self.decoders.items() if decoder.codec in NUMBER_CODECS)
        if failures or not all(isinstance(column, np.ndarray) for column in numbers):
            return None
        self._settlement.is_due(picked, failures)
        return values

    def values(
        self, picked: Picked, alloc: Alloc, *, joined: bool, may_be_empty: bool = False
    ) -> tuple[Picked, Columns]:
        """The fields, decoded, of the samples that are left, or of those in their places.

        joined:       the values will be joined field by field, so a sample without one is a failure where the
                      others make an array; else it is None.
        may_be_empty: whether all may be left out. Else others take the places, as with on_error="substitute".
        """
        picked = self._without_lacking(picked)
        values, failures = self._decoded(picked, alloc, joined)
        if not self._settlement.is_due(picked, failures):
            return picked, values
        bad = self._settlement.of_samples(picked, failures)
        may_skip = may_be_empty or len(bad) < len(picked.rows)

        def others(places: Picked) -> tuple[Columns, list[Failure]]:
            columns, failures = self._decoded(places, new_array, joined)
            return columns, failures + self._lacking(places)

        return self._settlement.settle(picked, values, bad, others, may_skip)

    def _decoded(self, picked: Picked, alloc: Alloc, joined: bool) -> tuple[Columns, list[Failure]]:
        since = perf_counter_ns()
        kept = () if self.cache is None else self.cache.fields
        others = [name for name in self.decoders if name not in kept]
        columns = self.table.gather(picked.rows, others, alloc) if others else {}
        since = spent(self.count, stages.READ, since)
        values: dict[str, Values] = {}
        failures: list[Failure] = []

        def rng(i: int) -> np.random.Generator:
            return self._generator(picked, i)

        for name, decoder in self.decoders.items():
            if self.cache is not None and name in kept:
                column = self.cache.column(decoder, picked.rows, rng, alloc, joined=joined)
            else:
                column = decode_column(decoder, columns[name], rng, alloc, joined=joined)
            values[name], failed = column
            failures += failed
        spent(self.count, stages.DECODE, since)
        return values | self._missing.masks(picked.rows), failures

    def _without_lacking(self, picked: Picked) -> Picked:
        """Without samples that lack a field, where that is what to do with them."""
        left = self._missing.left(picked.rows)
        if left is None:
            return picked
        self.count(DROPPED, len(picked.rows) - len(left))
        return picked.take(left)

    def samples(self, picked: Picked, *, may_be_empty: bool = False) -> Made:
        """One value for each sample that is left: a dict of its fields, or what was made of that."""
        picked = self._without_lacking(picked)
        samples, failures = self._transformed(picked)
        if self._settlement.is_due(picked, failures):
            bad = self._settlement.of_samples(picked, failures)
            may_skip = may_be_empty or any(sample is not None for sample in samples)
            picked, columns = self._settlement.settle(
                picked, {_WHOLE: samples}, bad, self._transformed_others, may_skip
            )
            samples = list(columns[_WHOLE])
        kept = np.flatnonzero([sample is not None for sample in samples])
        if len(kept) < len(samples):
            self.count(DROPPED, len(samples) - len(kept))
            picked, samples = picked.take(kept), [samples[i] for i in kept]
        return Made(picked, samples)

    def _transformed(self, picked: Picked) -> tuple[list[Any], list[Failure]]:
        """What becomes of each sample; None where it failed, or where one of the functions returned that."""
        more = {name: values for name, values in picked.more.items() if name in ADDED}
        values: Mapping[str, Any]
        if self.preparing is None:
            samples, failures, values = self._untransformed(picked, more)
        else:
            prepared, failures = self.preparing.samples(picked, lambda others: self._untransformed(others, {})[:2])
            samples, values = with_fields(prepared, more), self._missing.masks(picked.rows)
        if not self.options.by_sample:
            return samples, failures
        if self.options.transform is not None:
            since = perf_counter_ns()
            for i, sample in enumerate(samples):
                try:
                    samples[i] = None if sample is None else self._transform(sample, picked, i)
                except Exception as error:
                    samples[i] = None
                    failures.append(Failure(i, "", raised_by("transform", error, self.table, int(picked.rows[i]))))
            spent(self.count, stages.TRANSFORM, since)
        samples, lacking = self._missing.after(samples, values)
        return samples, failures + lacking

    def _untransformed(
        self, picked: Picked, more: Mapping[str, Values]
    ) -> tuple[list[Any], list[Failure], Columns]:
        """The fields of each sample as a dict, None where they failed; and the columns. more: further fields."""
        values, failures = self._decoded(picked, new_array, joined=False)
        fields = {**values, KEY: self.table.keys(picked.rows), **more}
        samples: list[Any] = list(as_samples(fields, len(picked.rows)))
        for failure in failures:
            samples[failure.index] = None
        return samples, failures, values

    def _transformed_others(self, others: Picked) -> tuple[Columns, list[Failure]]:
        samples, failures = self._transformed(others)
        failed = {failure.index for failure in failures}
        none = [i for i, sample in enumerate(samples) if sample is None and i not in failed]
        failures += [Failure(i, "", SampleError("prepare or transform returned None for it")) for i in none]
        return {_WHOLE: samples}, failures + self._lacking(others)

    def _lacking(self, others: Picked) -> list[Failure]:
        """Those that cannot take the place of a bad sample, since they would be left out themselves."""
        left = self._missing.left(others.rows)
        lacking = () if left is None else np.setdiff1d(np.arange(len(others.rows)), left).tolist()
        return [Failure(i, "", SampleError("it lacks a field")) for i in lacking]

    def _generator(self, picked: Picked, i: int, *stream: int) -> np.random.Generator:
        places = picked.rows if picked.places is None else picked.places
        return generator(self._seed, int(picked.visits[i]), int(places[i]), *stream)

    def _transform(self, sample: dict[str, Any], picked: Picked, i: int) -> Any:
        assert self.options.transform is not None
        if self._transform_takes_rng:
            return self.options.transform(sample, self._generator(picked, i, TRANSFORM))
        return self.options.transform(sample)

    @cached_property
    def _transform_takes_rng(self) -> bool:
        return self.options.transform is not None and takes_rng(self.options.transform)


class _Keys(Sequence[str]):
    """The keys of a batch, read only when a message needs one."""

    def __init__(self, table: Table, rows: Rows) -> None:
        self._table, self._rows = table, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self._table.keys(self._rows))  # of all at once

    def __getitem__(self, index: Any) -> Any:
        keys = self._table.keys(np.atleast_1d(self._rows[index]))
        return keys if isinstance(index, slice) else keys[0]
