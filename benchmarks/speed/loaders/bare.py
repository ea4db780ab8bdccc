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
        about = self._job.about
        data = torch.zeros((about.batch, *about.shape), dtype=getattr(torch, about.dtype))
        for first in range(worker * about.batch, self._job.samples, workers * about.batch):
            numbers = torch.arange(first, min(first + about.batch, self._job.samples))
            yield data[: len(numbers)], numbers


def loop(job: Job) -> Loop:
    loader = DataLoader(Zeros(job), batch_size=None, num_workers=job.workers, persistent_workers=job.workers > 0)
    return Loop(lambda: loader)
