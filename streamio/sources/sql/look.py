"""The look at a table or query before its rows are streamed: columns and types, of the database or a sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamio.extras import extra
from streamio.sources.sql.catalog import SAMPLE_ROWS, Catalog, refusals_named
from streamio.sources.sql.columns import SqlColumn, sql_columns
from streamio.sources.sql.connect import Connection
from streamio.sources.sql.cursors import null_keys
from streamio.sources.sql.dialects import Dialect
from streamio.sources.sql.ordering import behind_order
from streamio.sources.sql.query import Paging, Query, named
from streamio.sources.sql.reading import Reading
from streamio.sources.sql.scan import expressions, refuse_doubles, refuse_nested, refuse_unknown


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the user asked for.

    text:    the query, or None for a table. as_it_stands: that nothing of it was changed or left out.
    order:   columns that rows are ordered by; option: what they were given as, "order" or "key".
    fields:  those that are wanted; None: all columns.
    unique:  whether to make sure that no two rows have the same.
    """

    query: Query
    table: str | None
    text: str | None
    as_it_stands: bool
    order: tuple[str, ...]
    option: str
    columns: Mapping[str, str] | Sequence[str] | None
    fields: Sequence[str] | None
    types: Mapping[str, Any]
    unique: bool = False


def look(connection: Connection, asked: Asked) -> Reading:
    """How it is read. No pass over the table, but where NULL in the key or its being unique has to be looked for.

    Raises UsageError for what is not there, for columns that cannot be read, and for an order that is none.
    """
    return refusals_named(connection, asked.query, lambda: _look(connection, asked))


def _look(connection: Connection, asked: Asked) -> Reading:
    database, query = connection.database, asked.query
    catalog = Catalog(connection, query, asked.table)
    names = catalog.columns()
    refuse_unknown(asked.order, names, asked.option)
    columns: Any = asked.columns
    if columns is None and asked.fields is not None:
        columns = [name for name in names if name in asked.fields] or None
    given = expressions(columns, names, database.dialect.quote, database.dialect.text)
    paging = Paging(database.dialect, catalog.key(asked.order)) if asked.order else None
    behind = behind_order(asked.text) if asked.text and asked.as_it_stands and paging is None else None
    fetched = {name: database.dialect.quote(name) for name in names} if behind is not None else dict(given)
    if paging is not None:
        fetched |= paging.read
    schema = _schema(catalog, fetched, asked)
    kept = extra("pyarrow", "sql").schema([schema.field(name) for name in given])
    made = sql_columns(kept, given, asked.types, from_values=database.dialect.name in ("SQLite", "DB-API"))
    refuse_nested(catalog, kept, given)
    unique = False
    if paging is not None:
        _refuse_null(catalog, paging)
        unique = catalog.is_unique(asked.order)
        if asked.unique and not unique:
            refuse_doubles(connection, query, paging)
    seeds = tuple(_seed(made.get(name), schema.field(name).type) for name in fetched)
    return Reading(
        database=database, query=query, columns=made, paging=paging, unique=unique, option=asked.option,
        text="" if behind is None else _text(database.dialect, asked.text or ""), behind=behind or "",
        seeds=seeds if database.dialect.name == "SQLite" else (),
        places=tuple(list(fetched).index(name) for name in given),
    )  # fmt: skip


def _text(dialect: Dialect, query: str) -> str:
    return dialect.text(query.strip().rstrip(";"))


def _schema(catalog: Catalog, fetched: Mapping[str, str], asked: Asked) -> Any:
    """Arrow types of what is fetched: null where nothing is known."""
    pa = extra("pyarrow", "sql")
    if catalog.dialect.name != "SQLite":
        return catalog.schema(fetched)
    sql = catalog.query.select(named(catalog.dialect, fetched))
    batches = catalog.connection.batches(catalog.dialect.first(sql, SAMPLE_ROWS))
    try:
        batch = next(batches, None)
    finally:
        batches.close()
    declared = _declared(catalog, asked.table)
    types = {}
    for i, (name, sql) in enumerate(fetched.items()):
        kind = None if batch is None or batch.column(i).null_count == batch.num_rows else batch.column(i).type
        known = declared.get(sql)
        if known is not None and (kind is None or (_is_number(pa, known) and kind != known)):
            kind = known
        types[name] = _as_asked(pa, pa.null() if kind is None else kind, asked.types.get(name))
    return pa.schema(list(types.items()))


def _is_number(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _as_asked(pa: Any, kind: Any, declared: Any) -> Any:
    """Whole numbers in the sample of a column that is declared to hold others."""
    return pa.float64() if pa.types.is_integer(kind) and str(declared).startswith("float") else kind


def _declared(catalog: Catalog, table: str | None) -> dict[str, Any]:
    """SQLite: the types that the columns of a table were declared with, by their expressions."""
    pa = extra("pyarrow", "sql")
    if table is None:
        return {}
    sql = "SELECT name, upper(type) AS type FROM pragma_table_info(?)"
    rows = catalog.connection.table(sql, [table.rpartition(".")[2]]).to_pylist()
    found = {}
    for row in rows:
        for part, kind in _AFFINITIES:
            if part in row["type"]:
                found[catalog.dialect.quote(row["name"])] = getattr(pa, kind)()
                break
    return found


_AFFINITIES = (
    ("INT", "int64"), ("CHAR", "string"), ("CLOB", "string"), ("TEXT", "string"), ("BLOB", "binary"),
    ("REAL", "float64"), ("FLOA", "float64"), ("DOUB", "float64"),
)  # fmt: skip
"""Parts of the names of types, in the order in which SQLite looks for them."""


def _seed(column: SqlColumn | None, kind: Any) -> str:
    """A literal of the type of a column: the driver takes the types of a result from its first rows."""
    pa = extra("pyarrow", "sql")
    if pa.types.is_null(kind) and column is not None:
        dtype = column.type.dtype if column.type.kind == "number" and not column.type.shape else None
        if dtype is not None:
            return "0.5" if dtype.kind == "f" else "0"
        return "x''" if column.type.kind in ("bytes", "number", "list") else "''"
    if pa.types.is_floating(kind):
        return "0.5"
    if pa.types.is_integer(kind):
        return "0"
    return "x''" if pa.types.is_binary(kind) else "''"


def _refuse_null(catalog: Catalog, paging: Paging) -> None:
    never = catalog.never_null()
    for part in paging.parts:
        if part.name in never:
            continue
        (count,) = catalog.connection.row(catalog.query.select("COUNT(*)", f"{part.sql} IS NULL"))
        if count:
            raise null_keys(part.name, int(count))
