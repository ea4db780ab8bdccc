"""SPDL: a pipeline of threads over loose files."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from spdl.pipeline import PipelineBuilder

from benchmarks.speed.job import SEED, Job, Loop, augmented
from benchmarks.speed.source import read_files

PACKAGE = "spdl-core"


def loop(job: Job) -> Loop:
    numbered = list(enumerate(read_files(job.source, job.workload)))
    order = random.Random(SEED)

    def epoch() -> Any:
        order.shuffle(numbered)
        threads = max(1, job.workers)
        pipeline = (
            PipelineBuilder()
            .add_source(list(numbered))
            .pipe(_picture, concurrency=threads)
            .aggregate(job.about.batch)
            .pipe(_batch)
            .add_sink(3)
            .build(num_threads=threads)
        )
        with pipeline.auto_stop():
            yield from pipeline

    return Loop(epoch)


def _picture(numbered: tuple[int, str]) -> tuple[Any, int]:
    return augmented(Path(numbered[1]).read_bytes()), numbered[0]


def _batch(pictures: list[tuple[Any, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    arrays, numbers = zip(*pictures, strict=True)
    return torch.from_numpy(np.stack(arrays)), torch.tensor(numbers)
