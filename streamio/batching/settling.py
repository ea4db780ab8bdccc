"""The policy for bad samples: raise the first, leave them out, or put others in their places."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamio.batching.decode import Columns, Failure, Values
from streamio.batching.failures import (
    RAISED,
    SKIPPED,
    SUBSTITUTED,
    BadSample,
    BadSamples,
    first_of_each,
    is_of_the_sample,
    no_substitute,
)
from streamio.batching.options import ReadOptions
from streamio.batching.picked import VALID, Picked, Table
from streamio.batching.stages import Count
from streamio.errors import SampleError, StreamioError
from streamio.order.standins import StandIns
from streamio.types import Rows

_log = logging.getLogger("streamio")

Read: TypeAlias = Callable[[Picked], tuple[Columns, list[Failure]]]
"""Reads samples: what became of them, and which failed."""


class Settlement:
    """Decides about the bad samples of each batch.

    A batch never gets empty, since every rank must make as many steps as the others: where all of its samples are
    bad, others take their places also with on_error="skip".
    """

    def __init__(self, table: Table, options: ReadOptions, count: Count, stand_ins: StandIns) -> None:
        self._table, self._options, self._stand_ins = table, options, stand_ins
        self._books = BadSamples(options, table.locate, count)
        self._warned = False

    def is_due(self, picked: Picked, failures: Sequence[Failure]) -> bool:
        """Whether any sample failed. To be asked of every batch, which is counted."""
        self._books.read(picked.epoch, len(picked.rows))
        return bool(failures)

    def of_samples(self, picked: Picked, failures: Sequence[Failure]) -> list[BadSample]:
        """The failures, one a sample, each with its place. Raises the error that is not a sample's fault."""
        bad = []
        real = picked.more.get(VALID)
        for failure in first_of_each(failures):
            row, error = int(picked.rows[failure.index]), failure.error
            shard, local = self._table.locate(row)
            (key,) = self._table.keys(picked.rows[failure.index : failure.index + 1])
            place = {"shard": shard, "row": local, "key": key, "field": failure.field or None}
            error.where = {name: at for name, at in place.items() if at is not None} | error.where
            _raise_if_not_of_the_sample(error)
            repeats = real is not None and not real[failure.index]
            bad.append(BadSample(failure.index, row, key, failure.field, error, repeats))
        return bad

    def settle(
        self, picked: Picked, columns: Columns, bad: Sequence[BadSample], read: Read, may_skip: bool
    ) -> tuple[Picked, Columns]:
        """The samples of a batch of which some are bad, as the user wants them.

        may_skip: whether something is left of the batch without them. read: reads others for their places.
        """
        epoch, at = picked.epoch, np.array([one.index for one in bad], np.int64)
        if self._options.on_error == "raise":
            self._books.found(epoch, bad[:1], RAISED)
            raise bad[0].error
        if self._options.on_error == "skip" and may_skip:
            self._books.found(epoch, bad, SKIPPED)
            kept = np.setdiff1d(np.arange(len(picked.rows)), at)
            return picked.take(kept), {name: _take(values, kept) for name, values in columns.items()}
        if self._options.on_error == "skip":
            self._warn(len(picked.rows))
        try:
            columns, rows = self._substitute(picked, columns, bad, read)
        except SampleError:
            self._books.found(epoch, bad, RAISED)
            raise
        self._books.found(epoch, bad, SUBSTITUTED, self._table.keys(rows))
        return picked.with_others(at, rows), columns

    def _substitute(
        self, picked: Picked, columns: Columns, bad: Sequence[BadSample], read: Read
    ) -> tuple[Columns, Rows]:
        """The columns with every bad place filled, and the row that fills it, for each of `bad`.

        The rows to try come one after the other, those of all places are read together. Raises SampleError for a
        place for which none of them is good.
        """
        chains = [self._stand_ins.of(one.row, int(picked.visits[one.index])) for one in bad]
        rows = np.full(len(bad), -1, np.int64)
        last: dict[int, StreamioError] = {}
        for attempt in range(max(map(len, chains))):
            tried = [n for n in range(len(bad)) if rows[n] < 0 and attempt < len(chains[n])]
            if not tried:
                break
            places = np.array([bad[n].index for n in tried], np.int64)
            others = np.array([chains[n][attempt] for n in tried], np.int64)
            found, failures = read(picked.take(places).with_others(np.arange(len(tried)), others))
            failed = {failure.index: failure.error for failure in failures}
            for error in failed.values():
                _raise_if_not_of_the_sample(error)
            good = np.array([i for i in range(len(tried)) if i not in failed], np.int64)
            rows[np.array(tried)[good]] = others[good]
            last |= {tried[i]: error for i, error in failed.items()}
            columns = {
                name: _put(values, places[good], _take(found[name], good)) for name, values in columns.items()
            }
        for n, one in enumerate(bad):
            if rows[n] < 0:
                raise no_substitute(one, len(chains[n]), last.get(n))
        return columns, rows

    def _warn(self, samples: int) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "all %d samples of a batch are bad: others take their places, since a batch must not be empty",
                samples,
            )


def _raise_if_not_of_the_sample(error: StreamioError) -> None:
    if not is_of_the_sample(error):
        raise error


def _take(values: Values, kept: NDArray[np.int64]) -> Values:
    return values[kept] if isinstance(values, np.ndarray) else [values[i] for i in kept]


def _put(values: Values, places: NDArray[np.int64], new: Values) -> Values:
    """New values at these places: in the array itself where they fit into it, else in a list."""
    if isinstance(values, np.ndarray):
        if isinstance(new, np.ndarray) and (new.dtype, new.shape[1:]) == (values.dtype, values.shape[1:]):
            values[places] = new
            return values
        values = list(values)
    for place, value in zip(places.tolist(), new, strict=True):
        values[place] = value
    return values
