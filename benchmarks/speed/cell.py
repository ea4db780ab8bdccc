"""One cell: a fresh process in a peer's environment that writes a peer's data, or runs its loader and measures it.

Lines of JSON on stdout say how far it is ({"phase": …}) and in the end what came out. Memory is sampled from
outside in the phase "check", and not while the loader is timed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.speed.job import Job, Loop, samples
from benchmarks.speed.processes import tree_cpu_seconds
from benchmarks.speed.source import own_numbers

CHECK_SECONDS = 0.4
"""The untimed part lasts at least so long, for the samples of memory."""


def write(job: Job) -> dict[str, Any]:
    """Let the peer's writer make its data; they appear when they are whole."""
    script = import_module(f"benchmarks.speed.loaders.{job.peer}")
    unfinished = job.packed.with_name(job.packed.name + ".part")
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    script.write(job, unfinished, samples(job))
    unfinished.rename(job.packed)
    return {"seconds": time.monotonic() - began}


def run(job: Job) -> dict[str, Any]:
    """An epoch that is checked, then epochs that are timed."""
    script = import_module(f"benchmarks.speed.loaders.{job.peer}")
    loop: Loop = script.loop(job)
    batches = iter(loop.epoch())
    first = next(batches)
    ready = time.monotonic() - job.started
    _tell({"phase": "check"})
    began = time.monotonic()
    problem = check(job, loop, chain([first], batches))
    while not problem and time.monotonic() - began < CHECK_SECONDS:
        problem = check(job, loop, loop.epoch())
    _tell({"phase": "timed"})
    figures = {} if problem else timed(job, loop)
    loop.close()
    return figures | {"first_batch": ready, "problem": problem, "version": _version(script)}


def check(job: Job, loop: Loop, batches: Any) -> str:
    """ "" if every sample came as often as it should, whole and with its own number; else what is wrong."""
    about, seen = job.about, []
    for batch in batches:
        data, numbers = (np.asarray(part) for part in loop.parts(batch))
        if data.shape[1:] != about.shape or data.dtype != about.dtype:
            return f"samples are {data.dtype} {data.shape[1:]}, not {about.dtype} {about.shape}"
        numbers = numbers.reshape(-1).astype(np.int64)
        if about.kind == "array" and job.peer != "bare" and not np.array_equal(own_numbers(data), numbers):
            return "a sample has the number of another one"
        seen.append(numbers)
    return count_problem(np.concatenate(seen), job.samples, about.repeat)


def count_problem(numbers: NDArray[np.int64], count: int, repeat: int) -> str:
    """ "" if each of 0 … count - 1 came `repeat` times."""
    if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < count:
        return f"numbers {numbers.min()} to {numbers.max()} of {count:,} samples"
    comings = np.bincount(numbers, minlength=count)
    fewer, more = int((comings < repeat).sum()), int((comings > repeat).sum())
    return f"{fewer:,} samples come too seldom, {more:,} too often" if fewer or more else ""


def timed(job: Job, loop: Loop) -> dict[str, float]:
    """Whole epochs for at least `job.seconds`, with nothing done to a batch but asking how long it is."""
    waits: list[float] = []
    count, cpu, began = 0, tree_cpu_seconds(os.getpid()), time.perf_counter()
    asked = began
    while asked - began < job.seconds:
        for batch in loop.epoch():
            waits.append(time.perf_counter() - asked)
            count += len(loop.parts(batch)[1])
            asked = time.perf_counter()
        asked = time.perf_counter()
    seconds = asked - began
    return {
        "rate": count / seconds,
        "cpu": (tree_cpu_seconds(os.getpid()) - cpu) / count * 1000,
        "wait": float(np.percentile(waits, 99)),
        "batches": len(waits),
    }


def _version(script: Any) -> str:
    package = getattr(script, "PACKAGE", "")
    try:
        return f"{package} {version(package)}" if package else ""
    except PackageNotFoundError:
        return str(package)


def _tell(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def main(action: str, arguments: list[str]) -> None:
    job = Job.of(arguments)
    _tell(write(job) if action == "write" else run(job))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
