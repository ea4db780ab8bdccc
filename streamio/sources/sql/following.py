"""SqlTail: rows that are added to a table, read as they come, in the order of an increasing key."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from streamio.sources.ahead import in_own_thread
from streamio.sources.base import Chunk, Cursor, Partition, Source, Work
from streamio.sources.fieldtypes import FieldType
from streamio.sources.retries import Retries
from streamio.sources.sql.connect import Connection, LostConnection
from streamio.sources.sql.dialects import ROWS
from streamio.sources.sql.reading import Reading

_STEP = 0.1
"""Seconds after which a reader that waits says so."""

_RUNNING = (
    "SELECT DISTINCT virtualtransaction AS one FROM pg_locks WHERE mode = 'ExclusiveLock' "
    "AND locktype IN ('virtualxid', 'transactionid') AND pid IS DISTINCT FROM pg_backend_pid()"
)
"""All transactions that have not ended, those too that have not written yet; of all databases of the server."""

Lag = float | Literal["transactions"] | None


class SqlTail(Source):
    """An endless source. reading: what is read, ordered by its key.

    predicates: SQL conditions, each a partition. (): one partition.
    poll:       seconds between looks at the table while nothing comes.
    lag:        for how long rows are held back, since others with smaller keys may not have been committed yet.
    """

    endless = True

    def __init__(self, reading: Reading, predicates: Sequence[str], *, poll: float, lag: Lag) -> None:
        self.reading, self.predicates, self.poll, self.lag = reading, tuple(predicates), poll, lag
        shown = reading.query.shown
        self._of = {f"{shown} where {predicate}": predicate for predicate in self.predicates} or {shown: ""}

    @property
    def fields(self) -> Mapping[str, FieldType]:
        return self.reading.fields

    @property
    def fingerprint(self) -> str:
        return self.reading.fingerprint("follow", self.predicates)

    def partitions(self) -> Sequence[Partition]:
        return [Partition(name) for name in self._of]

    def read(self, work: Work) -> Iterator[Chunk | None]:
        return in_own_thread(lambda: self._chunks(work))

    def _chunks(self, work: Work) -> Iterator[Chunk | None]:
        database = self.reading.database
        tails = [
            _Tail(self.reading, partition, self._of[partition.name], cursor, self.lag)
            for partition, cursor in work.partitions
        ]
        attempts = Retries(database.shown, database.retry_for, work.stopped)
        connection: Connection | None = None
        try:
            while tails and not work.stopped():
                came = False
                try:
                    connection = self.reading.connect() if connection is None else connection
                    for tail in tails:
                        for chunk in tail.page(connection):
                            came = True
                            yield chunk
                    attempts.worked()
                except LostConnection as error:
                    _close(connection)
                    connection = None
                    attempts.failed(error)
                    yield None
                    continue
                if not came:
                    if database.dialect.lets_go:
                        connection.close()
                        connection = None
                    yield from self._wait(work)
        finally:
            _close(connection)

    def _wait(self, work: Work) -> Iterator[None]:
        until = time.monotonic() + self.poll
        while (left := until - time.monotonic()) > 0 and not work.stopped():
            time.sleep(min(left, _STEP))
            yield None

    def __repr__(self) -> str:
        return f"SqlTail({self.reading.database.shown!r}, {self.reading.query.shown})"


def _close(connection: Connection | None) -> None:
    if connection is not None:
        connection.close()


class _Tail:
    """One partition as it grows."""

    def __init__(self, reading: Reading, partition: Partition, predicate: str, cursor: Cursor, lag: Lag) -> None:
        self._reading, self._partition, self._predicate = reading, partition, predicate
        self._cursor = cursor
        self._bound = None if lag is None else _Bound(lag)

    def page(self, connection: Connection) -> Iterator[Chunk]:
        """Some rows that came since, in order."""
        last = None
        if self._bound is not None:
            self._bound.look(connection, lambda: self._highest(connection))
            if (last := self._bound.key) is None:
                return
        begin, held = self._cursor, None
        statement = self._reading.statement(self._predicate, begin, last, ROWS)
        for chunk in self._reading.chunks(connection, statement, self._partition, begin):
            if held is not None:
                yield self._passed(held)
            held = chunk
        # Not before: rows that came together with a twin of the last one, just then, would pass it by.
        self._reading.refuse_twin(connection, self._predicate, begin)
        if held is not None:
            yield self._passed(held)
        connection.end()

    def _passed(self, chunk: Chunk) -> Chunk:
        self._cursor = chunk.cursor(-1)
        return chunk

    def _highest(self, connection: Connection) -> list[Any] | None:
        """The largest key that is there."""
        reading = self._reading
        assert reading.paging is not None
        conditions = [f"({reading.database.dialect.text(self._predicate)}\n)"] if self._predicate else []
        conditions += [f"{sql} IS NOT NULL" for sql in reading.paging.order]
        expressions = [f"{part.read} AS k{i}" for i, part in enumerate(reading.paging.parts)]
        order = [f"{sql} DESC" for sql in reading.paging.order]
        sql = reading.query.select(", ".join(expressions), *conditions, order=order)
        rows = connection.table(reading.database.dialect.first(sql, 1)).to_pylist()
        return list(rows[0].values()) if rows else None


@dataclass
class _Seen:
    """key: the largest that was there. at: seconds. running: transactions that might still add smaller ones.

    They are listed one look later: by then also one that had read the clock, and not begun when the key was seen.
    """

    key: list[Any]
    at: float
    running: frozenset[str] | None = None


class _Bound:
    """Up to which key all is there: one that was the largest a while ago, before all that may still be committed.

    Keys are given in increasing order, as a sequence or a clock of the database gives them. So what still comes
    with a smaller one than was seen belongs to a transaction that was running then.
    """

    def __init__(self, lag: float | Literal["transactions"]) -> None:
        self._lag = lag
        self._seen: deque[_Seen] = deque()
        self.key: list[Any] | None = None

    def look(self, connection: Connection, highest: Any) -> None:
        """Take note of how far the table goes now."""
        key, now = highest(), time.monotonic()
        running = self._running(connection) if self._lag == "transactions" else frozenset[str]()
        while self._seen and self._is_settled(self._seen[0], now, running):
            self.key = self._seen.popleft().key
        for seen in self._seen:
            seen.running = running if seen.running is None else seen.running & running
        if key is not None and key != self.key and not (self._seen and self._seen[-1].key == key):
            self._seen.append(_Seen(key, now))

    def _is_settled(self, seen: _Seen, now: float, running: frozenset[str]) -> bool:
        if self._lag == "transactions":
            return seen.running is not None and not seen.running & running
        assert isinstance(self._lag, int | float)
        return now - seen.at >= self._lag

    def _running(self, connection: Connection) -> frozenset[str]:
        return frozenset(connection.table(_RUNNING).column("one").to_pylist())
