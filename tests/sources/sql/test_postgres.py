"""PostgreSQL: one snapshot for all workers and ranks, lost connections, and what its types become."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
import torch
import torch.distributed
import torch.multiprocessing
from torch.utils.data import DataLoader

from streamio import StorageError, StreamLoader, UsageError
from streamio.sources.sql.connect import Connection, Database
from streamio.sources.sql.dataset import SqlDataset
from streamio.sources.sql.snapshot import HeldSnapshot
from tests.servers.postgres import Postgres
from tests.sources.sql.databases import Made


def ids(batches: Iterable[Any]) -> list[int]:
    return [i for batch in batches for i in batch["id"].tolist()]


def keep_changing(path: str, stop: threading.Event) -> None:
    """Insert, update and delete until told to stop."""
    with psycopg.connect(path, autocommit=True) as connection:
        for n in range(1_000_000):
            if stop.is_set():
                return
            connection.execute("DELETE FROM t WHERE id = %s", (n * 7 % 2000,))
            connection.execute("INSERT INTO t VALUES (%s, 0, 'new') ON CONFLICT DO NOTHING", (-n - 1,))
            connection.execute("UPDATE t SET s = 'changed' WHERE id = %s", (n * 11 % 2000,))


def read_on_rank(rank: int, address: str, source: str, out: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    with SqlDataset(source, 32, table="t", key="id", shuffle=True) as ds:
        if rank == 0:
            with psycopg.connect(source) as other:
                other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                other.execute(f"SET TRANSACTION SNAPSHOT '{ds.table.snapshot}'".encode())
                np.save(f"{out}/expected.npy", np.array(other.execute("SELECT id, s FROM t").fetchall()))
        batches = list(StreamLoader(ds, num_workers=2, context="fork"))
        assert len(batches) == len(ds)
        torch.distributed.barrier()  # until then rank 0 holds the snapshot
    rows = [(i, s) for batch in batches for i, s in zip(batch["id"].tolist(), batch["s"], strict=True)]
    np.save(f"{out}/{rank}.npy", np.array(rows))
    torch.distributed.destroy_process_group()


def test_two_ranks_of_two_workers_read_one_snapshot_while_others_write(pg: Made, tmp_path: Path) -> None:
    pg.numbers(range(2000))
    stop = threading.Event()
    writer = threading.Thread(target=keep_changing, args=(pg.path, stop))
    writer.start()
    try:
        address = f"file://{tmp_path}/meet"
        torch.multiprocessing.start_processes(
            read_on_rank, (address, pg.path, str(tmp_path)), nprocs=2, start_method="fork"
        )
    finally:
        stop.set()
        writer.join()
    saved = [np.load(tmp_path / f"{name}.npy").tolist() for name in ("expected", 0, 1)]
    expected, *parts = ([tuple(row) for row in rows] for rows in saved)
    assert sorted(parts[0] + parts[1]) == sorted(expected)
    assert abs(len(parts[0]) - len(parts[1])) <= 63
    assert pg.run("SELECT count(*) FROM t WHERE s <> 's' || id")[0][0] > 0  # there were changes


def test_a_snapshot_of_another_connection_is_read_by_its_name(pg: Made) -> None:
    pg.numbers(range(10))
    held = HeldSnapshot(Database.at(pg.path))
    pg.run("DELETE FROM t WHERE id < 5")
    with SqlDataset(pg.path, 4, table="t", key="id", snapshot=held.id) as ds:
        assert ids(ds) == list(range(10))
    held.close()
    with pytest.raises(StorageError, match="snapshot"):
        SqlDataset(pg.path, 4, table="t", key="id", snapshot=held.id)
    for wrong in ("'; DROP TABLE t", ""):
        with pytest.raises(UsageError, match="snapshot="):
            SqlDataset(pg.path, 4, table="t", key="id", snapshot=wrong)


def test_closing_ends_the_transaction_that_held_the_snapshot(pg: Made) -> None:
    pg.numbers(range(10))
    open_ones = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"
    ds = SqlDataset(pg.path, 4, table="t", key="id")
    assert pg.run(open_ones) == [(1,)]
    list(DataLoader(ds, batch_size=None, num_workers=2))
    list(ds)
    ds.close()
    assert eventually(lambda: pg.run(open_ones) == [(0,)])


def eventually(holds: Any, seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    return bool(holds())


def terminate(pg: Made, which: str) -> None:
    pg.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND {which}")


def test_a_lost_connection_is_taken_up_again_in_the_same_snapshot(
    pg: Made, caplog: pytest.LogCaptureFixture
) -> None:
    pg.numbers(range(40))
    with SqlDataset(pg.path, 4, table="t", key="id") as ds:
        steps = iter(ds)
        seen = [next(steps), next(steps)]
        pg.run("DELETE FROM t WHERE id > 20")
        terminate(pg, "pid <> pg_backend_pid() AND query NOT LIKE '%pg_export_snapshot%'")
        assert ids([*seen, *steps]) == list(range(40))
    assert caplog.text.count("lost the connection") == 1


def test_a_snapshot_that_is_gone_ends_the_epoch_with_what_to_do(pg: Made) -> None:
    pg.numbers(range(40))
    with SqlDataset(pg.path, 4, table="t", key="id", retry_for=0.3) as ds:
        steps = iter(ds)
        next(steps)
        terminate(pg, "pid <> pg_backend_pid()")
        with pytest.raises(StorageError, match=r"snapshot .* is gone: .*Make the data set again and load"):
            list(steps)


def test_without_a_snapshot_an_epoch_outlives_a_restart_of_the_server(postgres: Postgres, pg: Made) -> None:
    pg.numbers(range(40))
    with SqlDataset(pg.path, 4, table="t", key="id", snapshot=False) as ds:
        steps = iter(StreamLoader(ds, num_workers=1, context="fork"))
        seen = [next(steps)]
        postgres.stop()
        postgres.start()
        assert ids([*seen, *steps]) == list(range(40))


def test_what_the_database_refuses_is_no_lost_connection(pg: Made) -> None:
    pg.numbers(range(4))
    with Connection(Database.at(pg.path)) as connection:
        with pytest.raises(StorageError, match=r"refused: .*nonsense") as failed:
            connection.table("SELECT nonsense FROM t")
        assert type(failed.value) is StorageError


def test_a_driver_of_the_users_own_gives_the_same_values(pg: Made) -> None:
    pg.run(
        "CREATE TABLE t AS SELECT i AS id, 's' || i AS s, i / 4.0 AS n, '2024-05-17 12:00+02'::timestamptz AS tz, "
        "'2024-05-17'::date AS d, md5(i::text)::uuid AS u, json_build_object('a', i) AS j, ARRAY[i, 2] AS a, "
        "i % 2 = 0 AS b, decode('00ff', 'hex') AS raw FROM generate_series(1, 40) i"
    )
    connect = partial(psycopg.connect, pg.path)
    options: dict[str, Any] = {"table": "t", "key": ("s", "id"), "where": "s LIKE 's1%' OR s LIKE '%9'"}
    with SqlDataset(connect, 4, types={"j": "json"}, shuffle=True, **options) as ds:
        found = list(ds)
    with SqlDataset(pg.path, 4, shuffle=True, **options) as ds:
        expected = list(ds)
    assert len(found) == len(expected) > 1
    for one, other in zip(found, expected, strict=True):
        for name, value in other.items():
            mine, theirs = (v.tolist() if isinstance(v, torch.Tensor) else v for v in (one[name], value))
            assert mine == theirs, name
