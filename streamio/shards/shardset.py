"""`open_shards` and `ShardSet`: a packed set as one table of samples. What it opens is closed here."""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import Any, Self, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from streamio.errors import ShardError, ShardWarning, UsageError
from streamio.shards.manifest import FieldSpec
from streamio.shards.opened import OpenedSet, find_files
from streamio.shards.pool import PoolStats
from streamio.shards.selection import Selection, as_rows, chosen_rows
from streamio.shards.setfiles import first_shards
from streamio.storage.files import is_url, local_path
from streamio.types import Alloc, Column, Rows, new_array

Source: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"


def open_shards(
    source: Source,
    *,
    cache: str | os.PathLike[str] | None = None,
    max_open: int | None = None,
    shards: int | None = None,
) -> ShardSet:
    """Open a shard set: known as `streamio.open`.

    source:   the folder or URL of a packed set (or of its `streamio.json`); one tar, LMDB or HDF5 shard; a
              list of tars; a pattern of tars (`"x-{000..010}.tar"`, `"tars/*.tar"`). Tars of others are walked
              once, see `streamio index`.
    cache:    folder for downloaded shards; default: STREAMIO_CACHE, else the user's cache folder.
    max_open: shards that each process holds open at a time (memory maps, and no file descriptor). None: 4,096, and
              512 of those behind a URL, whose indexes take memory.
    shards:   of a set that grows (`streamio.capture`): the first so many; None: those that there are now.

    Raises before anything is read: BadManifest, MissingShard with all files that are not there, CorruptShard
    with all shards of a wrong size (those behind a URL are looked at when they are fetched).
    """
    opened = ShardSet(
        plain_source(source), cache=None if cache is None else os.path.abspath(cache), max_open=max_open,
        shards=shards,
    )  # fmt: skip
    for note in opened._opened.files.notes:
        warnings.warn(note, ShardWarning, stacklevel=2)
    return opened


class ShardSet:
    """Samples of a set by row, 0 … len - 1: `set[i]` is a dict of `__key__` and the fields.

    Numbers come as Python numbers, arrays as arrays of their own, all other fields as the bytes that are
    stored (`set[i]["jpg"]`). A field that a sample lacks is not in its dict.

    Shards open on first use, in the process that uses them; pickling sends the name of the set. Used from
    any thread. `close` (or `with`) closes what this process has open; the set stays usable. Of a set that grows
    it has the shards that were there. Made by `streamio.open` and `where`.
    """

    def __init__(
        self,
        source: str | tuple[str, ...],
        *,
        cache: str | None,
        max_open: int | None,
        expected: str | None = None,
        shards: int | None = None,
    ) -> None:
        if max_open is not None and max_open < 1:
            raise UsageError(f"max_open={max_open}", fix="At least one shard must be open to be read")
        self._source, self._cache, self._max_open, self._expected = source, cache, max_open, expected
        self._shards = shards
        self._selection: Selection | None = None

    @cached_property
    def _opened(self) -> OpenedSet:
        """The set behind the name; shared by all selections that this process makes of it."""
        files = find_files(self._source, self._cache)
        if self._shards is not None:
            files = first_shards(files, self._shards)
        opened = OpenedSet(files, self._max_open)
        if self._expected not in (None, opened.manifest.fingerprint):
            raise _written_anew(opened.files.place)
        return opened

    def __len__(self) -> int:
        return self._opened.samples if self._selection is None else len(self._selection.rows)

    @overload
    def __getitem__(self, row: int | np.integer[Any]) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, row: slice | Sequence[int] | NDArray[Any]) -> list[dict[str, Any]]: ...
    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        if getattr(row, "ndim", 0) or isinstance(row, list | tuple | range):
            return [self[i] for i in as_rows(row, "set[rows]").tolist()]
        try:
            place = operator.index(row)
        except TypeError:
            raise TypeError(f"set[{row!r}]: rows are integers; find a key with set.find(key)") from None
        count = len(self)
        if not -count <= place < count:
            raise IndexError(f"row {place} of {count:,} samples" + (f" (0 to {count - 1})" if count else ""))
        return self._opened.sample(self._base_row(place % count))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[row] for row in range(len(self)))

    @property
    def total(self) -> int:
        """Samples of the whole set, also in a selection."""
        return self._opened.samples

    @property
    def path(self) -> str:
        """Where the set is, without secrets."""
        return self._opened.files.place

    @property
    def format(self) -> str:
        """tar, lmdb or hdf5."""
        return self._opened.manifest.format

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes that `cls` counts."""
        return self._opened.manifest.classes

    @property
    def fields(self) -> Mapping[str, FieldSpec]:
        """What the manifest says of each field (of the whole set, also in a selection)."""
        return self._opened.manifest.fields

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Samples of each shard, int64; those selected, in a selection."""
        if self._selection is None:
            return self._opened.sizes
        counts: NDArray[np.int64] = np.searchsorted(self._selection.rows, self._opened.ends)
        return np.diff(counts, prepend=0)

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that change with any byte of the shards, and with the selection."""
        base = self._expected or self._opened.manifest.fingerprint
        return base if self._selection is None else self._selection.fingerprint(base)

    @cached_property
    def columns(self) -> Mapping[str, NDArray[Any]]:
        """The small values of all samples by name: `cls`, `jpg.width`. Read-only (len,), read on first use."""
        columns = self._opened.columns
        return columns if self._selection is None else _SelectedColumns(columns, self._selection.rows)

    def keys(self, rows: Rows) -> list[str]:
        """The keys of many rows at once."""
        return self._opened.keys(self._base_rows(rows))

    def find(self, key: str) -> int:
        """The row of a key, by a search through all keys. Raises KeyError, with keys that are like it."""
        row = self._opened.find(key)
        if self._selection is None:
            return row
        place = int(np.searchsorted(self._selection.rows, row))
        if place == len(self) or self._selection.rows[place] != row:
            raise KeyError(f"'{key}' is row {row} of the set, which this selection leaves out")
        return place

    def locate(self, row: int) -> tuple[str, int]:
        """(name of the shard, row in the shard), as error messages give it."""
        shard, local = self._opened.locate(int(self._base_rows(np.array([row]))[0]))
        return self._opened.manifest.shards[shard].name, local

    def gather(self, rows: Rows, fields: Sequence[str], alloc: Alloc = new_array) -> dict[str, Column]:
        """The fields of many rows at once, in the order of `rows`, repeats included.

        Numbers, and arrays that are alike in the whole set, are `ArrayColumn`s in memory from `alloc`. All
        else is a `ListColumn`: bytes as views of the shards (copies where the rows come from more shards than may
        be open), arrays that differ as arrays or their npy bytes, None where a row has no such field.
        """
        return self._opened.gather(self._base_rows(rows), fields, alloc)

    def where(self, choice: Callable[[Mapping[str, NDArray[Any]]], Any] | Sequence[int] | NDArray[Any]) -> ShardSet:
        """The samples chosen, as a set in the same order: `set.where(lambda c: c["cls"] == 3)`.

        choice: a mask (one bool for each sample), row numbers (each once; their order does not matter), or a
        function of `columns` that gives one of these.
        """
        rows = chosen_rows(choice(self.columns) if callable(choice) else choice, len(self))
        selection = Selection(rows) if self._selection is None else self._selection.of(rows)
        view = ShardSet(
            self._source, cache=self._cache, max_open=self._max_open, expected=self._expected, shards=self._shards
        )
        view._selection, view._opened = selection, self._opened
        return view

    @property
    def grows(self) -> bool:
        """Whether shards may come to those that were there when it was opened."""
        return self._opened.manifest.grows

    @property
    def is_selection(self) -> bool:
        """Whether `where` made it."""
        return self._selection is not None

    def first(self, shards: int) -> ShardSet:
        """The first so many shards of a set that grows, as a set of its own; also of those that came meanwhile.

        Raises UsageError where there are fewer, or where it does not grow; ShardError where it was written anew.
        """
        if self._selection is not None:
            raise UsageError("a selection has no further shards", fix="Choose with where() from first(…)")
        found = ShardSet(self._source, cache=self._cache, max_open=self._max_open, shards=shards)
        ours = self._opened.manifest
        both = min(shards, len(ours.shards))
        if found._opened.manifest.first(both).fingerprint != ours.first(both).fingerprint:
            raise _written_anew(self.path)
        return found

    def fingerprint_of(self, shards: int) -> str:
        """That of the first so many of its shards."""
        manifest = self._opened.manifest
        return self.fingerprint if shards == len(manifest.shards) else manifest.first(shards).fingerprint

    def shards_now(self) -> int:
        """How many shards the set has by now, of which this has those that were there when it was opened."""
        return len(find_files(self._source, self._cache, check=False).manifest.shards)

    def take_over(self, other: ShardSet) -> None:
        """Be another set, made by `first`, from now on. Rows that both have stay what they are."""
        old = self._opened
        for name in ("sizes", "fingerprint", "columns"):
            self.__dict__.pop(name, None)
        self._shards, self._expected, self._opened = other._shards, other._expected, other._opened
        old.close()

    def stats(self) -> PoolStats:
        """What this process has open, and how often it opened shards. A selection shares it with its set."""
        return self._opened.pool.stats()

    def close(self) -> None:
        """Close the shards that this process has open; values handed out stay valid. Later use opens them again."""
        if "_opened" in self.__dict__:
            self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        manifest = self._opened.manifest
        total = sum(shard.bytes for shard in manifest.shards)
        samples = (
            f"{len(self):,} samples"
            if self._selection is None
            else f"{len(self):,} of {manifest.samples:,} samples"
        )
        return (
            f"ShardSet('{self.path}': {samples} in {len(manifest.shards):,} {manifest.format} shards, "
            f"{total:,} bytes; fields {', '.join(manifest.fields)})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        packed = None if self._selection is None else self._selection.pack()
        base = self._expected or self._opened.manifest.fingerprint
        manifest = self._opened.manifest
        shards = len(manifest.shards) if manifest.grows else self._shards
        return _reopen, (self._source, self._cache, self._max_open, base, packed, shards)

    def _base_row(self, row: int) -> int:
        return row if self._selection is None else int(self._selection.rows[row])

    def _base_rows(self, rows: Rows) -> Rows:
        rows = as_rows(rows, "rows")
        count = len(self)
        if len(rows) and int(rows.view(np.uint64).max()) >= count:  # what is negative is very large
            raise IndexError(f"rows {rows.min()} to {rows.max()} of {count:,} samples (0 to {count - 1})")
        return rows if self._selection is None else self._selection.rows[rows]


class _SelectedColumns(Mapping[str, NDArray[Any]]):
    """The columns of a set at the rows of a selection, cut on first use."""

    def __init__(self, base: Mapping[str, NDArray[Any]], rows: Rows) -> None:
        self._base, self._rows = base, rows
        self._made: dict[str, NDArray[Any]] = {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._made:
            column = self._base[name][self._rows]
            column.flags.writeable = False
            self._made[name] = column
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._base)

    def __len__(self) -> int:
        return len(self._base)

    def __repr__(self) -> str:
        return repr(self._base)


def _written_anew(place: str) -> ShardError:
    return ShardError(
        "the set was packed again since it was opened elsewhere",
        fix="Open it again; a saved state of the old one does not fit it", path=place,
    )  # fmt: skip


def _reopen(
    source: str | tuple[str, ...], cache: str | None, max_open: int | None, fingerprint: str, packed: bytes | None,
    shards: int | None,
) -> ShardSet:  # fmt: skip
    """Unpickle: nothing is opened before it is used."""
    found = ShardSet(source, cache=cache, max_open=max_open, expected=fingerprint, shards=shards)
    if packed is not None:
        found._selection = Selection.unpack(packed)
    return found


def plain_source(source: object) -> str | tuple[str, ...]:
    """The source as text that means the same in any process, whatever its folder."""
    if isinstance(source, str | os.PathLike):
        return _plain_path(source)
    if isinstance(source, bytes | bytearray) or not isinstance(source, Sequence):
        raise UsageError(f"cannot open {source!r}", fix="Give a path, a URL, a pattern, or a list of tars")
    if not source:
        raise UsageError("cannot open an empty list", fix="Give at least one tar")
    return tuple(_plain_path(item) for item in source)


def _plain_path(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    if not isinstance(text, str):
        raise UsageError(f"cannot open {path!r}", fix="Give the path as text: os.fsdecode(path)")
    return text if is_url(text) else os.path.abspath(os.path.expanduser(local_path(text)))
