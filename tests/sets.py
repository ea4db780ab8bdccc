"""Small shard sets for tests, and the ways to read all of one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, IterableDataset

import streamio
from streamio import ShardDataset


def numbered(n: int) -> Iterator[dict[str, Any]]:
    """n samples that each hold their own number in three ways."""
    for i in range(n):
        yield {"__key__": f"k/{i:05d}", "cls": i, "x": np.full(3, i, np.float32), "txt": f"text {i}"}


def make_set(path: Path, n: int, fmt: str = "tar", shard_samples: int = 25) -> str:
    """A set of `numbered(n)`; gives its path."""
    streamio.write(numbered(n), path, format=fmt, shard_samples=shard_samples)
    return str(path)


def keys(batches: Iterable[Any]) -> list[str]:
    """All keys in the order of delivery."""
    return [key for batch in batches for key in batch["__key__"]]


def sizes(batches: Iterable[Any]) -> list[int]:
    return [len(batch["__key__"]) for batch in batches]


def read(
    source: Any, batch_size: int = 4, *, workers: int = 0, context: str | None = None, **options: Any
) -> list[Any]:
    """All batches of one epoch through a plain DataLoader."""
    dataset = ShardDataset(source, batch_size, **options)
    return list(DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=context))


class Several(IterableDataset):
    """Many data sets one after the other, so that one start of workers serves many cases: (case, batch)."""

    def __init__(self, cases: dict[Any, IterableDataset]) -> None:
        self.cases = cases

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for case, dataset in self.cases.items():
            for batch in dataset:
                yield case, batch
