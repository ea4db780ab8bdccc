"""Grain over ArrayRecord files, with its own worker processes; with threads, too, for pictures."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import grain
import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

from benchmarks.speed.job import SEED, Job, Loop, augmented

PACKAGE = "grain"


def write(job: Job, out: Path, samples: Iterator[tuple[Any, int]]) -> None:
    writer = ArrayRecordWriter(str(out), "group_size:1")
    for value, number in samples:
        writer.write(struct.pack("<q", number) + (value if isinstance(value, bytes) else value.tobytes()))
    writer.close()


class Parse:
    """A record as (array, number)."""

    def __init__(self, job: Job) -> None:
        self._about = job.about

    def __call__(self, record: bytes) -> tuple[Any, Any]:
        (number,) = struct.unpack_from("<q", record)
        if self._about.kind == "jpeg":
            return augmented(record[8:]), np.int64(number)
        return np.frombuffer(record, self._about.dtype, offset=8).reshape(self._about.shape), np.int64(number)


def loop(job: Job) -> Loop:
    """One epoch by itself for the check; then one stream without end, since workers end with their epoch."""
    source = grain.sources.ArrayRecordDataSource([str(job.packed)])
    rows = grain.MapDataset.source(source).seed(SEED).shuffle()
    batches = -(-job.samples // job.about.batch)
    streams: list[Any] = []
    calls = count()

    def epoch() -> Iterator[Any]:
        if next(calls) == 0:
            return iter(_read(job, rows))
        if not streams:
            streams.append(iter(_read(job, rows.repeat())))
        return islice(streams[0], batches)

    def close() -> None:
        for stream in streams:
            stream.close()

    return Loop(epoch, close=close)


def _read(job: Job, rows: Any) -> Any:
    threads = grain.ReadOptions() if job.about.kind == "jpeg" else grain.ReadOptions(num_threads=0)
    stream = rows.map(Parse(job)).to_iter_dataset(threads).batch(job.about.batch)
    if not job.workers:
        return stream
    return stream.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(num_workers=job.workers))
