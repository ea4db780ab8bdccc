"""A small set of pictures, read with everything that draws at random, and what came of it as hashes."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import streamio
from streamio.image import RandomResizedCrop

SAMPLES, CLASSES = 61, 5


def picture_set(path: Path) -> str:
    """SAMPLES random pictures in shards of 16; gives its path."""

    def samples() -> Iterator[dict[str, Any]]:
        for i in range(SAMPLES):
            file = io.BytesIO()
            pixels = np.random.default_rng(i).integers(0, 256, (6, 8, 3), np.uint8)
            Image.fromarray(pixels).resize((48, 36)).save(file, "JPEG")
            yield {"__key__": f"k{i:03d}", "jpg": file.getvalue(), "cls": i % CLASSES}

    streamio.write(samples(), path, shard_samples=16)
    return str(path)


def brighter(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Adds noise that is drawn, and says what else was drawn."""
    noise = rng.integers(0, 8, sample["jpg"].shape, np.uint8)
    return {**sample, "jpg": sample["jpg"] // 2 + noise, "drawn": rng.random()}


def turned(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """A batch transform of a user's, on tensors, that makes some of them anew."""
    assert all(isinstance(batch[name], torch.Tensor) for name in ("jpg", "cls", "drawn"))
    return {**batch, "jpg": batch["jpg"].rot90(int(rng.integers(4)), (1, 2)).contiguous()}


MIXED = streamio.RandomChoice(
    streamio.MixUp(classes=CLASSES, label="cls", alpha=1.0), streamio.CutMix(classes=CLASSES, label="cls"), turned
)


def augmented(path: str, batch_size: int = 8, **options: Any) -> streamio.ShardDataset:
    """Shuffled, cropped at random, with noise: all that is drawn for one sample."""
    return streamio.ShardDataset(
        path,
        batch_size,
        shuffle=True,
        seed=11,
        decode=RandomResizedCrop(24, flip=0.5),
        transform=brighter,
        **options,
    )


def batch_hashes(batches: Iterable[dict[str, Any]]) -> list[str]:
    """One hash for all that is in a batch."""
    found = []
    for batch in batches:
        digest = hashlib.sha256()
        for name in ("jpg", "cls", "drawn"):
            digest.update(f"{name} {batch[name].dtype} {tuple(batch[name].shape)}".encode())
            digest.update(batch[name].numpy().tobytes())
        digest.update(" ".join(batch["__key__"]).encode())
        found.append(digest.hexdigest())
    return found


def sample_hashes(batches: Iterable[dict[str, Any]]) -> set[tuple[str, str, int]]:
    """(key, hash of the augmented picture and what else was drawn, label) of each sample."""
    return {
        (key, hashlib.sha256(picture.numpy().tobytes() + drawn.numpy().tobytes()).hexdigest(), int(label))
        for batch in batches
        for key, picture, drawn, label in zip(
            batch["__key__"], batch["jpg"], batch["drawn"], batch["cls"], strict=True
        )
    }
