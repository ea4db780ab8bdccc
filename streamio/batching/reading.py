"""Rows of a table -> values: gather, decode, and the user's transform, with what fails dealt with on the way."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streamio.batching.decode import Failure, FieldDecoder, Values, decode_column, make_decoders
from streamio.batching.functions import as_samples, takes_rng
from streamio.batching.options import ReadOptions
from streamio.errors import StreamioError, TransformError
from streamio.rng import TRANSFORM, generator
from streamio.shards.manifest import FieldSpec
from streamio.types import Alloc, Column, Rows, new_array

_log = logging.getLogger("streamio")

KEY, VALID, SOURCE = "__key__", "__valid__", "__source__"
ADDED = (KEY, VALID, SOURCE)
"""What a batch has beside the fields of the table."""

SKIPPED, DROPPED = "skipped", "dropped"


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


@dataclass(frozen=True, slots=True)
class Picked:
    """Samples to read: rows of a table, and what is known of each before it is read.

    visits: int64 (n,), see `streamio.order.base.Picks`.
    more:   further fields of the batch, each (n,): `__valid__` and the like.
    """

    rows: Rows
    visits: NDArray[np.int64]
    more: Mapping[str, NDArray[Any]]

    def take(self, kept: NDArray[np.int64]) -> Picked:
        return Picked(self.rows[kept], self.visits[kept], {name: value[kept] for name, value in self.more.items()})


@dataclass(frozen=True, slots=True)
class Made:
    """Samples that the user's transform made: what is left of them, with the values themselves."""

    picked: Picked
    samples: list[Any]


class SampleReader:
    """Reads samples of one table as the options say.

    count: told how many samples were left out, and why (`skipped` with on_error, `dropped` by the transform).
    """

    def __init__(self, table: Table, options: ReadOptions, seed: int, count: Callable[[str, int], None]) -> None:
        self.table, self.options = table, options
        self._seed, self._count = seed, count
        self.last_failure: StreamioError | None = None

    @cached_property
    def decoders(self) -> dict[str, FieldDecoder]:
        specs = {name: self.table.fields[name] for name in self.options.fields if name not in ADDED}
        return make_decoders(specs, self.options.decode, self.options.max_pixels)

    @property
    def sample_bytes(self) -> int:
        """About how much memory one sample takes."""
        return sum(decoder.value_bytes(self.table.fields[name]) for name, decoder in self.decoders.items())

    @property
    def runs_user_code(self) -> bool:
        """Whether a function of the user's runs here, which may draw from global generators."""
        return self.options.transform is not None or any(d.function for d in self.decoders.values())

    def keys(self, rows: Rows) -> Sequence[str]:
        """The keys of a batch, read only when one is needed."""
        return _Keys(self.table, rows)

    def values(self, picked: Picked, alloc: Alloc, *, joined: bool) -> tuple[Picked, dict[str, Values]]:
        """The fields, decoded, of the samples that are left.

        joined: the values will be joined field by field, so a sample without one is a failure where the others
                make an array; else it is None.
        """
        columns = self.table.gather(picked.rows, list(self.decoders), alloc)
        values: dict[str, Values] = {}
        failures: list[Failure] = []
        for name, decoder in self.decoders.items():
            values[name], failed = decode_column(
                decoder, columns[name], lambda i: self._generator(picked, i), alloc, joined=joined
            )
            failures += failed
        if failures:
            kept = self._left(picked.rows, failures)
            picked = picked.take(kept)
            values = {name: _take(value, kept) for name, value in values.items()}
        return picked, values

    def samples(self, picked: Picked) -> Made:
        """One value for each sample that is left: a dict of its fields, or what the transform made of that."""
        picked, values = self.values(picked, new_array, joined=False)
        fields: dict[str, Values] = {**values, KEY: self.table.keys(picked.rows), **picked.more}
        samples: list[Any] = list(as_samples(fields, len(picked.rows)))
        if self.options.transform is None:
            return Made(picked, samples)
        samples = [self._transform(sample, picked, i) for i, sample in enumerate(samples)]
        kept = np.flatnonzero([sample is not None for sample in samples])
        if len(kept) < len(samples):
            self._count(DROPPED, len(samples) - len(kept))
            picked, samples = picked.take(kept), [samples[i] for i in kept]
        return Made(picked, samples)

    def _generator(self, picked: Picked, i: int, *stream: int) -> np.random.Generator:
        return generator(self._seed, int(picked.visits[i]), int(picked.rows[i]), *stream)

    def _transform(self, sample: dict[str, Any], picked: Picked, i: int) -> Any:
        transform = self.options.transform
        assert transform is not None
        try:
            if self._transform_takes_rng:
                return transform(sample, self._generator(picked, i, TRANSFORM))
            return transform(sample)
        except Exception as error:
            shard, local = self.table.locate(int(picked.rows[i]))
            raise TransformError(
                f"transform raised {type(error).__name__}: {error}", shard=shard, row=local, key=sample[KEY]
            ) from error

    @cached_property
    def _transform_takes_rng(self) -> bool:
        return self.options.transform is not None and takes_rng(self.options.transform)

    def _left(self, rows: Rows, failures: list[Failure]) -> NDArray[np.int64]:
        """Indices that remain after failures: raised, or logged and reported, as the user wants."""
        for failure in failures:
            shard, row = self.table.locate(int(rows[failure.index]))
            place = {"shard": shard, "row": row, "key": self.keys(rows)[failure.index], "field": failure.field}
            failure.error.where = {**place, **failure.error.where}
            if self.options.on_error == "raise":
                raise failure.error
            _log.warning("skipped %s: %s", type(failure.error).__name__, failure.error)
            self._report(place, failure.error)
        kept = np.setdiff1d(np.arange(len(rows)), [failure.index for failure in failures])
        self._count(SKIPPED, len(rows) - len(kept))
        self.last_failure = failures[-1].error
        return kept

    def _report(self, place: dict[str, Any], error: StreamioError) -> None:
        if self.options.error_report is not None:
            line = json.dumps({**place, "error": f"{type(error).__name__}: {error.found}"}, default=str)
            with open(self.options.error_report, "a", encoding="ascii") as file:
                file.write(line + "\n")


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
