"""The rows, written once for all: JSON lines, a table in SQLite, and one in PostgreSQL, which lives for the run."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg

from benchmarks.sources.job import COLUMNS, FILES, row
from tests.servers.postgres import Postgres

_TYPES = ("BIGINT PRIMARY KEY", "BIGINT", "DOUBLE PRECISION", "BOOLEAN", "INTEGER", "VARCHAR(80)")
_TABLE = f"CREATE TABLE rows ({', '.join(f'{n} {t} NOT NULL' for n, t in zip(COLUMNS, _TYPES, strict=True))})"


def write_files(folder: Path, rows: int) -> None:
    """What needs no server, unless it is there already."""
    stamp = folder / "rows"
    if stamp.exists() and stamp.read_text() == str(rows):
        return
    folder.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    for number in range(FILES):
        with open(folder / f"{number}.jsonl", "w", encoding="utf-8") as file:
            for line in range(number * rows // FILES, (number + 1) * rows // FILES):
                file.write(json.dumps(row(line)) + "\n")
    (folder / "table.sqlite").unlink(missing_ok=True)
    with closing(sqlite3.connect(folder / "table.sqlite")) as connection:
        connection.execute(_TABLE)
        marks = ", ".join("?" * len(COLUMNS))
        connection.executemany(f"INSERT INTO rows VALUES ({marks})", (tuple(row(n).values()) for n in range(rows)))
        connection.commit()
    stamp.write_text(str(rows))


@contextmanager
def postgres(folder: Path, rows: int) -> Iterator[None]:
    """A server with the table; its address is in `postgres.uri` meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "postgres.uri"
    with Postgres(folder / "server") as server:
        uri = server.uri()
        with psycopg.connect(uri, autocommit=True) as connection:
            connection.execute(_TABLE.encode())
            with connection.cursor() as cursor, cursor.copy("COPY rows FROM STDIN") as copy:
                for number in range(rows):
                    copy.write_row(tuple(row(number).values()))
            connection.execute("VACUUM ANALYZE rows")
        file.write_text(uri, encoding="utf-8")
        file.chmod(0o600)
        try:
            yield
        finally:
            file.unlink(missing_ok=True)
