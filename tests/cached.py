"""What is asked of batches whether a cache holds decoded values or prepared samples: that nobody can tell."""

from __future__ import annotations

import hashlib
from contextlib import closing
from typing import Any

import numpy as np
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


def assert_same_under_spawn(made: dict[tuple[str, str], ShardDataset], plain: dict[str, list[list[str]]]) -> None:
    """Two epochs of each data set, by case and place of its cache, in two workers under spawn, which is slow to do
    for each by itself."""
    twice = Several({(*name, epoch): dataset for name, dataset in made.items() for epoch in range(2)})
    loader = DataLoader(twice, batch_size=None, num_workers=2, multiprocessing_context="spawn", collate_fn=ident)
    found = sorted((case, where, epoch, digest(batch)) for (case, where, epoch), batch in loader)
    assert found == sorted(
        (case, where, epoch, batch) for case, where in made for epoch in range(2) for batch in plain[case][epoch]
    )
    for dataset in made.values():
        assert dataset.stats().cache_hits > 0
