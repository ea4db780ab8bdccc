"""An opened set: many shards as one table, in rows of the whole set. `ShardSet` is its face."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamio.codecs import codec_for
from streamio.codecs.arrays import NpyCodec
from streamio.codecs.text import NumberCodec
from streamio.errors import DecodeError, UsageError, where
from streamio.shards.foreign import PATTERN, ForeignFiles
from streamio.shards.index import MISSING, Keys
from streamio.shards.manifest import MANIFEST_NAME, FieldSpec
from streamio.shards.places import OpenShards, Picked
from streamio.shards.pool import ReaderPool
from streamio.shards.reader import Layout, ShardReader
from streamio.shards.setfiles import LocalFiles, RemoteFiles, SetFiles
from streamio.shards.space import are_cached, will_need
from streamio.storage.files import is_url, redact
from streamio.types import Alloc, ArrayColumn, Column, ListColumn, Rows

KEY = "__key__"
_BYTES = ".bytes"
_SEARCHED_KEYS = 20_000

_LOOK_EVERY, _SELDOM, _LOOKS = 8 << 20, 128 << 20, 16
"""After so many bytes, and twice as many each time that all was in memory, up to so many, some values of the next
batch are looked at. That takes 0.2 ms, a tenth of the time of a batch of 10 MB that is copied from memory."""

_LARGE_SAMPLE = 32 << 10
"""Smaller samples are left to the system, which reads what lies around each: their neighbours come soon. Measured
on an empty cache (left to the system, announced): ten batches of 38 MB from 3 GB 3.1 s, 0.5 s, as 3,000 MB were
read for them, and 400; ten of pictures of 43 KB from 1.8 GB 4.9 s, 3.0 s; but all of 262 MB of 768 bytes each
0.45 s, 1.1 s."""


_Values: TypeAlias = "NDArray[Any] | list[memoryview | NDArray[Any] | None]"


class OpenedSet:
    """All shards of a set. Raises at once if the set is not whole; shards and indexes open when they are used.

    max_open: shards that a process holds open; None: as many as is best for these files.
    """

    def __init__(self, files: SetFiles, max_open: int | None) -> None:
        self.files = files
        self.manifest = files.manifest
        self.sizes = np.array([shard.samples for shard in self.manifest.shards], np.int64)
        self.ends = np.cumsum(self.sizes)
        self._starts = self.ends - self.sizes
        self.samples = int(self.ends[-1]) if len(self.ends) else 0
        self.columns = SetColumns(files)
        # Not a method of ours: the ring of references would keep dropped sets open until garbage is collected.
        self.pool = ReaderPool(partial(open_reader, files), max_open or files.most_open)
        self._sample_bytes = sum(shard.bytes for shard in self.manifest.shards) // max(1, self.samples)
        self._unseen = self._look_after = _LOOK_EVERY
        self._number_layouts: dict[str, dict[int, Layout | None]] = {}  # by stored name and shard
        self._shards = OpenShards(None, 0)

    def locate(self, row: int) -> tuple[int, int]:
        """(shard, row in the shard)."""
        shard = int(np.searchsorted(self.ends, row, side="right"))
        return shard, row - int(self.ends[shard] - self.sizes[shard])

    def spec(self, field: str) -> FieldSpec:
        spec = self.manifest.fields.get(field)
        if spec is None:
            more = "; keys come from keys(rows)" if field == KEY else ""
            raise UsageError(f"no field '{field}'{more}", fix=f"Fields: {', '.join(self.manifest.fields)}")
        return spec

    def gather(self, rows: Rows, fields: Sequence[str], alloc: Alloc) -> dict[str, Column]:
        """At once, or from no more shards at a time than may be open."""
        if not fields:
            return {}
        specs = {field: self.spec(field) for field in fields}
        picked = self._pick(rows)
        made = {field: self._room(spec, picked, alloc) for field, spec in specs.items()}
        limit = self.pool.limit
        if len(picked.numbers) <= limit:
            self._fill(made, specs, picked)
        else:
            for first in range(0, len(picked.numbers), limit):
                self._fill(made, specs, picked.some(picked.numbers[first : first + limit]))
        return {field: _as_column(values) for field, values in made.items()}

    def _pick(self, rows: Rows) -> Picked:
        shards: NDArray[np.int64] = np.searchsorted(self.ends, rows, side="right")
        return Picked.of(shards, rows - self._starts[shards])

    def _room(self, spec: FieldSpec, picked: Picked, alloc: Alloc) -> _Values:
        """Memory for one field of a batch: an array where all values are alike, else a list."""
        count = len(picked.rows)
        if spec.dtype is not None and spec.shape is not None:
            return alloc((count, *spec.shape), np.dtype(spec.dtype))
        # No rows are rows of the first shard, which knows the fields' kinds.
        numbers = picked.numbers or range(min(1, len(self.sizes)))
        layouts = {self._number_layout(shard, spec.stored) for shard in numbers}
        layout = layouts.pop() if len(layouts) == 1 else None
        return [None] * count if layout is None else alloc((count, *layout[1]), layout[0])

    def _number_layout(self, shard: int, stored: str) -> Layout | None:
        """How a shard holds the numbers of a field; None for all else.

        Also for arrays that happen to be alike in this shard: a batch with others would come as a list, so all
        batches do.
        """
        known = self._number_layouts.setdefault(stored, {})
        if shard not in known:
            reader = self.pool.get(shard)
            known[shard] = None if _holds_arrays(reader, stored) else reader.layout(stored)
        return known[shard]

    def _fill(self, made: Mapping[str, _Values], specs: Mapping[str, FieldSpec], picked: Picked) -> None:
        shards = self._open(picked.numbers)
        self._announce([spec.stored for spec in specs.values()], shards.readers, picked)
        for field, values in made.items():
            with where(field=field):
                if isinstance(values, np.ndarray):
                    shards.copy(specs[field].stored, (values.dtype, values.shape[1:]), picked, values)
                else:
                    _fill_list(values, shards.readers, picked, specs[field].stored)

    def _open(self, numbers: Sequence[int]) -> OpenShards:
        """These shards, and others that were open anyway."""
        shards = self._shards
        missing = [number for number in numbers if number not in shards.readers]
        for number in missing:
            self.pool.get(number)
        if shards.era is not self.pool.era:  # others were closed, to make room
            shards = self._shards = OpenShards(self.pool.era, len(self.sizes))
            missing = list(numbers)
        for number in missing:
            shards.readers[number] = self.pool.get(number)
        return shards

    def _announce(self, stored: Sequence[str], readers: Mapping[int, ShardReader], picked: Picked) -> None:
        """Where the files are not in memory, have them fetch all of a batch at once, and not value by value."""
        self._unseen += len(picked.rows) * self._sample_bytes
        if self._unseen < self._look_after or self._sample_bytes < _LARGE_SAMPLE:
            return
        parts = [(readers[shard], rows) for shard, rows, _ in picked.parts()]
        spans = [reader.spans(rows, field) for reader, rows in parts for field in stored]
        starts, ends = (np.concatenate(each) for each in zip(*spans, strict=True))
        if are_cached(starts[:: len(starts) // _LOOKS + 1].tolist()):
            self._unseen, self._look_after = 0, min(_SELDOM, 2 * self._look_after)
        else:
            self._look_after = _LOOK_EVERY
            will_need(starts, ends)

    def close(self) -> None:
        self._shards = OpenShards(None, 0)
        self.pool.close()

    def sample(self, row: int) -> dict[str, Any]:
        """One row with its key: numbers as numbers, arrays as arrays, all else as the bytes that are stored."""
        shard, local = self.locate(row)
        reader = self.pool.get(shard)
        sample: dict[str, Any] = {KEY: reader.index.keys[local]}
        for field, spec in self.manifest.fields.items():
            value = _value(reader, local, spec)
            if value is not None:
                sample[field] = value
        return sample

    def keys(self, rows: Rows) -> list[str]:
        keys: list[str] = [""] * len(rows)
        for shard, local, at in self._pick(rows).parts():
            found = self.pool.get(shard).index.keys.take(local)
            for place, key in zip(at, found, strict=True):
                keys[place] = key
        return keys

    def find(self, key: str) -> int:
        """The row of a key. Raises KeyError with keys like it."""
        for number in range(len(self.sizes)):
            row = _row_of(self.files.index(number).keys, key.encode("utf-8", "surrogateescape"))
            if row is not None:
                return int(self.ends[number] - self.sizes[number]) + row
        # The usual slips: a path with its extension, or without its folders.
        last = key.rpartition("/")[2]
        stem = last.rpartition(".")[0] or last
        near = [self.keys(np.array([row]))[0] for row, _ in zip(self._rows_with(stem), range(3), strict=False)]
        if not near:
            first = self.keys(np.arange(min(self.samples, _SEARCHED_KEYS)))
            near = get_close_matches(key, first, 3)
        raise KeyError(f"no sample '{key}'" + (f"; there are {', '.join(map(repr, near))}" if near else ""))

    def _rows_with(self, text: str) -> Iterator[int]:
        """Rows whose key holds the text, from the first on."""
        raw = text.encode("utf-8", "surrogateescape")
        if not raw:
            return
        for number in range(len(self.sizes)):
            keys = self.files.index(number).keys
            first = int(self.ends[number] - self.sizes[number])
            for match in re.finditer(re.escape(raw), keys.blob.data):
                row = int(np.searchsorted(keys.offsets, match.start(), side="right")) - 1
                if match.end() <= keys.offsets[row + 1]:
                    yield first + row


class SetColumns(Mapping[str, NDArray[Any]]):
    """The columns of all shards end to end, each made when it is first asked for and then kept; read-only.

    A column of the set is one that every shard has in one dtype. What is known about a field (`jpg.width`) is
    -1 or nan in shards without that field. Beside these, which are listed, there is `x.bytes` for every field x:
    the bytes that are stored of it, int64, -1 where a sample has none.
    """

    def __init__(self, files: SetFiles) -> None:
        self._files = files
        self._made: dict[str, NDArray[Any]] = {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        column = self._made.get(name)
        if column is None:
            if name not in self:
                raise KeyError(f"no column '{name}'; there are {', '.join(self._dtypes) or 'none'}")
            column = self._join(name) if name in self._dtypes else self._sizes(name.removesuffix(_BYTES))
            column.flags.writeable = False
            self._made[name] = column
        return column

    def __iter__(self) -> Iterator[str]:
        return iter(self._dtypes)

    def __len__(self) -> int:
        return len(self._dtypes)

    def __contains__(self, name: object) -> bool:
        return name in self._dtypes or (
            isinstance(name, str)
            and name.endswith(_BYTES)
            and name.removesuffix(_BYTES) in self._files.manifest.fields
        )

    def __repr__(self) -> str:
        return f"columns {', '.join(self._dtypes)}"

    @cached_property
    def _stored(self) -> dict[str, str]:
        return {spec.stored: field for field, spec in self._files.manifest.fields.items()}

    @cached_property
    def _dtypes(self) -> dict[str, np.dtype[Any]]:
        seen: dict[str, set[np.dtype[Any]]] = {}
        shards = len(self._files.manifest.shards)
        shards_with: dict[str, int] = {}
        for number in range(shards):
            for stored, column in self._files.index(number).columns.items():
                seen.setdefault(stored, set()).add(column.dtype)
                shards_with[stored] = shards_with.get(stored, 0) + 1
        alike = {
            self._shown(stored): kinds.pop()
            for stored, kinds in seen.items()
            if not stored.startswith("__")
            and len(kinds) == 1
            and (shards_with[stored] == shards or stored not in self._stored)
        }
        return dict(sorted(alike.items()))

    def _shown(self, stored: str) -> str:
        """A column's name for users: `x.int` -> `x`, `x.jpg.width` -> `x.width` where x is stored as x.jpg."""
        if stored in self._stored:
            return self._stored[stored]
        field, _, fact = stored.rpartition(".")
        return f"{self._stored.get(field, field)}.{fact}"

    def _join(self, name: str) -> NDArray[Any]:
        dtype = self._dtypes[name]
        joined = np.full(self._files.manifest.samples, np.nan if dtype.kind == "f" else -1, dtype)
        at = 0
        for number, shard in enumerate(self._files.manifest.shards):
            # Copied one by one: each column is a view of its index file, which stays open as long as it.
            for stored, column in self._files.index(number).columns.items():
                if self._shown(stored) == name:
                    joined[at : at + shard.samples] = column
            at += shard.samples
        return joined

    def _sizes(self, field: str) -> NDArray[np.int64]:
        """Bytes stored of a field; of an array those of its elements."""
        stored = self._files.manifest.fields[field].stored
        sizes = np.full(self._files.manifest.samples, -1, np.int64)
        at = 0
        for number, shard in enumerate(self._files.manifest.shards):
            index = self._files.index(number).fields.get(stored)
            if index is not None:
                there = index.sizes != MISSING
                sizes[at : at + shard.samples][there] = index.sizes[there] - index.skip
            at += shard.samples
        return sizes


def find_files(
    source: str | tuple[str, ...], cache: str | os.PathLike[str] | None, *, check: bool = True
) -> SetFiles:
    """Which kind of source it is; raises UsageError for what is none. `check`: refuse a local set not whole."""
    if not isinstance(source, str):
        return ForeignFiles(source, cache)
    path = source.partition("?")[0] if is_url(source) else source
    if path.endswith("/" + MANIFEST_NAME) and (is_url(source) or os.path.isfile(source)):
        # Behind the name of a web address may come a query, which stays.
        source = "".join(source.rsplit("/" + MANIFEST_NAME, 1))
        return RemoteFiles(source, cache) if is_url(source) else LocalFiles(source, check=check)
    if is_url(source):
        shard = path.endswith((".tar", ".lmdb", ".h5")) or "{" in path
        return ForeignFiles((source,), cache) if shard else RemoteFiles(source, cache)
    if os.path.isdir(source):
        return LocalFiles(source, check=check)
    if os.path.isfile(source) or PATTERN & set(source):
        return ForeignFiles((source,), cache)
    raise UsageError(f"{redact(source)} is not there", fix="Give the folder of a packed set, or tars")


def open_reader(files: SetFiles, number: int) -> ShardReader:
    """A reader of one shard of a set; it is fetched first where it is not on this machine."""
    name = files.manifest.shards[number].name
    with where(shard=name), files.hold(number) as path:
        return ShardReader(path, files.index(number), name)


def _row_of(keys: Keys, key: bytes) -> int | None:
    """The first row with this key, by comparing all keys of its length at once."""
    rows = np.flatnonzero(np.diff(keys.offsets) == len(key))
    letters = keys.blob[keys.offsets[rows][:, None] + np.arange(len(key))]
    found = rows[(letters == np.frombuffer(key, np.uint8)).all(axis=1)]
    return int(found[0]) if len(found) else None


def _fill_list(
    values: list[memoryview | NDArray[Any] | None],
    readers: Mapping[int, ShardReader],
    picked: Picked,
    stored: str,
) -> None:
    # Views keep the map of their shard, which may be more maps than are allowed where `picked` is not the whole.
    copy = picked.at is not None
    for shard, rows, at in picked.parts():
        for place, item in zip(at, _items(readers[shard], rows, stored), strict=True):
            values[place] = memoryview(bytes(item)) if copy and isinstance(item, memoryview) else item


def _items(reader: ShardReader, rows: Rows, stored: str) -> Sequence[memoryview | NDArray[Any] | None]:
    if reader.layout(stored) is not None:
        return [_one(reader, row, stored) for row in rows.tolist()]
    column = reader.gather(rows, stored)
    assert isinstance(column, ListColumn)
    return column.values


def _as_column(values: _Values) -> Column:
    return ArrayColumn(values) if isinstance(values, np.ndarray) else ListColumn(values)


def _one(reader: ShardReader, row: int, stored: str) -> memoryview | NDArray[Any] | None:
    """One item of a list: an array, or bytes as any format has them (HDF5 keeps numbers as numbers)."""
    value = reader.value(row, stored)
    codec = codec_for(stored)
    if isinstance(value, np.ndarray) and isinstance(codec, NumberCodec):
        return memoryview(codec.encode(value))
    return value


def _holds_arrays(reader: ShardReader, stored: str) -> bool:
    index = reader.index.fields.get(stored)
    return index is not None and index.is_array and not isinstance(codec_for(stored), NumberCodec)


def _value(reader: ShardReader, row: int, spec: FieldSpec) -> Any:
    """A value for people: a number or array where the bytes hold one, else the bytes."""
    numbers = reader.index.columns.get(spec.stored)
    if numbers is not None:
        return numbers[row].item()
    value = _one(reader, row, spec.stored)
    if not isinstance(value, memoryview):
        return value
    codec = codec_for(spec.stored)
    if not isinstance(codec, NpyCodec | NumberCodec):
        return bytes(value)
    try:
        found = codec.decode(value)
        return np.array(found) if isinstance(found, np.ndarray) else found
    except DecodeError:
        return bytes(value)
