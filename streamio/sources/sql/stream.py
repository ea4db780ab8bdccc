"""SqlStream: rows of a database as they come, without a key or behind one, as ready-made batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, Unpack

from streamio.errors import UsageError
from streamio.sources.dataset import SourceDataset, SourceOptions
from streamio.sources.sql.connect import RETRY_FOR, Database
from streamio.sources.sql.following import Lag, SqlTail
from streamio.sources.sql.look import Asked, look
from streamio.sources.sql.query import Query
from streamio.sources.sql.reading import Reading
from streamio.sources.sql.streaming import SqlRows, refuse_overlap

_KEYED = ("shuffle", "page_rows", "block_samples", "lanes", "repeat", "draw", "buckets", "prepare", "cache")
"""Options that need a key."""


class SqlStream(SourceDataset):
    """Streams the rows of a table or query as the database gives them, in bounded memory, as ready-made batches.

        ds = SqlDataset("postgresql://me@host/db", 256, query="SELECT … ORDER BY id")
        ds = SqlDataset("postgresql://me@host/db", 256, table="events", key=("at", "id"), follow=True)

    It is what `SqlDataset` gives without `key`, or with `follow`. The first is one pass over a query in each epoch;
    the second never ends: rows that are added later come as they are added. One partition is read by one worker;
    for several workers give `partitions`.

    source:     `postgresql://…`, `sqlite:///path`, `duckdb:///path`; or a function that returns a new connection of
                a DB-API driver, which every worker calls.
    batch_size: rows of one batch on one rank.
    table, query, columns, where, types: as for `SqlDataset` with a key.
    order:      names of columns by which rows come, and are found again: unique, never NULL. A state, or a lost
                connection, goes on behind the last key. Without it a query with an ORDER BY of its own is run again
                and the rows that came are left out, which is exact where its order leaves nothing open and the rows
                have not changed; other queries cannot go on, and say so.
    key:        with follow=True: the same, increasing: a number, or a moment with a column that tells equal ones
                apart, ("at", "id").
    follow:     whether to go on with rows that are added.
    poll:       seconds between looks at the table while nothing comes.
    lag:        None: a row comes as soon as it is seen; one with a smaller key that is committed later is then
                never seen. Seconds: rows are held back so long after the first sight of a key that is as large.
                "transactions", with PostgreSQL: until all transactions that ran then have ended.
    partitions: SQL conditions such as ["id < 1000", "id >= 1000"], each read by one worker. Every row must match
                exactly one; rows that are there are counted for that once, when this is made.
    snapshot:   PostgreSQL: whether an epoch is read in one snapshot, which is held as long as it lasts. Default:
                where there are several partitions. After the server was stopped, or in a run that is resumed, it is
                a new one.
    retry_for:  seconds for which a lost connection is tried again.
    options:    of any source; see `SourceDataset`.

    Raises UsageError at construction for what cannot be read.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Callable[[], Any] | Database,
        batch_size: int,
        *,
        table: str | None = None,
        query: str | None = None,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        where: str | None = None,
        types: Mapping[str, Any] | None = None,
        order: str | Sequence[str] | None = None,
        key: str | Sequence[str] | None = None,
        follow: bool = False,
        poll: float | None = None,
        lag: Lag = None,
        partitions: Sequence[str] | None = None,
        snapshot: bool | None = None,
        retry_for: float = RETRY_FOR,
        **options: Unpack[SourceOptions],
    ) -> None:
        for name in _KEYED:
            if name in options:
                raise UsageError(
                    f"{name}= without key=, or with follow=True, where rows come as they are read",
                    fix="Give key=, the columns by which each row is known and found again",
                )
        database = _database(source, retry_for)
        self._call = self._call.reading(database)  # it is kept, and the address has a password
        _check(database, follow=follow, key=key, order=order, poll=poll, lag=lag, snapshot=snapshot)
        predicates = _predicates(partitions)
        asked = Asked(
            query=Query.of(database.dialect, table, query, where), table=table, text=query,
            as_it_stands=columns is None and where is None and not predicates,
            order=_names(key, "key") if follow else _names(order, "order"), option="key" if follow else "order",
            columns=columns, fields=options.get("fields"), types=dict(types or {}), unique=follow,
        )  # fmt: skip
        with database.connect(patient=False) as connection:
            reading = look(connection, asked)
            if predicates:
                refuse_overlap(connection, reading, predicates)
        made = _source(reading, predicates, follow, poll=poll, lag=lag, snapshot=snapshot)
        super().__init__(made, batch_size, **options)

    def epoch_ended(self) -> None:
        super().epoch_ended()
        self.close()

    def close(self) -> None:
        """End the snapshot that an epoch is read in. The next epoch takes another."""
        if isinstance(self.source, SqlRows):
            self.source.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _database(source: Any, retry_for: float) -> Database:
    """The place. It comes as such where a data set is made again with other options."""
    return source if isinstance(source, Database) else Database.at(source, retry_for=retry_for)


def _source(
    reading: Reading, predicates: Sequence[str], follow: bool, *, poll: float | None, lag: Lag,
    snapshot: bool | None,
) -> SqlRows | SqlTail:  # fmt: skip
    if follow:
        return SqlTail(reading, predicates, poll=1.0 if poll is None else poll, lag=lag)
    several = reading.database.dialect.snapshots and len(predicates) > 1
    wanted = several if snapshot is None else snapshot
    return SqlRows(reading, predicates, snapshot=wanted)


def _check(
    database: Database, *, follow: bool, key: Any, order: Any, poll: Any, lag: Any, snapshot: bool | None
) -> None:
    """Raise UsageError for options that do not go together."""
    if follow and (key is None or order is not None):
        raise UsageError(
            "follow=True without key=" if key is None else "order= with follow=True",
            fix='Give key=, the increasing columns by which new rows are known, such as "id" or ("at", "id")',
        )
    if not follow and key is not None:
        raise UsageError("key= without follow=True", fix="Use SqlDataset, which reads by a key")
    if not follow and (poll is not None or lag is not None):
        raise UsageError("poll= and lag= without follow=True", fix="Leave them out, or follow")
    if poll is not None and not _is_seconds(poll):
        raise UsageError(f"poll={poll!r}", fix="Give seconds, more than 0")
    if lag == "transactions" and database.dialect.name != "PostgreSQL":
        raise UsageError(
            f"lag='transactions', and {database.dialect.name} does not tell which ones run",
            fix="Give seconds: longer than any transaction that writes lasts",
        )
    if lag is not None and lag != "transactions" and not _is_seconds(lag):
        raise UsageError(f"lag={lag!r}", fix='Give seconds, "transactions", or None')
    if snapshot not in (None, True, False) or (snapshot and (follow or not database.dialect.snapshots)):
        raise UsageError(
            f"snapshot={snapshot!r}",
            fix="Leave it out where rows are followed, or the database has no snapshots that several can read",
        )


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _names(given: str | Sequence[str] | None, option: str) -> tuple[str, ...]:
    names = () if given is None else (given,) if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"{option}={given!r}", fix="Give a name of a column, or a sequence of them")
    if (given is not None and not names) or len(set(names)) < len(names):
        raise UsageError(f"{option}={given!r}", fix="Name at least one column, and each once")
    return tuple(names)


def _predicates(given: Sequence[str] | None) -> tuple[str, ...]:
    if given is None:
        return ()
    is_list = isinstance(given, Sequence) and not isinstance(given, str)
    if not is_list or not given or not all(isinstance(one, str) and one.strip() for one in given):
        raise UsageError(f"partitions={given!r}", fix='Give SQL conditions: ["id < 1000", "id >= 1000"]')
    if len(set(given)) < len(given):
        raise UsageError(f"partitions={given!r}", fix="Give each condition once")
    return tuple(given)
