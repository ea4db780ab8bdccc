"""Shards that are open, as one table: what a batch costs does not depend on how many of them it comes from.

The address of a value is the origin of its shard plus the offset of its row, whatever the format:

    shard      origin   offsets of its rows       row 1 of shard 2 lies at 9000 + 512
    0          5000     512  1536  2560
    2          9000     0     512
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamio.memory import address
from streamio.shards.reader import Layout, ShardReader
from streamio.shards.space import copy_items, words
from streamio.types import Rows


@dataclass(frozen=True, slots=True)
class Picked:
    """Rows of a batch, by shard.

    shards, rows: int64 (n,): the number of the shard, and the row in it.
    numbers: of all these shards, each once.
    at:      int64 (n,), the place in the batch of each; None: 0 … n - 1.
    """

    shards: NDArray[np.int64]
    rows: Rows
    numbers: Sequence[int]
    at: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, shards: NDArray[np.int64], rows: Rows) -> Picked:
        return cls(shards, rows, sorted(set(shards.tolist())))

    def parts(self) -> Iterator[tuple[int, Rows, list[int]]]:
        """Shard by shard: its number, the rows in it, and the place in the batch of each."""
        for number in self.numbers:
            here = np.flatnonzero(self.shards == number)
            yield number, self.rows[here], (here if self.at is None else self.at[here]).tolist()

    def some(self, numbers: Sequence[int]) -> Picked:
        """Those of some shards."""
        at = np.flatnonzero(np.isin(self.shards, numbers))
        return Picked(self.shards[at], self.rows[at], numbers, at)


class OpenShards:
    """Readers by number, and where the values of their fields lie. Used from any thread; only ever grows.

    era: of the pool that they come from. shards: how many the set has.
    """

    def __init__(self, era: object, shards: int) -> None:
        self.era = era
        self.readers: dict[int, ShardReader] = {}
        self._shards = shards
        self._places: dict[tuple[str, Layout], _Places] = {}

    def copy(self, stored: str, layout: Layout, picked: Picked, out: NDArray[Any]) -> None:
        """Fill `out` with the values of a field. Raises BadIndex where a shard has another layout."""
        places = self._places.get((stored, layout))
        if places is None:
            places = self._places.setdefault((stored, layout), _Places(self._shards))
        for shard in picked.numbers:
            if shard not in places.held:
                places.add(shard, *self.readers[shard].values(stored, layout))
        copy_items(
            places.origins[picked.shards] + words(places.offsets[picked.shards] + picked.rows), out, picked.at
        )


class _Places:
    """Where one field lies; int64 by shard, undefined of those that are not held."""

    def __init__(self, shards: int) -> None:
        self.origins = np.empty(shards, np.int64)
        self.offsets = np.empty(shards, np.int64)  # where the offsets of the shard's rows begin, in words
        self.held: dict[int, Any] = {}

    def add(self, shard: int, values: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
        self.origins[shard], self.offsets[shard] = address(values), address(offsets) // 8
        self.held[shard] = values, offsets  # last: now it is there for other threads
