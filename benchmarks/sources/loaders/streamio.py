"""streamio itself, by its public API. Batches are tuples, without keys, which no peer has."""

from __future__ import annotations

from typing import Any

import streamio
from benchmarks.sources.job import BATCH, COLUMNS, Job
from benchmarks.speed.job import Loop


def version() -> str:
    return f"streamio {streamio.__version__}"


def loop(job: Job) -> Loop:
    dataset = _dataset(job)
    loader = streamio.StreamLoader(dataset, num_workers=job.workers)
    return Loop(lambda: loader, lambda batch: (dict(zip(COLUMNS, batch, strict=True)), batch[0]), loader.close)


def _dataset(job: Job) -> Any:
    if job.kind == "jsonl":
        return streamio.LogDataset(job.files, BATCH, fields=COLUMNS)
    uri = job.uri if job.kind == "postgres" else f"sqlite:///{job.sqlite}"
    options: dict[str, Any] = {"table": "rows", "columns": COLUMNS, "fields": COLUMNS}
    if job.variant == "cursor":
        return streamio.SqlDataset(uri, BATCH, **options)
    return streamio.SqlDataset(uri, BATCH, key="id", shuffle=job.variant == "shuffled", **options)
