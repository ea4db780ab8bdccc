"""SqlRows: the rows of a table or query as a source, read as they come from the database."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from streamio.errors import StorageError, UsageError, where
from streamio.sources.ahead import in_own_thread
from streamio.sources.base import Chunk, Cursor, Partition, Source, Work
from streamio.sources.fieldtypes import FieldType
from streamio.sources.retries import Retries
from streamio.sources.sql.connect import Connection, LostConnection
from streamio.sources.sql.query import named
from streamio.sources.sql.reading import Reading
from streamio.sources.sql.snapshot import HeldSnapshot, within

_log = logging.getLogger("streamio")


class SqlRows(Source):
    """A bounded source: an epoch is what the query gives. Each partition is one query that runs while it is read.

    reading:    what is read.
    predicates: SQL conditions, each a partition; every row matches one of them. (): one partition.
    snapshot:   whether an epoch is read in one snapshot, which this process holds.
    """

    def __init__(self, reading: Reading, predicates: Sequence[str] = (), *, snapshot: bool) -> None:
        self.reading, self.predicates = reading, tuple(predicates)
        self._wants_snapshot = snapshot
        self._snapshot: HeldSnapshot | None = None
        self._of = dict(zip(self._names(), self.predicates or ("",), strict=True))

    def _names(self) -> list[str]:
        shown = self.reading.query.shown
        return [f"{shown} where {predicate}" for predicate in self.predicates] or [shown]

    @property
    def fields(self) -> Mapping[str, FieldType]:
        return self.reading.fields

    @property
    def fingerprint(self) -> str:
        return self.reading.fingerprint(self.predicates)

    def partitions(self) -> Sequence[Partition]:
        return [Partition(name, self._facts()) for name in self._begin()]

    def _begin(self) -> list[str]:
        self.release()
        if self._wants_snapshot:
            self._snapshot = HeldSnapshot(self.reading.database)
        return self._names()

    def _facts(self) -> dict[str, Any]:
        return {} if self._snapshot is None else {"snapshot": self._snapshot.id}

    def found_again(self, partitions: Sequence[Partition], cursors: Mapping[str, Cursor]) -> Sequence[Partition]:
        """They are read in a new snapshot. Raises UsageError where the rows behind a cursor are not known."""
        unknown = [one.name for one in partitions if one.name not in self._of]
        if unknown:
            raise UsageError(f"the state has the partition '{unknown[0]}'", fix="Give partitions= as it was saved")
        if not self.reading.goes_on and any(cursors.get(one.name) for one in partitions):
            raise UsageError(
                "the rows have no order, so those that came are not known when the query runs again",
                fix='Give a unique order=("id",) when the data set is made, or begin a new epoch: set_epoch()',
                path=self.reading.database.shown, table=self.reading.query.shown,
            )  # fmt: skip
        self._begin()
        return [replace(one, facts=self._facts()) for one in partitions]

    def release(self) -> None:
        """End the snapshot, if this process holds one."""
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None

    def count(self, partition: Partition, cursor: Cursor) -> int:
        with self._connected(partition.facts.get("snapshot"), patient=True) as connection:
            return self.reading.count(connection, self._of[partition.name], cursor)

    def read(self, work: Work) -> Iterator[Chunk | None]:
        """While a batch is made, a thread reads on."""
        return in_own_thread(lambda: self._chunks(work))

    def _chunks(self, work: Work) -> Iterator[Chunk | None]:
        database = self.reading.database
        for partition, cursor in work.partitions:
            attempts = Retries(database.shown, database.retry_for, work.stopped)
            yield from self._read(partition, cursor, attempts)
            yield Chunk(partition=partition.name, ended=True)

    def _read(self, partition: Partition, cursor: Cursor, attempts: Retries) -> Iterator[Chunk]:
        """All behind a cursor, also when the connection is lost meanwhile."""
        snapshot = partition.facts.get("snapshot")
        while True:
            try:
                for chunk in self._attempt(partition, cursor, snapshot):
                    attempts.worked()
                    cursor = chunk.cursor(-1)
                    yield chunk
                return
            except LostConnection as error:
                lost = error
            except _SnapshotGone:
                _log.warning(
                    "%s: the snapshot of this epoch is gone; the rest of %s is read as it is now",
                    self.reading.database.shown, partition.name,
                )  # fmt: skip
                snapshot = None
                continue
            if cursor is not None and not self.reading.goes_on:
                raise StorageError(
                    f"{lost.found}, and the rows have no order in which to go on",
                    fix='Give a unique order=("id",); then reading goes on behind the last row',
                    path=self.reading.database.shown, table=self.reading.query.shown,
                )  # fmt: skip
            attempts.failed(lost)

    def _attempt(self, partition: Partition, cursor: Cursor, snapshot: str | None) -> Iterator[Chunk]:
        predicate = self._of[partition.name]
        with self._connected(snapshot) as connection:
            self.reading.refuse_twin(connection, predicate, cursor)
            statement = self.reading.statement(predicate, cursor)
            yield from self.reading.chunks(connection, statement, partition, cursor)

    def _connected(self, snapshot: str | None, *, patient: bool = False) -> Connection:
        if snapshot is None:
            return self.reading.connect(patient=patient)
        try:
            return self.reading.connect(within(self.reading.database, snapshot), patient=patient)
        except LostConnection:
            raise
        except StorageError as error:
            self.reading.connect(patient=patient).close()  # it is not something else
            gone = _SnapshotGone(error.found, fix="Begin the epoch again", path=self.reading.database.shown)
        raise gone

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_snapshot": None}

    def __repr__(self) -> str:
        return f"SqlRows({self.reading.database.shown!r}, {self.reading.query.shown})"


class _SnapshotGone(StorageError):
    """What held it has ended: the server was stopped, or the process that began the epoch."""


def refuse_overlap(connection: Connection, reading: Reading, predicates: Sequence[str]) -> None:
    """Raise UsageError where a row matches none of the predicates, or several. A pass over the table."""
    dialect = connection.database.dialect
    matches = " + ".join(f"CASE WHEN ({dialect.text(predicate)}\n) THEN 1 ELSE 0 END" for predicate in predicates)
    sums = {
        name: f"COALESCE(SUM(CASE WHEN {matches} {test} THEN 1 ELSE 0 END), 0)"
        for name, test in {"none": "= 0", "several": "> 1"}.items()
    }
    none, several = map(int, connection.row(reading.query.select(named(dialect, sums))))
    with where(path=connection.database.shown, table=reading.query.shown):
        if several:
            raise UsageError(
                f"{several:,} rows match several of partitions=, and would come more than once",
                fix='Part them: ["id < 1000", "id >= 1000"]',
            )
        if none:
            raise UsageError(
                f"{none:,} rows match none of partitions=, and would not come",
                fix='Add what is left, such as "id IS NULL", or leave them out by where=',
            )
