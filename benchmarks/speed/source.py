"""The data of all loaders, made once for each folder, and in which every sample tells its number.

    source/pictures/<class>/<number>.jpg   workload a, and source/small/… workload b
    source/c.npy, d.npy, e.npy, f.npy      arrays; the first bytes of a record (the first number of it) are its own

Reading it needs numpy alone.
"""

from __future__ import annotations

import io
import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from benchmarks.speed.workloads import CROP, WORKLOADS

FOLDERS = {"a": "pictures", "b": "small"}
CLASSES = 100
WIDTH, HEIGHT, SHORT, QUALITY = 500, 375, 256, 90
TINY_BYTES = 600


def read_files(source: Path, workload: str) -> list[str]:
    """Paths of the pictures in the order of their numbers."""
    return sorted((str(path) for path in Path(source, FOLDERS[workload]).glob("*/*.jpg")), key=os.path.basename)


def read_array(source: Path, workload: str) -> NDArray[np.generic]:
    """Every sample of a workload of arrays, as a read-only memory map; h reads what c does."""
    array: NDArray[np.generic] = np.load(source / f"{'c' if workload == 'h' else workload}.npy", mmap_mode="r")
    return array[: WORKLOADS["h"].samples] if workload == "h" else array


def own_numbers(data: NDArray[np.generic]) -> NDArray[np.int64]:
    """What the samples of a batch say that they are."""
    flat = np.ascontiguousarray(data.reshape(len(data), -1))
    first = flat[:, :4].copy().view("<i4")[:, 0] if flat.dtype == np.uint8 else flat[:, 0]
    return first.astype(np.int64)


def make(source: Path, workload: str, quick: bool) -> None:
    """Make what a workload reads, if it is not there yet; it appears when it is whole."""
    if workload in FOLDERS or workload == "g":
        make_pictures(source, WORKLOADS["a"].count(quick))
    if workload == "g":
        make_tiny(source, WORKLOADS["g"].count(quick))
    elif workload not in FOLDERS:
        _make_array(source, "c" if workload == "h" else workload, quick)


def _make_array(source: Path, workload: str, quick: bool) -> None:
    target = source / f"{workload}.npy"
    if not target.exists():
        unfinished = target.with_suffix(".part")
        _write_array(unfinished, workload, WORKLOADS[workload].count(quick))
        unfinished.rename(target)


def make_pictures(source: Path, samples: int) -> None:
    """Pictures of 500 x 375 that compress like photographs (about 50 KB), and the same with a short side of 256."""
    if Path(source, "small").exists():
        return
    with ProcessPoolExecutor() as pool:
        parts = [part.tolist() for part in np.array_split(np.arange(samples), 8)]
        list(pool.map(_write_pictures, [str(source)] * len(parts), parts))
    for name in ("pictures", "small"):
        Path(source, f"{name}.part").rename(Path(source, name))


def _write_pictures(source: str, numbers: list[int]) -> None:
    from PIL import Image  # the peers' environments read the source without it

    for number in numbers:
        picture = Image.fromarray(picture_pixels(number))
        small = picture.resize((WIDTH * SHORT // HEIGHT, SHORT), Image.Resampling.BILINEAR, reducing_gap=2.0)
        for folder, image in (("pictures", picture), ("small", small)):
            target = Path(source, f"{folder}.part", f"class-{number % CLASSES:02d}", f"{number:06d}.jpg")
            target.parent.mkdir(parents=True, exist_ok=True)
            encoded = io.BytesIO()
            image.save(encoded, "jpeg", quality=QUALITY)
            target.write_bytes(encoded.getvalue())


def picture_pixels(number: int) -> NDArray[np.uint8]:
    """uint8 (375, 500, 3): a part of some clouds, with a few discs before them."""
    rng = np.random.default_rng(number)
    clouds = _clouds()
    top, left = (
        int(rng.integers(large - small)) for large, small in zip(clouds.shape, (HEIGHT, WIDTH), strict=False)
    )
    pixels = clouds[top : top + HEIGHT, left : left + WIDTH].copy()
    for _ in range(6):
        radius = int(rng.integers(20, 120))
        x, y = int(rng.integers(WIDTH)), int(rng.integers(HEIGHT))
        part = pixels[max(0, y - radius) : y + radius, max(0, x - radius) : x + radius]
        rows, columns = np.ogrid[: part.shape[0], : part.shape[1]]
        inside = (rows - min(y, radius)) ** 2 + (columns - min(x, radius)) ** 2 < radius**2
        part[inside] = part[inside] // 5 * 2 + rng.integers(0, 150, 3, np.uint8)
    return pixels


@cache
def _clouds() -> NDArray[np.uint8]:
    """uint8 (1500, 2000, 3): noise in octaves, each finer one weaker."""
    from PIL import Image

    rng = np.random.default_rng(0)
    height, width = 4 * HEIGHT, 4 * WIDTH
    pixels = np.full((height, width, 3), 128, np.float32)
    for octave in range(2, 10):
        size = (min(height, 2 ** (octave + 2)), min(width, 2 ** (octave + 2) * 4 // 3))
        grey, colour = rng.integers(0, 256, (*size, 1), np.uint8), rng.integers(0, 256, (*size, 3), np.uint8)
        coarse = Image.fromarray(grey // 4 * 3 + colour // 4)
        pixels += (np.asarray(coarse.resize((width, height)), np.float32) - 127) * (1.3 * 0.72**octave)
    return np.clip(pixels, 0, 255).astype(np.uint8)


def _write_array(path: Path, workload: str, samples: int) -> None:
    about, rng = WORKLOADS[workload], np.random.default_rng(ord(workload))
    path.parent.mkdir(parents=True, exist_ok=True)
    array = open_memmap(path, "w+", np.dtype(about.dtype), (samples, *about.shape))
    for first in range(0, samples, 1000):
        rows = slice(first, min(samples, first + 1000))
        array[rows] = _records(workload, rng, (rows.stop - first, *about.shape))
        _stamp(array[rows], np.arange(first, rows.stop))
    array.flush()


def _records(workload: str, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.generic]:
    if workload == "c":  # noise in blocks, so that the whole is made quickly
        return np.tile(rng.integers(0, 256, (shape[0], CROP // 8, CROP // 8, 3), np.uint8), (1, 8, 8, 1))
    if workload == "e":
        return rng.standard_normal(shape, np.float32)
    return rng.integers(0, 50_000 if workload == "f" else 256, shape, np.int32 if workload == "f" else np.uint8)


def _stamp(records: NDArray[np.generic], numbers: NDArray[np.int64]) -> None:
    flat = records.reshape(len(records), -1)
    if flat.dtype == np.uint8:
        flat[:, :4] = numbers.astype("<i4")[:, None].view(np.uint8)
    else:
        flat[:, 0] = numbers


def make_tiny(source: Path, files: int) -> None:
    """A folder of many very small files, in as many classes."""
    target, unfinished = source / "tiny", source / "tiny.part"
    if target.exists():
        return
    shutil.rmtree(unfinished, ignore_errors=True)
    content = np.random.default_rng(0).bytes(TINY_BYTES + files)
    for number in range(files):
        folder = unfinished / f"class-{number % CLASSES:02d}"
        if number < CLASSES:
            folder.mkdir(parents=True)
        (folder / f"{number:06d}.bin").write_bytes(content[number : number + TINY_BYTES])
    unfinished.rename(target)
