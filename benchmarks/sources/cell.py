"""One cell: a fresh process in which one way of reading rows is checked, then timed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping
from importlib import import_module
from itertools import chain
from typing import Any

import numpy as np

from benchmarks.sources.job import Job, problem
from benchmarks.speed.cell import count_problem, timed
from benchmarks.speed.job import Loop


def run(job: Job) -> dict[str, Any]:
    """An epoch in which every row is checked, then epochs that are timed."""
    script = import_module(f"benchmarks.sources.loaders.{job.script}")
    loop: Loop = script.loop(job)
    batches = iter(loop.epoch())
    first = next(batches)
    ready = time.monotonic() - job.started
    _tell({"phase": "check"})
    found = check((loop.parts(batch)[0] for batch in chain([first], batches)), job.rows)
    _tell({"phase": "timed"})
    figures = {} if found else timed(job, loop)  # type: ignore[arg-type]
    loop.close()
    return figures | {"first_batch": ready, "problem": found, "version": script.version()}


def check(batches: Iterable[Mapping[str, Any]], rows: int) -> str:
    """ "" if each row came once, whole; else what is wrong."""
    seen = []
    for batch in batches:
        if wrong := problem(batch):
            return wrong
        seen.append(np.asarray(batch["id"]).astype(np.int64))
    return count_problem(np.concatenate(seen), rows, 1)


def _tell(facts: dict[str, Any]) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    _tell(run(Job(**json.loads(sys.argv[2]))))
