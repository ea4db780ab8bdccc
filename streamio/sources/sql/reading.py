"""Rows of a table or query as they come: their columns, the SQL of what is behind a cursor, and its chunks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import xxhash

from streamio.errors import StorageError, StreamioError, UsageError, where
from streamio.sources.base import Chunk, Cursor, Partition
from streamio.sources.fieldtypes import FieldType
from streamio.sources.sql.columns import SqlColumn
from streamio.sources.sql.connect import Connection, Database, LostConnection
from streamio.sources.sql.cursors import Given, Trail, as_key, at, behind, up_to
from streamio.sources.sql.ordering import takes_offset
from streamio.sources.sql.query import Paging, Query
from streamio.types import Column

SLICE = 8192
"""Rows of a chunk at most."""

_MISMATCH = re.compile(r"Type mismatch in column (\d+): expected (\w+) but got ([\w/]+)")


class Statement(NamedTuple):
    """skip: rows at the beginning that are to be left out by whoever reads."""

    sql: str
    parameters: Sequence[Any]
    skip: int


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What is read, and how.

    columns: of the fields.
    paging:  what rows are ordered by; None: nothing, or what the query says.
    unique:  whether the database sees to it that no two rows have the same key.
    option:  what the user gave that as: "order" or "key".
    text:    the user's query, where it is run as it stands because of its order, else "".
    behind:  what stands behind its ORDER BY.
    seeds:   literals of the types of all columns that are fetched, where the driver goes by the first rows.
    places:  where in a result the fields are; the columns of the key follow.
    """

    database: Database
    query: Query
    columns: Mapping[str, SqlColumn]
    paging: Paging | None = None
    unique: bool = False
    option: str = "order"
    text: str = ""
    behind: str = ""
    seeds: tuple[str, ...] = ()
    places: tuple[int, ...] = ()

    @cached_property
    def fields(self) -> Mapping[str, FieldType]:
        return {name: column.type for name, column in self.columns.items()}

    @property
    def goes_on(self) -> bool:
        """Whether the rows behind a cursor are the same when the query runs again."""
        return self.paging is not None or bool(self.text)

    def fingerprint(self, *more: object) -> str:
        """16 hex digits that change with what is read and how."""
        columns = {name: (column.sql, str(column.type)) for name, column in self.columns.items()}
        order = () if self.paging is None else self.paging.order
        place = self.database.shown.partition("?")[0].rpartition("/")[2]
        facts = (place, self.query.relation, self.query.where, columns, order, self.text, more)
        return xxhash.xxh3_64_hexdigest(repr(facts).encode())

    def connect(self, database: Database | None = None, *, patient: bool = False) -> Connection:
        """A connection on which a query may last. database: the same, in a snapshot. patient: see `Database`."""
        database = self.database if database is None else database
        patience = database.dialect.patience
        return replace(database, begin=((patience,) if patience else ()) + database.begin).connect(patient=patient)

    def statement(
        self, predicate: str, cursor: Cursor, last: Sequence[Any] | None = None, rows: int = 0
    ) -> Statement:
        """The rows of a predicate behind a cursor, up to a last key. rows: at most; 0: all."""
        dialect, skip = self.database.dialect, 0
        given = Given(dialect)
        if self.text:
            skip = cursor or 0
            offset = dialect.behind(self.text, skip) if skip and takes_offset(self.behind) else None
            sql, skip = (self.text, skip) if offset is None else (offset, 0)
        else:
            conditions = self._conditions(predicate, cursor, last, given)
            order = self.paging.order if self.paging else ()
            sql = self.query.select(", ".join(self._expressions()), *conditions, order=order)
        sql = dialect.first(sql, rows) if rows else sql
        if self.seeds:
            names = [f"{seed} AS c{i}" for i, seed in enumerate(self.seeds)]
            sql, skip = f"SELECT {', '.join(names)} UNION ALL SELECT * FROM ({sql}\n)", skip + 1
        return Statement(sql, given.parameters, skip)

    def _expressions(self) -> list[str]:
        """What is fetched. Names of its own, so that ORDER BY means columns and never these."""
        read = [column.sql for column in self.columns.values()]
        read += self.paging.read.values() if self.paging else ()
        return [f"{sql} AS {self.database.dialect.quote(f'__{i}')}" for i, sql in enumerate(read)]

    def _conditions(self, predicate: str, cursor: Cursor, last: Sequence[Any] | None, given: Given) -> list[str]:
        conditions = [f"({self.database.dialect.text(predicate)}\n)"] if predicate else []
        if self.paging is not None and cursor is not None:
            conditions.append(behind(self.paging, as_key(cursor), given))
        if self.paging is not None and last is not None:
            conditions.append(up_to(self.paging, last, given))
        return conditions

    def count(self, connection: Connection, predicate: str, cursor: Cursor) -> int:
        """How many rows of a predicate are behind a cursor."""
        given = Given(self.database.dialect)
        conditions = self._conditions(predicate, cursor, None, given)
        (total,) = connection.row(self.query.select("COUNT(*)", *conditions), given.parameters)
        return int(total) - (cursor or 0 if self.paging is None else 0)

    def refuse_twin(self, connection: Connection, predicate: str, cursor: Cursor) -> None:
        """Raise UsageError where several rows have the key of a cursor: which of them were read is not known."""
        if self.paging is None or self.unique or cursor is None:
            return
        given, key = Given(self.database.dialect), as_key(cursor)
        conditions = [f"({self.database.dialect.text(predicate)}\n)"] if predicate else []
        sql = self.query.select("COUNT(*)", *conditions, at(self.paging, key, given))
        (count,) = connection.row(sql, given.parameters)
        if count > 1:
            with where(path=self.database.shown, table=self.query.shown):
                raise Trail(self.paging, self.option, None).twice(key)

    def chunks(
        self, connection: Connection, statement: Statement, partition: Partition, cursor: Cursor
    ) -> Iterator[Chunk]:
        """The rows of a statement, which come behind a cursor."""
        behind = cursor or 0
        trail = None if self.paging is None else Trail(self.paging, self.option, cursor)
        keys = range(len(self.columns), len(self.columns) + (len(self.paging.parts) if self.paging else 0))
        with where(path=self.database.shown, table=self.query.shown):
            for batch in self._batches(connection, statement):
                columns, bad = self._columns(batch)
                cursors: Any
                if trail is None:
                    cursors = np.arange(behind + 1, behind + batch.num_rows + 1)
                    behind += batch.num_rows
                else:
                    cursors = trail.cursors([batch.column(i) for i in keys])
                yield Chunk(partition=partition.name, columns=columns, cursors=cursors, bad=bad)

    def _batches(self, connection: Connection, statement: Statement) -> Iterator[Any]:
        """Arrow batches of SLICE rows at most, none of them empty."""
        sql, parameters, skip = statement
        try:
            for batch in connection.batches(sql, parameters):
                left_out = min(skip, batch.num_rows)
                skip -= left_out
                for begin in range(left_out, batch.num_rows, SLICE):
                    yield batch.slice(begin, SLICE)
        except LostConnection:
            raise
        except StorageError as error:
            match = _MISMATCH.search(error.found)
            if match is None:
                raise
            mixed = match
        else:
            return
        raise self._mixed(*mixed.groups())

    def _columns(self, batch: Any) -> tuple[dict[str, Column], dict[int, StreamioError]]:
        columns, bad = dict[str, Column](), dict[int, StreamioError]()
        for (name, column), place in zip(self.columns.items(), self.places, strict=True):
            columns[name], wrong = column.values(batch.column(place), name)
            bad = {**wrong, **bad}
        return columns, bad

    def _mixed(self, place: str, expected: str, got: str) -> UsageError:
        name = dict(zip(map(str, self.places), self.columns, strict=True)).get(place, f"number {place}")
        return UsageError(
            f"holds values of several types: {expected} at first, and {got} now",
            fix=f'Cast it, columns={{"{name}": "CAST({name} AS REAL)"}}, declare it in types=, or leave it out',
            field=name,
        )  # fmt: skip
