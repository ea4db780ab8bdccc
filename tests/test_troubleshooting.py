"""docs/troubleshooting.md: every row has a test that is there; those of its faults that have no better place."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import streamio
from streamio import ShardDataset, StreamLoader
from tests.sets import keys, make_set

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "troubleshooting.md"
FAULTS = (
    "GPU is idle", "Memory grows with the workers", "Bus error", "Can't pickle", "same augmentations",
    "Expected more than 1 value", "Options that do not go together", "__main__", "notebook", "requires_grad",
    "filters", "forked", "One rank got fewer batches", "persistent_workers", "batch_size",
)  # fmt: skip


def rows() -> list[list[str]]:
    """The cells of each row."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def test_every_row_of_the_page_names_a_test_that_is_there() -> None:
    assert len(rows()) >= len(FAULTS)
    for cells in rows():
        assert len(cells) == 5 and all(cells), cells
        named = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", cells[4])
        assert named is not None, cells[4]
        assert f"def {named[2]}(" in (ROOT / named[1]).read_text(encoding="utf-8"), cells[4]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_page_has_each_of_the_known_faults(fault: str) -> None:
    assert any(fault in " ".join(cells[:2]) for cells in rows())


def slow(sample: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.01)
    return sample


def test_gpu_idle_the_verdict_names_the_wait_the_stage_and_the_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_set(tmp_path / "s", 40)
    meter = streamio.watch(StreamLoader(ShardDataset(path, 4, transform=slow), num_workers=0))
    for _ in meter:
        pass
    assert meter.verdict is not None and (meter.verdict.bound, meter.verdict.stage) == ("data", "transform")
    changes = " ".join(advice.change for advice in meter.verdict.advice)
    assert "a lighter transform" in changes and "prepare= with cache=" in changes
    assert "data-bound" in capsys.readouterr().err
    meter = streamio.watch(StreamLoader(ShardDataset(path, 4), num_workers=0), quiet=True)
    for _ in meter:
        time.sleep(0.05)
    assert meter.verdict is not None and meter.verdict.bound == "compute"


def own_memory(pid: int) -> int:
    """Pages that a process has to itself: also copies of those that it got by fork and touched."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_Dirty:"))


class InMemory(Dataset[Any]):
    """The usual data set: a list of samples."""

    def __init__(self, samples: int) -> None:
        self.samples = [{"cls": 1000 + i, "x": b"%d" % i} for i in range(samples)]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]["cls"], self.samples[index]["x"]


def list_in_workers(samples: int) -> int:
    """What the fuller of two forked workers of a DataLoader has to itself after an epoch of a list."""
    loader = DataLoader(InMemory(samples), batch_size=500, num_workers=2, persistent_workers=True, shuffle=True)
    for _ in loader:
        pass
    return max(own_memory(process.pid) for process in loader._iterator._workers)  # type: ignore[union-attr]


def shards_in_workers(samples: int, path: str) -> int:
    """The same of two workers of ours after three epochs of a shard set."""
    streamio.write(({"cls": i, "x": b"%d" % i} for i in range(samples)), path, shard_samples=20_000)
    ds = ShardDataset(path, 500, fields=("cls", "x"), shuffle="global")
    with StreamLoader(ds, num_workers=2, transport="process") as loader:
        for _ in range(3):
            for _ in loader:
                pass
        return max(own_memory(pid) for pid in loader.worker_pids())


def measured(call: str) -> int:
    """What a function of this file gives in a new process, whose heap has nothing in it that a fork would share."""
    code = f"from tests import {Path(__file__).stem} as here; print(here.{call})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_memory_growth_workers_hold_batches_and_not_the_set(tmp_path: Path) -> None:
    few, many = 2_000, 60_000
    assert measured(f"list_in_workers({many})") - measured(f"list_in_workers({few})") > 5 * 2**20, "the old fault"
    ours = [measured(f"shards_in_workers({samples}, {str(tmp_path / str(samples))!r})") for samples in (few, many)]
    assert ours[1] - ours[0] < 4 * 2**20


def test_one_sample_batch_norm_trains_through_the_last_batch(tmp_path: Path) -> None:
    path = make_set(tmp_path / "s", 33)
    layer = torch.nn.BatchNorm1d(3).train()
    *whole, last = torch.zeros(33, 3).split(8)  # as other loaders cut them: 8, 8, 8, 8, 1
    for part in whole:
        layer(part)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        layer(last)
    for tail in ("even", "drop", "pad"):
        ds = ShardDataset(path, 8, tail=tail)
        for loader in (StreamLoader(ds, num_workers=2), DataLoader(ds, batch_size=None, num_workers=2)):
            for batch in loader:
                assert torch.isfinite(layer(batch["x"])).all()


def test_filtering_is_done_once_and_not_in_each_worker(tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    def even(columns: Any) -> Any:
        with open(calls, "a") as file:
            file.write(f"{os.getpid()}\n")
        return np.asarray(columns["cls"]) % 2 == 0

    ds = ShardDataset(streamio.open(make_set(tmp_path / "s", 40)).where(even), 4)
    for method in ("fork", "spawn"):
        workers = 2 if method == "fork" else 1
        loader = StreamLoader(ds, num_workers=workers, transport="process", context=method)  # type: ignore[arg-type]
        for _ in range(2):
            assert sorted(keys(loader)) == [f"k/{i:05d}" for i in range(0, 40, 2)]
        loader.close()
    assert calls.read_text().split() == [str(os.getpid())]
