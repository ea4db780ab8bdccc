"""What the order of a very large set costs: time to plan, memory, time to resume, time for each sample.

No shard exists: a plan is made of sizes. Each figure comes from fresh processes (`python -m benchmarks.order
NAME …`), so that nothing is warm but the imports, and memory is that of one thing alone. "Cold" is the first time
in such a process, the median of five processes; "warm" the median of 20 more times in each. Times are CPU time: it
is one thread that only computes, and other programs should not count.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.memory import peak_bytes, resident_bytes
from streamio.order.plan import Plan
from streamio.order.shuffle import Shuffle

ROOT = Path(__file__).resolve().parent.parent
BATCH = 256
_TIMED_BATCHES, _PLACES = 2_000, 5
_SHOWN: tuple[Shuffle, ...] = ("global", "block")


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value beside its goal, both in `unit`; lower is better. goal None: shown for information."""

    what: str
    value: float
    goal: float | None
    unit: str

    @property
    def met(self) -> bool:
        return self.goal is None or self.value < self.goal


def report(samples: int, shards: int) -> bool:
    """Print the table; whether every goal is met."""
    figures = [figure for shuffle in _SHOWN for figure in measure(samples, shards, shuffle)]
    table = Table("figure", "measured", "goal", "", title=f"The order of {samples:,} samples in {shards:,} shards")
    for figure in figures:
        goal = "" if figure.goal is None else f"< {figure.goal:g} {figure.unit}"
        verdict = "" if figure.goal is None else "met" if figure.met else "MISSED"
        table.add_row(figure.what, f"{figure.value:.3g} {figure.unit}", goal, verdict)
    Console().print(table)
    return all(figure.met for figure in figures)


def measure(samples: int, shards: int, shuffle: Shuffle) -> Iterator[Figure]:
    """All figures of one shuffle."""
    planned = _fresh("plan", samples, shards, shuffle)
    yield Figure(f"{shuffle}: plan and first batch", planned["seconds"], 1, "s")
    yield Figure(f"{shuffle}: memory, on top of the imports", planned["bytes"] / 2**20, 64, "MiB")
    resumed = [_fresh("resume", samples, shards, shuffle) for _ in range(5)]
    for kind in ("cold", "warm"):
        milliseconds = statistics.median(times[kind] for times in resumed) * 1e3
        yield Figure(f"{shuffle}: resume in the middle, {kind}", milliseconds, 10, "ms")
    cost = _fresh("sample", samples, shards, shuffle)
    yield Figure(f"{shuffle}: a sample, batches of {BATCH}", cost["seconds"] * 1e6, 0.5, "µs")


def _fresh(name: str, samples: int, shards: int, shuffle: Shuffle) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.order", name, str(samples), str(shards), shuffle]
    # The threads of numpy's BLAS, which has nothing to do here, wait by spinning, and CPU time would count that.
    alone = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=alone, stdout=subprocess.PIPE, text=True, check=True)
    values: dict[str, float] = json.loads(done.stdout)
    return values


def _sizes(samples: int, shards: int) -> NDArray[np.int64]:
    sizes = np.full(shards, samples // shards, np.int64)
    sizes[: samples % shards] += 1
    return sizes


def _plan(sizes: NDArray[np.int64], shuffle: Shuffle, start: int = 0) -> Plan:
    return Plan(sizes=sizes, batch_size=BATCH, shuffle=shuffle, seed=1, start=start)


def _first_batch(plan: Plan) -> None:
    """As a worker asks for it: the first of all batches, the order computed for many of them."""
    next(iter(plan.batches(range(plan.steps), 0)))


def plan_figures(samples: int, shards: int, shuffle: Shuffle) -> dict[str, float]:
    before = resident_bytes()
    sizes = _sizes(samples, shards)
    began = time.process_time()
    _first_batch(_plan(sizes, shuffle))
    seconds = time.process_time() - began
    return {"seconds": seconds, "bytes": peak_bytes() - before}


def resume_figures(samples: int, shards: int, shuffle: Shuffle) -> dict[str, float]:
    sizes, times = _sizes(samples, shards), []
    for _ in range(21):
        began = time.process_time()
        _first_batch(_plan(sizes, shuffle, start=samples // 2))
        times.append(time.process_time() - began)
    return {"cold": times[0], "warm": statistics.median(times[1:])}


def sample_figures(samples: int, shards: int, shuffle: Shuffle) -> dict[str, float]:
    """Batches in a row, from five places of the epoch; the median place."""
    plan = _plan(_sizes(samples, shards), shuffle)
    _first_batch(plan)
    count, times = min(_TIMED_BATCHES, plan.steps), []
    for first in range(0, plan.steps - count + 1, max(1, plan.steps // _PLACES)):
        began = time.process_time()
        got = sum(len(batch.rows) for batch in plan.batches(range(first, first + count), 0))
        times.append((time.process_time() - began) / got)
    return {"seconds": statistics.median(times)}


MEASURES: dict[str, Callable[[int, int, Shuffle], dict[str, float]]] = {
    "plan": plan_figures,
    "resume": resume_figures,
    "sample": sample_figures,
}


def main(name: str, samples: str, shards: str, shuffle: Shuffle) -> None:
    print(json.dumps(MEASURES[name](int(samples), int(shards), shuffle)))


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
