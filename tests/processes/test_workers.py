"""Workers: the same under fork, spawn and forkserver; what dies is named; nothing is left behind."""

from __future__ import annotations

import functools
import os
import pickle
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader

import streamio
from streamio import ShardDataset, StreamLoader, TransformError, UsageError, WorkerDied, WorkerTimeout
from tests.conftest import FORMATS
from tests.sets import Several, keys, make_set, numbered, read

METHODS = ("fork", "spawn", "forkserver")


def same(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


@pytest.mark.parametrize("method", METHODS)
def test_proc_01_a_module_function_works_with_every_start_method(tmp_path: Path, method: str) -> None:
    """vllm-project/guidellm#782; pytorch/pytorch#188885; ROCm/apex#339."""
    path = make_set(tmp_path / "s", 20)
    assert keys(read(path, workers=1, context=method, transform=same)) == [s["__key__"] for s in numbered(20)]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("argument", ["transform", "collate", "decode"])
def test_proc_01_a_lambda_is_named_before_any_worker_starts(
    tmp_path: Path, method: str, argument: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function: Any = lambda x: x  # noqa: E731
    options = {argument: {"txt": function} if argument == "decode" else function}
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    before = children()
    with pytest.raises(UsageError, match=rf"{argument}.*<lambda>.*cannot be sent to a worker.*module.*cloudpickle"):
        read(make_set(tmp_path / "s", 20), workers=2, context=method, **options)
    assert children() == before
    assert read(make_set(tmp_path / "t", 20), workers=2, context="fork", **options)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_proc_01_a_lambda_goes_to_workers_by_cloudpickle(tmp_path: Path, method: str) -> None:
    path, added = make_set(tmp_path / "s", 20), torch.tensor(100)
    plain = read(path, workers=1, context=method, transform=lambda s: {"n": s["cls"] + added})
    mixture = streamio.Mixture(
        {"a": (ShardDataset(path, 4, transform=lambda s: {"n": s["cls"] + added}), 1)},
        4,
        weights=lambda step: [1.0],
    )
    loader = StreamLoader(mixture, num_workers=1, context=method)  # type: ignore[arg-type]
    for batches in (plain, list(loader)):
        assert [n for batch in batches for n in batch["n"].tolist()] == [100 + i for i in range(20)]
    loader.close()


def children() -> list[psutil.Process]:
    return [c for c in psutil.Process().children(recursive=True) if "resource_tracker" not in " ".join(c.cmdline())]


@pytest.fixture
def no_orphans() -> Any:
    before = {c.pid for c in children()}
    yield
    deadline = time.monotonic() + 5
    while left := [c for c in children() if c.pid not in before and "forkserver" not in " ".join(c.cmdline())]:
        if time.monotonic() > deadline:
            raise AssertionError(f"left behind: {left}")
        time.sleep(0.05)


@pytest.mark.usefixtures("no_orphans")
def test_proc_03_a_killed_worker_is_an_error_that_names_signal_and_cause(tmp_path: Path) -> None:
    """pytorch/pytorch#21554; microsoft/infinibatch#17."""
    loader = StreamLoader(ShardDataset(make_set(tmp_path / "s", 1000), 2), num_workers=3, prefetch_bytes=1)
    batches = iter(loader)
    next(batches), next(batches)
    pid = loader.worker_pids()[0]
    os.kill(pid, signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(WorkerDied, match=rf"{pid}.*signal 9 \(SIGKILL\).*out of memory"):
        list(batches)
    assert time.monotonic() - start < 10
    assert loader.worker_pids() == []
    assert len(keys(loader)) == 1000  # and the loader can be used again
    loader.close()


@pytest.mark.usefixtures("no_orphans")
def test_proc_03_a_stopped_worker_is_a_timeout_and_leaves_nobody(tmp_path: Path) -> None:
    loader = StreamLoader(
        ShardDataset(make_set(tmp_path / "s", 1000), 2), num_workers=3, prefetch_bytes=1, timeout=2
    )
    batches = iter(loader)
    next(batches)
    os.kill(loader.worker_pids()[1], signal.SIGSTOP)
    start = time.monotonic()
    with pytest.raises(WorkerTimeout, match="within 2 seconds"):
        list(batches)
    assert time.monotonic() - start < 10


def draws(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {
        "__key__": sample["__key__"], "python": random.random(), "numpy": float(np.random.random()),
        "torch": float(torch.rand(1, dtype=torch.float64)), "own": float(rng.random()),
    }  # fmt: skip


def test_seed_01_no_draw_comes_twice_over_workers_and_epochs_and_all_come_again_with_the_seed(
    tmp_path: Path,
) -> None:
    """pytorch/pytorch#5059, #41329; Lightning-AI/pytorch-lightning#20412."""
    path = make_set(tmp_path / "s", 64)

    def run(workers: int, kinds: tuple[str, ...]) -> list[float]:
        loader = StreamLoader(ShardDataset(path, 4, transform=draws), num_workers=workers)
        return [x for _ in range(2) for batch in loader for kind in kinds for x in batch[kind].tolist()]

    for kind in ("python", "numpy", "torch"):
        drawn = run(4, (kind,))
        assert len(set(drawn)) == 128
        assert run(4, (kind,)) == drawn
        assert run(2, (kind,)) == drawn  # seeded by batch, so not by worker either
    assert run(0, ("own",)) == run(3, ("own",))


def test_the_main_process_keeps_its_own_randomness(tmp_path: Path) -> None:
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    list(ShardDataset(make_set(tmp_path / "s", 20), 4, transform=draws))
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_lmdb_02_a_set_that_was_read_goes_to_workers(tmp_path: Path, method: str) -> None:
    """pytorch/vision#689; baudm/parseq#6; aqlaboratory/openfold-3#148."""
    opened = {fmt: streamio.open(make_set(tmp_path / fmt, 20, fmt)) for fmt in FORMATS}
    for table in opened.values():
        table[0]
        assert len(pickle.dumps(table)) < 1000
    several = Several({fmt: ShardDataset(table, 4) for fmt, table in opened.items()})
    found = list(DataLoader(several, batch_size=None, num_workers=2, multiprocessing_context=method))
    for fmt in FORMATS:
        assert sorted(keys(b for f, b in found if f == fmt)) == [s["__key__"] for s in numbered(20)], fmt


def test_hdf_01_a_set_that_was_read_before_the_fork_gives_right_values(tmp_path: Path, fmt: str) -> None:
    """pytorch/pytorch#11887, #1919; h5py/h5py#934."""
    opened = streamio.open(make_set(tmp_path / "s", 1000, fmt, shard_samples=300))
    opened[0]
    loader = StreamLoader(ShardDataset(opened, 16, shuffle=True), num_workers=4, context="fork")
    for _ in range(3):
        seen = []
        for batch in loader:
            numbers = [int(k[2:]) for k in batch["__key__"]]
            assert batch["cls"].tolist() == numbers and batch["x"][:, 1].tolist() == numbers
            seen += numbers
        assert sorted(seen) == list(range(1000))


def test_an_error_in_a_worker_is_the_error_itself_with_the_users_traceback(tmp_path: Path) -> None:
    loader = StreamLoader(ShardDataset(make_set(tmp_path / "s", 20), 4, transform=broken), num_workers=2)
    with pytest.raises(
        streamio.TransformError, match=r"row 6 \('k/00006'\): transform raised ZeroDivisionError"
    ) as caught:
        list(loader)
    assert "in broken" in "".join(caught.value.__notes__)
    assert loader.worker_pids() == []


def broken(sample: dict[str, Any]) -> dict[str, Any]:
    return {"x": 1 / (int(sample["cls"]) - 6)}


def test_an_abandoned_epoch_does_not_disturb_the_next(tmp_path: Path) -> None:
    loader = StreamLoader(ShardDataset(make_set(tmp_path / "s", 200), 4, shuffle=True), num_workers=2)
    for _ in loader:
        break
    assert sorted(keys(loader)) == [s["__key__"] for s in numbered(200)]
    assert loader.epoch == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_a_second_iteration_ends_the_first_with_an_error_and_is_whole_itself(tmp_path: Path, workers: int) -> None:
    """Two at a time would share the workers' batches between them."""
    loader = StreamLoader(ShardDataset(make_set(tmp_path / "s", 60), 4), num_workers=workers)
    first = iter(loader)
    next(first)
    second = iter(loader)
    got = [next(second)]
    with pytest.raises(UsageError, match="another iteration over this StreamLoader has begun"):
        next(first)
    assert sorted(keys([*got, *second])) == [s["__key__"] for s in numbered(60)]
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("error", [RuntimeError, ValueError, StopIteration])
def test_an_error_in_a_collate_is_named_as_such(tmp_path: Path, workers: int, error: type[Exception]) -> None:
    dataset = ShardDataset(make_set(tmp_path / "s", 20), 4, collate=functools.partial(failing, error))
    loader = StreamLoader(dataset, num_workers=workers)
    with pytest.raises(
        TransformError, match=rf"collate raised {error.__name__}: no; the batch starts with 'k/00000'"
    ):
        list(loader)
    assert loader.worker_pids() == []


def failing(error: type[Exception], samples: list[Any]) -> Any:
    raise error("no")


@pytest.mark.usefixtures("no_orphans")
def test_a_worker_that_exits_by_itself_is_named_too(tmp_path: Path) -> None:
    loader = StreamLoader(ShardDataset(make_set(tmp_path / "s", 20), 4, transform=leave), num_workers=1)
    with pytest.raises(WorkerDied, match="ended by itself"):
        list(loader)


def leave(sample: dict[str, Any]) -> Any:
    raise KeyboardInterrupt


def test_ranks_of_the_environment_reach_the_workers_of_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a process per rank that got the data set pickled and learns its rank then."""
    copy = pickle.loads(pickle.dumps(ShardDataset(make_set(tmp_path / "s", 20), 4)))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for method in METHODS:
        loader = StreamLoader(copy, num_workers=2 if method == "fork" else 1, context=method)
        copy.set_epoch(0)
        assert keys(loader) == keys(ShardDataset(tmp_path / "s", 4, rank=1, world_size=2)), method
        loader.close()


def test_epochs_reach_workers_that_live_on(tmp_path: Path) -> None:
    path = make_set(tmp_path / "s", 64)
    loader = StreamLoader(ShardDataset(path, 4, shuffle=True), num_workers=2)
    epochs = [keys(loader) for _ in range(3)]
    pids = loader.worker_pids()
    assert [keys(StreamLoader(ShardDataset(path, 4, shuffle=True), num_workers=0))] == epochs[:1]
    assert epochs[0] != epochs[1] != epochs[2]
    loader.set_epoch(1)
    assert keys(loader) == epochs[1]
    assert loader.worker_pids() == pids
    loader.close()
