"""transport="auto": where batches are made is decided by what they cost, and nothing else depends on it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from streamio import ShardDataset, StreamLoader, stream
from streamio.loading import auto, budget
from streamio.loading.auto import AutoTransport
from streamio.loading.budget import best_inline
from tests.loading.conformance import until
from tests.sets import keys, make_set, numbered

MS = 1e-3


@pytest.mark.parametrize(
    ("making", "loop", "size", "workers", "bundle", "inline"),
    [
        (75 * MS, 0, 10_000_000, 2, 1, False),  # pictures decoded
        (75 * MS, 5, 10_000_000, 2, 1, False),  # the first steps of a training take long
        (1 * MS, 0, 10_000_000, 2, 1, False),  # raw pictures
        (0.5 * MS, 0, 10_000_000, 2, 1, True),  # at the speed of memory
        (1 * MS, 3 * MS, 10_000_000, 2, 1, False),
        (0.5 * MS, 100 * MS, 10_000_000, 2, 1, True),  # it makes no difference
        (0.1 * MS, 0, 200_000, 2, 1, True),  # tiny records
        (0.1 * MS, 0, 200_000, 16, 1, False),  # nearly as quick, so they are tried
        (0.1 * MS, 0, 200_000, 2, 8, False),
        (1 * MS, 0, 200_000, 16, 1, False),
        (0.5 * MS, 0, 10_000_000, 1, 1, True),  # one CPU, and nothing to do meanwhile
        (75 * MS, 50 * MS, 10_000_000, 1, 1, False),
    ],
)
def test_batches_are_made_inline_where_no_worker_would_be_faster(
    making: float, loop: float, size: int, workers: int, bundle: int, inline: bool
) -> None:
    assert best_inline(making, loop, size, workers, bundle) is inline


def loader_of(path: str, **options: Any) -> StreamLoader:
    return StreamLoader(ShardDataset(path, 4, shuffle=True, **options))


@pytest.mark.parametrize("inline", [True, False])
def test_nothing_is_made_twice_or_left_out_wherever_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline: bool
) -> None:
    monkeypatch.setattr(auto, "best_inline", lambda *costs: inline)
    path = make_set(tmp_path / "s", 400)
    loader, expected = loader_of(path), StreamLoader(ShardDataset(path, 4, shuffle=True), num_workers=0)
    for epoch in range(2):
        got = []
        for number, batch in enumerate(loader, 1):
            got.append(batch)
            assert loader.state_dict() == loader.dataset.state_at(number, epoch)
            if number > auto._MOST and not inline:
                time.sleep(0.02)  # workers start
        assert keys(got) == keys(expected)
    assert loader.stats().transport == ("inline" if inline else "process")
    assert bool(loader.worker_pids()) is not inline
    loader.close()


def test_the_loop_goes_on_while_workers_start_and_the_decision_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "best_inline", lambda *costs: False)
    loader = loader_of(make_set(tmp_path / "s", 400))
    transport = loader._transport
    assert isinstance(transport, AutoTransport)
    with monkeypatch.context() as never:
        never.setattr(transport.workers, "are_ready", lambda: False)
        assert len(keys(loader)) == 400
    assert loader.stats().transport == "inline" and loader.worker_pids()
    monkeypatch.setattr(auto, "best_inline", lambda *costs: True)
    until(transport.workers.are_ready)
    assert len(keys(loader)) == 400
    assert loader.stats().transport == "process"
    loader.close()


@pytest.mark.parametrize("worse", [0.0, float("inf")])
def test_workers_are_tried_and_kept_or_given_up_in_the_middle_of_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worse: float
) -> None:
    monkeypatch.setattr(auto, "best_inline", lambda *costs: False)
    monkeypatch.setattr(auto, "_ROUNDS", 2)
    monkeypatch.setattr(auto, "_ENOUGH", float("inf"))
    monkeypatch.setattr(auto, "_WORSE", worse)
    monkeypatch.setattr(stream, "bundle_size", lambda size: 3)
    path = make_set(tmp_path / "s", 1200)
    loader, expected = loader_of(path), StreamLoader(ShardDataset(path, 4, shuffle=True), num_workers=0)
    transport = loader._transport
    assert isinstance(transport, AutoTransport)
    seen, got = set(), []
    for number, batch in enumerate(loader, 1):
        got.append(batch)
        seen.add(loader.stats().transport)
        assert loader.state_dict() == loader.dataset.state_at(number, 0)
        if number == auto._MOST + 3:  # measured, and the workers are started
            until(transport.workers.are_ready)
    assert keys(got) == keys(expected) and seen == {"inline", "process"}
    assert transport.chosen is (transport.workers if worse else transport.inline)
    assert bool(loader.worker_pids()) is bool(worse)
    assert keys(loader) == keys(expected)
    assert loader.stats().transport == ("process" if worse else "inline")
    loader.close()


@pytest.mark.parametrize(("memory", "bundle"), [("128MB", 16), ("100kB", 2), (1, 1)])
def test_a_round_is_a_bundle_of_each_worker_as_large_as_the_memory_lets_it_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int | str, bundle: int
) -> None:
    asked: list[tuple[float, ...]] = []
    monkeypatch.setattr(auto, "best_inline", lambda *costs: not asked.append(costs))  # type: ignore[func-returns-value]
    monkeypatch.setattr(budget, "usable_cpus", lambda: 3)
    loader = StreamLoader(ShardDataset(make_set(tmp_path / "s", 800), 4), prefetch_bytes=memory)
    assert isinstance(loader._transport, AutoTransport)
    assert loader._transport.round == 3 * bundle
    assert len(keys(loader)) == 800
    assert asked[0][3:] == (3, bundle)
    loader.close()


def test_short_epochs_are_whole_and_count_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "best_inline", lambda *costs: False)
    monkeypatch.setattr(auto, "_ENOUGH", float("inf"))  # so many batches are measured, however slow the machine
    loader = loader_of(make_set(tmp_path / "s", 6))
    for _ in range(auto._MOST // 2):
        assert loader.worker_pids() == []
        assert sorted(keys(loader)) == [sample["__key__"] for sample in numbered(6)]
    assert loader.worker_pids()
    loader.close()


def test_user_code_goes_to_worker_processes_from_the_first_batch(tmp_path: Path) -> None:
    loader = loader_of(make_set(tmp_path / "s", 12), transform=in_worker)
    assert [batch["worker"].tolist() for batch in loader] == [[True] * 4] * 3
    loader.close()


def in_worker(sample: dict[str, Any]) -> dict[str, Any]:
    import multiprocessing

    return {"worker": multiprocessing.parent_process() is not None}
