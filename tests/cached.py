"""What is asked of batches whether a cache holds decoded values or prepared samples: that nobody can tell."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from streamio import ShardDataset, StreamLoader
from tests.sets import Several


def ident(samples: Any) -> Any:
    return samples


def digest(batch: Any) -> str:
    """A hash of all that is in a batch, and of what kind it is."""
    state = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            value = value.numpy()
        if isinstance(value, np.ndarray):
            state.update(f"{value.dtype} {value.shape}".encode() + value.tobytes())
        elif isinstance(value, dict):
            add([[key, item] for key, item in value.items()])
        elif isinstance(value, list | tuple):
            state.update(f"{type(value).__name__} {len(value)}".encode())
            for item in value:
                add(item)
        else:
            state.update(f"{type(value).__name__} {value!r};".encode())

    add(batch)
    return state.hexdigest()


def epochs(loader: Any, count: int = 3) -> list[list[str]]:
    return [[digest(batch) for batch in loader] for _ in range(count)]


def epochs_by(dataset: ShardDataset, how: str) -> list[list[str]]:
    """Three epochs, made by iterating over the data set itself ("iterated") or by a transport."""
    if how == "iterated":
        return epochs(dataset)
    workers = 0 if how == "inline" else 2
    with closing(StreamLoader(dataset, num_workers=workers, transport=how)) as loader:  # type: ignore[arg-type]
        return epochs(loader)


def used_bytes(dataset: ShardDataset) -> int:
    """What the data set keeps takes so much."""
    keeper = dataset.reader.cache or dataset.reader.preparing
    assert keeper is not None and keeper.store is not None
    return keeper.store.used_bytes()


class CacheSuite:
    """A test class inherits it in a module with the fixtures `source`, a set; `plain`, three epochs of each case
    without a cache; and `where`, "memory" or a folder. It gives the fixture `case`, each of the cases in turn.

    made:  a data set over a source, of a case, with further options.
    fixed: a case in which each sample is found in the cache or made.
    anew:  samples that are bad, of which nothing is kept.
    """

    made: Callable[..., ShardDataset]
    fixed: str
    anew: int

    @pytest.mark.parametrize("how", ["iterated", "inline", "thread", "process"])
    def test_batches_are_the_same_with_a_cache(
        self, source: str, plain: dict[str, list[list[str]]], where: str, case: str, how: str
    ) -> None:
        dataset = self.made(source, case, cache=where)
        assert epochs_by(dataset, how) == plain[case]
        stats = dataset.stats()
        assert stats.cache_hits > 0 and stats.cache_misses > 0 and stats.cache_bytes > 0

    @pytest.mark.slow
    def test_batches_are_the_same_under_spawn(
        self, source: str, plain: dict[str, list[list[str]]], tmp_path: Path
    ) -> None:
        """Two epochs of each data set in two workers, which are slow to start for each by itself."""
        places = ("memory", f"disk:{tmp_path}")
        made = {(case, where): self.made(source, case, cache=where) for case in plain for where in places}
        twice = Several({(*name, epoch): dataset for name, dataset in made.items() for epoch in range(2)})
        loader = DataLoader(
            twice, batch_size=None, num_workers=2, multiprocessing_context="spawn", collate_fn=ident
        )
        found = sorted((case, where, epoch, digest(batch)) for (case, where, epoch), batch in loader)
        assert found == sorted(
            (case, where, epoch, batch)
            for case, where in made
            for epoch in range(2)
            for batch in plain[case][epoch]
        )
        for dataset in made.values():
            assert dataset.stats().cache_hits > 0
            assert used_bytes(dataset) > dataset.stats().cache_bytes  # which are 0 where another one came first

    def test_a_cache_that_is_full_changes_nothing(
        self, source: str, plain: dict[str, list[list[str]]], where: str, case: str
    ) -> None:
        dataset = self.made(source, case, cache=where, cache_bytes=12_000)
        assert epochs(dataset) == plain[case]
        assert used_bytes(dataset) <= 12_000
        assert dataset.stats().cache_misses > 0

    def test_two_ranks_and_a_resumed_run_get_what_they_get_without_a_cache(
        self, source: str, plain: dict[str, list[list[str]]], where: str, case: str
    ) -> None:
        for rank in range(2):
            expected = epochs(self.made(source, case, rank=rank, world_size=2), 2)
            assert epochs(self.made(source, case, rank=rank, world_size=2, cache=where), 2) == expected
        state = self.made(source, case, cache=where).state_at(3, epoch=1)
        again = self.made(source, case, cache=where)
        again.load_state_dict(state)
        assert epochs(again, 1) == [plain[case][1][3:]]

    def test_what_is_on_the_disk_serves_the_next_run(
        self, source: str, plain: dict[str, list[list[str]]], tmp_path: Path
    ) -> None:
        epochs(self.made(source, self.fixed, cache=f"disk:{tmp_path}"), 1)
        again = self.made(source, self.fixed, cache=f"disk:{tmp_path}")
        assert epochs(again) == plain[self.fixed]
        assert again.stats().cache_misses == 3 * self.anew
