"""Hugging Face datasets, streaming JSON lines.

"samples": through a DataLoader, which collates. "torch": the same, with values that are tensors, as documented.
"iter": in batches of its own, whose values become tensors.
"""

from __future__ import annotations

from typing import Any

import datasets
from torch.utils.data import DataLoader

from benchmarks.sources.job import BATCH, Job
from benchmarks.speed.job import Loop


def version() -> str:
    return f"datasets {datasets.__version__}"


def loop(job: Job) -> Loop:
    rows: Any = datasets.load_dataset("json", data_files=job.files, split="train", streaming=True)
    workers: dict[str, Any] = {"num_workers": job.workers, "persistent_workers": job.workers > 0}
    if job.variant == "iter":
        return Loop(lambda: rows.with_format("torch").iter(batch_size=BATCH), _parts)
    loader: Any = DataLoader(rows if job.variant == "samples" else rows.with_format("torch"), BATCH, **workers)
    return Loop(lambda: loader, _parts)


def _parts(batch: Any) -> tuple[Any, Any]:
    return batch, batch["id"]
