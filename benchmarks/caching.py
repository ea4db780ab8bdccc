"""What a cache of decoded pictures saves, beside packing the set in another way."""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import streamio
from streamio import ShardDataset
from streamio.image import CenterCrop, ImageOp, RandomResizedCrop

_EPOCHS = 4
"""The first fills the cache; of the others the quickest counts, for each kind of time."""

DECODES = {"RandomResizedCrop(224)": RandomResizedCrop(224), "CenterCrop(224, resize=256)": CenterCrop(224, 256)}


def report(samples: int) -> None:
    """Print a table: CPU time of one core for 1,000 samples in the first epoch and later, and memory for them."""
    with tempfile.TemporaryDirectory() as folder:
        sets = _packed(Path(folder), samples)
        print("| decode | set | cache | epoch 1, s | epoch 2, s | cache, MB | set, MB |")
        print("| --- | --- | --- | ---: | ---: | ---: | ---: |")
        for name, decode in DECODES.items():
            for kind, path in sets.items():
                caches = (None, "memory", f"disk:{folder}/cache") if kind == "500 x 375, JPEG" else (None,)
                for cache in caches:
                    first, later, held = _measured(path, decode, cache, 1000 / samples)
                    size = sum(file.stat().st_size for file in path.rglob("*.tar")) * 1000 / samples
                    where = "none" if cache is None else cache.split(":")[0]
                    print(
                        f"| `{name}` | {kind} | {where} | {first:.2f} | {later:.2f} "
                        f"| {held / 1e6:,.0f} | {size / 1e6:,.0f} |"
                    )


def _packed(folder: Path, samples: int) -> dict[str, Path]:
    """The same pictures, packed in three ways."""
    for i, data in enumerate(_pictures(samples)):
        path = folder / "photos" / f"{i % 10}" / f"{i:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    ways: dict[str, dict[str, Any]] = {
        "500 x 375, JPEG": {},
        "shorter side 256, JPEG": {"resize_short": 256},
        "shorter side 256, raw": {"resize_short": 256, "store": "raw"},
    }
    for number, options in enumerate(ways.values()):
        streamio.pack(folder / "photos", folder / str(number), **options)
    return {kind: folder / str(number) for number, kind in enumerate(ways)}


def _pictures(samples: int) -> Iterator[bytes]:
    """JPEGs of 500 x 375, about as large as photographs of this size."""
    for i in range(samples):
        random = np.random.default_rng(i)
        coarse = Image.fromarray(random.integers(0, 255, (24, 32, 3), np.uint8))
        picture = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC)).astype(np.int16)
        picture = np.clip(picture + random.normal(0, 6, picture.shape), 0, 255).astype(np.uint8)
        out = io.BytesIO()
        Image.fromarray(picture).save(out, "JPEG", quality=90)
        yield out.getvalue()


def _measured(path: Path, decode: ImageOp, cache: str | None, scale: float) -> tuple[float, float, int]:
    """CPU seconds of the first epoch and of later ones, and bytes of the cache, for 1,000 samples."""
    dataset = ShardDataset(path, 64, fields=("jpg",), shuffle=True, decode=decode, cache=cache)
    seconds = []
    for _ in range(_EPOCHS):
        start = time.process_time()
        for _ in dataset:
            pass
        seconds.append((time.process_time() - start) * scale)
    return seconds[0], min(seconds[1:]), int(dataset.stats().cache_bytes * scale)
