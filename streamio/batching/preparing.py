"""prepare=: what a function of the user's makes of a decoded sample before anything is drawn at random.

A prepared sample depends on its row alone. So with cache= it is kept as a whole, in one slot for each row, and what
it was made of is neither read nor decoded again; None is kept, too, for a sample that is to be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter_ns
from typing import Any, TypeAlias

import numpy as np

from streamio.batching.caching import ADDED_BYTES, HITS, MISSES, decoded_by, made_by, may_draw
from streamio.batching.decode import NUMBER_CODECS, Failure, FieldDecoder
from streamio.batching.functions import raised_by, takes_rng
from streamio.batching.missing import Fill
from streamio.batching.options import ReadOptions
from streamio.batching.picked import Picked, Table
from streamio.batching.stages import DECODE, TRANSFORM, Count, spent
from streamio.caching.keyed import Origin, open_store
from streamio.caching.packed import Packed
from streamio.caching.store import Store
from streamio.errors import UsageError, where

Sample: TypeAlias = dict[str, Any]

Read: TypeAlias = Callable[[Picked], tuple[Sequence[Sample | None], list[Failure]]]
"""Reads and decodes samples: their fields, None for those that failed, and why they did."""


class Preparing:
    """Calls `prepare` for the samples of a table, or finds what it returned.

    Raises UsageError for a function that wants to draw, for operations that may draw where samples are kept, and as
    the stores do.
    """

    def __init__(
        self, options: ReadOptions, table: Table, decoders: Mapping[str, FieldDecoder], count: Count
    ) -> None:
        assert options.prepare is not None
        if takes_rng(options.prepare):
            raise UsageError(
                f"prepare={options.prepare!r} takes more than the sample",
                fix="It is called with the sample alone, and draws nothing: random work goes into transform=",
            )
        self._prepare, self._table, self._count = options.prepare, table, count
        self._numbers = [name for name, decoder in decoders.items() if decoder.codec in NUMBER_CODECS]
        cache = options.cache
        if cache is not None:
            _refuse_draws(decoders)
        origins, rows = _origins(options, table, decoders), int(table.sizes.sum())
        self._held = None if cache is None else open_store(cache, origins, rows)

    @property
    def store(self) -> Store | None:
        """Where prepared samples are kept."""
        return None if self._held is None else self._held.store

    def samples(self, picked: Picked, read: Read) -> tuple[list[Sample | None], list[Failure]]:
        """The prepared samples; None for those that failed, and for those of which `prepare` made None."""
        store = self.store
        if store is None:
            return self._made(picked, read)
        since = perf_counter_ns()
        samples: list[Sample | None] = [None] * len(picked.rows)
        missed = []
        for i, (slot, word) in enumerate(zip(picked.rows.tolist(), store.words(picked.rows), strict=True)):
            found = store.read(slot, word) if word else None
            if found is None:
                missed.append(i)
            else:
                samples[i] = found[0]
        spent(self._count, DECODE, since)
        self._counted(HITS, len(samples) - len(missed))
        failures = self._fill(store, picked, missed, samples, read) if missed else []
        return samples, failures

    def _fill(
        self, store: Store, picked: Picked, missed: list[int], samples: list[Sample | None], read: Read
    ) -> list[Failure]:
        """Prepare the samples at these indices, and keep them."""
        others = picked.take(np.array(missed, np.int64))
        made, failures = self._made(others, read)
        bad = {failure.index for failure in failures}
        added = 0
        for n, (i, row) in enumerate(zip(missed, others.rows.tolist(), strict=True)):
            samples[i] = made[n]
            if n not in bad:
                added += _kept(store, row, made[n])
        self._counted(MISSES, len(missed))
        self._counted(ADDED_BYTES, added)
        return [replace(failure, index=missed[failure.index]) for failure in failures]

    def _made(self, picked: Picked, read: Read) -> tuple[list[Sample | None], list[Failure]]:
        decoded, failures = read(picked)
        since = perf_counter_ns()
        samples: list[Sample | None] = []
        for i, sample in enumerate(decoded):
            made = None
            if sample is not None:
                try:
                    made = self._prepare(self._alike(sample))
                except Exception as error:
                    failures.append(Failure(i, "", raised_by("prepare", error, self._table, int(picked.rows[i]))))
            samples.append(_as_sample(made))
        spent(self._count, TRANSFORM, since)
        return samples, failures

    def _alike(self, sample: Sample) -> Sample:
        """The sample as it is in whatever batch it comes: numbers are numpy's where all shards of the batch have
        the field in every sample, and else Python's."""
        for name in self._numbers:
            if isinstance(sample[name], np.generic):
                sample[name] = sample[name].item()
        return sample

    def _counted(self, name: str, count: int) -> None:
        if count:
            self._count(name, count)


def _as_sample(made: Any) -> Sample | None:
    if made is None:
        return None
    if not isinstance(made, Mapping):
        raise UsageError(
            f"prepare returned a {type(made).__name__}",
            fix="Return a dict of fields, for transform= and the batch; or None to leave the sample out",
        )
    sample: Sample = _as_kept(dict(made), set())
    return sample


_OF_PARTS = (np.ndarray, dict, list, tuple)


def _as_kept(value: Any, seen: set[int]) -> Any:
    """The value as it comes from a cache, and so must come without one: containers of its own, and arrays that may
    be written to, share no memory with others of the sample, and are C-contiguous (sums depend on it, to the bit).

    seen: the owners of memory that arrays of the sample are in.
    """
    kind = type(value)
    if kind is np.ndarray:
        owner = value
        while isinstance(owner, np.ndarray) and owner.base is not None:
            owner = owner.base
        if not value.flags.c_contiguous or not value.flags.writeable or id(owner) in seen:
            return value.copy()
        seen.add(id(owner))
        return value
    if kind is dict:
        return {name: _as_kept(part, seen) if type(part) in _OF_PARTS else part for name, part in value.items()}
    if kind is list or kind is tuple:
        return kind(_as_kept(part, seen) if type(part) in _OF_PARTS else part for part in value)
    return value


def _kept(store: Store, row: int, sample: Sample | None) -> int:
    """The bytes that the sample takes in the store. Raises UsageError, with the field, for one it cannot keep."""
    try:
        return store.write(row, sample)
    except UsageError:
        for field, value in (sample or {}).items():
            with where(field=field):
                Packed(value)
        raise


def _refuse_draws(decoders: Mapping[str, FieldDecoder]) -> None:
    for field, decoder in decoders.items():
        if may_draw(decoder):
            raise UsageError(
                f"decode gives {decoder.op!r} for the field '{field}', which may draw at random, and prepare= with "
                "cache= keeps what is made of it: it would be the same in every epoch",
                fix="Use CenterCrop, Resize, MaxSide or nothing in decode=, and crop in transform=, or leave out "
                "prepare= (and do its work in transform=) or cache=",
            )


def _origins(options: ReadOptions, table: Table, decoders: Mapping[str, FieldDecoder]) -> list[Origin]:
    """All that prepared samples depend on, fields that need no decoding included."""
    origins = [Origin("source", table.fingerprint), made_by(), Origin("prepare", None, options.prepare)]
    for field, decoder in decoders.items():
        spec = table.fields[field]
        origins.append(decoded_by(decoder, decoder.raw, decoder.required, spec.dtype, spec.shape))
        rule = options.missing.get(field)
        if isinstance(rule, Fill):
            origins.append(Origin(f"missing[{field!r}]", None, rule.value))
    return origins
