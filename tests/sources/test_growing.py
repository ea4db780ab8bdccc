"""A reader of a set that grows: each epoch has the shards that it began with, everywhere, also after a resume."""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import streamio
from streamio import Draw, Mixture, ShardDataset, StreamLoader, UsageError
from streamio.errors import ShardError
from tests.servers.http import serve
from tests.sources.test_capture import Running, check_whole

LOADERS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2, "transport": "thread"},
    {"num_workers": 2, "context": "fork"},
    {"num_workers": 1, "context": "spawn"},
]


def grow(out: Path, shards: int, format: str = "tar") -> None:
    """Have so many shards, of 14 numbers each."""
    there = len(streamio.open(out).sizes) if (out / "streamio.json").exists() else 0
    for _ in range(there, shards):
        asked = iter(range(100))
        streamio.capture(Running(1), out, format=format, stopped=lambda asked=asked: next(asked) == 4)


def numbers(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch["number"].tolist()]


def of_first(shards: int) -> list[int]:
    return list(range(14 * shards))


@pytest.fixture
def loaders() -> Iterator[list[StreamLoader]]:
    made: list[StreamLoader] = []
    yield made
    for loader in made:
        loader.close()


@pytest.mark.parametrize("options", LOADERS, ids=str)
def test_new_shards_come_with_the_epoch_after_a_refresh_and_not_before(
    options: dict[str, Any], tmp_path: Path, loaders: list[StreamLoader]
) -> None:
    grow(tmp_path, 2)
    ds = ShardDataset(tmp_path, 4, shuffle=True)
    loader = StreamLoader(ds, **options)
    loaders.append(loader)
    assert sorted(numbers(loader)) == of_first(2)
    pids = loader.worker_pids()
    grow(tmp_path, 3)
    assert sorted(numbers(loader)) == of_first(2)
    assert (ds.refresh(), len(loader)) == (3, 11)
    iterator = iter(loader)
    came = numbers(next(iterator) for _ in range(5))
    grow(tmp_path, 5)
    ds.refresh()  # for the next one
    state = loader.state_dict()
    assert sorted(came + numbers(iterator)) == of_first(3)
    assert sorted(numbers(loader)) == of_first(5)
    assert loader.worker_pids() == pids
    loader.load_state_dict(state)
    assert sorted(came + numbers(loader)) == of_first(3)
    assert sorted(numbers(loader)) == of_first(3)


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_of_a_plain_dataloader_that_live_on_see_them_too(workers: int, tmp_path: Path) -> None:
    grow(tmp_path, 2)
    ds = ShardDataset(tmp_path, 4, shuffle=True)
    loader = DataLoader(ds, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
    assert sorted(numbers(loader)) == of_first(2)
    grow(tmp_path, 4)
    ds.refresh()
    assert sorted(numbers(loader)) == of_first(4)
    assert len(ds) == 14


@pytest.mark.parametrize("format", ["tar", "hdf5"])
def test_a_state_reads_its_epoch_as_it_was_planned_though_the_set_has_grown(format: str, tmp_path: Path) -> None:
    grow(tmp_path, 3, format)
    first = StreamLoader(ShardDataset(tmp_path, 4, shuffle=True, seed=7), num_workers=0)
    batches = [batch["number"].tolist() for batch in first]
    iterator = iter(first)
    second = [next(iterator)["number"].tolist() for _ in range(6)]
    state = json.loads(json.dumps(first.state_dict()))
    second += [batch["number"].tolist() for batch in iterator]
    assert batches != second
    grow(tmp_path, 6, format)
    ds = ShardDataset(tmp_path, 4, shuffle=True, seed=7)
    resumed = StreamLoader(ds, num_workers=2, context="fork")
    try:
        resumed.load_state_dict(state)
        assert ds.refresh() == 6  # not in the middle of an epoch
        assert [batch["number"].tolist() for batch in resumed] == second[6:]
        assert sorted(numbers(resumed)) == of_first(6)
        assert resumed.state_dict()["order"]["shards"] == 6
    finally:
        resumed.close()


def test_a_set_behind_a_url_grows_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMIO_CACHE", str(tmp_path / "cache"))
    grow(tmp_path / "out", 2)
    with serve(tmp_path / "out") as server:
        ds = ShardDataset(server.url, 4, shuffle=True)
        assert sorted(numbers(ds)) == of_first(2)
        grow(tmp_path / "out", 4)
        assert sorted(numbers(ds)) == of_first(2)
        assert ds.refresh() == 4
        assert sorted(numbers(ds)) == of_first(4)


def test_a_state_of_more_shards_than_are_there_says_so(tmp_path: Path) -> None:
    grow(tmp_path / "long", 3)
    state = ShardDataset(tmp_path / "long", 4).state_at(2)
    grow(tmp_path / "short", 2)
    with pytest.raises(UsageError, match="3 of 2 shards"):
        ShardDataset(tmp_path / "short", 4).load_state_dict(state)


def test_another_set_in_its_place_is_noticed(tmp_path: Path) -> None:
    grow(tmp_path / "a", 2)
    ds = ShardDataset(tmp_path / "a", 4)
    state = ds.state_at(2)
    (tmp_path / "a").rename(tmp_path / "gone")
    asked = iter(range(100))
    streamio.capture(Running(2), tmp_path / "a", shard_samples=5, stopped=lambda: next(asked) == 20)
    with pytest.raises(ShardError, match="packed again"):
        ds.refresh()
    with pytest.raises(UsageError, match="data="):
        ShardDataset(tmp_path / "a", 4).load_state_dict(state)


def test_ranks_take_the_same_shards(tmp_path: Path) -> None:
    grow(tmp_path, 2)
    ranks = [ShardDataset(tmp_path, 4, shuffle=True, rank=rank, world_size=2) for rank in range(2)]
    grow(tmp_path, 4)
    shards = ranks[0].refresh()
    grow(tmp_path, 5)
    ranks[1].refresh(shards)
    epochs = [list(StreamLoader(ds, num_workers=0)) for ds in ranks]
    assert len(epochs[0]) == len(epochs[1])
    assert sorted(numbers(epochs[0]) + numbers(epochs[1])) == of_first(4)


def test_what_was_opened_stays_as_it_was(tmp_path: Path) -> None:
    grow(tmp_path, 2)
    opened = streamio.open(tmp_path)
    ds, other = ShardDataset(opened, 4), ShardDataset(opened, 4)
    packed = pickle.dumps((opened, ds))
    grow(tmp_path, 4)
    ds.refresh()
    assert len(numbers(ds)) == 56
    assert (len(opened), len(numbers(other))) == (28, 28)
    opened_again, ds_again = pickle.loads(packed)
    assert (len(opened_again), len(numbers(ds_again))) == (28, 28)
    assert len(streamio.open(tmp_path, shards=3)) == 42
    assert opened.fingerprint == opened_again.fingerprint == streamio.open(tmp_path, shards=2).fingerprint
    mixture = Mixture({"a": (ds, 1.0)}, 4)
    assert len(numbers(mixture)) == 56


def test_refresh_is_refused_where_it_cannot_work(tmp_path: Path) -> None:
    streamio.write([{"number": i} for i in range(10)], tmp_path / "packed")
    with pytest.raises(UsageError, match="does not grow"):
        ShardDataset(tmp_path / "packed", 4).refresh()
    with pytest.raises(UsageError, match="does not grow"):
        streamio.open(tmp_path / "packed", shards=1)
    grow(tmp_path / "out", 2)
    with pytest.raises(UsageError, match="draw="):
        ShardDataset(tmp_path / "out", 4, draw=Draw(weights="number")).refresh()
    with pytest.raises(UsageError, match="does not grow"):
        ShardDataset(streamio.open(tmp_path / "out").where([1, 2, 3]), 4).refresh()
    with pytest.raises(UsageError, match="1 shards, and there were 2"):
        ShardDataset(tmp_path / "out", 4).refresh(1)


def test_a_model_trains_from_the_shards_while_others_come(tmp_path: Path, loaders: list[StreamLoader]) -> None:
    grow(tmp_path, 1)
    ends = threading.Event()
    writer = threading.Thread(
        target=streamio.capture, args=(Running(1), tmp_path),
        kwargs={"every": 0.03, "shard_samples": 200, "stopped": ends.is_set},
    )  # fmt: skip
    writer.start()
    try:
        ds = ShardDataset(tmp_path, 32, shuffle=True)
        loader = StreamLoader(ds, num_workers=2, context="fork")
        loaders.append(loader)
        sizes, until = [0], time.monotonic() + 20
        while sizes[-1] < 500 and time.monotonic() < until:
            samples = sum(streamio.open(tmp_path, shards=ds.refresh()).sizes.tolist())
            assert sorted(numbers(loader)) == list(range(samples))
            sizes.append(samples)
        assert sizes == sorted(sizes) and sizes[-1] >= 500
    finally:
        ends.set()
        writer.join()
    check_whole(tmp_path, 1)
