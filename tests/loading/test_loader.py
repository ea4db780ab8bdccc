"""StreamLoader: what it refuses before any worker starts, what it says of itself, and odd things on their way."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

import streamio
from streamio import SequentialDataset, ShardDataset, StreamLoader, TailError, UsageError, WorkerDied, WorkerError
from streamio.handover.ring import SlotRing
from streamio.loading import worker
from tests import warm
from tests.samples import raw_tar
from tests.sets import keys, make_set, numbered


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": -1}, "num_workers=-1"),
        ({"num_workers": "all"}, "num_workers='all'"),
        ({"context": "thread"}, "context='thread'. Use one of fork, spawn, forkserver"),
        ({"timeout": -1}, "timeout=-1"),
        ({"timeout": "5"}, "timeout='5'"),
        ({"transport": "threads"}, "transport='threads'. Use one of auto, inline, thread, process"),
        ({"transport": "inline", "num_workers": 2}, "num_workers=2 with transport='inline'"),
        ({"transport": "thread", "num_workers": 0}, "num_workers=0 with transport='thread'"),
        ({"transport": "process", "num_workers": 0}, "num_workers=0 with transport='process'"),
        ({"threads": 0}, "threads=0"),
        ({"threads": 2, "num_workers": 0}, "threads=2 without worker processes"),
        ({"threads": 2, "transport": "thread"}, "threads=2 without worker processes"),
        ({"prefetch_bytes": -1}, "prefetch_bytes=-1. Sizes are written like 256MB"),
        ({"prefetch_bytes": "much"}, "prefetch_bytes='much'"),
        ({"prefetch_bytes": True}, "prefetch_bytes=True"),
        ({"pin_memory": "yes"}, "pin_memory='yes'"),
    ],
)
def test_what_cannot_work_is_refused_at_construction(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        StreamLoader(ShardDataset(make_set(tmp_path / "s", 3), 2), **options)


def test_anything_but_a_data_set_of_ours_is_refused() -> None:
    with pytest.raises(UsageError, match="reads a data set of streamio, not list"):
        StreamLoader([1, 2])  # type: ignore[arg-type]


def test_an_epoch_that_cannot_be_even_is_refused_before_any_worker_starts(tmp_path: Path) -> None:
    loader = StreamLoader(ShardDataset(make_set(tmp_path / "s", 3), 1, rank=0, world_size=2), num_workers=2)
    for ask in (len, iter):
        with pytest.raises(TailError, match="pad"):
            ask(loader)
    assert loader.worker_pids() == []


@pytest.mark.parametrize(
    ("options", "transport", "workers"),
    [
        ({"num_workers": 0}, "inline", 0),
        ({"transport": "inline"}, "inline", 0),
        ({"num_workers": 2}, "process", 2),
        ({"num_workers": 2, "threads": 3}, "process", 2),
        ({"num_workers": 3, "transport": "thread"}, "thread", 3),
    ],
)
def test_stats_say_who_made_what(tmp_path: Path, options: Any, transport: str, workers: int) -> None:
    loader = StreamLoader(ShardDataset(make_set(tmp_path / "s", 20), 4), **options)
    assert len(keys(loader)) == 20
    found = loader.stats()
    assert (found.transport, found.workers, found.batches) == (transport, workers, 5)
    assert found.waited > 0
    assert (found.handed_over > 0) == (transport == "process")
    assert found.ahead >= 2 * workers
    loader.close()


def test_the_memory_for_batches_may_be_written_as_people_do(tmp_path: Path) -> None:
    dataset = ShardDataset(make_set(tmp_path / "s", 200), 2)
    sizes = (0, 1, "20kB", "1MB", 10**6)
    ahead = [StreamLoader(dataset, num_workers=1, prefetch_bytes=size).stats().ahead for size in sizes]
    assert ahead[0] == ahead[1] == 2 < ahead[2] < ahead[3] == ahead[4]


def test_a_block_ends_the_workers_of_its_loader(tmp_path: Path) -> None:
    loader = StreamLoader(ShardDataset(make_set(tmp_path / "s", 20), 4), num_workers=2)
    with suppress(KeyError), loader as entered:
        assert entered is loader and len(keys(loader)) == 20
        pids = loader.worker_pids()
        raise KeyError
    assert len(pids) == 2 and loader.worker_pids() == [] and not any(map(psutil.pid_exists, pids))


def test_a_loop_that_is_slow_lets_workers_make_no_more_than_they_may(tmp_path: Path) -> None:
    dataset = ShardDataset(make_set(tmp_path / "s", 200), 2, transform=note_down)
    for options in ({"transport": "thread"}, {"transport": "process"}):
        notes = tmp_path / "notes"
        notes.write_text("")
        os.environ["STREAMIO_TEST_NOTES"] = str(notes)
        loader = StreamLoader(dataset, num_workers=2, prefetch_bytes=1, **options)
        batches = iter(loader)
        next(batches)
        time.sleep(0.5)
        assert 2 <= len(notes.read_text()) // 2 <= 1 + loader.stats().ahead
        loader.close()


def note_down(sample: dict[str, Any]) -> dict[str, Any]:
    with open(os.environ["STREAMIO_TEST_NOTES"], "a") as file:
        file.write(".")
    return sample


@pytest.mark.parametrize("threads", [1, 2])
def test_batches_that_fill_the_pipes_do_not_hold_up_an_abandoned_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """Where there is no shared memory, batches go through the pipes, which hold less than one of them."""
    monkeypatch.setattr(worker, "SlotRing", lambda max_bytes: SlotRing(pickle_bytes=1 << 40))
    dataset = ShardDataset(make_set(tmp_path / "s", 40), 2, transform=large)
    loader = StreamLoader(dataset, num_workers=2, context="fork", threads=threads, timeout=20)
    for _ in range(2):
        for batch in loader:
            assert batch["x"].shape == (2, 1 << 20)
            break
    assert [n for batch in loader for n in batch["x"][:, 5].tolist()] == list(range(40))
    assert loader.stats().handed_over > 40 << 20
    batches = iter(loader)
    next(batches)
    begin = time.monotonic()
    loader.close()
    assert time.monotonic() - begin < 2


def large(sample: dict[str, Any]) -> dict[str, Any]:
    return {"x": torch.full((1 << 20,), int(sample["cls"]), dtype=torch.uint8)}


def test_what_cannot_travel_is_an_error_that_says_so(tmp_path: Path) -> None:
    path = make_set(tmp_path / "s", 8)
    with pytest.raises(Exception, match="pickle"):
        list(StreamLoader(ShardDataset(path, 4, collate=unpicklable), num_workers=1))


def unpicklable(samples: list[Any]) -> Any:
    return lambda: samples


def test_an_error_that_cannot_travel_comes_as_its_text(tmp_path: Path) -> None:
    class Table:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def gather(self, *arguments: Any) -> Any:
            class Odd(Exception):
                pass

            raise Odd("storage is odd")

    table = Table(ShardDataset(make_set(tmp_path / "s", 8), 4).table)
    with pytest.raises(WorkerError, match="storage is odd"):
        list(StreamLoader(ShardDataset(table, 4), num_workers=1, context="fork"))


def test_a_worker_that_cannot_start_says_how_to_write_the_script(tmp_path: Path) -> None:
    dataset = ShardDataset(make_set(tmp_path / "s", 8), 4)
    dataset.poison = Poison()  # type: ignore[attr-defined]
    with pytest.raises(WorkerDied, match=r"exit code 1 as it started: .*__main__"):
        list(StreamLoader(dataset, num_workers=1, context="spawn"))


class Poison:
    def __reduce__(self) -> Any:
        return _burst, ()


def _burst() -> None:
    raise SystemExit(1)


def test_a_daemonic_process_has_no_workers_and_auto_needs_none(tmp_path: Path) -> None:
    path = make_set(tmp_path / "s", 20)
    child = multiprocessing.get_context("fork").Process(target=_daemonic, args=(path,), daemon=True)
    child.start()
    child.join(20)
    assert child.exitcode == 0


def _daemonic(path: str) -> None:
    assert len(keys(StreamLoader(ShardDataset(path, 4)))) == 20
    with pytest.raises(UsageError, match="daemonic"):
        list(StreamLoader(ShardDataset(path, 4), num_workers=1))


def test_a_stream_is_read_by_processes_and_not_by_threads(tmp_path: Path) -> None:
    for shard in range(3):
        raw_tar(tmp_path / f"a-{shard}.tar", [(f"{shard}{i}.cls", str(i).encode()) for i in range(5)])
    dataset = SequentialDataset(f"{tmp_path}/a-*.tar", 2, ("__key__",), shuffle=True, buffer=3)
    for options in ({"transport": "thread"}, {"threads": 2}):
        with pytest.raises(UsageError, match="threads for a SequentialDataset"):
            StreamLoader(dataset, **options)  # type: ignore[arg-type]
    for options in ({"transport": "inline"}, {"num_workers": 2}, {"num_workers": 5}):
        loader = StreamLoader(dataset, **options)  # type: ignore[arg-type]
        for _ in loader:
            break
        assert sorted(key for batch in loader for key in batch[0]) == [
            f"{s}{i}" for s in range(3) for i in range(5)
        ]
        loader.close()


def test_ranks_divide_an_epoch_whatever_the_transport(tmp_path: Path) -> None:
    path = make_set(tmp_path / "s", 50)
    got: list[str] = []
    for rank, options in enumerate([{"num_workers": 2}, {"transport": "thread", "num_workers": 2}, {}]):
        loader = StreamLoader(ShardDataset(path, 4, rank=rank, world_size=3), **options)  # type: ignore[arg-type]
        got += keys(loader)
        loader.close()
    assert sorted(got) == [sample["__key__"] for sample in numbered(50)]


OPTIONS: tuple[dict[str, Any], ...] = (
    {"num_workers": 2}, {"num_workers": 1, "threads": 2}, {"num_workers": 2, "transport": "thread"}, {},
)  # fmt: skip


def _with_each_transport(body: str, before: str = "") -> str:
    return (
        f"{before}\nfrom streamio import ShardDataset, StreamLoader\n"
        f"for options in {OPTIONS!r}:\n{textwrap.indent(textwrap.dedent(body), '    ')}"
    )


def _in_small_shm(code: str) -> subprocess.CompletedProcess[str]:
    mount = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'
    return subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount, "sh", sys.executable, "-W", "error", "-c", code],
        capture_output=True, text=True, timeout=90,
    )  # fmt: skip


def test_mem_03_a_small_dev_shm_does_not_matter_to_any_transport(tmp_path: Path) -> None:
    """pytorch/pytorch#5040, #16979: a bus error because /dev/shm has 64 MB in a container."""
    if shutil.which("unshare") is None or _in_small_shm("pass").returncode:
        pytest.skip("needs the right to mount")
    samples = ({"x": np.full((1000, 1000), i, np.float32)} for i in range(48))
    streamio.write(samples, tmp_path / "s", shard_samples=12)
    code = _with_each_transport(
        f"""
        kept = list(StreamLoader(ShardDataset({str(tmp_path / "s")!r}, 6, fields=("x",)), **options))
        assert [int(x) for batch, in kept for x in batch[:, 7, 7]] == list(range(48))
        """
    )
    done = _in_small_shm(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_mem_04_a_loop_that_keeps_1000_batches_needs_few_open_files(tmp_path: Path) -> None:
    """pytorch/pytorch#973, #11201, #41465: "received 0 items of ancdata"."""
    path = make_set(tmp_path / "s", 1000, shard_samples=400)
    code = _with_each_transport(
        f"""
        kept = list(StreamLoader(ShardDataset({path!r}, 1), **options))
        assert [int(b["cls"]) for b in kept] == [int(b["x"][0, 2]) for b in kept] == list(range(1000))
        """,
        before="import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))",
    )
    done = warm.run(["-c", code], 90)
    assert (done.returncode, done.stderr) == (0, "")
