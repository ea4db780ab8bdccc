"""Where the time goes in each workload of `speed`, in one process: stage by stage, and the functions behind it."""

from __future__ import annotations

import cProfile
import pstats
import time
from pathlib import Path

from benchmarks.speed import limits, source
from benchmarks.speed.cell import write
from benchmarks.speed.job import Job, Loop
from benchmarks.speed.loaders import streamio as ours
from benchmarks.speed.rounds import fresh_folder
from benchmarks.speed.tables import markdown
from benchmarks.speed.workloads import WORKLOADS
from streamio.diagnostics.watch import less

_STORES = {"a": "tar", "b": "tar", "c": "hdf5", "d": "hdf5", "e": "hdf5", "f": "tar"}
_FUNCTIONS = 3
_STAGES = ("read", "decode", "collate")


def report(work: Path, workloads: str, seconds: float, quick: bool) -> str:
    """Two tables: µs a sample in each stage, and the functions with most time of their own."""
    data = work / ("quick" if quick else "full")
    fresh_folder(data, quick)
    stages, functions = [], []
    for workload in workloads:
        source.make(data / "source", workload, quick)
        job = _job(data, workload, quick)
        if not job.packed.exists():
            write(job)
        memcpy = limits.measure(data / "source", workload if workload in "ab" else "", 0.5)
        stages.append(_stages(job, memcpy, seconds))
        functions.append([f"({workload})", *_functions(job)])
    head = ["µs a sample", "all", *_STAGES, "order, tensors, loop", "GB/s", "of the limit"]
    tops = ["most time of their own", *map(str, range(1, _FUNCTIONS + 1))]
    return f"{markdown(head, stages)}\n\n{markdown(tops, functions)}"


def _job(data: Path, workload: str, quick: bool) -> Job:
    store = _STORES[workload]
    return Job(
        peer="streamio", workload=workload, variant=f"{store}/inline", workers=0,
        samples=WORKLOADS[workload].count(quick), data=str(data.resolve()), store=f"streamio-{store}-{workload}",
        seconds=0, started=0,
    )  # fmt: skip


def _epochs(loop: Loop, seconds: float) -> float:
    """Whole epochs for at least so long; how long it was."""
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in loop.epoch():
            pass
    return time.perf_counter() - began


def _stages(job: Job, limit: dict[str, float], seconds: float) -> list[str]:
    loop = ours.loop(job)
    dataset = loop.epoch().dataset  # type: ignore[attr-defined]
    _epochs(loop, 0.01)  # shards are opened, memory is there
    before = dataset.stats()
    whole = _epochs(loop, seconds)
    made = less(dataset.stats(), before)
    each = {name: made.seconds[name] / made.samples * 1e6 for name in _STAGES}
    all_of_it = whole / made.samples * 1e6
    rest = all_of_it - sum(each.values())
    speed = WORKLOADS[job.workload].sample_bytes / all_of_it / 1e3
    name = f"decode {job.workload}, 1 core"
    share = 1e6 / all_of_it / limit[name] if name in limit else speed * 1e9 / limit["memcpy, 256 MB"]
    figures = [all_of_it, *each.values(), rest]
    of_what = "decoding alone" if name in limit else "memcpy"
    title = f"({job.workload}) {WORKLOADS[job.workload].title}, {_STORES[job.workload]}"
    return [title, *(f"{figure:.3g}" for figure in figures), f"{speed:.2g}", f"{share:.2f} of {of_what}"]


def _functions(job: Job) -> list[str]:
    loop, profile = ours.loop(job), cProfile.Profile()
    _epochs(loop, 0.01)
    profile.enable()
    _epochs(loop, 0.5)
    profile.disable()
    found = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    own = sorted(((figures[2], place) for place, figures in found.items()), reverse=True)
    whole = sum(seconds for seconds, _ in own)
    return [f"{_name(*place)} {seconds / whole:.0%}" for seconds, place in own[:_FUNCTIONS]]


def _name(file: str, _line: int, function: str) -> str:
    if file == "~":  # built in: "<method 'take' of 'numpy.ndarray' objects>"
        return f"`{function.strip('<>')}`"
    return f"`{Path(file).stem}.{function}`"
