"""Hours of training in short: nothing grows. STREAMIO_SOAK_SECONDS says how long (issue: 1800); default 20."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import streamio
from streamio import ShardDataset, StreamLoader

SECONDS = float(os.environ.get("STREAMIO_SOAK_SECONDS") or 20)
TRANSPORTS: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "thread": {"num_workers": 2, "transport": "thread"},
    "process": {"num_workers": 2, "context": "fork"},
    "process and threads": {"num_workers": 1, "threads": 2, "context": "fork"},
    "auto": {},
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS + 120)]


def usage() -> tuple[int, int]:
    """(memory, open files) of this process and its children; shared memory counted once."""
    memory = files = 0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        info = process.memory_full_info()
        memory += info.pss + info.swap
        files += process.num_fds()
    return memory, files


def in_shared_memory() -> set[str]:
    """Entries of /dev/shm, but for those of the servers and of the semaphores that other tests keep."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith(("PostgreSQL.", "sem.mp-"))}


@pytest.mark.parametrize("name", TRANSPORTS)
def test_memory_and_open_files_stay_what_they_were(tmp_path: Path, name: str) -> None:
    samples = ({"cls": i, "x": np.full((64, 64, 3), i % 251, np.uint8), "s": "x" * (i % 90)} for i in range(4000))
    streamio.write(samples, tmp_path / "s", shard_samples=500)
    loader = StreamLoader(ShardDataset(tmp_path / "s", 32, shuffle=True), **TRANSPORTS[name])
    begin, found, shared = time.monotonic(), list[tuple[float, int, int]](), in_shared_memory()
    kept: deque[Any] = deque(maxlen=3)
    epoch = 0
    while (at := time.monotonic() - begin) < SECONDS:
        for number, batch in enumerate(loader):
            kept.append(batch)
            assert batch["x"][0, 0, 0, 0] == int(batch["cls"][0]) % 251
            if epoch % 3 == 2 and number == epoch % 50:
                break  # abandoned
        epoch += 1
        if epoch % 5 == 0:
            gc.collect()
            found.append((at, *usage()))
    loader.close()
    early = [(m, f) for at, m, f in found if SECONDS * 0.25 < at < SECONDS * 0.5]
    late = [(m, f) for at, m, f in found if at > SECONDS * 0.75]
    memory = [statistics.median(m for m, _ in part) for part in (early, late)]
    files = [statistics.median(f for _, f in part) for part in (early, late)]
    assert memory[1] < memory[0] * 1.02, f"{memory[0] / 2**20:.1f} MiB, later {memory[1] / 2**20:.1f} MiB"
    assert files[1] <= files[0]
    left, patience = in_shared_memory() - shared, time.monotonic() + 90
    while left & in_shared_memory():  # other tests that run beside this one take theirs away again
        assert time.monotonic() < patience, left
        time.sleep(0.2)
    print(f"{name}: {epoch} epochs, {memory[1] / 2**20:.1f} MiB, {files[1]:.0f} files")
