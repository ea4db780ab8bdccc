"""Loose files behind a map data set, as torchvision's ImageFolder reads them, in a DataLoader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from benchmarks.speed.job import Job, Loop, augmented, augmented_image
from benchmarks.speed.source import read_files

PACKAGE = "torch"


class Pictures(Dataset[Any]):
    """One picture for each file."""

    def __init__(self, job: Job) -> None:
        self._paths = read_files(job.source, job.workload)
        self._with_pillow = job.variant == "pillow"

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        path = self._paths[number]
        if self._with_pillow:
            return torch.from_numpy(augmented_image(Image.open(path).convert("RGB")).copy()), number
        return torch.from_numpy(augmented(Path(path).read_bytes()).copy()), number


def loop(job: Job) -> Loop:
    loader = DataLoader(
        Pictures(job), batch_size=job.about.batch, shuffle=True, num_workers=job.workers,
        persistent_workers=job.workers > 0,
    )  # fmt: skip
    return Loop(lambda: loader)
