"""loader.stats() and its line on stderr: figures that add up."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from typing import Any

import psutil
import pytest

from streamio import ShardDataset, StreamLoader, UsageError
from streamio.loading.procmem import memory_of
from streamio.loading.stats import LoaderStats, report_line
from streamio.stream import DataStats
from streamio.world import SharedCounts, become_worker
from tests.loading.conformance import only_even
from tests.sets import keys, make_set

LINE = (
    r"epoch \d  \d+%  [\d,]+ samples/s  waited \d+%(  workers idle \d+%  ready \d+/\d+)?"
    r"(  ((read|decode|transform|collate|hand-over) \d+% ?)+)?"
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_set(tmp_path_factory.mktemp("set") / "s", 120)


def test_an_iteration_that_ends_another_counts_on(path: str) -> None:
    loader = StreamLoader(ShardDataset(path, 4), num_workers=0)
    first = iter(loader)
    for _ in range(3):
        next(first)
    time.sleep(0.2)  # behind the last batch of an epoch that is left: none of the loop's time
    begin = time.perf_counter()
    assert len(keys(loader)) == 120
    took = time.perf_counter() - begin
    stats = loader.stats()
    assert stats.batches == 33 and stats.samples == 132 and stats.epoch == 1
    assert stats.epoch_seconds <= took and stats.seconds < took + 0.2


def test_samples_are_those_in_batches_and_the_others_are_counted_by_reason(path: str) -> None:
    loader = StreamLoader(ShardDataset(path, 4, transform=only_even), num_workers=0)
    list(loader)
    assert (loader.stats().samples, loader.stats().data.dropped, loader.stats().data.skipped) == (60, 60, 0)


def test_the_hits_of_a_cache_are_in_the_stats(path: str) -> None:
    loader = StreamLoader(ShardDataset(path, 4, cache="memory", decode={"txt": len}), num_workers=0)
    list(loader)
    assert loader.stats().data.cache_hits == 0
    list(loader)
    assert loader.stats().data.cache_hits == loader.stats().data.cache_misses > 0


@pytest.mark.parametrize(
    "options",
    [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "transport": "thread"}],
    ids=["inline", "process", "thread"],
)
def test_a_line_comes_on_stderr_when_it_is_due(
    path: str, options: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    loader = StreamLoader(ShardDataset(path, 4), report_every=0.05, prefetch_bytes=1, **options)
    for _ in loader:
        time.sleep(0.02)
    loader.close()
    out, err = capfd.readouterr()
    lines = err.splitlines()
    assert out == "" and 2 <= len(lines) <= 15
    assert all(re.fullmatch(LINE, line) for line in lines), lines
    assert "collate" in lines[0] and ("ready" in lines[0]) == bool(loader.num_workers)
    assert [int(line.split()[2][:-1]) for line in lines] == sorted(int(line.split()[2][:-1]) for line in lines)


def test_other_ranks_and_quick_loops_are_silent(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    for rank, every in ((1, 0.01), (0, 3600)):
        loader = StreamLoader(ShardDataset(path, 4, rank=rank, world_size=2), report_every=every, num_workers=0)
        for _ in loader:
            time.sleep(0.01)
    assert capfd.readouterr() == ("", "")


def test_a_line_is_of_the_time_since_the_one_before() -> None:
    def stats(**changes: Any) -> LoaderStats:
        zero = dict.fromkeys(("read", "decode", "transform", "collate"), 0.0)
        data = DataStats(
            samples=0, batches=0, skipped=0, substituted=0, dropped=0, cache_hits=0, cache_misses=0, cache_bytes=0,
            seconds=zero,
        )  # fmt: skip
        nothing = LoaderStats(
            transport="process", workers=2, makers=2, ahead=8, epoch=3, epoch_seconds=0, batches=0, samples=0,
            seconds=0, waited=0, first_wait=0, idle=0, ready=0, ready_mean=0, handover=0, handed_over=0, data=data,
            memory=(),
        )  # fmt: skip
        return replace(nothing, **changes)

    early = stats(batches=10, samples=1000, seconds=20.0, waited=20.0, idle=0.0)
    data = replace(early.data, seconds={"read": 2.0, "decode": 7.0, "transform": 0.0, "collate": 0.0}, skipped=3)
    late = stats(
        batches=20, samples=124_450, seconds=30.0, waited=23.7, idle=5.0, data=data, handover=1.0, ready=2,
        ready_mean=4.0,
    )  # fmt: skip
    assert report_line(late.since(early), 41, 100) == (
        "epoch 3  41%  12,345 samples/s  waited 37%  workers idle 25%  ready 2/8  read 20% decode 70% hand-over 10%"
        "  3 skipped"
    )
    assert late.since(early).ready_mean == 8  # 10 batches of 0, then 10 of 8
    assert report_line(early, 7, None).startswith("epoch 3  7 batches  50 samples/s")


@pytest.mark.parametrize("every", [0, -1, "10", True])
def test_what_is_no_time_between_lines_is_refused(path: str, every: Any) -> None:
    with pytest.raises(UsageError, match="report_every="):
        StreamLoader(ShardDataset(path, 4), report_every=every)


def test_memory_is_what_the_kernel_says() -> None:
    (memory,) = memory_of([os.getpid()])
    full = psutil.Process().memory_full_info()
    for name in ("rss", "pss", "uss"):
        assert getattr(memory, name) == pytest.approx(getattr(full, name), rel=0.2), name
    assert memory_of([2**22 + 1]) == ()  # no such process


def test_counts_of_processes_add_up_and_each_has_its_own() -> None:
    counts = SharedCounts(("a", "b"))
    counts.add("a", 5)
    children = []
    for number in range(3):
        child = os.fork()
        if not child:
            become_worker(number, 3)
            for _ in range(1000):
                counts.add("a", 1 + number)
            counts.put("b", 7)
            counts.put("b", 8)
            os._exit(0)
        children.append(child)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    assert counts.totals() == {"a": 6005, "b": 24}
    assert [counts.of_worker(number, "a") for number in range(3)] == [1000, 2000, 3000]
