"""SqlTable: rows of a database by number, in the order of a key, as a table that a data set reads from."""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from streamio.errors import SampleError, StreamioError, UsageError, where
from streamio.extras import extra
from streamio.shards.manifest import FieldSpec
from streamio.shards.selection import as_rows
from streamio.sources.sql.columns import SqlColumn, with_errors
from streamio.sources.sql.connect import Connection, Connections, Database
from streamio.sources.sql.keys import places, plain_key
from streamio.sources.sql.query import key_name, named
from streamio.sources.sql.scan import Request, Scan, scan
from streamio.sources.sql.snapshot import HeldSnapshot, within
from streamio.types import Alloc, ArrayColumn, Column, ListColumn, NullableColumn, Rows, new_array
from streamio.world import SharedCounts

_log = logging.getLogger("streamio")

VANISHED, APPEARED = "vanished", "appeared"
"""What is counted: rows that were there when the table was looked at and are gone when they are read, and others
that came between two that are read."""

_AT_ONCE, _MOST_ROWS = 4 << 20, 1 << 14
"""Bytes, and rows, that one query brings for the batches that come next: enough for its fixed cost not to count."""

_GROUPS = 4
"""Of such batches that are kept: threads may still make those of the one before."""

_RANGES = 64
"""Ranges of rows that one query asks for."""

_GAP = 32
"""Rows that are read along with their neighbours rather than asked for apart."""


@dataclass(frozen=True)
class _Fetched:
    """Rows of the table, ascending and each once, with the columns that were read; gone ones are NULL.

    gone:   indices of rows that are no more there.
    values: of the fields that were asked for, and an error for each that does not fit. Made once for all batches.
    """

    rows: Rows
    table: Any
    gone: frozenset[int]
    values: dict[str, tuple[Column, dict[int, StreamioError]]] = field(default_factory=dict)

    def column(self, name: str, kind: SqlColumn) -> tuple[Column, dict[int, StreamioError]]:
        if name not in self.values:
            self.values[name] = kind.values(self.table[name], name)
        return self.values[name]

    def has(self, rows: Rows, fields: Sequence[str]) -> bool:
        return set(fields) <= set(self.table.column_names) and _has_all(self.rows, rows)


class _Coming:
    """Rows that are read when the first of them is asked for, by whichever thread that does."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._lock = threading.Lock()
        self._fetched: _Fetched | None = None

    def fetched(
        self, rows: Rows, fields: Sequence[str], read: Callable[[Rows, Sequence[str]], _Fetched]
    ) -> _Fetched:
        with self._lock:
            if self._fetched is None or not self._fetched.has(rows, fields):
                self._fetched = None
                self._fetched = read(self.rows, fields)
            return self._fetched


class SqlTable:
    """Rows 0 … N-1 of a table or query, in the order of its key, by which they are read.

    database: where.
    request:  what.
    snapshot: the name of a snapshot in which all is read, or None.
    held:     that snapshot, if it is this process that holds it; it ends with the table.

    Construction looks at the table once. Raises UsageError for what cannot be read, StorageError where the database
    fails. `close` ends the snapshot, and with it all reading.
    """

    def __init__(
        self, database: Database, request: Request, *, snapshot: str | None, held: HeldSnapshot | None = None
    ) -> None:
        self.database, self.request = database, request
        self.snapshot, self._held = snapshot, held
        self._reading = database if snapshot is None else within(database, snapshot)
        self._counts = SharedCounts((VANISHED, APPEARED))
        self._closed = False
        try:
            self._found = self._scan()
        except BaseException:
            self.close()
            raise
        self._setup()

    def _setup(self) -> None:
        self._connections = Connections(self._reading)
        self._last = threading.local()
        self._warned: set[str] = set()
        self._coming: deque[_Coming] = deque(maxlen=_GROUPS)
        self._row_bytes = 0
        self._light: set[str] = set()  # small fields that were asked for: they come along with others

    def _scan(self) -> Scan:
        with self._reading.connect(patient=False) as connection:
            begin = self.database.dialect.begin
            if begin and self.snapshot is None:
                connection.run(begin)
            return scan(connection, self.request)

    @property
    def columns_read(self) -> Mapping[str, SqlColumn]:
        """What becomes of each column."""
        return self._found.columns

    @property
    def nulls(self) -> Mapping[str, int]:
        """Rows with NULL by field, as they were when the table was looked at; fields without are left out."""
        return self._found.nulls

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Rows of each page, int64."""
        total = len(self._found.keys)
        page = self.request.page_rows
        sizes = np.full(-(-total // page), page, np.int64)
        sizes[-1] = total - page * (len(sizes) - 1)
        return sizes

    @cached_property
    def fields(self) -> Mapping[str, FieldSpec]:
        """What the columns become."""
        return {name: column.type.spec(name) for name, column in self._found.columns.items()}

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that change with any key and with what is read, not with other values."""
        query, key, page = self.request.query, self.request.key, self.request.page_rows
        columns = {name: (column.sql, str(column.type)) for name, column in self._found.columns.items()}
        facts = (query.relation, query.where, key, columns, page, self._found.keys.digest)
        return xxhash.xxh3_64_hexdigest(json.dumps(facts).encode())

    @cached_property
    def columns(self) -> Mapping[str, NDArray[Any]]:
        """The numbers of all rows by field, for `draw` and `buckets`; each is read when it is asked for."""
        return _Numbers(self)

    def __len__(self) -> int:
        return len(self._found.keys)

    def keys(self, rows: Rows) -> list[str]:
        """The keys of these rows as text; values of several columns are joined by `/`."""
        return self._found.keys.texts(self._checked(rows))

    def locate(self, row: int) -> tuple[str, int]:
        """(name of the table, row), for messages."""
        return self.request.query.shown, int(row)

    def counts(self) -> dict[str, int]:
        """How many rows vanished, and how many others were seen between those that are read; of all workers."""
        return self._counts.totals()

    @property
    def rows_at_once(self) -> int:
        """How many rows a query should bring, by what those took that were read so far; 0 before any was."""
        return 0 if not self._row_bytes else min(_MOST_ROWS, _AT_ONCE // self._row_bytes)

    def announce(self, rows: Rows) -> None:
        """These rows are asked for next, in parts: the first part brings all of them."""
        self._coming.append(_Coming(np.unique(rows)))

    def gather(self, rows: Rows, fields: Sequence[str], alloc: Alloc = new_array) -> dict[str, Column]:
        """The fields of these rows, in this order, repeats included.

        Of a row that is gone, and of a value that does not fit its column, there is an error in place of the value.
        """
        rows = self._checked(rows)
        fetched = self._fetched(rows, fields)
        at = np.searchsorted(fetched.rows, rows)
        together = _together(at)
        places = at.tolist() if fetched.gone else []
        gone: dict[int, StreamioError] = {i: _vanished() for i, place in enumerate(places) if place in fetched.gone}
        columns = {}
        with where(path=self.database.shown, table=self.request.query.shown):
            for name in fields:
                column, bad = fetched.column(name, self._found.columns[name])
                here = {i: bad[place] for i, place in enumerate(at.tolist()) if place in bad} if bad else {}
                columns[name] = with_errors(_taken(column, at, together, alloc), {**here, **gone})
        return columns

    def column(self, name: str) -> NDArray[Any]:
        """One column of all rows, (len,), read in a pass over the table. Raises UsageError where one has NULL."""
        paging, kind = self._found.paging, self._found.columns[name]
        sql = self.request.query.select(named(paging.dialect, {name: kind.sql}), order=paging.order)

        def read(connection: Connection) -> list[NDArray[Any]]:
            found = (kind.values(batch.column(0), name) for batch in connection.fetch(sql))
            return [column.values for column, bad in found if isinstance(column, ArrayColumn) and not bad]

        values = np.concatenate([np.zeros(0, kind.type.dtype), *self._connections.use(read)])
        if len(values) != len(self):
            raise UsageError(
                f"of {len(self):,} rows, {len(values):,} have a number in the column",
                fix=f'Leave the others out, where="{name} IS NOT NULL"; and read while nobody writes',
                path=self.database.shown, table=self.request.query.shown, field=name,
            )  # fmt: skip
        return values

    def _checked(self, rows: Rows) -> Rows:
        rows = as_rows(rows, "rows")
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(self):
            raise IndexError(f"rows {rows.min()} to {rows.max()} of {len(self):,}")
        return rows

    def _fetched(self, rows: Rows, fields: Sequence[str]) -> _Fetched:
        """What was read last in this thread where it has all of these, else what is read now."""
        last: _Fetched | None = getattr(self._last, "fetched", None)
        if last is not None and last.has(rows, fields):
            return last
        for coming in reversed(self._coming):
            if _has_all(coming.rows, rows):
                fetched = coming.fetched(rows, fields, self._read_now)
                break
        else:
            self._last.fetched = None
            fetched = self._read_now(rows, fields)
        self._last.fetched = fetched
        return fetched

    def _read_now(self, rows: Rows, fields: Sequence[str]) -> _Fetched:
        if self._closed or not self._found.keys.are_here:
            raise UsageError(
                "the table was closed" if self._closed else "a copy of the table that was not made for a worker",
                fix="Make the data set again", path=self.database.shown, table=self.request.query.shown,
            )  # fmt: skip
        wanted = rows if (np.diff(rows) > 0).all() else np.unique(rows)
        read = [name for name in self._found.columns if name in fields or name in self._light]
        self._light |= {name for name in read if self._found.columns[name].type.kind != "bytes"}
        fetched = self._connections.use(lambda connection: self._read(connection, wanted, read))
        self._row_bytes = max(self._row_bytes, fetched.table.nbytes // max(1, len(fetched.rows)))
        return fetched

    def _read(self, connection: Connection, rows: Rows, fields: Sequence[str]) -> _Fetched:
        """These rows, ascending and each once."""
        pa = extra("pyarrow", "sql")
        keys = self._found.keys.read(rows)
        if len(rows) == 0:
            return _Fetched(rows, self._select(connection, fields, "1 = 0", ()), frozenset())
        tables, runs = [], _runs(rows)
        scattered = np.ones(len(rows), np.bool_)
        for start in range(0, len(runs), _RANGES):
            some = runs[start : start + _RANGES]
            ends = [[[column[i].as_py() for column in keys] for i in (begin, end - 1)] for begin, end in some]
            tables.append(self._select_ranges(connection, fields, ends))
        for begin, end in runs:
            scattered[begin:end] = False
        at = np.flatnonzero(scattered)
        most = self._found.paging.most
        for start in range(0, len(at), most):
            values = [column.take(at[start : start + most]).to_pylist() for column in keys]
            tables.append(self._select(connection, fields, *self._found.paging.among(values)))
        found = tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")
        found_keys = [plain_key(found[key_name(i)], column.type) for i, column in enumerate(keys)]
        if all(map(_are_equal, found_keys, keys)):
            return _Fetched(rows, found, frozenset())
        place = places(keys, found_keys)
        gone = np.flatnonzero(place < 0)
        in_runs = sum(table.num_rows for table in tables[: -(-len(runs) // _RANGES)])  # these come first
        known = sum(_known_rows(rows[begin:end], place[begin:end]) for begin, end in runs)
        self._note(len(gone), max(0, in_runs - known))
        table = found.take(pa.array(place, mask=place < 0) if len(gone) else place)
        return _Fetched(rows, table, frozenset(gone.tolist()))

    def _select_ranges(self, connection: Connection, fields: Sequence[str], ends: Sequence[Sequence[Any]]) -> Any:
        """The rows between each pair of keys, one query for all: a planner that knows nothing of the table takes
        the index for one range, and may not for several that are joined by OR."""
        given: list[Any] = []
        conditions = [self._found.paging.between(first, last, given) for first, last in ends]
        order = self._found.paging.order
        if len(conditions) == 1:
            return self._select(connection, fields, conditions[0], given, order=order)
        parts = (self._sql(fields, condition, order) for condition in conditions)
        return connection.table(" UNION ALL ".join(f"SELECT * FROM ({part}) AS r" for part in parts), given)

    def _select(
        self, connection: Connection, fields: Sequence[str], condition: str, given: Sequence[Any], order: Any = ()
    ) -> Any:
        """The columns and the key of the rows that match."""
        return connection.table(self._sql(fields, condition, order), given)

    def _sql(self, fields: Sequence[str], condition: str, order: Any) -> str:
        paging = self._found.paging
        expressions = {name: self._found.columns[name].sql for name in fields} | paging.read
        return self.request.query.select(named(paging.dialect, expressions), condition, order=order)

    def _note(self, gone: int, extra_rows: int) -> None:
        """Count rows that are gone or new, and say so once in a process."""
        for name, count in {VANISHED: gone, APPEARED: extra_rows}.items():
            if count:
                self._counts.add(name, count)
            if count and name not in self._warned:
                self._warned.add(name)
                _log.warning(
                    "%s: rows of %s were %s since the data set was made; they are counted in stats()",
                    self.database.shown, self.request.query.shown, "deleted" if name == VANISHED else "added",
                )  # fmt: skip

    def close(self) -> None:
        """End the snapshot and the connections of this process. Nothing can be read then."""
        self._closed = True
        if "_connections" in self.__dict__:
            self._connections.close()
            self._found.keys.close()
        if self._held is not None:
            self._held.close()
            self._held = None

    def __getstate__(self) -> dict[str, Any]:
        left = ("columns", "_connections", "_last", "_warned", "_light", "_held", "_coming")
        return {name: value for name, value in self.__dict__.items() if name not in left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _held=None)
        self._setup()

    def __repr__(self) -> str:
        return (
            f"SqlTable({self.database.shown!r}, {self.request.query.shown}: {len(self):,} rows by "
            f"{', '.join(self.request.key)}; fields {', '.join(self.fields)})"
        )


class _Numbers(Mapping[str, "NDArray[Any]"]):
    """The fields that are numbers, each read on first use."""

    def __init__(self, table: SqlTable) -> None:
        self._table = table
        self._read: dict[str, NDArray[Any]] = {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._read:
            if name not in list(self):
                raise KeyError(f"no column '{name}' of numbers; there are {', '.join(self) or 'none'}")
            self._read[name] = self._table.column(name)
            self._read[name].flags.writeable = False
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, column in self._table.columns_read.items() if column.type.shape == ())

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _has_all(there: Rows, rows: Rows) -> bool:
    """Whether all of these rows are among those, which ascend."""
    if not len(there):
        return not len(rows)
    at = np.searchsorted(there, rows)
    return bool((there[at.clip(max=len(there) - 1)] == rows).all())


def _vanished() -> StreamioError:
    return SampleError(
        "the row was deleted, or its key changed, since the data set was made",
        fix="Let on_error='skip' or 'substitute' go on without it, or read a table that nobody changes",
    )


def _known_rows(rows: Rows, place: NDArray[np.int64]) -> int:
    """How many rows there are between the first and the last of these, of those that were there before."""
    return int((place >= 0).sum()) + int(rows[-1] - rows[0]) + 1 - len(rows)


def _runs(rows: Rows) -> list[tuple[int, int]]:
    """[begin, end) of indices between which rows follow each other closely: at least half of all that lie there."""
    cuts = np.flatnonzero(np.diff(rows) > _GAP) + 1
    edges = [0, *cuts.tolist(), len(rows)]
    enough = min(len(rows), _GAP)
    return [
        (begin, end) for begin, end in pairwise(edges)
        if end - begin >= enough and int(rows[end - 1] - rows[begin]) < 2 * (end - begin)
    ]  # fmt: skip


def _are_equal(one: Any, other: Any) -> bool:
    return bool(one.equals(other))


def _together(at: Rows) -> slice | None:
    """The slice that these indices are, if they are one."""
    if not len(at) or int(at[-1]) - int(at[0]) + 1 != len(at) or (np.diff(at) != 1).any():
        return None
    return slice(int(at[0]), int(at[-1]) + 1)


def _taken(column: Column, at: Rows, together: slice | None, alloc: Alloc) -> Column:
    """These rows of a column, in memory of the batch. together: the same as a slice."""
    rows: Any = at if together is None else together
    if isinstance(column, ArrayColumn):
        values = alloc((len(at), *column.values.shape[1:]), column.values.dtype)
        values[...] = column.values[rows]
        return ArrayColumn(values)
    if isinstance(column, NullableColumn):
        return NullableColumn(column.values[rows].copy(), column.lacking[rows].copy())
    return ListColumn([column.values[row] for row in at.tolist()] if together is None else column.values[rows])
