"""torchdata's StatefulDataLoader goes on exactly and at once, and its states move to other ranks and workers."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import pytest

from streamio import Buckets, Mixture, ShardDataset, UsageError
from tests.sets import make_set

pytestmark = pytest.mark.filterwarnings("ignore:.*set_vital.*:UserWarning")
N, BATCH = 103, 4


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_set(tmp_path_factory.mktemp("set") / "s", N)


def dataset(path: str, batch: int = BATCH, **options: Any) -> ShardDataset:
    return ShardDataset(path, batch, **{"shuffle": "global", **options})


def stateful(data: Any, workers: int, **options: Any) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(data, batch_size=None, num_workers=workers, **options)


def keys(batches: Any) -> list[list[str]]:
    return [batch["__key__"] for batch in batches]


def epoch(path: str, number: int) -> list[list[str]]:
    data = dataset(path)
    data.set_epoch(number)
    return keys(data)


def interrupted(path: str, workers: int, batches: int, **options: Any) -> tuple[list[list[str]], Any]:
    """What a run got of its first epoch, and its state."""
    loader = stateful(dataset(path), workers, **options)
    iterator = iter(loader)
    got = keys(islice(iterator, batches))
    state = json.loads(json.dumps(loader.state_dict()))
    return got, state


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("batches", [0, 2, 7, 26])
def test_goes_on_exactly_and_with_whole_epochs_after_it(path: str, workers: int, batches: int) -> None:
    got, state = interrupted(path, workers, batches)
    loader = stateful(dataset(path), workers)
    loader.load_state_dict(state)
    assert got + keys(loader) == epoch(path, 0)
    assert keys(loader) == epoch(path, 1)


def test_persistent_workers_go_on_too(path: str) -> None:
    got, state = interrupted(path, 2, 5, persistent_workers=True)
    loader = stateful(dataset(path), 2, persistent_workers=True)
    loader.load_state_dict(state)
    assert got + keys(loader) == epoch(path, 0)
    assert [keys(loader), keys(loader)] == [epoch(path, 1), epoch(path, 2)]


def test_no_batch_is_read_again(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, state = interrupted(path, 0, 20)
    data = dataset(path)
    loader = stateful(data, 0)
    loader.load_state_dict(state)
    rows: list[int] = []
    gather = data.table.gather
    monkeypatch.setattr(data.table, "gather", lambda r, *more: rows.extend(r.tolist()) or gather(r, *more))
    assert len(keys(loader)) == 6
    assert len(rows) == len(set(rows)) == N - 20 * BATCH


@pytest.mark.parametrize("workers", [0, 3])
def test_the_data_set_takes_its_state_to_other_ranks_and_workers(path: str, workers: int) -> None:
    got, state = interrupted(path, workers, 5)
    ranks = []
    for rank in range(2):
        data = dataset(path, 2, rank=rank, world_size=2)
        data.load_state_dict(state)
        ranks.append(keys(stateful(data, 2)))
    assert got + [a + b for a, b in zip(*ranks, strict=True)] == epoch(path, 0)
    data = dataset(path, 7)
    data.load_state_dict(state)
    left = [key for batch in keys(data) for key in batch]
    assert sorted(left + [key for batch in got for key in batch]) == sorted(sum(epoch(path, 0), []))  # noqa: RUF017


def test_a_state_after_an_epoch_is_the_next_one(path: str) -> None:
    loader = stateful(dataset(path), 2)
    keys(loader)
    state = loader.state_dict()
    again = stateful(dataset(path), 2)
    again.load_state_dict(state)
    assert keys(again) == epoch(path, 1)
    data = dataset(path)
    data.load_state_dict(state)
    assert keys(data) == epoch(path, 1)


def test_another_global_batch_or_an_old_snapshot_is_refused_with_the_way_out(path: str) -> None:
    _, state = interrupted(path, 0, 5)
    loader = stateful(dataset(path, 5), 0)
    loader.load_state_dict(state)
    with pytest.raises(UsageError, match=r"another global batch.*dataset\.load_state_dict"):
        next(iter(loader))
    _, state = interrupted(path, 2, 5, snapshot_every_n_steps=3)
    with pytest.raises(UsageError, match="snapshot_every_n_steps=1"):
        dataset(path).load_state_dict(state)


def test_mixtures_and_buckets_go_on_too(path: str) -> None:
    def make(kind: str) -> Any:
        if kind == "mixture":
            return Mixture({"a": (dataset(path), 0.7), "b": (dataset(path, seed=1), 0.3)}, 8)
        budget = 700 if kind == "budget" else None
        return dataset(path, buckets=Buckets(lengths="txt.bytes", max_tokens=budget, window=40))

    for kind in ("mixture", "budget", "buckets"):
        whole = keys(make(kind))
        loader = stateful(make(kind), 2)
        got = keys(islice(loader, 3))
        state = json.loads(json.dumps(loader.state_dict()))
        again = stateful(make(kind), 2)
        again.load_state_dict(state)
        assert got + keys(again) == whole, kind
