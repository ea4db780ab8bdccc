"""Resuming: a state taken after any batch goes on with exactly what is left, on any ranks and workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import streamio
from streamio import ShardDataset, StreamLoader, UsageError
from tests.sets import keys, make_set, numbered

SHUFFLES = (False, True, "global", "shards")


class Run:
    """A loader with its iterator: next batches, what is left of the epoch, and a state that went through JSON."""

    def __init__(self, path: str, batch: int = 4, *, workers: int = 0, state: Any = None, **options: Any) -> None:
        options = {"shuffle": True, **options}
        self.loader = StreamLoader(ShardDataset(path, batch, **options), num_workers=workers)
        if state is not None:
            self.loader.load_state_dict(state)
        self._batches: Any = None

    def take(self, n: int) -> list[list[str]]:
        self._batches = self._batches or iter(self.loader)
        return [next(self._batches)["__key__"] for _ in range(n)]

    def rest(self) -> list[list[str]]:
        batches, self._batches = self._batches or iter(self.loader), None
        return [batch["__key__"] for batch in batches]

    def state(self) -> Any:
        text = json.dumps(self.loader.state_dict())
        assert len(text) < 1000
        return json.loads(text)


def flat(batches: list[list[str]]) -> list[str]:
    return [key for batch in batches for key in batch]


def all_keys(n: int) -> list[str]:
    return [sample["__key__"] for sample in numbered(n)]


@pytest.mark.parametrize("early", [True, False])
def test_state_03_a_state_after_the_last_batch_is_the_whole_next_epoch(tmp_path: Path, early: bool) -> None:
    """meta-pytorch/data#1437, #1439; taken before and after StopIteration."""
    path = make_set(tmp_path / "s", 64)
    a = Run(path)
    _ = a.take(16) if early else a.rest()
    fresh = Run(path)
    fresh.loader.set_epoch(1)
    assert Run(path, state=a.state()).rest() == fresh.rest()


def test_state_04_epochs_after_a_resumed_one_are_whole(tmp_path: Path) -> None:
    """huggingface/datasets#7447; Lightning-AI/litData#316."""
    path = make_set(tmp_path / "s", 128)
    a = Run(path)
    seen = a.take(24)
    b = Run(path, state=a.state(), workers=2)
    assert len(b.loader) == 8
    epochs = [b.rest() for _ in range(4)]
    assert [len(e) for e in epochs] == [8, 32, 32, 32]
    assert sorted(flat(seen + epochs[0])) == all_keys(128)
    assert all(sorted(flat(e)) == all_keys(128) for e in epochs[1:])
    b.loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_state_05_a_second_resume_in_one_epoch_knows_of_the_first(tmp_path: Path, workers: int) -> None:
    """KempnerInstitute/KempnerForge#57."""
    path = make_set(tmp_path / "s", 200)
    a = Run(path, workers=workers)
    x = a.take(30)
    b = Run(path, state=a.state(), workers=workers)
    y = b.take(10)
    z = Run(path, state=b.state(), workers=workers).rest()
    assert x + y + z == Run(path).rest()


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_state_07_seen_and_left_are_disjoint_and_complete_for_every_cut(tmp_path: Path, shuffle: Any) -> None:
    """huggingface/datasets#7901, #7444, #8408."""
    path = make_set(tmp_path / "s", 2000, shard_samples=300)
    for n in (1, 7, 250, 499):
        a = Run(path, shuffle=shuffle)
        seen = flat(a.take(n))
        left = flat(Run(path, state=a.state(), shuffle=shuffle).rest())
        assert not set(seen) & set(left)
        assert sorted(seen + left) == all_keys(2000)


def test_state_08_a_state_of_other_data_or_another_seed_is_refused(tmp_path: Path) -> None:
    """lhotse-speech/lhotse#785."""
    path, other = make_set(tmp_path / "s", 100), make_set(tmp_path / "t", 90)
    a = Run(path)
    seen = a.take(5)
    with pytest.raises(UsageError, match=r"state was saved with data="):
        Run(other, state=a.state())
    with pytest.raises(UsageError, match=r"seed=0, here seed is 1"):
        Run(path, state=a.state(), seed=1)
    with pytest.raises(UsageError, match=r"shuffle='block', here shuffle is 'global'"):
        Run(path, state=a.state(), shuffle="global")
    left = Run(path, batch=7, state=a.state()).rest()  # the batch size may change
    assert sorted(flat(seen + left)) == all_keys(100)
    loose = StreamLoader(ShardDataset(other, 4, shuffle=True), num_workers=0)
    loose.load_state_dict(a.state(), strict=False)
    assert len(keys(loose)) == 70


def test_ranks_and_workers_may_change_from_run_to_run(tmp_path: Path) -> None:
    """1 rank -> 2 -> 3, with the same global batch: step for step the uninterrupted run."""
    path = make_set(tmp_path / "s", 500)
    whole = Run(path, batch=12).rest()
    a = Run(path, batch=12)
    steps, state = a.take(10), a.state()
    for world, workers, take in ((2, 1, 13), (3, 0, None)):
        ranks = [
            Run(path, 12 // world, rank=rank, world_size=world, workers=workers, state=state)
            for rank in range(world)
        ]
        parts = [run.rest() if take is None else run.take(take) for run in ranks]
        steps += [flat(list(step)) for step in zip(*parts, strict=True)]
        states = [run.state() for run in ranks]
        assert all(other == states[0] for other in states)
        state = states[0]
        for run in ranks:
            run.loader.close()
    assert steps == whole
    assert state["epoch"] == 1 and state["start"] == []


@pytest.mark.parametrize("persistent", [True, False])
def test_a_plain_dataloader_resumes_by_the_number_of_batches(tmp_path: Path, persistent: bool) -> None:
    path = make_set(tmp_path / "s", 100)
    whole = [flat([b["__key__"] for b in ShardDataset(path, 4, shuffle=True)])]
    first = ShardDataset(path, 4, shuffle=True)
    state, seen = first.state_at(0), []
    for number, batch in enumerate(DataLoader(first, batch_size=None, num_workers=2), 1):
        seen += batch["__key__"]
        state = first.state_at(number)
        if number == 9:
            break
    second = ShardDataset(path, 4, shuffle=True)
    second.load_state_dict(state)
    loader = DataLoader(second, batch_size=None, num_workers=2, persistent_workers=persistent)
    assert seen + keys(loader) == whole[0]
    assert sorted(keys(loader)) == all_keys(100)


def test_a_selection_has_a_state_of_its_own(tmp_path: Path) -> None:
    path = make_set(tmp_path / "s", 100)
    even = streamio.open(path).where(lambda columns: columns["cls"] % 2 == 0)
    dataset = ShardDataset(even, 4)
    with pytest.raises(UsageError, match="data="):
        dataset.load_state_dict(ShardDataset(path, 4).state_at(0))
    dataset.load_state_dict(dataset.state_at(3))
    assert keys(dataset) == all_keys(100)[24::2]
