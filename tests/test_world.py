"""Run facts: who we are is read when iteration starts; an epoch has one number in all processes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import pytest
import torch.distributed
from torch.utils.data import DataLoader, IterableDataset

from streamio.errors import UsageError
from streamio.world import EpochCounter, World, current_world

METHODS = ("fork", "spawn", "forkserver")


class Counting(IterableDataset):
    """Each worker gives the epoch that it believes to run, twice."""

    def __init__(self) -> None:
        self.epochs = EpochCounter()

    def __iter__(self) -> Iterator[int]:
        return self.items(self.epochs.begin())

    def items(self, epoch: int) -> Iterator[int]:
        self.epochs.started(epoch)
        yield epoch
        yield epoch


@pytest.mark.parametrize(
    ("method", "persistent"),
    [(method, True) for method in METHODS]
    + [("fork", False), *(pytest.param(method, False, marks=pytest.mark.slow) for method in METHODS[1:])],
)
def test_an_epoch_has_one_number_in_all_workers_and_advances_by_itself(method: str, persistent: bool) -> None:
    data = Counting()
    loader = DataLoader(
        data, batch_size=None, num_workers=2, multiprocessing_context=method, persistent_workers=persistent
    )
    assert [list(loader) for _ in range(3)] == [[0] * 4, [1] * 4, [2] * 4]
    data.epochs.set(7)
    assert [list(loader) for _ in range(2)] == [[7] * 4, [8] * 4]
    data.epochs.set(0)
    assert list(loader) == [0] * 4
    assert data.epochs.next == 1


def test_an_epoch_has_one_number_in_spawned_workers_that_start_anew() -> None:
    data = Counting()
    loader = DataLoader(data, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    assert [list(loader) for _ in range(2)] == [[0] * 2, [1] * 2]
    data.epochs.set(7)
    assert list(loader) == [7] * 2


def test_advances_in_the_main_process_only_when_a_batch_is_asked_for() -> None:
    data = Counting()
    iter(data)
    assert list(data) == [0, 0]
    assert list(data) == [1, 1]
    next(iter(data))
    assert data.epochs.next == 3


def test_an_abandoned_epoch_counts_as_one_for_all_workers() -> None:
    data = Counting()
    loader = DataLoader(data, batch_size=None, num_workers=2, persistent_workers=True)
    for batch in loader:
        assert batch == 0
        break
    assert list(loader) == [1] * 4


def test_a_worker_that_starts_late_does_not_undo_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under spawn the first batch of one worker may come before another begins."""
    counter = EpochCounter()
    late = pickle.loads(pickle.dumps(counter))
    late._cell = counter._cell  # as torch hands it over
    monkeypatch.setattr("streamio.world.get_worker_info", lambda: True)
    counter.set(0)
    late.started(late.begin())
    assert counter.next == 0
    late.started(late.begin())
    assert counter.next == 1


def test_a_worker_that_begins_late_comes_to_the_same_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast one has begun, and has written down the next epoch, when the slow one reads."""
    parent = EpochCounter()
    monkeypatch.setattr("streamio.world.get_spawning_popen", lambda: object())
    state = parent.__getstate__()
    fast, slow = EpochCounter.__new__(EpochCounter), EpochCounter.__new__(EpochCounter)
    fast.__setstate__(state)
    slow.__setstate__(state)
    monkeypatch.setattr("streamio.world.get_worker_info", lambda: object())
    for before, expected in ((None, 0), (None, 1), (5, 5), (None, 6), (0, 0), (0, 0), (None, 1)):
        if before is not None:
            parent.set(before)
        for worker in (fast, slow):
            assert worker.begin() == expected
            worker.started(expected)
        assert parent.next == expected + 1


@pytest.mark.parametrize("make", [copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))], ids=["copy", "pickle"])
def test_a_copy_counts_by_itself(make: object) -> None:
    counter = EpochCounter()
    counter.set(3)
    other = make(counter)  # type: ignore[operator]
    other.set(5)
    assert (counter.next, other.next) == (3, 5)


def test_given_ranks_go_before_torch_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert current_world() == World(rank=0, world_size=1, worker=0, workers=1)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert current_world().rank == 2
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    assert (current_world().rank, current_world().world_size) == (1, 3)
    assert current_world((0, 2)).world_size == 2
    assert current_world((0, 2), parent=(1, 8)).world_size == 2


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "4", "WORLD_SIZE": "4"}, "rank 4 of world_size 4"),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, "rank -1"),
        ({"RANK": "1"}, "RANK='1' and WORLD_SIZE=None"),
        ({"WORLD_SIZE": "4"}, "RANK=None"),
        ({"RANK": "a", "WORLD_SIZE": "2"}, "RANK='a'"),
    ],
)
def test_refuses_an_environment_that_makes_no_sense(
    environment: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=message):
        current_world()
