"""The server stops and starts in the middle of an epoch: it ends complete, or says what to do, never short."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

import psutil
import pytest

from streamio import StreamLoader
from streamio.errors import StorageError
from streamio.sources.sql.stream import SqlStream
from tests.servers.postgres import Postgres
from tests.sources.sql.databases import Made

ROWS = 150_000
"""60 MB, of which 16 and a little more are on their way when the server stops."""


def ids(batches: Iterable[Any]) -> list[int]:
    return [i for batch in batches for i in batch["id"].tolist()]


@pytest.fixture
def long(pg: Made) -> Made:
    pg.run(
        "CREATE TABLE t (id BIGINT PRIMARY KEY, s TEXT NOT NULL)",
        f"INSERT INTO t SELECT i, repeat('x', 400) FROM generate_series(0, {ROWS - 1}) i",
    )
    return pg


def restart(postgres: Postgres, seconds: float = 0.0) -> None:
    postgres.kill()
    time.sleep(seconds)
    postgres.start()


FORKED: dict[str, Any] = {"num_workers": 2, "context": "fork"}


@pytest.mark.parametrize(
    ("loader", "options"),
    [
        ({"num_workers": 0}, {"table": "t", "order": "id"}),
        ({"num_workers": 0}, {"query": "SELECT id, s FROM t ORDER BY id"}),
        (FORKED, {"table": "t", "order": "id", "partitions": ["id < 75000", "id >= 75000"]}),
    ],
    ids=["order", "query", "partitions"],
)
def test_an_epoch_over_a_restart_of_the_server_is_complete(
    long: Made,
    postgres: Postgres,
    loader: dict[str, Any],
    options: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    reader = StreamLoader(SqlStream(long.source, 2000, **options), **loader)
    got: list[int] = []
    for number, batch in enumerate(reader):
        got += batch["id"].tolist()
        if number == 3:
            restart(postgres)
    reader.close()
    assert sorted(got) == list(range(ROWS))
    assert "lost the connection" in caplog.text or loader["num_workers"]  # those say it in their processes


def test_when_only_its_connection_is_lost_an_epoch_goes_on_in_its_snapshot(long: Made) -> None:
    with SqlStream(long.source, 2000, table="t", order="id", snapshot=True) as ds:
        got: list[int] = []
        for number, batch in enumerate(StreamLoader(ds, num_workers=0)):
            got += batch["id"].tolist()
            if number == 3:
                long.run("DELETE FROM t WHERE id % 2 = 0", "INSERT INTO t VALUES (-1, 's')")
                ours = "state = 'active' AND query LIKE 'COPY%' AND datname = current_database()"
                ended = long.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}")
    assert ended == [(True,)] and got == list(range(ROWS))


def test_rows_without_an_order_end_with_what_to_do_and_not_short(long: Made, postgres: Postgres) -> None:
    reader = StreamLoader(SqlStream(long.source, 2000, table="t"), num_workers=0)
    iterator = iter(reader)
    next(iterator)
    restart(postgres)
    with pytest.raises(StorageError, match=r"the connection is lost.*no order.*order=\("):
        list(iterator)


def test_a_server_that_stays_away_is_an_error_after_retry_for(long: Made, postgres: Postgres) -> None:
    reader = StreamLoader(SqlStream(long.source, 2000, table="t", order="id", retry_for=0.3), num_workers=0)
    iterator = iter(reader)
    next(iterator)
    postgres.kill()
    with pytest.raises(StorageError, match=r"no connection.*retry_for="):
        list(iterator)
    postgres.start()


def test_following_goes_on_when_the_server_is_back(pg: Made, postgres: Postgres) -> None:
    pg.run("CREATE TABLE t (id BIGINT PRIMARY KEY)", "INSERT INTO t SELECT generate_series(0, 99)")
    ds = SqlStream(pg.source, 10, table="t", key="id", follow=True, poll=0.05, max_wait=0.1)
    got: list[int] = []
    thread: threading.Thread | None = None
    for batch in StreamLoader(ds, num_workers=1, context="fork"):
        got += batch["id"].tolist()
        if len(got) == 100:
            thread = threading.Thread(target=lambda: (restart(postgres, 0.3), pg.run("INSERT INTO t VALUES (100)")))
            thread.start()
        if len(got) == 101:
            ds.stop()
    assert thread is not None
    thread.join()
    assert got == list(range(101))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_memory_of_a_worker_is_bounded(pg: Made) -> None:
    row = "i::bigint AS id, i * 0.5::float8 AS x, repeat('x', 100) AS s"
    pg.run(f"CREATE TABLE t AS SELECT {row} FROM generate_series(1, 3000000) i")
    loader = StreamLoader(SqlStream(pg.source, 256, table="t"), num_workers=1, context="spawn", transport="process")
    start = peak = count = 0
    for number, batch in enumerate(loader):
        count += len(batch["id"])
        if number % 200 == 0:
            used = psutil.Process(loader.worker_pids()[0]).memory_full_info().uss
            start, peak = start or used, max(peak, used)
    loader.close()
    assert count == 3_000_000
    assert peak - start < 150e6
