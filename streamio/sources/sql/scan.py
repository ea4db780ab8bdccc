"""The one look at a table before it is read: columns, NULLs, that the key is one, and the key of each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamio.errors import UsageError
from streamio.extras import extra
from streamio.sources.sql.catalog import Catalog, refusals_named
from streamio.sources.sql.columns import SqlColumn, sql_columns
from streamio.sources.sql.connect import Connection
from streamio.sources.sql.keys import KeyColumn, Keys
from streamio.sources.sql.query import Paging, Query, key_name, named


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asked for.

    columns: {field: expression}, or names of columns; None: all.
    types:   {field: type}, for those that are not to be what they usually are.
    page_rows: rows of a page.
    snapshot: True for one of its own, the name of one, or False.
    """

    query: Query
    table: str | None
    key: tuple[str, ...]
    columns: Mapping[str, str] | tuple[str, ...] | None
    types: Mapping[str, Any]
    page_rows: int
    snapshot: bool | str


@dataclass(frozen=True, kw_only=True)
class Scan:
    """What was found.

    nulls: rows with NULL, by field; fields without are left out.
    """

    columns: Mapping[str, SqlColumn]
    paging: Paging
    keys: Keys
    nulls: Mapping[str, int]


def scan(connection: Connection, request: Request) -> Scan:
    """Look at a table, in what the connection has begun: types, counts, and the keys of all rows in their order.

    Raises UsageError for what is not there, for columns that cannot be read, and for a key that is not one.
    """
    return refusals_named(connection, request.query, lambda: _scan(connection, request))


def _scan(connection: Connection, request: Request) -> Scan:
    query, key = request.query, request.key
    dialect = connection.database.dialect
    catalog = Catalog(connection, query, request.table)
    names = catalog.columns()
    refuse_unknown(key, names, "key")
    given = expressions(request.columns, names, dialect.quote, dialect.text)
    paging = Paging(dialect, catalog.key(key))
    read = {**given, **{key_name(i): part.sql for i, part in enumerate(paging.parts)}}
    nulls, kinds, schema = _counted(catalog, read)
    columns = sql_columns(schema, given, request.types, from_values=dialect.name in ("SQLite", "DB-API"))
    for i, name in enumerate(key):
        if count := nulls.get(key_name(i)):
            raise UsageError(
                f"{count:,} NULL keys: rows in which '{name}' is NULL have no place in the order",
                fix=f'Leave them out, where="{name} IS NOT NULL", or use another key',
            )
    if not catalog.is_unique(key):
        refuse_doubles(connection, query, paging)
    keys = _read_keys(connection, query, paging, kinds)
    return Scan(
        columns=columns, paging=paging, keys=keys,
        nulls={name: count for name, count in nulls.items() if count and name in columns},
    )  # fmt: skip


def expressions(asked: Any, names: Sequence[str], quote: Any, text: Any) -> dict[str, str]:
    """{field: SQL} of what the user asked for."""
    if isinstance(asked, Mapping):
        given = {field: text(sql) for field, sql in asked.items()}
    else:
        asked = names if asked is None else asked
        refuse_unknown(asked, names, "columns")
        given = {name: quote(name) for name in asked}
    if not given:
        raise UsageError("columns= is empty", fix=f"Name some of {', '.join(names)}")
    reserved = [field for field in given if field.startswith("__")]
    if reserved:
        raise UsageError(
            f"a field called '{reserved[0]}'", fix='Give it another name: columns={"name": "its column"}'
        )
    return given


def refuse_unknown(asked: Sequence[str], names: Sequence[str], option: str) -> None:
    """Raise UsageError for a column that is not there."""
    unknown = [name for name in asked if name not in names]
    if unknown:
        raise UsageError(
            f"{option}= names the column '{unknown[0]}', which is not there", fix=f"Columns: {', '.join(names)}"
        )


def _counted(catalog: Catalog, read: Mapping[str, str]) -> tuple[Mapping[str, int], Mapping[str, Any], Any]:
    """(NULLs of each, SQLite's types, schema of all)."""
    pa = extra("pyarrow", "sql")
    if catalog.dialect.name == "SQLite":
        kinds, nulls = catalog.kinds(read)
        return nulls, kinds, pa.schema([field for field in kinds.items() if not field[0].startswith("__")])
    given = {name: sql for name, sql in read.items() if not name.startswith("__")}
    schema = catalog.schema(given)
    full = {catalog.dialect.quote(name) for name in catalog.never_null()}
    open_ones = {name: sql for name, sql in read.items() if sql not in full}
    nulls = catalog.counts(open_ones) if open_ones else {}
    refuse_nested(catalog, schema, given)
    return nulls, {}, schema


def refuse_nested(catalog: Catalog, schema: Any, given: Mapping[str, str]) -> None:
    """PostgreSQL's driver gives an array of two dimensions as if it had one."""
    pa = extra("pyarrow", "sql")
    lists = [field.name for field in schema if pa.types.is_list(field.type)]
    if catalog.dialect.name != "PostgreSQL" or not lists:
        return
    sums = {name: f"COALESCE(MAX(array_ndims({given[name]})), 0)" for name in lists}
    found = catalog.connection.row(catalog.query.select(named(catalog.dialect, sums)))
    for name, dimensions in zip(lists, found, strict=True):
        if dimensions > 1:
            raise UsageError(
                f"holds arrays of {dimensions} dimensions, whose shape is lost",
                fix=f'Read it as JSON, columns={{"{name}": "to_json({name})"}}, or leave it out', field=name,
            )  # fmt: skip


def refuse_doubles(connection: Connection, query: Query, paging: Paging) -> None:
    """Raise UsageError where several rows have one key."""
    doubled = query.select(named(paging.dialect, {**paging.read, "n": "COUNT(*)"}), group=paging.order)
    reader = connection.fetch(f"{doubled} HAVING COUNT(*) > 1", rows=1)
    try:
        rows: list[dict[str, Any]] = next((batch.to_pylist() for batch in reader if batch.num_rows), [])
    finally:
        reader.close()
    if rows:
        *values, count = rows[0].values()
        names = ", ".join(part.name for part in paging.parts)
        shown = values[0] if len(values) == 1 else tuple(values)
        raise UsageError(
            f"the key {names} is not unique: {count:,} rows have {shown!r}",
            fix=f"Use one that is, or add a column that tells them apart: key=({names!r}, …)",
        )


def _read_keys(connection: Connection, query: Query, paging: Paging, kinds: Mapping[str, Any]) -> Keys:
    """The keys of all rows, in their order; a pass over the index, or a sort where there is none."""
    reader = connection.fetch(query.select(named(paging.dialect, paging.read), order=paging.order))
    columns: list[KeyColumn] | None = None
    try:
        for batch in (batch for batch in reader if batch.num_rows):
            arrays = [_of_kind(array, kinds.get(key_name(i))) for i, array in enumerate(batch.columns)]
            if columns is None:
                parts = zip(arrays, paging.parts, strict=True)
                columns = [KeyColumn(array.type, part.name) for array, part in parts]
            for array, column in zip(arrays, columns, strict=True):
                column.append(array.cast(column.kind))
    finally:
        reader.close()
    if columns is None or not len(columns[0]):
        raise UsageError("no rows", fix="Check where= and query=, or wait until there are some")
    for column in columns:
        column.finish()
    return Keys(columns)


def _of_kind(array: Any, kind: Any) -> Any:
    """The array as it is kept: whole numbers as int64, whatever their width."""
    pa = extra("pyarrow", "sql")
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if kind is not None:
        return array.cast(kind)
    is_small = pa.types.is_integer(array.type) and not pa.types.is_uint64(array.type)
    return array.cast(pa.int64()) if is_small else array
