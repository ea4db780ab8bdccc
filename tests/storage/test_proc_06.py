"""PROC-06: a remote file system used in the parent must not be used, or waited for, in its workers.

fsspec/s3fs#914, #369; fsspec/gcsfs#379; fsspec/filesystem_spec#835
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import streamio
from streamio.storage import buckets, files
from tests.servers.http import serve
from tests.servers.s3 import Store
from tests.sets import keys, make_set, numbered
from tests.storage.reading import NAMES, open_ports, read_all, who_asks

WORKERS = 4


def run_workers(context: str, base: str, options: dict[str, Any] | None) -> list[tuple[int, bytes, set[int], bool]]:
    """The answers of WORKERS processes that read at the same time, each within 30 s."""
    ctx: Any = multiprocessing.get_context(context)
    answers = ctx.Queue()
    workers = [ctx.Process(target=read_all, args=(base, options, answers)) for _ in range(WORKERS)]
    end = time.monotonic() + 30
    for worker in workers:
        worker.start()
    try:
        got = [answers.get(timeout=max(0.1, end - time.monotonic())) for _ in workers]
        for worker in workers:
            worker.join(max(0.1, end - time.monotonic()))
        assert [worker.exitcode for worker in workers] == [0] * WORKERS
        return got
    finally:
        for worker in workers:
            worker.kill()
            worker.join()


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_proc_06_http_workers_share_no_connection(context: str, shards: Path) -> None:
    with serve(shards) as server:
        parent = files.read_bytes(files.join(server.url, NAMES[0]), storage_options=who_asks())
        got = run_workers(context, server.url, None)
        assert files.read_bytes(files.join(server.url, NAMES[0]), storage_options=who_asks()) == parent
        wanted = b"".join((shards / name).read_bytes() for name in NAMES)
        assert all(data == wanted for _, data, _, _ in got)
        assert server.hits() == {name: WORKERS + 2 * (name == NAMES[0]) for name in NAMES}
        readers = defaultdict(set)
        for _, reader, port, _ in server.asked:
            readers[port].add(reader)
        assert all(len(who) == 1 for who in readers.values())
        assert len(set.union(*readers.values())) == WORKERS + 1


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_proc_06_s3_workers_share_no_connection(context: str, bucket: tuple[Store, str], shards: Path) -> None:
    store, base = bucket
    parent = files.read_bytes(files.join(base, NAMES[0]), storage_options=store.options)
    before = open_ports()
    got = run_workers(context, base, store.options)
    wanted = b"".join((shards / name).read_bytes() for name in NAMES)
    for _, data, ports, alive in got:
        assert data == wanted
        assert alive, "fsspec's thread was not made anew in the worker"
        assert ports - before, "no connection of its own: the parent's was used"
    own = [ports - before for _, _, ports, _ in got]
    assert len(set.union(*own)) == sum(map(len, own))
    assert files.read_bytes(files.join(base, NAMES[0]), storage_options=store.options) == parent


def test_proc_06_a_child_makes_its_own_file_system(bucket: tuple[Store, str]) -> None:
    """The parent's stay in the child's table: letting them go would close connections that the parent uses."""
    store, base = bucket
    files.size(files.join(base, NAMES[0]), storage_options=store.options)
    inherited = len(buckets._systems)
    answers = multiprocessing.get_context("fork").Queue()

    def child() -> None:
        files.size(files.join(base, NAMES[0]), storage_options=store.options)
        own = [system for key, system in buckets._systems.items() if key[0] == os.getpid()]
        answers.put((len(own), len(buckets._systems)))

    worker = multiprocessing.get_context("fork").Process(target=child)
    worker.start()
    assert answers.get(timeout=30) == (1, inherited + 1)
    worker.join()


@pytest.fixture(params=["http", "s3"])
def address(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A set of 64 samples in three shards, behind each kind of address."""
    folder = Path(make_set(tmp_path / "set", 64))
    if request.param == "http":
        with serve(folder) as server:
            yield server.url
    else:
        store, _ = request.getfixturevalue("bucket")
        for name, value in (
            ("ACCESS_KEY_ID", "key"),
            ("SECRET_ACCESS_KEY", "secret"),
            ("ENDPOINT_URL", "endpoint_url"),
        ):
            monkeypatch.setenv(f"AWS_{name}", store.options[value])
        yield store.put(folder, request.node.name)


@pytest.mark.parametrize(
    ("context", "workers"), [("fork", WORKERS), pytest.param("spawn", 2, marks=pytest.mark.slow)]
)
def test_proc_06_an_epoch_ends_with_every_key(address: str, context: str, workers: int) -> None:
    """The parent opens the set and reads a sample; then its workers read all, over connections of their own."""
    table = streamio.open(address)
    assert table[0]["cls"] == 0
    loader = DataLoader(
        streamio.ShardDataset(table, 4, shuffle=True),
        batch_size=None, num_workers=workers, multiprocessing_context=context, timeout=30,
    )  # fmt: skip
    begin = time.monotonic()
    assert sorted(keys(loader)) == [sample["__key__"] for sample in numbered(64)]
    assert context == "spawn" or time.monotonic() - begin < 30  # spawned ones import torch, as long as that takes
    assert table[63]["cls"] == 63
