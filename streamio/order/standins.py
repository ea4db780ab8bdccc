"""Which samples take the place of a bad one: arithmetic of (seed, visit, row), the same on every topology.

A shard of ten samples of which row 3 is bad, as it comes in one epoch and in the next:

    tried first       7 0 5 9     others of its shard, whose bytes are at hand
    tried then        41 18 …     others of the whole set
    next epoch        2 9 6 0 …   not always the same sample stands in

With a draw by classes or weights the draw says what may come. With buckets only samples that are no longer may, so
that no batch gets more costly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streamio.order.balance import Draw, Lots
from streamio.order.lengths import Buckets
from streamio.order.permutation import derive_key, permute, uniform
from streamio.types import Rows

ATTEMPTS = 16
"""Samples that are tried at most. With half of all samples bad, 1 in 65,536 places finds none."""

_NEAR = 4  # of them from the same shard
_BY_LENGTH = 256  # candidates, where only some have the right length
_STAND_IN = 30  # which draw a key is for


class StandIns(Protocol):
    def of(self, row: int, visit: int) -> Rows:
        """Rows to try in the place of this one, in this order, int64 (n,) with n up to `ATTEMPTS`; never it."""
        ...


class Shards(Protocol):
    """What is asked of a table: samples of each shard."""

    @property
    def sizes(self) -> NDArray[np.int64]: ...


@dataclass(frozen=True)
class TableStandIns:
    """Those of the samples of a table. What a draw and buckets need is made when the first sample is bad."""

    table: Shards
    seed: int
    draw: Draw | None = None
    buckets: Buckets | None = None

    def of(self, row: int, visit: int) -> Rows:
        count = ATTEMPTS if self.buckets is None else _BY_LENGTH
        drawn = uniform(np.arange(count, dtype=np.int64), derive_key(self.seed, visit, row, _STAND_IN))
        rows = self._near_and_far(row, drawn) if self._lots is None else self._lots.at(drawn)
        rows = rows[np.sort(np.unique(rows, return_index=True)[1])]  # each once, as they come
        return self._no_longer(row, rows[rows != row])[:ATTEMPTS]

    def _near_and_far(self, row: int, drawn: NDArray[np.float64]) -> Rows:
        shard = int(np.searchsorted(self._ends, row, side="right"))
        begin = int(self._ends[shard - 1]) if shard else 0
        near = _others(begin, int(self._ends[shard]), row, drawn[:_NEAR])
        return np.concatenate([near, _others(0, int(self._ends[-1]), row, drawn[_NEAR:])])

    def _no_longer(self, row: int, rows: Rows) -> Rows:
        """With buckets: those that are at most as long as `row`, the longest first."""
        if self.buckets is None:
            return rows
        lengths = self._lengths
        rows = rows[lengths[rows] <= lengths[row]]
        if not len(rows):  # one of the shortest: then all others are looked at, and of those the shortest
            some = np.arange(self._ends[-1], dtype=np.int64) if self._lots is None else self._lots.possible
            some = some[some != row]
            rows = some[lengths[some] <= max(lengths[row], lengths[some].min(initial=lengths.max()))]
        return rows[np.argsort(-lengths[rows], kind="stable")]

    @property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self.table.sizes)

    @cached_property
    def _lots(self) -> Lots | None:
        return None if self.draw is None else self.draw.of(*self._columns)

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        assert self.buckets is not None
        return self.buckets.of(*self._columns).lengths

    @property
    def _columns(self) -> tuple[Mapping[str, NDArray[Any]], int]:
        return getattr(self.table, "columns", {}), int(self._ends[-1])

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("table", "seed", "draw", "buckets")}


def among(rows: Rows, row: int, key: int) -> Rows:
    """Up to `ATTEMPTS` of these rows but `row`, in the random order that the key says."""
    others: Rows = rows[rows != row]
    places = permute(np.arange(len(others), dtype=np.int64), len(others), derive_key(key, _STAND_IN))
    return others[places][:ATTEMPTS]


def _others(begin: int, end: int, row: int, drawn: NDArray[np.float64]) -> Rows:
    """Rows of [begin, end) but `row`, one for each number in [0, 1); none where there are no others."""
    count = end - begin - 1
    if count < 1:
        return np.empty(0, np.int64)
    # From the one behind `row` on, and round.
    rows: Rows = begin + (row - begin + 1 + (drawn * count).astype(np.int64)) % (count + 1)
    return rows
