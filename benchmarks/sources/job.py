"""What one process is told, and the rows that all read. Imports nothing that a peer's environment lacks."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 256
COLUMNS = ("id", "visitor", "price", "ok", "label", "text")
FILES = 4
"""JSONL files: more than workers, so that every peer has some for each of them."""

_WORDS = "the quick brown fox jumps over a lazy dog and runs far away from it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One cell.

    kind:    whose rows: jsonl, postgres or sqlite.
    script:  in loaders/. variant: which of its ways.
    rows:    that there are, numbered 0 … rows - 1 by their `id`.
    data:    the folder where they are; for PostgreSQL a file `postgres.uri` is there.
    seconds: that whole epochs are timed, at least.
    started: time.monotonic() as the process was started.
    """

    kind: str
    script: str
    variant: str
    workers: int
    rows: int
    data: str
    seconds: float
    started: float

    @property
    def files(self) -> list[str]:
        return [str(path) for path in sorted(Path(self.data).glob("*.jsonl"))]

    @property
    def sqlite(self) -> Path:
        return Path(self.data) / "table.sqlite"

    @property
    def uri(self) -> str:
        return (Path(self.data) / "postgres.uri").read_text(encoding="utf-8")


def row(number: int) -> dict[str, Any]:
    """A row; all follows from its number, so that a batch can be checked."""
    return {
        "id": number, "visitor": number * 2_654_435_761 % 1_000_003, "price": number * 0.25, "ok": number % 3 == 0,
        "label": number % 1000, "text": f"{_WORDS[number % 40 :]} {number}",
    }  # fmt: skip


def problem(batch: Mapping[str, Any]) -> str:
    """ "" if each row of a batch has all its values, else what is wrong."""
    numbers = np.asarray(batch["id"])
    wanted = [row(number) for number in numbers.tolist()]
    for name in COLUMNS[1:]:
        values = batch[name] if isinstance(batch[name], list | tuple) else np.asarray(batch[name]).tolist()
        if list(values) != [one[name] for one in wanted]:
            return f"a row has the {name} of another one, or none"
    return ""


def rows_of(connection: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    """All rows of the table in SQLite, as objects."""
    for values in connection.execute(f"SELECT {', '.join(COLUMNS)} FROM rows"):
        yield dict(zip(COLUMNS, values, strict=True))
