from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from streamio.storage import transfer
from tests.servers.s3 import Store, s3_server

SHARD = 300_000


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six files `shard-00000N.tar` of SHARD random bytes, and a small `streamio.json`."""
    folder = tmp_path_factory.mktemp("shards")
    for n in range(6):
        data = np.random.default_rng(n).bytes(SHARD)
        (folder / f"shard-{n:06d}.tar").write_bytes(data)
    (folder / "streamio.json").write_text("{}")
    return folder


@pytest.fixture(scope="session")
def bucket(tmp_path_factory: pytest.TempPathFactory, shards: Path) -> Iterator[tuple[Store, str]]:
    """A real S3 server that has the shards, and their address."""
    with s3_server(tmp_path_factory.mktemp("s3")) as store:
        yield store, store.put(shards)


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pauses between tries."""
    monkeypatch.setattr(transfer, "FIRST_PAUSE", 0.0)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
