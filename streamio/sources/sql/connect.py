"""Connections to a database: each of one process and one thread, taken up again when lost, and closed."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self, TypeVar

from streamio.errors import StorageError, StreamioError
from streamio.extras import extra
from streamio.sources.retries import RETRY_FOR, LostConnection, Retries, check_retry_for
from streamio.sources.sql.address import Target, as_target
from streamio.sources.sql.dialects import DIALECTS, ROWS, Batches, DbApi, Dialect

_log = logging.getLogger("streamio")
_T = TypeVar("_T")

__all__ = ["RETRY_FOR", "Connection", "Connections", "Database", "LostConnection"]


@dataclass(frozen=True)
class Database:
    """A place to connect to. Small to pickle; it holds no connection.

    target:    address or function.
    dialect:   how this kind of database is spoken to.
    retry_for: seconds for which a lost connection is tried again.
    begin:     statements that begin what every connection reads in, such as a snapshot.
    """

    target: Target
    dialect: Dialect
    retry_for: float = RETRY_FOR
    begin: tuple[str, ...] = ()

    @classmethod
    def at(cls, source: Any, *, retry_for: float = RETRY_FOR) -> Database:
        """The database at an address, or behind a function that connects (which is called once).

        Raises UsageError for what is no address, MissingExtra without its driver, StorageError where it is not
        there; at once, since what was never there is a mistake.
        """
        check_retry_for(retry_for)
        target = as_target(source)
        database = cls(target, DIALECTS[target.kind], retry_for)
        if isinstance(database.dialect, DbApi):
            with database.connect(patient=False) as connection:
                return replace(database, dialect=database.dialect.known(connection.raw))
        return database

    @property
    def shown(self) -> str:
        """The address without secrets."""
        return self.target.shown

    def connect(self, *, patient: bool = True) -> Connection:
        """A new connection, for the caller to close. patient: try again for a while where the server is not up."""
        return Retries(self.shown, self.retry_for if patient else 0).ask(lambda: Connection(self))

    def beginning(self, *begin: str) -> Database:
        """The same with these statements after connecting."""
        return replace(self, begin=begin)

    def __repr__(self) -> str:
        return f"Database('{self.shown}')"


class Connection:
    """One open connection, for the thread that made it. Close it, or use `with`.

    Raises LostConnection where the database does not answer, StorageError for what it refuses; without secrets.
    After either, what was begun (a transaction, a snapshot) is over: close it.
    """

    def __init__(self, database: Database) -> None:
        self.database, self._pid = database, os.getpid()
        self.raw: Any = None
        self._stream: Batches | None = None
        self.raw = self._guarded(lambda: database.dialect.open(database.target.value, database.shown), opening=True)
        try:
            for statement in database.dialect.setup():
                self.run(statement)
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        try:
            for statement in self.database.begin:
                self.run(statement)
        except LostConnection:
            raise
        except StorageError as error:
            refused = error.found
        else:
            return
        raise StorageError(
            f"the snapshot that was to be read is gone: {refused}",
            fix="The connection that held it was lost or closed. Make the data set again and load the last state "
            "(with strict=False where rows came or went since); snapshot=False does without",
            path=self.database.shown,
        )  # fmt: skip

    def run(self, sql: str) -> None:
        """A statement without a result."""
        self._end_stream()
        self._guarded(lambda: self.database.dialect.run(self.raw, sql))

    def fetch(self, sql: str, parameters: Sequence[Any] = (), rows: int = ROWS) -> Any:
        """A pyarrow RecordBatchReader over the rows of a query, as they come. The next query, and `close`, end it.

        rows: of one batch, at most, where the driver lets us say.
        """
        self._end_stream()
        schema, batches = self._guarded(lambda: self.database.dialect.fetch(self.raw, sql, parameters, rows))
        self._stream = batches
        return extra("pyarrow", "sql").RecordBatchReader.from_batches(schema, self._translated(batches))

    def batches(self, sql: str, parameters: Sequence[Any] = (), rows: int = ROWS) -> Generator[Any]:
        """The rows of a query as Arrow batches, as they come. Closing the iterator ends the query.

        rows: as in `fetch`. Types may become known only in a later batch, of a driver that has values only.
        """
        _, batches = self._guarded(lambda: self.database.dialect.fetch(self.raw, sql, parameters, rows))
        yield from self._translated(batches)

    def end(self) -> None:
        """End what a query began, so that the next one sees what was committed since."""
        self._guarded(lambda: self.database.dialect.end(self.raw))

    def table(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        """A small result as a whole: a pyarrow Table."""
        dialect = self.database.dialect

        def read() -> Any:
            schema, batches = dialect.fetch(self.raw, sql, parameters, stream=False)
            table = extra("pyarrow", "sql").Table.from_batches(list(batches), schema)
            dialect.end(self.raw)
            return table

        self._end_stream()
        return self._guarded(read)

    def row(self, sql: str, parameters: Sequence[Any] = ()) -> tuple[Any, ...]:
        """The only row of a result, as Python values."""
        table = self.table(sql, parameters)
        assert table.num_rows == 1, f"{table.num_rows} rows of {sql}"
        return tuple(column[0].as_py() for column in table.columns)

    def is_alive(self) -> bool:
        """Whether the database still answers. What was begun is over then."""
        try:
            self.database.dialect.probe(self.raw)
        except Exception:
            return False
        return True

    def close(self) -> None:
        """Close it. In a process that was forked it is let alone: its other side belongs to the parent."""
        raw, self.raw = self.raw, None
        if raw is None:
            return
        if self._pid == os.getpid():
            self._end_stream()
        if self._pid != os.getpid():
            # Never freed: that would close it for the parent.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(raw))
            return
        try:
            self.database.dialect.close(raw)
        except Exception as error:  # it is gone already, or of another thread
            _log.debug("closing a connection to %s: %s", self.database.shown, type(error).__name__)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Connection('{self.database.shown}')"

    def _translated(self, batches: Batches) -> Generator[Any]:
        try:
            while (batch := self._guarded(lambda: next(batches, None))) is not None:
                yield batch
        finally:
            with suppress(Exception):  # what the query has left, of a connection that may be lost
                batches.close()

    def _end_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            with suppress(Exception):  # as above
                stream.close()

    def _guarded(self, work: Callable[[], _T], *, opening: bool = False) -> _T:
        """What `work` gives. Errors of drivers come as ours, without the driver's own, which may hold secrets."""
        try:
            return work()
        except (StreamioError, MemoryError):
            raise
        except Exception as error:
            failed = self._ours(error, opening)
        raise failed

    def _ours(self, error: Exception, opening: bool) -> StreamioError:
        target = self.database.target
        text = " ".join(target.scrub(f"{error}").split()) or type(error).__name__
        if opening:
            return LostConnection(f"no connection: {text}", fix=_FIX_LOST, path=target.shown)
        if not self.is_alive():
            return LostConnection(f"the connection is lost: {text}", fix=_FIX_LOST, path=target.shown)
        return StorageError(f"the database refused: {text}", path=target.shown)


_FIX_LOST = "See that it runs and lets this user in; retry_for= says for how many seconds it is tried again"


class Connections:
    """The connections that reading keeps open: one for each thread of a process. None crosses a fork or a pickle.

    Idle ones are closed before a fork: drivers with threads and locks of their own must not live on in a child.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._reset()
        _pools.add(self)

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._local = threading.local()
        self._all: weakref.WeakSet[_Kept] = weakref.WeakSet()

    def use(self, work: Callable[[Connection], _T]) -> _T:
        """What `work` makes with the connection of this thread, again where the connection is lost meanwhile."""

        def attempt() -> _T:
            kept = self._kept()
            try:
                with kept.busy:
                    if kept.connection is None:
                        kept.connection = Connection(self.database)
                    return work(kept.connection)
            except StorageError:
                kept.close()
                raise

        return Retries(self.database.shown, self.database.retry_for).ask(attempt)

    def _kept(self) -> _Kept:
        if self._pid != os.getpid():
            self._reset()
        kept: _Kept | None = getattr(self._local, "kept", None)
        if kept is None:
            kept = self._local.kept = _Kept()
            self._all.add(kept)
        return kept

    def close(self) -> None:
        """Close the connections of this process that are not in use. Later use opens them again."""
        if self._pid == os.getpid():
            for kept in list(self._all):
                kept.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return Connections, (self.database,)


class _Kept:
    """Of one thread."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.busy = threading.Lock()

    def close(self) -> None:
        if self.busy.acquire(blocking=False):
            try:
                if self.connection is not None:
                    self.connection.close()
                self.connection = None
            finally:
                self.busy.release()


_pools: weakref.WeakSet[Connections] = weakref.WeakSet()


def _before_fork() -> None:
    for pool in list(_pools):
        pool.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)
