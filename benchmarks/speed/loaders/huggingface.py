"""Hugging Face datasets: an Arrow table whose rows are fetched a batch at a time, as Arrow.

"map": shuffled, by lists of row numbers. "slices": batches in the order of storage, a share of the table for each
worker, which is the fastest that it has. "pillow": its Image feature.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import torch
from datasets.arrow_writer import ArrowWriter
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, get_worker_info

from benchmarks.speed.job import Job, Loop, augmented, augmented_image, holds_bytes

PACKAGE = "datasets"
_ROWS = 512


def write(job: Job, out: Path, samples: Iterator[tuple[Any, int]]) -> None:
    writer = ArrowWriter(path=str(out), features=datasets.Features(x=_feature(job), number=datasets.Value("int64")))
    while rows := list(islice(samples, _ROWS)):
        values, numbers = zip(*rows, strict=True)
        columns = {"x": _column(values), "number": pyarrow.array(numbers, pyarrow.int64())}
        writer.write_table(pyarrow.table(columns))
    writer.finalize()


def _column(values: tuple[Any, ...]) -> Any:
    if isinstance(values[0], bytes):
        return pyarrow.array(values, pyarrow.binary())
    flat = np.stack(values).reshape(-1)
    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(flat), flat.size // len(values))


def _feature(job: Job) -> Any:
    if holds_bytes(job):
        return datasets.Value("binary")
    return datasets.Sequence(datasets.Value(job.about.dtype), length=math.prod(job.about.shape))


def loop(job: Job) -> Loop:
    table = datasets.Dataset.from_file(str(job.packed))
    if job.variant == "pillow":
        table = table.cast_column("x", datasets.Image()).with_transform(_own_pictures)
    elif job.about.kind == "jpeg":
        table = table.with_transform(_pictures)
    else:
        table = table.with_format("arrow")
    workers: dict[str, Any] = {"num_workers": job.workers, "persistent_workers": job.workers > 0}
    together: dict[str, Any] = {"batch_size": None, "collate_fn": _Tensors((-1, *job.about.shape))}
    if job.variant == "slices":
        loader = DataLoader(Slices(table, job.about.batch), **together, **workers)
    else:
        order = BatchSampler(RandomSampler(table), job.about.batch, drop_last=False)
        loader = DataLoader(table, sampler=order, **together, **workers)
    return Loop(lambda: loader)


class Slices(IterableDataset[Any]):
    """Batches in the order of storage."""

    def __init__(self, table: Any, batch: int) -> None:
        self._table, self._batch = table, batch

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        mine = self._table.shard(info.num_workers, info.id, contiguous=True) if info else self._table
        yield from mine.iter(self._batch)


class _Tensors:
    """A batch of columns as a pair of tensors."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape

    def __call__(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if isinstance(batch, dict):
            return torch.from_numpy(np.stack(batch["x"])), torch.as_tensor(batch["number"])
        data = batch["x"].combine_chunks().flatten().to_numpy()
        return torch.from_numpy(data.reshape(self._shape)), torch.from_numpy(batch["number"].to_numpy())


def _pictures(batch: dict[str, Any]) -> dict[str, Any]:
    return {"x": [augmented(data) for data in batch["x"]], "number": batch["number"]}


def _own_pictures(batch: dict[str, Any]) -> dict[str, Any]:
    return {"x": [augmented_image(one.convert("RGB")) for one in batch["x"]], "number": batch["number"]}
