"""With follow=True, rows that are added later come as they are: each once, over SIGKILL and late commits too."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest

from streamio import StreamLoader, UsageError
from streamio.sources.sql.reading import Reading
from streamio.sources.sql.stream import SqlStream
from tests.sources.saving import go_on, saved
from tests.sources.sql.databases import Made

SOON: dict[str, Any] = {"follow": True, "poll": 0.05, "max_wait": 0.1}


def ids(batches: Iterable[Any]) -> list[int]:
    return [i for batch in batches for i in batch["id"].tolist()]


@pytest.fixture
def made() -> Iterator[Callable[..., StreamLoader]]:
    loaders: list[StreamLoader] = []

    def make(database: Made, *, loader: dict[str, Any] | None = None, **options: Any) -> StreamLoader:
        ds = SqlStream(database.source, 16, **{"table": "t", "key": "id", **SOON, **options})
        loaders.append(StreamLoader(ds, **(loader or {"num_workers": 0})))
        return loaders[-1]

    yield make
    for loader in loaders:
        loader.close()


def table(database: Made, rows: int) -> None:
    if database.kind in ("sqlite", "dbapi"):
        database.run("PRAGMA journal_mode = wal")
    database.run("CREATE TABLE t (id BIGINT PRIMARY KEY, ts BIGINT NOT NULL)")
    add(database, range(rows))


def add(database: Made, numbers: Iterable[int]) -> None:
    while True:
        try:
            database.run("INSERT INTO t VALUES " + ", ".join(f"({i}, {i // 10})" for i in numbers))
        except (duckdb.IOException, duckdb.ConnectionException):  # somebody reads it right now
            time.sleep(0.005)
        else:
            return


@pytest.mark.parametrize("loader", [{"num_workers": 0}, {"num_workers": 2, "context": "fork"}], ids=str)
@pytest.mark.parametrize("key", ["id", ("ts", "id")], ids=str)
def test_rows_that_are_added_later_come_as_they_are_added(
    database: Made, made: Any, loader: dict[str, Any], key: Any
) -> None:
    table(database, 100)
    if database.kind == "duckdb":  # a process either reads a file or writes it
        loader = {"num_workers": 1 + bool(loader["num_workers"]), "context": "fork"}
    reader = made(database, loader=loader, key=key)
    got: list[int] = []
    for batch in reader:
        got += batch["id"].tolist()
        if len(got) in (100, 200):
            add(database, range(len(got), len(got) + 100))
        if len(got) == 300:
            reader.dataset.stop()
    assert got == list(range(300))


def test_an_epoch_ends_when_nothing_came_for_a_while_and_the_next_one_goes_on(database: Made, made: Any) -> None:
    table(database, 50)
    reader = made(database, idle_timeout=0.4)
    assert ids(reader) == list(range(50))
    add(database, range(50, 70))
    assert ids(reader) == list(range(50, 70))
    other = made(database, idle_timeout=0.4, loader={"num_workers": 2, "context": "fork"})
    other.load_state_dict(json.loads(json.dumps(reader.state_dict())))
    add(database, range(70, 75))
    assert ids(other) == list(range(70, 75))


def test_partitions_are_followed_by_several_workers(database: Made, made: Any) -> None:
    table(database, 100)
    reader = made(
        database, partitions=[f"id % 3 = {i}" for i in range(3)], loader={"num_workers": 2, "context": "fork"}
    )
    got: list[int] = []
    for batch in reader:
        got += batch["id"].tolist()
        if len(got) == 100:
            add(database, range(100, 160))
        if len(got) == 160:
            reader.dataset.stop()
    assert sorted(got) == list(range(160))
    assert set(reader.state_dict()["cursors"].values()) == {157, 158, 159}


def test_db_04_equal_moments_at_the_edge_of_a_page_are_neither_lost_nor_doubled(
    database: Made, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamio.sources.sql.following.ROWS", 3)
    table(database, 100)
    with pytest.raises(UsageError, match=r"ts.* is not unique.*key=\('ts', …\)"):
        made(database, key="ts")
    assert ids(made(database, key=("ts", "id"), idle_timeout=0.3)) == list(range(100))


def test_a_key_that_stops_being_unique_is_an_error_and_no_gap(sqlite: Made, made: Any) -> None:
    sqlite.run("CREATE TABLE t (id BIGINT NOT NULL)", "INSERT INTO t VALUES (1), (2), (3)")
    reader = made(sqlite)
    iterator = iter(reader)
    assert ids([next(iterator)]) == [1, 2, 3]
    sqlite.run("INSERT INTO t VALUES (3), (4)")
    with pytest.raises(UsageError, match="id is not unique: several rows have 3"):
        next(iterator)


def test_twins_that_come_while_a_page_is_asked_for_are_found(
    sqlite: Made, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows behind them would have been read, and they never."""
    sqlite.run("CREATE TABLE t (id BIGINT NOT NULL)", "INSERT INTO t VALUES (1), (2), (3)")
    statement, inserts = Reading.statement, list[str]()

    def just_then(self: Reading, predicate: str, cursor: Any, *more: Any) -> Any:
        if cursor == 3 and inserts:
            sqlite.run(inserts.pop())
        return statement(self, predicate, cursor, *more)

    monkeypatch.setattr(Reading, "statement", just_then)
    iterator = iter(made(sqlite))
    assert ids([next(iterator)]) == [1, 2, 3]
    inserts.append("INSERT INTO t VALUES (3), (4)")
    with pytest.raises(UsageError, match="several rows have 3"):
        next(iterator)


def late(database: Made, made: Any, commits_after: float | None, **options: Any) -> list[int]:
    """A transaction takes number 3 and commits after another one has committed 4; None: when 4 has come."""
    slow = psycopg.connect(database.path)
    slow.execute("INSERT INTO t (ts) VALUES (0)")
    database.run("INSERT INTO t (ts) VALUES (0)")
    timer = threading.Timer(commits_after or 0, slow.commit)
    if commits_after is not None:
        timer.start()
    got: list[int] = []
    for batch in made(database, **options):
        got += ids([batch])
        if commits_after is None and 4 in got:
            slow.commit()
    timer.cancel()
    slow.close()
    return got


@pytest.mark.parametrize(
    ("lag", "commits_after", "came"),
    [(None, None, [1, 2, 4]), (2.5, 0.3, [1, 2, 3, 4]), ("transactions", 0.6, [1, 2, 3, 4])],
)
def test_a_row_that_is_committed_late_is_waited_for_with_lag(
    pg: Made, made: Any, lag: Any, commits_after: float | None, came: list[int]
) -> None:
    pg.run("CREATE TABLE t (id BIGSERIAL PRIMARY KEY, ts BIGINT)", "INSERT INTO t (ts) VALUES (0), (0)")
    assert late(pg, made, commits_after, lag=lag, idle_timeout=1.0 if lag is None else 3.5) == came


def test_lag_holds_rows_back_with_any_database(database: Made, made: Any) -> None:
    table(database, 20)
    since = time.monotonic()
    iterator = iter(made(database, lag=0.5, key=("ts", "id")))
    got = ids([next(iterator)])
    assert time.monotonic() - since >= 0.5
    assert got == list(range(len(got)))


def test_psycopg_and_its_transactions_see_rows_that_are_added(pg: Made, made: Any) -> None:
    table(pg, 20)
    pg.source = functools.partial(psycopg.connect, pg.path)
    reader = made(pg, loader={"num_workers": 1, "context": "spawn"}, idle_timeout=3.0)
    got: list[int] = []
    for batch in reader:
        got += batch["id"].tolist()
        if len(got) == 20:
            add(pg, range(20, 40))
        if len(got) == 40:
            reader.dataset.stop()
    assert got == list(range(40))


def test_wrong_options_are_refused_when_it_is_made(database: Made) -> None:
    table(database, 5)
    for options, said in [
        ({"key": None}, "follow=True without key="),
        ({"order": "id"}, "order= with follow=True"),
        ({"poll": 0}, "poll=0"),
        ({"lag": -1}, "lag=-1"),
        ({"key": "nope"}, "key= names the column 'nope'"),
        ({"partitions": ["id < 3"]}, "2 rows match none"),
    ]:
        with pytest.raises(UsageError, match=said):
            SqlStream(database.source, 16, **{"table": "t", "key": "id", **SOON, **options})
    if database.kind != "postgresql":
        with pytest.raises(UsageError, match="does not tell which ones run"):
            SqlStream(database.source, 16, table="t", key="id", lag="transactions", follow=True)
    database.run("CREATE TABLE u (id BIGINT)", "INSERT INTO u VALUES (NULL), (1)")
    with pytest.raises(UsageError, match="1 NULL keys"):
        SqlStream(database.source, 16, table="u", key="id", follow=True)


def read(source: Any, folder: Path, workers: int) -> None:
    """Follow, and save each batch, and then the state that says that it was saved."""
    os.setsid()
    parts = ["id % 2 = 0", "id % 2 = 1"]
    ds = SqlStream(source, 50, table="t", key="id", partitions=parts, idle_timeout=2.0, **SOON)
    loader = StreamLoader(ds, num_workers=workers, **({"context": "fork"} if workers else {}))
    go_on(loader, folder, "id")


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_each_row_comes_once_over_sigkill_while_others_write(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    database: Made = request.getfixturevalue("pg" if kind == "postgresql" else "sqlite")
    table(database, 1000)
    ended = threading.Event()

    def write() -> None:
        connect: Any = psycopg.connect if kind == "postgresql" else sqlite3.connect
        connection = connect(database.path)
        for begin in range(1000, 4000, 50):
            connection.execute("INSERT INTO t VALUES " + ", ".join(f"({i}, 0)" for i in range(begin, begin + 50)))
            connection.commit()
            time.sleep(0.02)
        connection.close()
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    context = multiprocessing.get_context("fork")
    for workers in (2, 0):
        wanted = len(saved(tmp_path)) + 8
        process = context.Process(target=read, args=(database.source, tmp_path, workers))
        process.start()
        until = time.monotonic() + 60
        while len(saved(tmp_path)) < wanted and process.is_alive() and time.monotonic() < until:
            time.sleep(0.005)
        assert process.is_alive() and process.pid
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    writer.join()
    last = context.Process(target=read, args=(database.source, tmp_path, 3))
    last.start()
    last.join(60)
    assert last.exitcode == 0
    assert sorted(i for batch in saved(tmp_path) for i in batch) == list(range(4000))
