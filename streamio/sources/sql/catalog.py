"""What a database says of a table: which columns are unique or never NULL, how keys are written, SQLite's types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from streamio.errors import StorageError, UsageError, where
from streamio.extras import extra
from streamio.sources.sql.connect import Connection, LostConnection
from streamio.sources.sql.query import KeyPart, Query, named

_T = TypeVar("_T")

SAMPLE_ROWS = 1000
"""Rows from which the types of a DB-API driver are known."""

_KINDS = ("integer", "real", "text", "blob")
"""What SQLite knows, beside NULL."""


def refusals_named(connection: Connection, query: Query, look: Callable[[], _T]) -> _T:
    """What `look` finds. What the database refuses is raised as a UsageError; a lost connection stays one."""
    with where(path=connection.database.shown, table=query.shown):
        try:
            return look()
        except LostConnection:
            raise
        except StorageError as error:
            refused = error
        raise UsageError(refused.found, fix="Correct table=, query=, columns= or where=, or let this user read it")


class Catalog:
    """What is known of a table. table: its name, or None for a query, of which nothing is known."""

    def __init__(self, connection: Connection, query: Query, table: str | None) -> None:
        self.connection, self.query, self.table = connection, query, table
        self.dialect = connection.database.dialect

    def columns(self) -> list[str]:
        """Names of all columns."""
        return list(self.connection.table(self.query.select("*", "1 = 0")).schema.names)

    def schema(self, expressions: Mapping[str, str]) -> Any:
        """The Arrow schema of these expressions; from a sample where the driver knows types by values only."""
        what = named(self.dialect, expressions)
        if self.dialect.name != "DB-API":
            return self.connection.table(self.query.select(what, "1 = 0")).schema
        reader = self.connection.fetch(self.query.select(what), rows=SAMPLE_ROWS)
        try:
            return reader.schema
        finally:
            reader.close()

    def key(self, names: Sequence[str]) -> tuple[KeyPart, ...]:
        """How these columns are read and written as keys."""
        quoted = [self.dialect.quote(name) for name in names]
        types = self._type_names(names)
        text = _TEXT.get(self.dialect.name, "")
        return tuple(
            KeyPart(name=name, sql=sql, read=sql if _is_plain(kind) else f"CAST({sql} AS {text})", type=kind)
            for name, sql, kind in zip(names, quoted, types, strict=True)
        )

    def _type_names(self, names: Sequence[str]) -> list[str]:
        """The database's names of the columns' types; "" where values need none."""
        listed = ", ".join(map(self.dialect.quote, names))
        if self.dialect.name == "PostgreSQL":
            kinds = ", ".join(f"CAST(pg_typeof({self.dialect.quote(name)}) AS text)" for name in names)
            inner = self.query.select(listed, "1 = 0")
            found = self.connection.row(f"SELECT {kinds} FROM (SELECT 1) AS one LEFT JOIN ({inner}) AS q ON true")
            return ["bpchar" if kind == "character" else kind for kind in found]
        if self.dialect.name == "DuckDB":
            return [row["column_type"] for row in self._rows(f"DESCRIBE {self.query.select(listed)}")]
        return [""] * len(names)

    def never_null(self) -> set[str]:
        """Columns that the table does not let be NULL."""
        if self.table is None or self.dialect.name not in _NOT_NULL:
            return set()
        return {row["name"] for row in self._rows(_NOT_NULL[self.dialect.name], self._of_table())}

    def is_unique(self, names: Sequence[str]) -> bool:
        """Whether a unique index or constraint says that no two rows have the same values of these columns."""
        if self.table is None or self.dialect.name not in _UNIQUE:
            return False
        sets: dict[str, set[str]] = {}
        for row in self._rows(_UNIQUE[self.dialect.name], self._of_table()):
            sets.setdefault(str(row["one"]), set()).add(row["name"])
        return any(columns <= set(names) for columns in sets.values())

    def _of_table(self) -> list[str]:
        assert self.table is not None
        if self.dialect.name == "PostgreSQL":
            return [self.dialect.relation(self.table)]
        schema, _, name = self.table.rpartition(".")
        return [name] if self.dialect.name == "SQLite" else [name, schema]

    def _rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.connection.table(sql, parameters).to_pylist()
        return rows

    def counts(self, expressions: Mapping[str, str]) -> dict[str, int]:
        """How many rows have NULL in each of these; under "" how many there are. A pass over the table."""
        counts = {f"c{i}": f"COUNT({sql})" for i, sql in enumerate(expressions.values())}
        total, *found = self.connection.row(self.query.select(named(self.dialect, {"n": "COUNT(*)", **counts})))
        return {"": total, **{name: total - count for name, count in zip(expressions, found, strict=True)}}

    def kinds(self, expressions: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, int]]:
        """SQLite: (the Arrow type of each expression, the counts), from all values; a pass over the table.

        Where all values are of the kind of the first one, one number for each column says so; else there is another
        pass over the other columns. Raises UsageError for a column whose values are of several kinds.
        """
        types: dict[str, Any] = {}
        nulls: dict[str, int] = dict.fromkeys(expressions, 0)
        first = {f"c{i}": f"typeof({sql})" for i, sql in enumerate(expressions.values())}
        rows = self._rows(f"{self.query.select(named(self.dialect, first))} LIMIT 1")
        guesses = dict(zip(expressions, rows[0].values(), strict=True)) if rows else {}
        sums = {"n": "COUNT(*)"}
        for i, (name, sql) in enumerate(expressions.items()):
            sums[f"c{i}"] = f"TOTAL(typeof({sql}) <> '{guesses.get(name, 'null')}')"
        (row,) = self._rows(self.query.select(named(self.dialect, sums)))
        nulls[""] = int(row["n"])
        others = {}
        for i, (name, sql) in enumerate(expressions.items()):
            if row[f"c{i}"] or guesses.get(name, "null") == "null":
                others[name] = sql
            else:
                types[name] = self._kind(name, sql, {guesses[name]: nulls[""]}, 0)
        if others:
            types |= self._kinds_of_each(others, nulls)
        return {name: types[name] for name in expressions}, nulls

    def _kinds_of_each(self, expressions: Mapping[str, str], nulls: dict[str, int]) -> dict[str, Any]:
        """The Arrow types, from how many values of each kind there are; the NULLs are added to `nulls`."""
        sums: dict[str, str] = {}
        for i, sql in enumerate(expressions.values()):
            sums |= {f"c{i}_{kind}": f"TOTAL(typeof({sql}) = '{kind}')" for kind in (*_KINDS, "null")}
            sums[f"c{i}_long"] = f"TOTAL(typeof({sql}) = 'integer' AND ({sql}) NOT BETWEEN -{_EXACT} AND {_EXACT})"
        (row,) = self._rows(self.query.select(named(self.dialect, sums)))
        types: dict[str, Any] = {}
        for i, (name, sql) in enumerate(expressions.items()):
            found = {kind: int(row[f"c{i}_{kind}"]) for kind in _KINDS if row[f"c{i}_{kind}"]}
            nulls[name] = int(row[f"c{i}_null"])
            types[name] = self._kind(name, sql, found, int(row[f"c{i}_long"]))
        return types

    def _kind(self, name: str, sql: str, found: Mapping[str, int], long: int) -> Any:
        """The Arrow type for values of these kinds."""
        pa = extra("pyarrow", "sql")
        if set(found) == {"integer", "real"} and not long:
            return pa.float64()
        if len(found) > 1:
            rare = min(found, key=lambda kind: found[kind])
            first = self.query.select(sql, f"typeof({sql}) = '{rare}'") + " LIMIT 1"
            (example,) = self.connection.row(first)
            counts = ", ".join(f"{count:,} {kind}" for kind, count in found.items())
            raise UsageError(
                f"holds values of several types: {counts}; {example!r} is {rare}",
                fix="Correct them, cast them in columns=, or leave the column out", field=name,
            )  # fmt: skip
        arrow = {"integer": pa.int64(), "real": pa.float64(), "text": pa.string(), "blob": pa.binary()}
        return arrow[next(iter(found))] if found else pa.null()


_EXACT = 2**53
_TEXT = {"PostgreSQL": "text", "DuckDB": "VARCHAR"}
_PLAIN = frozenset({
    "", "smallint", "integer", "bigint", "real", "double precision", "text", "character varying", "bpchar", "name",
    "tinyint", "utinyint", "usmallint", "uinteger", "double", "float", "varchar",
})  # fmt: skip
"""Types of keys that come and go as they are."""


def _is_plain(kind: str) -> bool:
    return kind.lower() in _PLAIN


_NOT_NULL = {
    "PostgreSQL": "SELECT attname AS name FROM pg_attribute WHERE attrelid = CAST($1 AS regclass) AND attnum > 0 "
    "AND attnotnull AND NOT attisdropped",
    "DuckDB": "SELECT column_name AS name FROM duckdb_columns() WHERE table_name = ? AND "
    "schema_name = coalesce(nullif(?, ''), current_schema()) AND NOT is_nullable",
}
_UNIQUE = {
    "PostgreSQL": "SELECT indexrelid AS one, attname AS name FROM pg_index JOIN pg_attribute ON "
    "attrelid = indrelid AND attnum = ANY(indkey) WHERE indrelid = CAST($1 AS regclass) AND indisunique AND "
    "indisvalid AND indimmediate AND indpred IS NULL AND indexprs IS NULL",
    "SQLite": "SELECT l.name AS one, i.name AS name FROM pragma_index_list(?1) AS l, "
    "pragma_index_info(l.name) AS i WHERE l.\"unique\" AND l.origin IN ('pk', 'u') AND NOT l.partial "
    "UNION ALL SELECT '', name FROM pragma_table_info(?1) WHERE pk > 0",
    "DuckDB": "SELECT constraint_index AS one, UNNEST(constraint_column_names) AS name FROM duckdb_constraints() "
    "WHERE table_name = ? AND schema_name = coalesce(nullif(?, ''), current_schema()) AND "
    "constraint_type IN ('PRIMARY KEY', 'UNIQUE')",
}
"""Of each unique index its columns. The indexes of others than constraints may compare otherwise in SQLite."""
