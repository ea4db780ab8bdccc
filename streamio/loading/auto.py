"""Where to make batches, decided by what the first ones cost."""

from __future__ import annotations

import time
from typing import Any

from streamio.loading.base import Batches, Transport, TransportCounts
from streamio.loading.budget import best_inline
from streamio.loading.inline import InlineTransport
from streamio.loading.processes import ProcessTransport
from streamio.stream import BatchStream, EpochStart

_FEWEST, _MOST, _ENOUGH = 3, 32, 0.05
"""Batches that are measured: so many, and more of quick ones until they took so many seconds together. The quickest
counts: others wait for a CPU that somebody else has, or touch a shard for the first time."""


class AutoTransport(Transport):
    """Makes the first batches in this process, and measures them.

    The rule, `best_inline`: where a batch from a worker costs the loop as much as making it, it is made here, for
    good. All else goes to worker processes. They are started when that is known, and until they are there the loop
    gets batches that are made here: nothing is made twice, and the loop never waits for their start. What a batch
    holds does not depend on where it was made.

    Worker processes begin at once, and nothing is measured, where a function of the user's runs (global generators
    are seeded in worker processes only) and where each worker reads a stream of its own.
    """

    def __init__(self, stream: BatchStream, workers: ProcessTransport) -> None:
        self._stream, self._inline, self.workers = stream, InlineTransport(stream), workers
        measured = stream.in_any_order and not stream.runs_user_code
        self.chosen: Transport | None = None if measured else workers
        self.decided = not measured
        self._making: list[float] = []
        self._loop: list[float] = []

    def begin(self, at: EpochStart, first: int = 0) -> Batches:
        if self.chosen is not None:
            return self.chosen.begin(at, first)
        return _Measured(self, self._inline.begin(at, first), at, first)

    def begin_workers(self, at: EpochStart, first: int) -> Batches:
        """The rest of an epoch, by the workers from now on."""
        self.chosen = self.workers
        return self.workers.begin(at, first)

    def measured(self, making: float, loop: float | None) -> None:
        """What a batch took here, in seconds, and the one before it in the loop; None for the first of an epoch.

        Stay inline or start the workers when enough was measured.
        """
        self._making.append(making)
        self._loop += [] if loop is None else [loop]
        number = len(self._making)
        if number == _MOST or (number >= _FEWEST and sum(self._making) > _ENOUGH):
            self._decide(min(self._making[1:]), min(self._loop, default=0))

    def _decide(self, making: float, loop: float) -> None:
        self.decided = True
        if best_inline(making, loop, self._stream.batch_bytes(), self.workers.counts().workers):
            self.chosen = self._inline
        else:
            self.workers.start()

    def close(self) -> None:
        self.workers.close()

    def counts(self) -> TransportCounts:
        return (self.chosen or self._inline).counts()

    def pids(self) -> list[int]:
        return self.workers.pids()


class _Measured(Batches):
    """An epoch that begins inline."""

    def __init__(self, auto: AutoTransport, inline: Batches, at: EpochStart, first: int) -> None:
        self._auto, self._at = auto, at
        self._inline, self._step = inline, first  # the step that comes next
        self._delivered: float | None = None
        self._workers: Batches | None = None  # they make all behind the next step
        self._inline_is_done = False

    def __next__(self) -> Any:
        if self._inline_is_done:
            assert self._workers is not None
            return next(self._workers)
        if not self._auto.decided:
            return self._measured()
        if self._auto.chosen is None and self._workers is None:
            self._go_over()
        self._inline_is_done = self._workers is not None
        self._step += 1
        return next(self._inline)

    def _measured(self) -> Any:
        begin = time.perf_counter()
        batch = next(self._inline)
        end = time.perf_counter()
        self._auto.measured(end - begin, None if self._delivered is None else begin - self._delivered)
        self._step, self._delivered = self._step + 1, time.perf_counter()
        return batch

    def _go_over(self) -> None:
        """To the workers, if they are there. They begin one step further on, so that the loop does not wait then:
        this one is made here meanwhile."""
        if self._auto.workers.are_ready():
            self._workers = self._auto.begin_workers(self._at, self._step + 1)

    def ready(self) -> bool:
        return self._inline_is_done and self._workers is not None and self._workers.ready()

    def ready_now(self) -> int:
        return 0 if self._workers is None else self._workers.ready_now()

    def close(self) -> None:
        self._inline.close()
        if self._workers is not None:
            self._workers.close()
