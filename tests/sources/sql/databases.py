"""The databases that tests read from, each by the same few words."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import psycopg

from tests.servers.postgres import Postgres

KINDS = ("sqlite", "duckdb", "postgresql", "dbapi")


class Made:
    """A new, empty database. source: what a data set is given."""

    def __init__(self, kind: str, folder: Path, postgres: Callable[[], Postgres]) -> None:
        self.kind = kind
        self.path = str(folder / f"a.{kind}")
        self.source: Any = f"{kind}://{self.path}"
        if kind == "dbapi":
            self.source = functools.partial(sqlite3.connect, self.path)
        if kind == "postgresql":
            self._server = postgres()
            self.source = self.path = self._server.database()

    def run(self, *statements: str, rows: Sequence[Sequence[Any]] = ()) -> list[Any]:
        """Run statements in a connection of their own, the last with each of the rows. Gives the last result."""
        if self.kind == "postgresql":
            with psycopg.connect(self.path, autocommit=True) as postgres:
                for statement in statements[: -1 if rows else None]:
                    cursor = postgres.execute(statement.encode())
                if not rows:
                    return cursor.fetchall() if cursor.description else []
                with postgres.cursor() as many:
                    many.executemany(statements[-1].replace("?", "%s").encode(), rows)
                return []
        connect: Any = duckdb.connect if self.kind == "duckdb" else sqlite3.connect
        connection = connect(self.path)
        try:
            for statement in statements[: -1 if rows else None]:
                cursor = connection.execute(statement)
            if rows:
                connection.executemany(statements[-1], rows)
            found: list[Any] = [] if rows else cursor.fetchall()
            connection.commit()
            return found
        finally:
            connection.close()

    def numbers(self, ids: Sequence[int], table: str = "t") -> Made:
        """A table of these ids, and of what follows from them."""
        if self.kind in ("sqlite", "dbapi"):
            self.run("PRAGMA journal_mode = wal")
        columns = "id BIGINT PRIMARY KEY, x DOUBLE PRECISION NOT NULL, s VARCHAR(40) NOT NULL"
        self.run(f"CREATE TABLE {table} ({columns})")
        rows = [(i, i / 8, f"s{i}") for i in ids]
        for start in range(0, len(rows), 500):
            some = rows[start : start + 500]
            values = ", ".join(f"({i}, {x!r}, '{s}')" for i, x, s in some)
            self.run(f"INSERT INTO {table} VALUES {values}")
        return self
