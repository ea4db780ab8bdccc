"""Collects where each field of each row lies while a shard is walked, and gives its index."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streamio.errors import CorruptShard
from streamio.shards.index import MISSING, FieldIndex, Keys, ShardIndex
from streamio.shards.uniform import mark_arrays
from streamio.storage.maps import map_file


class FieldTable:
    """(field, row, offset, size) in any order; 32 bytes each, so that millions of members fit."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._places = array("q")
        """Number of the field, row, offset, size, and so on."""

    def add(self, field: str, row: int, offset: int, size: int) -> None:
        """`offset` and `size` must lie within the file."""
        number = self._numbers.setdefault(field, len(self._numbers))
        self._places.extend((number, row, offset, size))

    def add_all(
        self, fields: Sequence[str], rows: NDArray[np.int64], offsets: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> None:
        """As `add`, for many at once."""
        numbers = [self._numbers.setdefault(field, len(self._numbers)) for field in fields]
        self._places.frombytes(np.column_stack((numbers, rows, offsets, sizes)).tobytes())

    def extend(self, other: FieldTable, rows: int, offset: int) -> None:
        """Take over the places of a table whose rows and bytes follow so many of this one."""
        numbers = [self._numbers.setdefault(field, len(self._numbers)) for field in other._numbers]
        places = np.array(other._places).reshape(-1, 4)
        places[:, 0] = np.array(numbers, np.int64)[places[:, 0]]
        places[:, 1] += rows
        places[:, 2] += offset
        self._places.frombytes(places.tobytes())

    def index(self, path: Path, keys: Keys, extra: Mapping[str, str] | None = None) -> ShardIndex:
        """The index of the shard at `path`. Raises CorruptShard for a field that a row has twice."""
        places = np.frombuffer(self._places, np.int64).reshape(-1, 4)
        fields = {
            name: _field(path.name, name, keys, *places[places[:, 0] == number, 1:].T)
            for name, number in self._numbers.items()
        }
        data = map_file(path)
        return ShardIndex(shard_bytes=len(data), keys=keys, fields=mark_arrays(data, fields), extra=extra or {})


def _field(
    shard: str, name: str, keys: Keys, rows: NDArray[np.int64], offsets: NDArray[np.int64], sizes: NDArray[np.int64]
) -> FieldIndex:
    _refuse_twice(shard, name, keys, rows, offsets)
    where, length = np.zeros(len(keys), np.int64), np.full(len(keys), MISSING, np.int64)
    where[rows], length[rows] = offsets, sizes
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
