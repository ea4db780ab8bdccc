"""Folders often mix kinds of pictures: `a.jpg`, `b.png`, `c.JPEG`. Each keeps its name in the shards, and this
shows them as one field, `image`, since pictures are decoded by content anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streamio.codecs import is_image_field
from streamio.shards.base import IMAGE
from streamio.shards.manifest import FieldSpec
from streamio.types import Alloc, Column, ListColumn, Rows, new_array

if TYPE_CHECKING:
    from streamio.shards.shardset import ShardSet  # takes a while to load, which packing can do without


def kinds_of_picture(fields: Mapping[str, FieldSpec], samples: int) -> tuple[str, ...]:
    """The fields that stand for one: two or more kinds of pictures, of which every sample has exactly one.

    samples: how many there are. Counts are all that the manifest has: samples with two and with none of them, in
    equal numbers, would pass too. () where there is nothing to join, or a field has the name already.
    """
    names = tuple(name for name, spec in fields.items() if is_image_field(spec.stored))
    if len(names) < 2 or IMAGE in fields or any("." in name for name in names):
        return ()
    return names if sum(fields[name].samples for name in names) == samples else ()


def with_one_picture(table: ShardSet) -> ShardSet | OnePicture:
    """The set itself, or one that shows `image` where its samples have pictures of different kinds."""
    kinds = kinds_of_picture(table.fields, table.total)
    return OnePicture(table, kinds) if kinds else table


class OnePicture:
    """A shard set that shows `image` in the place of its kinds of pictures; for all else see `ShardSet`."""

    def __init__(self, base: ShardSet, kinds: tuple[str, ...]) -> None:
        self.base, self.kinds = base, kinds

    @cached_property
    def fields(self) -> Mapping[str, FieldSpec]:
        others = {name: spec for name, spec in self.base.fields.items() if name not in self.kinds}
        first = self.base.fields[self.kinds[0]]
        return {IMAGE: replace(first, samples=self.base.total), **others}

    @property
    def sizes(self) -> NDArray[np.int64]:
        return self.base.sizes

    @property
    def columns(self) -> Mapping[str, NDArray[Any]]:
        return _OneColumns(self.base.columns, self.kinds)

    @property
    def fingerprint(self) -> str:
        return self.base.fingerprint

    def gather(self, rows: Rows, fields: Sequence[str], alloc: Alloc = new_array) -> dict[str, Column]:
        wanted = dict.fromkeys(name for field in fields for name in (self.kinds if field == IMAGE else (field,)))
        columns = self.base.gather(rows, list(wanted), alloc)
        if IMAGE in fields:
            columns[IMAGE] = _first_of([columns[kind] for kind in self.kinds])
        return {field: columns[field] for field in fields}

    def keys(self, rows: Rows) -> list[str]:
        return self.base.keys(rows)

    def locate(self, row: int) -> tuple[str, int]:
        return self.base.locate(row)

    def __repr__(self) -> str:
        return repr(self.base)


class _OneColumns(Mapping[str, "NDArray[Any]"]):
    """The columns of the set, and `image.width`, `image.height`, `image.bytes`: of whichever kind it is."""

    def __init__(self, base: Mapping[str, NDArray[Any]], kinds: tuple[str, ...]) -> None:
        self._base, self._kinds = base, kinds

    def __getitem__(self, name: str) -> NDArray[Any]:
        if not name.startswith(f"{IMAGE}."):
            return self._base[name]
        # What is not there is -1.
        largest: NDArray[Any] = np.maximum.reduce([self._base[of_kind] for of_kind in self._of_kinds(name)])
        return largest

    def __iter__(self) -> Iterator[str]:
        return iter(self._base)

    def __len__(self) -> int:
        return len(self._base)

    def __repr__(self) -> str:
        return repr(self._base)

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str) or not name.startswith(f"{IMAGE}."):
            return name in self._base
        return all(of_kind in self._base for of_kind in self._of_kinds(name))

    def _of_kinds(self, name: str) -> list[str]:
        return [kind + name.removeprefix(IMAGE) for kind in self._kinds]


def _first_of(columns: Sequence[Column]) -> ListColumn:
    """For each sample the value that is there; None where there is none."""
    lists = [column.values for column in columns if isinstance(column, ListColumn)]
    return ListColumn([next((v for v in values if v is not None), None) for values in zip(*lists, strict=True)])
