"""Where to make batches, decided by what the first ones cost."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from streamio.loading.base import Batches, Transport, TransportCounts
from streamio.loading.budget import best_inline
from streamio.loading.inline import InlineTransport
from streamio.loading.processes import ProcessTransport
from streamio.stream import BatchStream, EpochStart

_FEWEST, _MOST, _ENOUGH = 3, 64, 0.05
"""Batches that are measured: so many, and more of quick ones until they took so many seconds together."""

_ROUNDS = 8
"""Rounds of all workers, each with a bundle of every one, by which they are tried. They follow those in which the
memory of batches made ahead is new."""

_WORSE = 1.05
"""They are given up where the loop takes so many times longer with them than without."""


class AutoTransport(Transport):
    """Makes the first batches in this process, and measures them; then it tries worker processes.

    Workers are not even tried where they have no chance (`best_inline`). Else they are started, and until they are
    there the loop gets batches that are made here: it never waits for their start. When they have made some, those
    who gave the loop its batches quicker go on for good. What a batch holds does not depend on where it was made.

    Worker processes begin at once, and nothing is measured, where a function of the user's runs (global generators
    are seeded in worker processes only) and where each worker reads a stream of its own.
    """

    def __init__(self, stream: BatchStream, workers: ProcessTransport) -> None:
        self._stream, self.inline, self.workers = stream, InlineTransport(stream), workers
        measured = stream.in_any_order and not stream.runs_user_code
        self.chosen: Transport | None = None if measured else workers
        """For good; None until it is decided."""
        self.serving: Transport = self.inline if measured else workers
        self.tries_workers = False
        self._making: list[float] = []
        self._loop: list[float] = []
        self._measured, self._spent = 0, 0.0
        self._tried: list[float] = []
        counts = workers.counts()
        self.round = counts.workers * workers.bundle
        """Batches of a round."""
        self._new_rounds = counts.ahead // self.round

    def begin(self, at: EpochStart, first: int = 0) -> Batches:
        if self.chosen is not None:
            return self.chosen.begin(at, first)
        self.serving = self.inline
        return _Measured(self, at, first)

    def made_here(self, seconds: float, batches: int, loop: float | None) -> None:
        """What a bundle took in this process, and the loop with the batch before it; None at first."""
        self._making.append(seconds / batches)
        self._measured, self._spent = self._measured + batches, self._spent + seconds
        self._loop += [] if loop is None else [loop]
        if self.tries_workers or not self._enough():
            return
        # The quickest counts: others wait for a CPU that somebody else has, or touch a shard for the first time.
        making, loop = min(self._making[1:]), min(self._loop, default=0)
        size, workers = self._stream.batch_bytes(), self.workers.counts().workers
        if best_inline(making, loop, size, workers, self.workers.bundle):
            self.chosen = self.inline
        else:
            self.tries_workers = True
            self.workers.start()

    def _enough(self) -> bool:
        return self._measured >= _MOST or (len(self._making) >= _FEWEST and self._spent > _ENOUGH)

    def made_there(self, seconds: float) -> bool:
        """What a batch of the workers took, all in all, in one round. Whether they go on."""
        self._tried.append(seconds)
        if len(self._tried) >= self._new_rounds + _ROUNDS:
            here, there = median(self._making[1:]) + median(self._loop or [0]), median(self._tried[-_ROUNDS:])
            self.chosen = self.inline if there > _WORSE * here else self.workers
        return self.chosen is not self.inline

    def close(self) -> None:
        self.workers.close()

    def counts(self) -> TransportCounts:
        return self.serving.counts()

    def pids(self) -> list[int]:
        return self.workers.pids()


class _Measured(Batches):
    """An epoch in which it is not decided yet. It begins inline."""

    def __init__(self, auto: AutoTransport, at: EpochStart, first: int) -> None:
        self._auto, self._at = auto, at
        self._step = first  # that comes next
        self._inline = auto.inline.begin(at, first)
        self._workers: Batches | None = None
        self._workers_from = -1  # the step from which they make all
        self._delivered: float | None = None
        self._round_began, self._of_round = 0.0, 0

    def __next__(self) -> Any:
        if self._workers is not None and self._step >= self._workers_from:
            return self._from_workers(self._workers)
        if not self._inline.made and self._auto.tries_workers and self._workers is None:
            self._go_over()
        begin, new = time.perf_counter(), not self._inline.made
        batch = next(self._inline)
        if new and self._auto.chosen is None:
            making = time.perf_counter() - begin
            loop = None if self._delivered is None else begin - self._delivered
            self._auto.made_here(making, 1 + self._inline.made, loop)
        self._step, self._delivered = self._step + 1, time.perf_counter()
        return batch

    def _go_over(self) -> None:
        """To the workers, if they are there. They begin a bundle further on, so that the loop does not wait then:
        this one is made here meanwhile."""
        if self._auto.chosen is None and self._auto.workers.are_ready():
            self._workers_from = self._step + self._inline.coming()
            self._workers = self._auto.workers.begin(self._at, self._workers_from)

    def _from_workers(self, workers: Batches) -> Any:
        auto, now = self._auto, time.perf_counter()
        auto.serving = auto.workers
        if auto.chosen is None and self._of_round in (0, auto.round):
            if self._of_round and not auto.made_there((now - self._round_began) / self._of_round):
                return self._go_back(workers)
            self._round_began, self._of_round = now, 0
        batch = next(workers)
        self._step, self._of_round = self._step + 1, self._of_round + 1
        return batch

    def _go_back(self, workers: Batches) -> Any:
        workers.close()
        self._auto.workers.close()
        self._auto.serving, self._workers = self._auto.inline, None
        self._inline = self._auto.inline.begin(self._at, self._step)
        return next(self)

    def ready(self) -> bool:
        return self._workers is not None and self._step >= self._workers_from and self._workers.ready()

    def ready_now(self) -> int:
        return 0 if self._workers is None else self._workers.ready_now()

    def close(self) -> None:
        self._inline.close()
        if self._workers is not None:
            self._workers.close()
