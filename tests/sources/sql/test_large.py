"""Ten million rows of PostgreSQL on two ranks of two workers, while another connection writes."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import psutil
import psycopg
import pytest
import torch.distributed
import torch.multiprocessing

from streamio import StreamLoader
from streamio.sources.sql.dataset import SqlDataset
from tests.sources.sql.databases import Made

ROWS = 10_000_000
MOST = 150 << 20
"""Bytes that a worker may take beyond what it has as it starts."""


def read_on_rank(rank: int, address: str, source: str, out: str, shuffle: bool) -> None:
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    fields = ("id", "double")
    with SqlDataset(source, 1024, table="large", key="id", shuffle=shuffle, fields=fields) as ds:
        torch.distributed.barrier()
        Path(out, "made").touch()
        seen = np.zeros(ROWS, np.uint8)
        first: dict[int, int] = {}
        grown = 0
        loader = StreamLoader(ds, num_workers=2, context="fork")
        for step, (ids, doubles) in enumerate(loader):
            assert (doubles == 2 * ids).all()
            seen[ids.numpy()] += 1
            if step % 100 == 0:
                for pid in loader.worker_pids():
                    now = psutil.Process(pid).memory_full_info().uss
                    grown = max(grown, now - first.setdefault(pid, now))
        torch.distributed.barrier()  # until then rank 0 holds the snapshot
    np.savez(Path(out, f"{rank}.npz"), seen=seen, grown=grown, steps=step + 1)
    torch.distributed.destroy_process_group()


def keep_changing(path: str, begin: Path, stop: threading.Event) -> None:
    while not begin.exists() and not stop.is_set():
        time.sleep(0.05)
    with psycopg.connect(path, autocommit=True) as connection:
        for n in range(1, ROWS):
            if stop.is_set():
                return
            connection.execute("DELETE FROM large WHERE id = %s", (n * 7_919 % ROWS,))
            connection.execute("INSERT INTO large VALUES (%s, 0) ON CONFLICT DO NOTHING", (ROWS + n,))
            connection.execute("UPDATE large SET double = -1 WHERE id = %s", (n * 6_007 % ROWS,))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("shuffle", [False, True])
def test_ten_million_rows_come_once_as_the_snapshot_has_them_in_little_memory(
    pg: Made, tmp_path: Path, shuffle: bool
) -> None:
    pg.run(
        "CREATE UNLOGGED TABLE large AS SELECT i AS id, 2 * i AS double "
        f"FROM generate_series(0::bigint, {ROWS - 1}) AS i",
        "ALTER TABLE large ADD PRIMARY KEY (id)",
        "ALTER TABLE large ALTER double SET NOT NULL",
    )
    stop = threading.Event()
    writer = threading.Thread(target=keep_changing, args=(pg.path, tmp_path / "made", stop))
    writer.start()
    began = time.monotonic()
    try:
        torch.multiprocessing.start_processes(
            read_on_rank, (f"file://{tmp_path}/meet", pg.path, str(tmp_path), shuffle), nprocs=2,
            start_method="fork",
        )  # fmt: skip
    finally:
        stop.set()
        writer.join()
    ranks = [np.load(tmp_path / f"{rank}.npz") for rank in range(2)]
    print(f"{time.monotonic() - began:.0f} s, grown {[int(rank['grown']) >> 20 for rank in ranks]} MB")
    assert (ranks[0]["seen"] + ranks[1]["seen"] == 1).all()
    assert ranks[0]["steps"] == ranks[1]["steps"]
    assert max(int(rank["grown"]) for rank in ranks) < MOST
    assert pg.run(f"SELECT count(*) FROM large WHERE id >= {ROWS}")[0][0] > 0  # there were changes
