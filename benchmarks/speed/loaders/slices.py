"""Written by hand: whole batches as slices of a memory map or an HDF5 data set, in the order of storage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from benchmarks.speed.job import Job, Loop
from benchmarks.speed.source import read_array

PACKAGE = "h5py"


def write(job: Job, out: Path, samples: Iterator[tuple[Any, int]]) -> None:
    with h5py.File(out, "w") as file:
        file.create_dataset("x", data=read_array(job.source, job.workload))


class Slices(IterableDataset[Any]):
    """Every W-th batch in each of W workers; a slice is copied once, into a new tensor."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        batch, count = self._job.about.batch, self._job.samples
        array = self._array()
        for _ in range(self._job.about.repeat):
            for first in range(worker * batch, count, workers * batch):
                stop = min(first + batch, count)
                yield torch.from_numpy(np.array(array[first:stop])), torch.arange(first, stop)

    def _array(self) -> Any:
        if self._job.variant == "h5py":
            return h5py.File(self._job.packed, "r")["x"]
        return read_array(self._job.source, self._job.workload)


def loop(job: Job) -> Loop:
    loader = DataLoader(Slices(job), batch_size=None, num_workers=job.workers, persistent_workers=job.workers > 0)
    return Loop(lambda: loader)
