"""What one writes by hand: a loop over lines or rows in an IterableDataset, and a DataLoader that collates."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import version as installed
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from benchmarks.sources.job import BATCH, COLUMNS, Job, rows_of
from benchmarks.speed.job import Loop

_ROWS = 2000
"""That a cursor on the server fetches at a time: 100 by default."""


def version() -> str:
    return f"torch {installed('torch')}, Python {sys.version.split()[0]}"


class Lines(IterableDataset[Any]):
    """`json.loads` of each line; a worker reads its share of the files."""

    def __init__(self, files: list[str]) -> None:
        self.files = files

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        files = self.files if worker is None else self.files[worker.id :: worker.num_workers]
        for path in files:
            with open(path, encoding="utf-8") as lines:
                for line in lines:
                    yield json.loads(line)


class PostgresRows(IterableDataset[Any]):
    """psycopg's cursor on the server. variant: rows as dicts or as named tuples."""

    def __init__(self, uri: str, variant: str) -> None:
        self.uri, self.variant = uri, variant

    def __iter__(self) -> Iterator[Any]:
        import psycopg
        from psycopg.rows import dict_row, namedtuple_row

        factory: Any = dict_row if self.variant == "dict" else namedtuple_row
        with psycopg.connect(self.uri) as connection:
            with connection.cursor("rows", row_factory=factory) as cursor:
                cursor.itersize = _ROWS
                cursor.execute(f"SELECT {', '.join(COLUMNS)} FROM rows".encode())
                yield from cursor


class SqliteRows(IterableDataset[Any]):
    """sqlite3's cursor, with rows as dicts."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with closing(sqlite3.connect(self.path)) as connection:
            yield from rows_of(connection)


def loop(job: Job) -> Loop:
    torch.set_num_threads(1)
    rows: IterableDataset[Any]
    if job.kind == "jsonl":
        rows = Lines(job.files)
    else:
        rows = PostgresRows(job.uri, job.variant) if job.kind == "postgres" else SqliteRows(str(job.sqlite))
    loader: Any = DataLoader(rows, batch_size=BATCH, num_workers=job.workers, persistent_workers=job.workers > 0)
    return Loop(lambda: map(_named, loader), lambda batch: (batch, batch["id"]))


def _named(batch: Any) -> dict[str, Any]:
    return batch if isinstance(batch, dict) else batch._asdict()
