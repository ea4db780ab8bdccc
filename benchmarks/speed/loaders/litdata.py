"""LitData: its writer, StreamingDataset(shuffle=True) and StreamingDataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from litdata import StreamingDataLoader, StreamingDataset
from litdata.streaming.writer import BinaryWriter

from benchmarks.speed.job import SEED, Job, Loop, augmented

PACKAGE = "litdata"
_LARGE = 64 << 10


def write(job: Job, out: Path, samples: Iterator[tuple[Any, int]]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    writer = BinaryWriter(str(out), chunk_bytes="64MB")
    for at, (value, number) in enumerate(samples):
        writer[at] = (value if isinstance(value, bytes) else _leaf(value), number)
    writer.done()
    writer.merge()


def _leaf(value: Any) -> Any:
    """Small arrays as numpy's, large ones as tensors: what it reads fastest, by factors of five to ten."""
    return np.array(value) if value.nbytes < _LARGE else torch.from_numpy(np.array(value))


class Pictures(StreamingDataset):  # type: ignore[misc]
    """Decoded as all loaders do."""

    def __getitem__(self, at: Any) -> Any:
        data, number = super().__getitem__(at)
        return augmented(data), number


def loop(job: Job) -> Loop:
    kind = Pictures if job.about.kind == "jpeg" else StreamingDataset
    data = kind(str(job.packed), shuffle=True, seed=SEED)
    loader = StreamingDataLoader(
        data, batch_size=job.about.batch, num_workers=job.workers, persistent_workers=job.workers > 0
    )
    return Loop(lambda: loader)
