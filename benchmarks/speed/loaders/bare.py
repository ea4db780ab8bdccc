"""No data at all: what starting Python, importing torch and starting the workers costs, to the first batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from benchmarks.speed.job import Job, Loop

PACKAGE = "torch"


class Zeros(IterableDataset[Any]):
    """Batches of zeros with the right numbers."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        batch = self._job.about.batch
        data = torch.zeros((batch, *self._job.about.shape), dtype=torch.uint8)
        for first in range(worker * batch, self._job.samples, workers * batch):
            numbers = torch.arange(first, min(first + batch, self._job.samples))
            yield data[: len(numbers)], numbers


def loop(job: Job) -> Loop:
    loader = DataLoader(Zeros(job), batch_size=None, num_workers=job.workers, persistent_workers=job.workers > 0)
    return Loop(lambda: loader)
