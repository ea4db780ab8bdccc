"""What the machine itself can do, measured in the same session: copies, the page cache, and decoding alone."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.speed.picture import decode_and_crop
from benchmarks.speed.source import read_files
from benchmarks.speed.workloads import CROP
from streamio.batching.resizing import best_resize
from streamio.codecs import decode_image
from streamio.image import RandomResizedCrop

_SMALL, _LARGE = 4 << 20, 256 << 20
_PICTURES = 64


def measure(source: Path, workloads: str, seconds: float) -> dict[str, float]:
    """Name -> bytes/s, or pictures/s; each for about `seconds`."""
    found = {
        "memcpy, 4 MB": _copy_rate(_SMALL, seconds),
        "memcpy, 256 MB": _copy_rate(_LARGE, seconds),
        "memcpy into new memory": _rate(lambda: np.ones(_LARGE, np.uint8).nbytes, seconds),
    }
    if (source / "c.npy").exists():
        found["page cache"] = _read_rate(source / "c.npy", seconds)
    for workload in set(workloads) & set("ab"):
        found |= {f"decode {workload}, {cores}": rate for cores, rate in _decode_rates(source, workload, seconds)}
    return found


def _rate(once: Callable[[], int], seconds: float) -> float:
    """The best of several: a limit is what can be reached. `once` gives how much it did."""
    rates: list[float] = []
    began = time.perf_counter()
    once()
    while not rates or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        done = once()
        rates.append(done / (time.perf_counter() - start))
    return max(rates)


def _copy_rate(size: int, seconds: float) -> float:
    source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)

    def once() -> int:
        np.copyto(target, source)
        return size

    return _rate(once, seconds)


def _read_rate(path: Path, seconds: float) -> float:
    buffer = bytearray(_SMALL)

    def once() -> int:
        with path.open("rb", buffering=0) as file:
            return sum(iter(lambda: file.readinto(buffer), 0))

    return _rate(once, seconds)


def _decode_rates(source: Path, workload: str, seconds: float) -> list[tuple[str, float]]:
    """On one core and on all: of the loaders' common decoder or streamio's own, whichever is faster there."""
    paths = read_files(source, workload)[:_PICTURES]
    cores = len(os.sched_getaffinity(0))
    rates: list[tuple[str, float]] = []
    for name, processes in (("1 core", 1), ("all cores", cores)):
        with ProcessPoolExecutor(processes) as pool:
            totals = [
                sum(pool.map(decode, [paths] * processes, [seconds] * processes))
                for decode in (_common_rate, _streamio_rate)
            ]
        rates.append((name, max(totals)))
    return rates


def _common_rate(paths: list[str], seconds: float) -> float:
    pictures, rng = [Path(path).read_bytes() for path in paths], random.Random(0)
    return _steady(lambda: [decode_and_crop(picture, rng) for picture in pictures], len(pictures), seconds)


def _streamio_rate(paths: list[str], seconds: float) -> float:
    pictures, rng, crop = (
        [Path(path).read_bytes() for path in paths],
        np.random.default_rng(0),
        RandomResizedCrop(CROP),
    )
    out, resize = np.empty((CROP, CROP, 3), np.uint8), best_resize()
    return _steady(
        lambda: [decode_image(one, crop, rng, out=out, resize=resize) for one in pictures], len(pictures), seconds
    )


def _steady(once: Callable[[], object], count: int, seconds: float) -> float:
    """The mean of a stretch: all cores must be busy at the same time."""
    once()
    rounds, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        once()
        rounds += 1
    return rounds * count / (time.perf_counter() - began)
