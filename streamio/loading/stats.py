"""What a loader did, in figures: a snapshot, the clock that it is taken from, and one line of it for a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from streamio.batching.stages import HANDOVER
from streamio.errors import UsageError
from streamio.loading.procmem import ProcessMemory
from streamio.stream import DataStats


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderStats:
    """What a loader did so far, in all epochs; or between two moments, see `since`. Times are in seconds.

    transport:     that of now: "inline", "thread" or "process". workers: its threads or processes.
    makers:        threads that make batches: `workers` times those of each; 1 where the loop makes them itself.
    ahead:         batches that may be made before the loop asks for them, over all workers.
    epoch:         the one that runs or ran last. epoch_seconds: the time of the loop in it so far.
    batches:       that the loop got.
    samples:       in them; where batches have several sizes, an estimate until all that were made are taken.
    seconds:       the loop's time in its epochs: from asking for the first batch to the last time it asked.
    waited:        of `seconds`, those that the loop waited for a batch. first_wait: of `waited`, those for the very
                   first batch, with the start of the workers.
    idle:          that makers waited because the loop had not taken what they made; of all makers together.
    ready:         batches that were there when it was asked. ready_mean: when the loop asked for one, on average.
    handover:      for pickling, pipes and unpickling, on both sides.
    handed_over:   bytes that came through pipes; batches in shared memory are not in them.
    data:          what the data set counted, all its loaders together: samples that were left out, time of stages.
    memory:        of each worker process that lives.
    """

    transport: str
    workers: int
    makers: int
    ahead: int
    epoch: int
    epoch_seconds: float
    batches: int
    samples: int
    seconds: float
    waited: float
    first_wait: float
    idle: float
    ready: int
    ready_mean: float
    handover: float
    handed_over: int
    data: DataStats
    memory: tuple[ProcessMemory, ...]

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def waited_share(self) -> float:
        """Of the loop's time that it waited for data: 0 … 1."""
        return self.waited / self.seconds if self.seconds else 0.0

    @property
    def idle_share(self) -> float:
        """Of the makers' time that they waited for the loop: 0 … 1; 0 where the loop makes batches itself."""
        return min(1.0, self.idle / (self.seconds * self.makers)) if self.seconds else 0.0

    @property
    def stages(self) -> dict[str, float]:
        """Seconds in "read", "decode", "transform", "collate" and "hand-over", over all makers."""
        return {**self.data.seconds, HANDOVER: self.handover}

    @property
    def stage_shares(self) -> dict[str, float]:
        """Of the time in all stages, those of each: they add up to 1, or are all 0 before anything was made."""
        return shares(self.stages)

    def since(self, earlier: LoaderStats) -> LoaderStats:
        """What happened between two snapshots of one loader. What is of now (transport, memory, …) stays."""
        asked, asked_then = self.batches, earlier.batches
        ready = self.ready_mean * asked - earlier.ready_mean * asked_then
        return replace(
            self,
            **{name: getattr(self, name) - getattr(earlier, name) for name in _SUMS},
            ready_mean=ready / (asked - asked_then) if asked > asked_then else 0.0,
            data=less(self.data, earlier.data),
        )


_SUMS = ("batches", "samples", "seconds", "waited", "first_wait", "idle", "handover", "handed_over")


def less(now: DataStats, earlier: DataStats) -> DataStats:
    """What a data set counted between two moments."""

    def difference(a: Any, b: Any) -> Any:
        return {name: a[name] - b[name] for name in a} if isinstance(a, Mapping) else a - b

    names = [field.name for field in fields(now)]
    return DataStats(**{name: difference(getattr(now, name), getattr(earlier, name)) for name in names})


def shares(parts: Mapping[str, float]) -> dict[str, float]:
    """Parts of a whole as shares of it, which add up to 1; all 0 where there is nothing."""
    whole = sum(parts.values())
    return {name: part / whole if whole > 0 else 0.0 for name, part in parts.items()}


class LoopClock:
    """Told when a loop asks for a batch and gets it. Where an epoch is left, the time behind its last batch is none
    of the loop's."""

    def __init__(self) -> None:
        self.batches = 0
        self.waited = self.looped = self.first_wait = self.ready = 0
        self._asked = self._epoch_began = 0
        self._got: int | None = None

    def begin(self) -> None:
        """An epoch begins."""
        self._got, self._epoch_began = None, self.nanoseconds

    def asks(self, ready: int) -> None:
        """ready: batches that are there now."""
        self._asked = time.perf_counter_ns()
        if self._got is not None:
            self.looped += self._asked - self._got
        self.ready += ready

    def got(self, batch: bool) -> None:
        """What was asked for came: a batch, or the end of the epoch, or an error."""
        self._got = time.perf_counter_ns()
        self.waited += self._got - self._asked
        if not self.batches:
            self.first_wait = self.waited
        self.batches += batch

    def timed(self, batches: Iterable[Any], ready: Callable[[], int] = lambda: 0) -> Iterator[Any]:
        """The batches, each asked for and got. Counts the time for `iter` as well, which may start workers.

        ready: asked each time, how many batches are there.
        """
        self.asks(ready())
        coming = iter(batches)
        while True:
            came = False
            try:
                batch = next(coming)
                came = True
            except StopIteration:
                return
            finally:
                self.got(came)
            yield batch
            del batch  # else its memory is not free while the next one is made
            self.asks(ready())

    @property
    def nanoseconds(self) -> int:
        return self.waited + self.looped

    @property
    def epoch_nanoseconds(self) -> int:
        return self.nanoseconds - self._epoch_began


class Reporter:
    """Prints a line every so many seconds, about what happened since the one before. Asked at each batch, so that
    there is no thread."""

    def __init__(self, every: float, stats: Callable[[], LoaderStats]) -> None:
        self._every, self._stats = every, stats
        self._last: LoaderStats | None = None
        self._due = 0.0

    def look(self, done: int, steps: int | None) -> None:
        """done: batches of this epoch that the loop got, of `steps`."""
        now = time.monotonic()
        if self._last is None:  # the first batch: its wait was for the start of the workers
            self._last, self._due = self._stats(), now + self._every
        elif now >= self._due:
            stats = self._stats()
            print(report_line(stats.since(self._last), done, steps), file=sys.stderr, flush=True)
            self._last, self._due = stats, now + self._every


def report_line(stats: LoaderStats, done: int, steps: int | None) -> str:
    """`epoch 3  41%  12,345 samples/s  waited 37%  workers idle 0%  ready 0/8  read 12% decode 70% …`"""
    parts = [
        f"epoch {stats.epoch}",
        f"{done:,} batches" if not steps else f"{100 * done / steps:.0f}%",
        f"{stats.samples_per_second:,.0f} samples/s",
        f"waited {100 * stats.waited_share:.0f}%",
    ]
    if stats.workers:
        parts += [f"workers idle {100 * stats.idle_share:.0f}%", f"ready {stats.ready}/{stats.ahead}"]
    in_stages = [f"{name} {100 * share:.0f}%" for name, share in stats.stage_shares.items() if share >= 0.005]
    data = stats.data
    cached = data.cache_hits + data.cache_misses
    parts += [" ".join(in_stages)] if in_stages else []
    parts += [f"cache hits {100 * data.cache_hits / cached:.0f}%"] if cached else []
    left_out = {"skipped": data.skipped, "substituted": data.substituted, "dropped": data.dropped}
    return "  ".join([*parts, *(f"{count:,} {name}" for name, count in left_out.items() if count)])


def check_report_every(seconds: Any) -> None:
    """Raise UsageError for what is no time between two lines."""
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise UsageError(
            f"report_every={seconds!r}", fix="Give seconds from line to line, or None for no such lines"
        )
