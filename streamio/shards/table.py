"""Collects where each field of each row lies while a shard is walked, and gives its index."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streamio.errors import CorruptShard
from streamio.shards.index import MISSING, FieldIndex, Keys, ShardIndex
from streamio.shards.uniform import mark_arrays


class FieldTable:
    """(field, row, offset, size) in any order; 24 bytes each, so that millions of members fit."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[array[int], array[int], array[int]]] = {}

    def add(self, field: str, row: int, offset: int, size: int) -> None:
        """`offset` and `size` must lie within the file."""
        try:
            rows, offsets, sizes = self._places[field]
        except KeyError:
            rows, offsets, sizes = self._places[field] = array("q"), array("q"), array("q")
        rows.append(row)
        offsets.append(offset)
        sizes.append(size)

    def extend(self, other: FieldTable, rows: int, offset: int) -> None:
        """Take over the places of a table whose rows and bytes follow so many of this one."""
        for field, places in other._places.items():
            mine = self._places.setdefault(field, (array("q"), array("q"), array("q")))
            for numbers, more, shift in zip(mine, places, (rows, offset, 0), strict=True):
                numbers.frombytes((np.frombuffer(more, np.int64) + shift).tobytes())

    def index(self, path: Path, keys: Keys, extra: Mapping[str, str] | None = None) -> ShardIndex:
        """The index of the shard at `path`. Raises CorruptShard for a field that a row has twice."""
        fields = {name: _field(path.name, name, keys, *places) for name, places in self._places.items()}
        data = np.asarray(np.memmap(path, np.uint8, "r"))
        return ShardIndex(shard_bytes=len(data), keys=keys, fields=mark_arrays(data, fields), extra=extra or {})


def _field(
    shard: str, name: str, keys: Keys, rows: array[int], offsets: array[int], sizes: array[int]
) -> FieldIndex:
    row, offset, size = (np.frombuffer(numbers, np.int64) for numbers in (rows, offsets, sizes))
    _refuse_twice(shard, name, keys, row, offset)
    where, length = np.zeros(len(keys), np.int64), np.full(len(keys), MISSING, np.int64)
    where[row], length[row] = offset, size
    return FieldIndex(offsets=where, sizes=length)


def _refuse_twice(shard: str, name: str, keys: Keys, rows: NDArray[np.int64], offsets: NDArray[np.int64]) -> None:
    times = np.bincount(rows, minlength=1)
    if times.max() > 1:
        row = int(np.argmax(times > 1))
        first, second = offsets[rows == row][:2].tolist()
        raise CorruptShard(
            f"{f'{keys[row]}.{name}'!r} comes twice, at bytes {first:,} and {second:,}",
            fix="Write the shard again with one value for each field of a sample", shard=shard,
        )  # fmt: skip
