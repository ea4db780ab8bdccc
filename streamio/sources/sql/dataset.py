"""SqlDataset: a table of a database with a key, in batches of the same order, evenness and states as files."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from streamio.dataset import ShardDataset
from streamio.errors import UsageError
from streamio.order.plan import check_count
from streamio.sources.retries import check_retry_for
from streamio.sources.sql.connect import RETRY_FOR, Database
from streamio.sources.sql.query import Query
from streamio.sources.sql.scan import Request
from streamio.sources.sql.snapshot import HeldSnapshot
from streamio.sources.sql.stream import SqlStream
from streamio.sources.sql.table import APPEARED, VANISHED, SqlTable
from streamio.stream import DataStats, given_ranks
from streamio.world import current_world, from_all_ranks, from_first_rank, this_worker

_log = logging.getLogger("streamio")


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlStats(DataStats):
    """What a `SqlDataset` did so far.

    vanished: rows that were deleted since the data set was made, each time that one was to be read.
    appeared: rows that were added since then and seen between those that were read; they are not in batches.
    """

    vanished: int
    appeared: int


class SqlDataset(ShardDataset):
    """Streams a table or a query of a database as ready-made batches.

        ds = SqlDataset("postgresql://me@host/db", 256, table="events", key="id", shuffle=True)
        for batch in StreamLoader(ds, num_workers=2):      # a dict: a field for each column, and "__key__"

    The table is read in the order of its key and becomes what a shard set is: same shuffle, `tail`, `len()`, state,
    `missing`, `transform`, `cache` and `Mixture`. See docs/sources.md for which type becomes which tensor.

    source:     `postgresql://…`, `sqlite:///path`, `duckdb:///path`; or a function that returns a new connection of
                a DB-API driver (MySQL, MariaDB and others), which every worker calls.
    batch_size: rows of one batch on one rank.
    table:      name of a table or view, as the database writes it; "schema.table" too.
    query:      instead of a table, a SELECT; it is run again for every few batches, with a condition on the key.
    key:        name of a column, or several, by which each row is known and found again: unique, never NULL.
    columns:    names of the columns to read, or {field: SQL expression}. None: all.
    where:      SQL condition: only rows that match. SQL is run as it stands: never make it of what others typed.
    types:      {field: type} for columns that are not to be what they usually are: "float64" for a NUMERIC that may
                be rounded, "jpg" for bytes that are pictures.
    snapshot:   PostgreSQL: True (default): all workers and ranks read the table as it was when the data set was
                made, in a transaction that lasts until `close()`; False: rows as they are when their batch is
                made; or the name of a snapshot that is held elsewhere. Other databases have none to share.
    page_rows:  rows of a page: what shuffle=True takes to be a shard.
    retry_for:  seconds for which a lost connection is tried again.
    options:    as of `ShardDataset`, all but `source` and `batch_size`.

    Without `key`, and with `follow=True`, it is a `SqlStream`, whose options are others: rows as they come.

    Raises UsageError at construction for what cannot be read: columns of types that no tensor has, columns with
    NULLs that become arrays and are not in `missing`, a key that is not unique or has NULLs.
    """

    table: SqlTable

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        """A `SqlStream` without a key, or of rows that are followed."""
        asked = bool(arguments or options)  # nothing where it is unpickled
        if cls is SqlDataset and asked and (options.get("key") is None or options.get("follow")):
            return SqlStream(*arguments, **options)
        return super().__new__(cls, *arguments, **options)

    def __init__(
        self,
        source: str | os.PathLike[str] | Callable[[], Any] | SqlTable,
        batch_size: int | None,
        *,
        table: str | None = None,
        query: str | None = None,
        key: str | Sequence[str] | None = None,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        where: str | None = None,
        types: Mapping[str, Any] | None = None,
        snapshot: bool | str | None = None,
        page_rows: int | None = None,
        retry_for: float = RETRY_FOR,
        **options: Any,
    ) -> None:
        if key is None:
            raise UsageError("no key=", fix="Name the column, or columns, by which each row is known")
        ranks = given_ranks(options.get("rank"), options.get("world_size"))
        opened = source if isinstance(source, SqlTable) else None
        database = Database.at(source, retry_for=retry_for) if opened is None else opened.database
        request = Request(
            query=Query.of(database.dialect, table, query, where), table=table, key=_names(key, "key"),
            columns=columns if columns is None or isinstance(columns, Mapping) else _names(columns, "columns"),
            types=dict(types or {}), page_rows=_page_rows(page_rows, database),
            snapshot=_wished(snapshot, database),
        )  # fmt: skip
        if opened is None or opened.request != request or database.retry_for != retry_for:
            check_retry_for(retry_for)
            opened = _open(replace(database, retry_for=retry_for), request, ranks)
        self._call = self._call.reading(opened)  # it is kept, and the address has a password
        try:
            super().__init__(opened, batch_size, **options)
            _refuse_nulls(self)
        except BaseException:
            if opened is not source:
                opened.close()
            raise

    def stats(self) -> SqlStats:
        """How many samples were made and left out so far, rows that vanished, and how long each stage took."""
        made = super().stats()
        counts = self.table.counts()
        known = {field.name: getattr(made, field.name) for field in fields(made)}
        return SqlStats(**known, vanished=counts[VANISHED], appeared=counts[APPEARED])

    def close(self) -> None:
        """End the snapshot and the connections of this process. Nothing can be read then."""
        self.table.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        shuffle = self.ordering.shuffle
        return f"SqlDataset({self.table!r}, batch_size={self.batch_size}, shuffle={shuffle!r}, tail={self.tail!r})"


def _open(database: Database, request: Request, ranks: tuple[int, int] | None) -> SqlTable:
    """The table, looked at. All ranks read one snapshot, where there is one, and the same rows.

    Raises UsageError where ranks see other rows than the first.
    """
    held: list[HeldSnapshot] = []

    def export() -> str:
        held.append(HeldSnapshot(database))
        return str(held[0].id)

    snapshot = request.snapshot
    if snapshot is True:
        snapshot = from_first_rank(export, ranks)
    table: SqlTable | None = None
    failed: Exception | None = None
    try:
        table = SqlTable(
            database, request, snapshot=None if snapshot is False else snapshot, held=held[0] if held else None
        )
    except Exception as error:
        failed = error
    # All ranks come here, also one that has failed: the others would wait for it.
    alone = ranks is not None or this_worker() is not None
    seen = None if table is None else table.fingerprint
    others = [seen] if alone else from_all_ranks(seen)
    if not alone and len(others) < current_world().world_size:
        _log.warning(
            "%s: each rank looks at the table by itself, since there is no process group; where somebody writes "
            "they see other rows. Make the data set after init_process_group, or give snapshot= the name of one",
            database.shown,
        )
    if failed is not None:
        raise failed
    assert table is not None
    if set(others) != {seen}:
        table.close()
        rank = next(rank for rank, other in enumerate(others) if other != seen)
        raise UsageError(
            f"rank {rank} failed, or sees other rows than this one",
            fix="Make the data set while nobody writes, or use PostgreSQL, which has snapshots",
            path=database.shown, table=request.query.shown,
        )  # fmt: skip
    return table


def _names(given: Any, option: str) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) and option == "key" else given
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(n, str) for n in names):
        raise UsageError(f"{option}={given!r}", fix="Give a sequence of names of columns")
    if not names or len(set(names)) < len(names):
        raise UsageError(f"{option}={given!r}", fix="Name at least one column, and each once")
    return tuple(names)


def _page_rows(given: int | None, database: Database) -> int:
    if given is None:
        return database.dialect.page_rows
    check_count("page_rows", given)
    return given


def _wished(snapshot: bool | str | None, database: Database) -> bool | str:
    """What is meant by it. Raises UsageError where the database has no snapshots to share."""
    if snapshot is None:
        return database.dialect.snapshots
    if snapshot is not False and not database.dialect.snapshots:
        raise UsageError(
            f"snapshot={snapshot!r}, and {database.dialect.name} has none that several connections can read",
            fix="Leave it out; rows are then read as they are when their batch is made", path=database.shown,
        )  # fmt: skip
    return snapshot


def _refuse_nulls(made: SqlDataset) -> None:
    """Raise UsageError for a column with NULLs that becomes an array, of which nobody said what becomes of them."""
    options = made.reader.options
    if options.by_sample or made.joiner.options.collate is not None or options.on_error != "raise":
        return
    for name, count in made.table.nulls.items():
        decoder = made.reader.decoders.get(name)
        if decoder is not None and decoder.fills_array and name not in options.missing:
            raise UsageError(
                f"{count:,} of {len(made.table):,} rows have NULL in the column, and a tensor has none",
                fix=f'Say what becomes of them: missing={{"{name}": streamio.Fill(0)}} fills them and marks them '
                f"in '{name}_filled', \"skip\" leaves them out; or where=\"{name} IS NOT NULL\"",
                path=made.table.database.shown, table=made.table.request.query.shown, field=name,
            )  # fmt: skip
