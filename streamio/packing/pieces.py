"""Cuts the work so that all workers are done at the same time, however many shards there are.

Laid end to end, the work is cut into as many equal parts as there are workers. A shard that lies across a cut is
written in pieces, which are joined when all of them are there. Samples a to f of one size in two shards, for two
workers and for three:

    a b c d | e f      ->  a b c / d | e f           a b / c d | e f
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamio.packing.write import Job, Join, PieceDone
from streamio.shards.formats import format_named

FIELD = 8 << 10
"""What a field of a sample takes, be it empty, in bytes that could be copied instead."""
DECODED = 40
"""What decoding a picture takes, and mostly encoding it again, in times of copying it."""
LEAST = 512 << 20
"""The least work, in such bytes, for which it is worth to start a process: about half a second."""


def weights(job: Job) -> NDArray[np.int64]:
    """The work of its samples, each with that of all before it, in bytes that could be copied instead."""
    factor = DECODED if job.options.decodes else 1
    return np.cumsum([FIELD * (len(s.files) + len(s.values)) + factor * s.bytes for s in job.samples])


def cut(jobs: Sequence[Job], ends: Sequence[NDArray[np.int64]], workers: int) -> list[list[Job]]:
    """For each job itself, or the pieces of it, so that this many workers have equal parts. ends: see `weights`."""
    share = max(-(-sum(int(of_job[-1]) for of_job in ends) // workers), 1)
    done = 0
    result: list[list[Job]] = []
    for job, of_job in zip(jobs, ends, strict=True):
        whole = int(of_job[-1])
        splits = range(share - done % share, whole, share) if format_named(job.format).in_pieces else ()
        bounds = sorted({0, *np.searchsorted(of_job, splits, "right").tolist(), len(job.samples)})
        result.append(list(_pieces(job, bounds)) if len(bounds) > 2 else [job])
        done += whole
    return result


def worth(weight: int, workers: int) -> int:
    """How many of the workers this much work is for."""
    return max(1, min(workers, weight // LEAST))


def _pieces(job: Job, bounds: Sequence[int]) -> Iterator[Job]:
    for number, (start, end) in enumerate(pairwise(bounds)):
        yield replace(job, samples=job.samples[start:end], path=f"{job.path}.{number}", is_piece=True)


class Task(NamedTuple):
    """What one worker is to do: job `at` of all, or piece `number` of it."""

    at: int
    number: int
    what: Job | Join


class Tasks:
    """What is left to do, in order: shards and pieces, and the joining of pieces that are all there."""

    def __init__(self, jobs: Sequence[Job], workers: int) -> None:
        self._jobs = jobs
        ends = [weights(job) for job in jobs]
        self.workers = worth(sum(int(of_job[-1]) for of_job in ends), workers)
        """Workers that this is worth: 1 if a process more would take longer to start than it saves."""
        parts = cut(jobs, ends, self.workers)
        self._waiting = deque(Task(at, n, job) for at, part in enumerate(parts) for n, job in enumerate(part))
        self._pieces: list[list[PieceDone | None]] = [[None] * len(part) for part in parts]

    def __len__(self) -> int:
        return len(self._waiting)

    def next(self) -> Task | None:
        return self._waiting.popleft() if self._waiting else None

    def add(self, task: Task, done: PieceDone) -> None:
        """A piece is there. The last one of a shard makes a task of joining them, which comes first."""
        pieces = self._pieces[task.at]
        pieces[task.number] = done
        ready = tuple(piece for piece in pieces if piece is not None)
        if len(ready) == len(pieces):
            job = self._jobs[task.at]
            join = Join(split=job.split, number=job.number, path=job.path, format=job.format, pieces=ready)
            self._waiting.appendleft(Task(task.at, 0, join))
