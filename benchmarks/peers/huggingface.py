"""Hugging Face datasets: the shards shuffled, then a buffer of samples (IterableDataset.shuffle, its defaults)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import datasets
import numpy as np

from benchmarks.peers.base import Setup, arguments, record


def order(setup: Setup, buffer: int) -> Iterator[int]:
    table = datasets.Dataset.from_dict({"row": np.arange(setup.samples, dtype=np.int64)})
    stream = table.to_iterable_dataset(num_shards=setup.shards).shuffle(seed=setup.seed, buffer_size=buffer)
    return (sample["row"] for sample in stream)


def main(setup: Setup) -> None:
    for buffer in (1_000, 10_000):
        record(
            setup,
            "datasets",
            f"HF datasets, buffer {buffer:,}",
            f".shuffle(buffer_size={buffer}), which fills from 10 shards",
            partial(order, setup, buffer),
        )


if __name__ == "__main__":
    main(arguments())
