"""The plain DataLoader has the ring, too: nothing changes but the speed."""

from __future__ import annotations

import gc
import hashlib
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import streamio
from streamio import SequentialDataset, ShardDataset
from streamio.handover import leases
from tests import warm
from tests.sets import make_set

SIDE = 96  # of a float32 square: a batch of two and more goes in a slot


def large(path: Path, n: int = 40, fmt: str = "tar", **options: Any) -> str:
    """A set of n squares, each full of its own number."""
    samples = ({"__key__": str(i), "x": np.full((SIDE, SIDE), i, np.float32), "cls": i} for i in range(n))
    streamio.write(samples, path, format=fmt, **options)
    return str(path)


def loader(dataset: Any, workers: int = 2, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=None, num_workers=workers, **options)


def check(batch: Any) -> list[int]:
    """Its numbers, which its squares must be full of."""
    assert (batch["x"] == batch["cls"][:, None, None]).all()
    return [int(n) for n in batch["cls"]]


def in_slots() -> int:
    """Slots of living workers that this process views."""
    gc.collect()
    return len(leases._held)


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_batches_come_in_slots_under_every_start_method(tmp_path: Path, context: str) -> None:
    before = in_slots()
    kept = list(loader(ShardDataset(large(tmp_path / "s"), 4, shuffle=True), multiprocessing_context=context))
    assert sorted(n for batch in kept for n in check(batch)) == list(range(40))
    assert in_slots() == before + 10
    del kept
    assert in_slots() == before


def test_sequential_sets_too(tmp_path: Path) -> None:
    before = in_slots()
    tars = sorted(map(str, Path(large(tmp_path / "s", shard_samples=10)).glob("*.tar")))
    kept = list(loader(SequentialDataset(tars, 4, ("x.npy", "cls"))))
    assert sorted(n for x, cls in kept for n in check({"x": x, "cls": cls})) == list(range(40))
    assert in_slots() > before


def test_several_loaders_epochs_and_broken_off_ones_at_once(tmp_path: Path) -> None:
    dataset = ShardDataset(large(tmp_path / "s"), 4)
    persistent = loader(dataset, persistent_workers=True, prefetch_factor=4)
    kept = []
    for _ in range(3):
        for batch in persistent:
            kept.append(batch)
            for inner in loader(ShardDataset(dataset.table, 8), 1):
                assert check(inner) == list(range(8))
                break
            if len(kept) % 5 == 0:
                break
    assert [check(batch)[0] for batch in kept] == [0, 4, 8, 12, 16] * 3
    assert [n for batch in persistent for n in check(batch)] == list(range(40))


def test_tuples_become_what_they_become_without_workers(tmp_path: Path) -> None:
    dataset = ShardDataset(large(tmp_path / "s"), 4, fields=("x", "cls", "__key__"))
    for workers in (0, 1):
        (x, cls, keys), *_ = list(loader(dataset, workers))
        assert type(next(iter(loader(dataset, workers)))) is list
        assert x.shape == (4, SIDE, SIDE) and cls.tolist() == [0, 1, 2, 3] and keys == ["0", "1", "2", "3"]


class Wrapped(IterableDataset[Any]):
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Any:
        for batch in self.dataset:
            yield batch["x"] * 2, batch["cls"]


def test_who_comes_between_gets_batches(tmp_path: Path) -> None:
    """A function or a data set of the user's that gets our batches in the worker gets nothing but batches."""
    dataset = ShardDataset(large(tmp_path / "s"), 4)
    collated = list(loader(dataset, collate_fn=lambda batch: batch | {"more": batch["x"].sum()}))
    assert check(collated[0]) == [0, 1, 2, 3] and all(b["more"] == b["x"].sum() for b in collated)
    for doubled, numbers in loader(Wrapped(dataset)):
        assert (doubled == 2 * numbers[:, None, None]).all()


def test_an_error_in_a_worker_comes_through(tmp_path: Path) -> None:
    def fails(sample: Any) -> Any:
        if sample["cls"] == 30:
            raise ZeroDivisionError("no")
        return sample

    dataset = ShardDataset(large(tmp_path / "s"), 4, transform=fails)
    kept: list[Any] = []
    with pytest.raises(Exception, match="transform raised ZeroDivisionError: no"):
        kept.extend(loader(dataset))
    assert [n for batch in kept for n in check(batch)] == list(range(28))


def test_channels_first_pictures_stay_channels_last_in_memory(tmp_path: Path) -> None:
    pictures = [np.full((SIDE, SIDE, 3), i, np.uint8) for i in range(8)]
    streamio.write(({"__key__": str(i), "x": p} for i, p in enumerate(pictures)), tmp_path / "s")
    (batch,) = loader(ShardDataset(str(tmp_path / "s"), 8, layout="chw"), 1)
    assert batch["x"].shape == (8, 3, SIDE, SIDE)
    assert batch["x"].is_contiguous(memory_format=torch.channels_last)
    assert (batch["x"] == torch.arange(8)[:, None, None, None]).all()


def in_small_shm(code: str) -> subprocess.CompletedProcess[str]:
    mount = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'
    python = [sys.executable, "-W", "error", "-W", "ignore:This DataLoader", "-c", textwrap.dedent(code)]
    return subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount, "sh", *python], capture_output=True, text=True, timeout=60
    )


def with_few_files(code: str, files: int) -> subprocess.CompletedProcess[str]:
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, {files}))\n"
    return warm.run(["-c", limit + textwrap.dedent(code)])


def test_mem_03_a_small_dev_shm_does_not_matter(tmp_path: Path) -> None:
    """pytorch/pytorch#5040, #16979: a bus error because /dev/shm has 64 MB in a container."""
    if in_small_shm("").returncode:
        pytest.skip("needs the right to mount")
    samples = ({"__key__": str(i), "x": np.full((1000, 1000), i, np.float32)} for i in range(48))
    streamio.write(samples, tmp_path / "s", shard_samples=12)
    done = in_small_shm(
        f"""
        import os
        from torch.utils.data import DataLoader
        from streamio import ShardDataset
        kept = list(DataLoader(ShardDataset({str(tmp_path / "s")!r}, 6), batch_size=None, num_workers=4))
        assert os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize == 64 << 20
        assert [int(x) for b in kept for x in b["x"][:, 7, 7]] == list(range(48))
        """
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_mem_04_a_loop_that_keeps_1000_batches_needs_few_open_files(tmp_path: Path) -> None:
    """pytorch/pytorch#973, #11201, #41465: "received 0 items of ancdata"."""
    done = with_few_files(
        f"""
        from torch.utils.data import DataLoader
        from streamio import ShardDataset
        kept = list(DataLoader(ShardDataset({make_set(tmp_path / "s", 1000, shard_samples=400)!r}, 1),
                               batch_size=None, num_workers=2))
        assert [int(b["cls"]) for b in kept] == [int(b["x"][0, 2]) for b in kept] == list(range(1000))
        """,
        256,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_mem_04_large_batches_too(tmp_path: Path) -> None:
    done = with_few_files(
        f"""
        from torch.utils.data import DataLoader
        from streamio import ShardDataset
        dataset = ShardDataset({large(tmp_path / "s", 600)!r}, 2)
        kept = list(DataLoader(dataset, batch_size=None, num_workers=2))
        assert [int(n) for b in kept for n in b["x"][:, 5, 5]] == list(range(600))
        """,
        64,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("batch_size", [1, 8])
def test_mem_06_what_the_loop_writes_into_a_batch_stays_there(tmp_path: Path, fmt: str, batch_size: int) -> None:
    """pytorch/pytorch#46741, #5442: tensors over a read-only map."""
    path = large(tmp_path / "s", 16, fmt)
    files = [file for file in Path(path).iterdir() if file.is_file()]
    before = [hashlib.sha256(file.read_bytes()).digest() for file in files]
    dataset = ShardDataset(path, batch_size)
    for _ in range(2):
        numbers = []
        for batch in loader(dataset):
            numbers += check(batch)
            batch["x"] += 1
            assert (batch["x"] == batch["cls"][:, None, None] + 1).all()
        assert numbers == list(range(16))
    assert [hashlib.sha256(file.read_bytes()).digest() for file in files] == before
