"""FFCV: its writer and its loader of threads, with its own JPEG decoder and crop (it takes no other)."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from ffcv.fields import IntField, NDArrayField, RGBImageField
from ffcv.fields.decoders import IntDecoder, NDArrayDecoder, RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import ToTensor
from ffcv.writer import DatasetWriter
from PIL import Image

from benchmarks.speed.job import SEED, Job, Loop
from benchmarks.speed.source import QUALITY, read_array, read_files
from benchmarks.speed.workloads import CROP

PACKAGE = "ffcv"


class Source:
    """The samples by number, as its writer asks for them. It encodes pictures anew."""

    def __init__(self, job: Job) -> None:
        self._is_picture = job.about.kind == "jpeg"
        self._all: Any = (read_files if self._is_picture else read_array)(job.source, job.workload)

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        value = self._all[number]
        if self._is_picture:
            return Image.open(io.BytesIO(Path(value).read_bytes())).convert("RGB"), number
        return np.ascontiguousarray(value), number


def write(job: Job, out: Path, samples: Iterator[tuple[Any, int]]) -> None:
    if job.about.kind == "jpeg":
        field: Any = RGBImageField(write_mode="jpg", jpeg_quality=QUALITY)
    else:
        field = NDArrayField(np.dtype(job.about.dtype), job.about.shape)
    DatasetWriter(str(out), {"x": field, "number": IntField()}, num_workers=1).from_indexed_dataset(Source(job))


def loop(job: Job) -> Loop:
    """No worker is one thread."""
    decoder = RandomResizedCropRGBImageDecoder((CROP, CROP)) if job.about.kind == "jpeg" else NDArrayDecoder()
    loader = Loader(
        str(job.packed), batch_size=job.about.batch, num_workers=max(1, job.workers), order=OrderOption.RANDOM,
        seed=SEED, drop_last=False,
        pipelines={"x": [decoder, ToTensor()], "number": [IntDecoder(), ToTensor()]},
    )  # fmt: skip
    return Loop(lambda: loader)
