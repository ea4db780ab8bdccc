"""What differs between databases: how they connect, give Arrow batches, and write names, keys and placeholders."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, Literal, Self
from uuid import UUID

from streamio.errors import UsageError
from streamio.extras import extra
from streamio.world import this_worker

ROWS = 1 << 16
"""Rows of one Arrow batch, at most, where the driver lets us say."""


class Dialect(ABC):
    """One kind of database. Stateless; `raw` is an open connection of its driver.

    name:        as messages have it.
    streams:     whether rows come while the query still runs, so that memory is bounded.
    snapshots:   whether several connections can read one snapshot.
    parameters:  placeholders that one statement may have.
    lists:       how one parameter holds many keys: an array for "any" or "unnest", "json"; "" where it cannot.
    page_rows:   of a page of a table, by default.
    begin:       the statement that begins a transaction in which all queries see one state, or "".
    patience:    the statement that lets a query last as long as it takes, or "".
    lets_go:     whether who waits for rows closes the connection: it keeps others from writing, or does not see
                 what another library writes in the same process.
    """

    name: str
    streams = True
    snapshots = False
    parameters = 30_000
    lists: Literal["any", "unnest", "json", ""] = ""
    page_rows = 1 << 14
    begin = ""
    patience = ""
    lets_go = False

    @abstractmethod
    def open(self, target: Any, database: str = "") -> Any:
        """A new connection, with nothing begun. target: the address, the path of a file, or the user's function."""

    @abstractmethod
    def fetch(
        self, raw: Any, sql: str, parameters: Sequence[Any], rows: int = ROWS, *, stream: bool = True
    ) -> tuple[Any, Batches]:
        """(Arrow schema, Arrow batches) of a query. Closing the generator ends the query.

        stream: that the result may be large. Else it is small, and asked for in as few messages as can be.
        """

    @abstractmethod
    def run(self, raw: Any, sql: str) -> None:
        """A statement without a result."""

    def close(self, raw: Any) -> None:
        raw.close()

    def probe(self, raw: Any) -> None:
        """Raises where the connection is lost. Ends a transaction that has failed."""
        self.run(raw, "SELECT 1")

    def end(self, raw: Any) -> None:  # noqa: B027 - most have nothing to do
        """After a query: end what it began, so that the next one sees what was committed since."""

    def quote(self, name: str) -> str:
        """A name of a table or column as it stands, upper and lower case too."""
        return '"' + name.replace('"', '""') + '"'

    def relation(self, table: str) -> str:
        """The name of a table; a dot parts its schema from it."""
        return ".".join(map(self.quote, table.split(".")))

    def text(self, sql: str) -> str:
        """SQL of the user's as it must stand in a statement with placeholders."""
        return sql

    def placeholder(self, number: int) -> str:
        """That of parameter 1, 2, …"""
        return "?"

    def literal(self, value: str | int | float) -> str | None:
        """A value as it stands in a statement whose result may be large; None: as a parameter."""
        return None

    def first(self, sql: str, rows: int) -> str:
        """So many rows of a query."""
        return f"{sql} LIMIT {rows}"

    def behind(self, sql: str, rows: int) -> str | None:
        """A query without so many rows at its beginning; None where they have to be read."""
        return f"{sql}\nOFFSET {rows}"

    def setup(self) -> tuple[str, ...]:
        """Statements for a new connection."""
        return ()


class _Adbc(Dialect):
    """A database with an ADBC driver."""

    def _open(self, module: str, *arguments: Any) -> Any:
        return extra(module, "sql").connect(*arguments, autocommit=True)

    def run(self, raw: Any, sql: str) -> None:
        with raw.cursor() as cursor:
            cursor.execute(sql)

    def fetch(
        self, raw: Any, sql: str, parameters: Sequence[Any], rows: int = ROWS, *, stream: bool = True
    ) -> tuple[Any, Batches]:
        cursor = raw.cursor()
        try:
            for name, value in self._options(rows).items():
                cursor.adbc_statement.set_options(**{name: value})
            cursor.execute(sql, list(parameters) or None)
            reader = cursor.fetch_record_batch()
        except BaseException:
            cursor.close()
            raise
        return reader.schema, Batches(reader, reader, cursor)

    def _options(self, rows: int) -> dict[str, str]:
        return {}


class PostgreSQL(_Adbc):
    """Rows come by COPY in binary, as they are read: about 16 MB at a time."""

    name = "PostgreSQL"
    snapshots = True
    lists = "any"
    begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
    patience = "SET statement_timeout = 0"

    def open(self, target: Any, database: str = "") -> Any:
        return self._open("adbc_driver_postgresql.dbapi", target)

    def probe(self, raw: Any) -> None:
        self.run(raw, "ROLLBACK")

    def placeholder(self, number: int) -> str:
        return f"${number}"

    def literal(self, value: str | int | float) -> str:
        # With a parameter a result does not come by COPY, but as a whole.
        text = str(value).replace("\\", "\\\\").replace("'", "''")
        return f"E'{text}'"

    def setup(self) -> tuple[str, ...]:
        return (
            "SET timezone = 'UTC'", "SET datestyle = 'ISO, YMD'", "SET intervalstyle = 'postgres'",
            "SET extra_float_digits = 1", _NO_TIMEOUTS,
        )  # fmt: skip


class SQLite(_Adbc):
    name = "SQLite"
    lists = "json"
    lets_go = True
    begin = "BEGIN"

    def open(self, target: Any, database: str = "") -> Any:
        raw = self._open("adbc_driver_sqlite.dbapi", target)
        self.run(raw, "PRAGMA busy_timeout = 60000")
        return raw

    def behind(self, sql: str, rows: int) -> str:
        return f"{sql}\nLIMIT -1 OFFSET {rows}"

    def _options(self, rows: int) -> dict[str, str]:
        return {"adbc.sqlite.query.batch_rows": str(rows)}  # the type of a column comes from the first batch


class DuckDB(Dialect):
    """A file, opened to be read only, as several processes may do at a time."""

    name = "DuckDB"
    lists = "unnest"
    page_rows = 122_880  # of its row groups
    begin = "BEGIN TRANSACTION"
    lets_go = True

    def open(self, target: Any, database: str = "") -> Any:
        # One thread in a worker, and bounded memory: there are as many workers as there are CPUs.
        config: dict[str, Any] = {}
        if this_worker() is not None:
            spill = os.path.join(tempfile.gettempdir(), f"streamio-duckdb-{os.getpid()}")
            config = {"threads": 1, "memory_limit": "256MB", "temp_directory": spill}
        duckdb = extra("duckdb", "sql")
        try:
            raw = duckdb.connect(target, read_only=True, config=config)
        except duckdb.ConnectionException as error:
            if "different configuration" not in str(error):
                raise
            raise UsageError(
                "this process has the file open already, or had it when a worker was forked",
                fix="Close what has it open, leave no epoch half read, or use workers with context='spawn'",
                path=database,
            ) from None
        raw.execute("SET TimeZone = 'UTC'")
        return raw

    def run(self, raw: Any, sql: str) -> None:
        raw.execute(sql)

    def fetch(
        self, raw: Any, sql: str, parameters: Sequence[Any], rows: int = ROWS, *, stream: bool = True
    ) -> tuple[Any, Batches]:
        result = raw.sql(sql, params=list(parameters)) if parameters else raw.sql(sql)
        # Named so since 2.0; before that, `fetch_arrow_reader`.
        reader = getattr(result, "to_arrow_reader", None) or result.fetch_arrow_reader
        batches = reader(rows)
        return batches.schema, Batches(batches, batches)


class DbApi(Dialect):
    """Any driver that follows PEP 249. Rows come as Python objects, and are made Arrow batches."""

    name = "DB-API"

    def __init__(self, paramstyle: str = "", quotes: str = '""', limits: bool = True) -> None:
        self._style, self._quotes, self._limits = paramstyle, quotes, limits

    def open(self, target: Any, database: str = "") -> Any:
        raw = target()
        if not callable(getattr(raw, "cursor", None)):
            raise UsageError(
                f"{database} returned {type(raw).__name__}, which is no connection of a DB-API driver",
                fix="Return what the driver's connect() gives",
            )
        return raw

    def known(self, raw: Any) -> DbApi:
        """This dialect with what the driver of a connection says of itself."""
        package = type(raw).__module__.partition(".")[0]
        style = getattr(sys.modules.get(package), "paramstyle", None) or _STYLES.get(package, "qmark")
        limits = package in (*_MYSQL, "sqlite3", "psycopg", "psycopg2", "duckdb")
        return DbApi(style, "``" if package in _MYSQL else '""', limits)

    def quote(self, name: str) -> str:
        left, right = self._quotes[0], self._quotes[1]
        return self.text(left + name.replace(right, right * 2) + right)

    def text(self, sql: str) -> str:
        return sql.replace("%", "%%") if self._style in ("format", "pyformat") else sql

    def placeholder(self, number: int) -> str:
        if self._style in ("format", "pyformat"):
            return "%s"
        return f":{number}" if self._style == "numeric" else f":p{number}" if self._style == "named" else "?"

    def first(self, sql: str, rows: int) -> str:
        if self._limits:
            return f"{sql} LIMIT {rows}"
        return f"{sql} OFFSET 0 ROWS FETCH NEXT {rows} ROWS ONLY"

    def behind(self, sql: str, rows: int) -> None:
        return None

    def run(self, raw: Any, sql: str) -> None:
        cursor = raw.cursor()
        try:
            cursor.execute(sql)
        finally:
            cursor.close()

    def fetch(
        self, raw: Any, sql: str, parameters: Sequence[Any], rows: int = ROWS, *, stream: bool = True
    ) -> tuple[Any, Batches]:
        cursor = self._streaming(raw) if stream else raw.cursor()
        try:
            given: Any = tuple(parameters)
            if self._style == "named":
                given = {f"p{number}": value for number, value in enumerate(parameters, 1)}
            cursor.execute(sql, given)
            names = [column[0] for column in cursor.description]
            first = _as_batch(cursor.fetchmany(rows), names, None)
        except BaseException:
            cursor.close()
            raise
        return first.schema, Batches(_fetched(cursor, first, names, rows), cursor)

    def probe(self, raw: Any) -> None:
        raw.rollback()
        self.run(raw, "SELECT 1")

    def end(self, raw: Any) -> None:
        raw.rollback()

    def _streaming(self, raw: Any) -> Any:
        """A cursor that does not hold the whole result, where the driver has one."""
        package = type(raw).__module__.partition(".")[0]
        if package in ("psycopg", "psycopg2") and not raw.autocommit:  # a cursor of the server needs a transaction
            return raw.cursor(name="streamio")
        if package in ("pymysql", "MySQLdb"):
            return raw.cursor(sys.modules[f"{package}.cursors"].SSCursor)
        return raw.cursor()


_NO_TIMEOUTS = (
    "DO $$ BEGIN PERFORM set_config(name, '0', false) FROM pg_settings WHERE name IN "
    "('idle_in_transaction_session_timeout', 'idle_session_timeout', 'transaction_timeout'); END $$"
)
"""A snapshot is held between batches too. Not every version knows all of them."""

_MYSQL = ("pymysql", "MySQLdb", "mysql", "mariadb")
_STYLES = {"mysql": "pyformat", "mariadb": "qmark"}

DIALECTS: dict[str, Dialect] = {
    "postgresql": PostgreSQL(), "sqlite": SQLite(), "duckdb": DuckDB(), "dbapi": DbApi()
}  # fmt: skip


class Batches:
    """Arrow batches as they come. `close` ends the query, also before the first one was asked for."""

    def __init__(self, batches: Iterator[Any], *owners: Any) -> None:
        self._batches, self._owners = batches, list(owners)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if not self._owners:
            raise StopIteration
        try:
            return next(self._batches)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        while self._owners:
            with suppress(Exception):  # of a connection that may be lost
                self._owners.pop(0).close()


def _fetched(cursor: Any, batch: Any, names: Sequence[str], rows: int) -> Iterator[Any]:
    while batch.num_rows:
        yield batch
        batch = _as_batch(cursor.fetchmany(rows), names, batch.schema)


def _as_batch(rows: Sequence[Sequence[Any]], names: Sequence[str], schema: Any) -> Any:
    """Rows of Python values in columns. schema: of the batches before; its columns without a type take one now."""
    pa = extra("pyarrow", "sql")
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    arrays = []
    for i, (name, values) in enumerate(zip(names, columns, strict=True)):
        known = None if schema is None or pa.types.is_null(schema.types[i]) else schema.types[i]
        arrays.append(_as_array(pa, values, known, name))
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def _as_array(pa: Any, values: Sequence[Any], known: Any, name: str) -> Any:
    """Python values as an Arrow array. known: its type, if that is clear from those before."""
    if any(isinstance(value, dict) for value in values):  # JSON that the driver has parsed
        values = [None if value is None else json.dumps(value) for value in values]
    try:
        return pa.array(values, type=known)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        kinds = {type(value) for value in values} - {type(None)}
        if kinds == {UUID}:
            return pa.array([value and str(value) for value in values], type=pa.string())
        if known is not None and pa.types.is_decimal(known) and kinds <= {Decimal}:
            return pa.array(values)  # with more digits than those before
        reason = f"{error}"
    raise UsageError(
        f"holds {', '.join(sorted(kind.__name__ for kind in kinds))}, of which no column is made: {reason}",
        fix=f'Cast it in the query, columns={{"{name}": "CAST({name} AS CHAR(100))"}}, or leave it out', field=name,
    )  # fmt: skip
