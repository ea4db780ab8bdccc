"""Several tables end to end as one. Which rows come when is for the order to say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from streamio.codecs import codec_for, is_image_field
from streamio.codecs.text import NumberCodec
from streamio.errors import UsageError, where
from streamio.shards.manifest import FieldSpec
from streamio.shards.selection import as_rows
from streamio.types import Alloc, ArrayColumn, Column, ListColumn, NullableColumn, Rows, new_array


class Member(Protocol):
    """What a table must be to be one of several: the `Table` that a data set reads from."""

    @property
    def sizes(self) -> NDArray[np.int64]: ...

    @property
    def fields(self) -> Mapping[str, FieldSpec]: ...

    @property
    def fingerprint(self) -> str: ...

    def gather(self, rows: Rows, fields: Sequence[str], alloc: Alloc = new_array) -> dict[str, Column]: ...

    def keys(self, rows: Rows) -> list[str]: ...

    def locate(self, row: int) -> tuple[str, int]: ...


class _Part(NamedTuple):
    """Rows of one table within a batch: `rows[i]` of the table goes to place `at[i]`."""

    table: int
    rows: Rows
    at: NDArray[np.int64]


class Concat:
    """The tables one after the other: row r of table j is row `starts[j] + r`.

    names: what messages call the tables, each once.

    Fields are those that all tables have in one codec (kinds of pictures count as one, they are decoded by
    content). Small to pickle, if the tables are.
    """

    def __init__(self, names: Sequence[str], tables: Sequence[Member]) -> None:
        self.names, self.tables = tuple(names), tuple(tables)
        if not tables or len(names) != len(tables) or len(set(names)) < len(names):
            raise UsageError(
                f"{len(tables)} tables with the names {', '.join(map(repr, names)) or 'none'}",
                fix="Give at least one table, and each a name of its own",
            )

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """(K,) int64: the row of each table's first sample."""
        return self._ends - self._counts

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Samples of each shard of all tables, int64."""
        return np.concatenate([table.sizes for table in self.tables])

    @cached_property
    def fields(self) -> Mapping[str, FieldSpec]:
        """The common fields, in the order of the first table. dtype and shape are set where all tables agree."""
        return {name: _joined(specs) for name, specs in self._specs.items() if _alike(specs)}

    @cached_property
    def columns(self) -> Mapping[str, NDArray[Any]]:
        """The columns that all tables have in one kind, end to end, each made when it is first asked for."""
        return _Columns([getattr(table, "columns", {}) for table in self.tables])

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that change with any table, its name or its place."""
        facts = [(name, table.fingerprint) for name, table in zip(self.names, self.tables, strict=True)]
        return xxhash.xxh3_64_hexdigest(json.dumps(facts).encode())

    def split(self, rows: Rows) -> tuple[NDArray[np.int64], Rows]:
        """(number of the table, row in the table) of each row. Raises IndexError for rows outside."""
        rows = as_rows(rows, "rows")
        total = int(self._ends[-1])
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < total:
            raise IndexError(f"rows {rows.min()} to {rows.max()} of {total:,} samples of {len(self.names)} sets")
        numbers = np.searchsorted(self._ends, rows, side="right").astype(np.int64, copy=False)
        return numbers, rows - self.starts[numbers]

    def gather(self, rows: Rows, fields: Sequence[str], alloc: Alloc = new_array) -> dict[str, Column]:
        """The fields of these rows, in this order, repeats included.

        A field is one array from `alloc` where the rows of all tables come as arrays of one dtype and shape, else
        a list. Raises UsageError for a field that is not common, with the tables that differ.
        """
        for field in fields:
            if field not in self.fields:
                self._refuse(field)
        parts = self._parts(rows)
        if len(parts) == 1:
            return self._gather(parts[0], fields, alloc)
        found = [self._gather(part, fields, new_array) for part in parts]
        stored = [self.tables[part.table].fields for part in parts]
        joined: dict[str, Column] = {}
        for field in fields:
            columns = [columns[field] for columns in found]
            specs = [specs[field] for specs in stored]
            joined[field] = _array(columns, parts, alloc) or _list(columns, parts, specs)
        return joined

    def _gather(self, part: _Part, fields: Sequence[str], alloc: Alloc) -> dict[str, Column]:
        with where(set=self.names[part.table]):
            return self.tables[part.table].gather(part.rows, fields, alloc)

    def keys(self, rows: Rows) -> list[str]:
        keys: list[str] = [""] * len(rows)
        for part in self._parts(rows):
            with where(set=self.names[part.table]):
                found = self.tables[part.table].keys(part.rows)
            for place, key in zip(part.at.tolist(), found, strict=True):
                keys[place] = key
        return keys

    def locate(self, row: int) -> tuple[str, int]:
        """(table and shard, row in the shard): `("web: shard-000003.tar", 17)`."""
        number, local = (int(found[0]) for found in self.split(np.array([row], np.int64)))
        shard, place = self.tables[number].locate(local)
        return f"{self.names[number]}: {shard}", place

    def __reduce__(self) -> tuple[Any, ...]:
        return Concat, (self.names, self.tables)

    def __repr__(self) -> str:
        members = (f"{name} {count:,}" for name, count in zip(self.names, self._counts.tolist(), strict=True))
        return f"Concat({', '.join(members)}; fields {', '.join(self.fields)})"

    @cached_property
    def _counts(self) -> NDArray[np.int64]:
        return np.array([table.sizes.sum() for table in self.tables], np.int64)

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self._counts, dtype=np.int64)

    @property
    def _specs(self) -> dict[str, list[FieldSpec | None]]:
        """What each table says of each field of any of them."""
        names = dict.fromkeys(name for table in self.tables for name in table.fields)
        return {name: [table.fields.get(name) for table in self.tables] for name in names}

    def _parts(self, rows: Rows) -> list[_Part]:
        """The rows, table by table. For no rows a part of the first table, which knows the fields' kinds."""
        numbers, local = self.split(rows)
        if len(rows) == 0 or (numbers == numbers[0]).all():
            return [_Part(int(numbers[0]) if len(rows) else 0, local, np.arange(len(rows)))]
        order = np.argsort(numbers, kind="stable")
        cuts = np.flatnonzero(np.diff(numbers[order])) + 1
        return [_Part(int(numbers[at[0]]), local[at], at) for at in np.split(order, cuts)]

    def _refuse(self, field: str) -> NoReturn:
        """Say which tables lack the field, or store it otherwise."""
        specs = self._specs.get(field, [None] * len(self.tables))
        kinds = {name: None if spec is None else spec.codec for name, spec in zip(self.names, specs, strict=True)}
        lacking = [name for name, kind in kinds.items() if kind is None]
        if lacking:
            found = f"no field '{field}' in {', '.join(lacking)}"
        else:
            found = f"field '{field}' is " + ", ".join(f"{kind} in {name}" for name, kind in kinds.items())
        raise UsageError(found, fix=f"Fields of all sets: {', '.join(self.fields) or 'none'}")


class _Columns(Mapping[str, "NDArray[Any]"]):
    def __init__(self, parts: Sequence[Mapping[str, NDArray[Any]]]) -> None:
        self._parts = parts
        self._made: dict[str, NDArray[Any]] = {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._made:
            if name not in list(self):
                raise KeyError(f"no column '{name}'; there are {', '.join(self) or 'none'}")
            column = np.concatenate([part[name] for part in self._parts])
            column.flags.writeable = False
            self._made[name] = column
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._parts[0] if all(name in part for part in self._parts))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _alike(specs: Sequence[FieldSpec | None]) -> bool:
    """Whether a field is there in all tables, and decoded by one codec."""
    there = [spec for spec in specs if spec is not None]
    pictures = all(is_image_field(spec.stored) for spec in there)
    return len(there) == len(specs) and (pictures or len({spec.codec for spec in there}) == 1)


def _joined(specs: Sequence[FieldSpec | None]) -> FieldSpec:
    there = [spec for spec in specs if spec is not None]
    one = len({(spec.dtype, spec.shape) for spec in there}) == 1
    return replace(
        there[0],
        samples=sum(spec.samples for spec in there),
        dtype=there[0].dtype if one else None,
        shape=there[0].shape if one else None,
    )


def _array(columns: Sequence[Column], parts: Sequence[_Part], alloc: Alloc) -> ArrayColumn | None:
    """One array of all parts, if they are arrays of one kind."""
    arrays = [column.values for column in columns if isinstance(column, ArrayColumn)]
    if len(arrays) < len(columns) or len({(array.dtype, array.shape[1:]) for array in arrays}) > 1:
        return None
    out = alloc((sum(map(len, arrays)), *arrays[0].shape[1:]), arrays[0].dtype)
    for array, part in zip(arrays, parts, strict=True):
        out[part.at] = array
    return ArrayColumn(out)


def _list(columns: Sequence[Column], parts: Sequence[_Part], specs: Sequence[FieldSpec]) -> ListColumn:
    values: list[memoryview | NDArray[Any] | None] = [None] * sum(map(len, columns))
    for column, part, spec in zip(columns, parts, specs, strict=True):
        items = column.values if isinstance(column, ListColumn) else _items(column.values, spec.stored)
        if isinstance(column, NullableColumn):
            items = [None if lacks else item for item, lacks in zip(items, column.lacking, strict=True)]
        for place, item in zip(part.at.tolist(), items, strict=True):
            values[place] = item
    return ListColumn(values)


def _items(values: NDArray[Any], stored: str) -> list[memoryview | NDArray[Any] | None]:
    """Values as a list has them: arrays as arrays, but numbers as their text, which becomes a Python number."""
    codec = codec_for(stored)
    rows = [values[i, ...] for i in range(len(values))]
    return [memoryview(codec.encode(row)) for row in rows] if isinstance(codec, NumberCodec) else list(rows)
