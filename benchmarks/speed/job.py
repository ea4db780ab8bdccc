"""What a peer's script is given (`Job`) and what it hands back (`Loop`)."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.speed.picture import crop, decode_and_crop
from benchmarks.speed.source import read_array, read_files
from benchmarks.speed.workloads import WORKLOADS, Workload

SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One cell, as strings and numbers that go through a command line.

    variant: what the peer is to do, in its own words; the registry (`benchmarks.speed.peers`) lists them.
    data:    folder of the source and of what the peers' writers made of it.
    store:   name of the folder in it that the peer's `write` fills.
    """

    peer: str
    workload: str
    variant: str
    workers: int
    samples: int
    data: str
    store: str
    seconds: float
    started: float

    @property
    def about(self) -> Workload:
        return WORKLOADS[self.workload]

    @property
    def source(self) -> Path:
        return Path(self.data, "source")

    @property
    def packed(self) -> Path:
        """Where `write` puts the data and `loop` finds it."""
        return Path(self.data, "packed", self.store)

    def arguments(self) -> list[str]:
        return [str(value) for value in asdict(self).values()]

    @classmethod
    def of(cls, arguments: list[str]) -> Job:
        makers: dict[str, Callable[[str], Any]] = {"str": str, "int": int, "float": float}
        pairs = zip(fields(cls), arguments, strict=True)
        return cls(**{field.name: makers[str(field.type)](text) for field, text in pairs})


@dataclass(frozen=True, slots=True)
class Loop:
    """A loader that is ready to run.

    epoch: called for each epoch; gives its batches, (data, numbers) unless `parts` says otherwise.
    parts: data (B, *shape) and the samples' own numbers (B,) of a batch.
    close: ends what lives on between epochs.
    """

    epoch: Callable[[], Iterable[Any]]
    parts: Callable[[Any], tuple[Any, Any]] = lambda batch: (batch[0], batch[1])
    close: Callable[[], None] = lambda: None


def samples(job: Job) -> Iterator[tuple[Any, int]]:
    """(JPEG bytes or array, its number) of all samples, for writers."""
    if job.about.kind == "pack":
        yield from read_tree(job.source / job.variant)
    elif job.about.kind == "jpeg":
        for number, path in enumerate(read_files(job.source, job.workload)):
            yield Path(path).read_bytes(), number
    else:
        yield from zip(read_array(job.source, job.workload), range(job.samples), strict=True)


def read_tree(folder: Path) -> Iterator[tuple[bytes, int]]:
    """(bytes, number of the class) of every file below a folder for each class."""
    for number, name in enumerate(sorted(os.listdir(folder))):
        for file in sorted(os.listdir(folder / name)):
            yield Path(folder, name, file).read_bytes(), number


def holds_bytes(job: Job) -> bool:
    """Whether samples are bytes of a file, and not arrays."""
    return job.about.kind in ("jpeg", "pack")


def token_parts(batch: Any) -> tuple[Any, Any]:
    """Tokens need no label: the first of a window is its number."""
    tokens = batch[0] if isinstance(batch, tuple | list) else batch
    return tokens, tokens[:, 0]


@cache
def process_rng(process: int) -> random.Random:
    """A generator for the augmentation of one process, by its id: a fork must not go on with its parent's."""
    return random.Random(process)


def augmented(data: bytes | memoryview) -> NDArray[np.uint8]:
    """A JPEG, decoded and cropped as all loaders do it."""
    return decode_and_crop(data, process_rng(os.getpid()))


def augmented_image(picture: Any) -> NDArray[np.uint8]:
    """A picture that the peer decoded, as PIL gives it, cropped likewise."""
    return crop(picture, process_rng(os.getpid()))
