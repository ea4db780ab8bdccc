"""Written by hand: a map data set over one LMDB file, in a DataLoader."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.speed.job import Job, Loop, augmented

PACKAGE = "lmdb"
_MAP_BYTES = 1 << 40


def write(job: Job, out: Path, samples: Iterator[tuple[Any, int]]) -> None:
    with (
        lmdb.open(str(out), subdir=False, lock=False, map_size=_MAP_BYTES) as store,
        store.begin(write=True) as put,
    ):
        for value, number in samples:
            put.put(struct.pack(">I", number), value if isinstance(value, bytes) else value.tobytes())


class Records(Dataset[Any]):
    """The environment is opened in the process that reads."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._read: Any = None

    def __len__(self) -> int:
        return self._job.samples

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return self._sample(self._transaction(), number)

    def __getitems__(self, numbers: list[int]) -> list[tuple[torch.Tensor, int]]:
        read = self._transaction()
        return [self._sample(read, number) for number in numbers]

    def _sample(self, read: Any, number: int) -> tuple[torch.Tensor, int]:
        value, about = read.get(struct.pack(">I", number)), self._job.about
        if about.kind == "jpeg":
            return torch.from_numpy(augmented(bytes(value)).copy()), number
        return torch.from_numpy(np.frombuffer(value, about.dtype).reshape(about.shape)), number

    def _transaction(self) -> Any:
        if self._read is None:
            store = lmdb.open(str(self._job.packed), subdir=False, readonly=True, lock=False, readahead=False)
            self._read = store.begin(buffers=True)
        return self._read


def loop(job: Job) -> Loop:
    loader = DataLoader(
        Records(job), batch_size=job.about.batch, shuffle=True, num_workers=job.workers,
        persistent_workers=job.workers > 0,
    )  # fmt: skip
    return Loop(lambda: loader)
