"""MosaicML Streaming: MDSWriter, StreamingDataset(shuffle=True) and a DataLoader."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from torch.utils.data import DataLoader

from benchmarks.speed.job import SEED, Job, Loop, augmented, augmented_image, holds_bytes

# As in benchmarks/peers/mosaicml.py: the package without its extras, which need a CUDA build of torchvision.
_package = ModuleType("streaming")
_package.__path__ = list(importlib.util.find_spec("streaming").submodule_search_locations or ())  # type: ignore[union-attr]
sys.modules["streaming"] = _package

from streaming.base import MDSWriter, StreamingDataset  # noqa: E402
from streaming.base.util import clean_stale_shared_memory  # noqa: E402

PACKAGE = "mosaicml-streaming"


def write(job: Job, out: Path, samples: Iterator[tuple[Any, int]]) -> None:
    shape = ",".join(map(str, job.about.shape))
    kind = "bytes" if holds_bytes(job) else f"ndarray:{job.about.dtype}:{shape}"
    with MDSWriter(out=str(out), columns={"x": kind, "number": "int"}, exist_ok=True) as writer:
        for value, number in samples:
            writer.write({"x": value, "number": number})


class Samples(StreamingDataset):  # type: ignore[misc]
    """Tuples, with pictures decoded."""

    picture: Any = None

    def __getitem__(self, at: int) -> Any:
        sample = super().__getitem__(at)
        value = sample["x"] if self.picture is None else self.picture(sample["x"])
        return value.copy(), sample["number"]


class Pictures(Samples):
    picture = staticmethod(augmented)


class WithPillow(Samples):
    """Its own decoder of a "jpeg" column: PIL."""

    @staticmethod
    def picture(data: bytes) -> Any:
        from streaming.base.format.mds.encodings import mds_decode

        return augmented_image(mds_decode("jpeg", data).convert("RGB"))


def loop(job: Job) -> Loop:
    clean_stale_shared_memory()
    kind = Samples if job.about.kind != "jpeg" else WithPillow if job.variant == "pillow" else Pictures
    batch = job.about.batch
    data = kind(local=str(job.packed), shuffle=True, shuffle_seed=SEED, batch_size=batch)
    loader: Any = DataLoader(data, batch_size=batch, num_workers=job.workers, persistent_workers=job.workers > 0)
    return Loop(lambda: loader)
