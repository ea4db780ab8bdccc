"""Watching a training loop: what it waited for, and a verdict at its end."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

from streamio.diagnostics.verdict import Figures, Verdict, judge
from streamio.errors import UsageError
from streamio.loading.budget import worker_count
from streamio.loading.loader import StreamLoader
from streamio.loading.stats import LoopClock, less
from streamio.stream import BatchStream


def watch(loader: Iterable[Any], *, quiet: bool = False) -> Watch:
    """Watch a loop over a loader, and say at its end whether data or compute held it up, and what to change.

        for batch in streamio.watch(loader): ...

        with streamio.watch(loader) as meter:          # several epochs, one verdict
            for epoch in range(3):
                for batch in meter: ...

    The verdict is printed to stderr and kept as `meter.verdict`, a `streamio.diagnostics.verdict.Verdict`.

    loader: a `StreamLoader`; a `DataLoader` over a data set of streamio, of which the stages are known, too; or any
            other iterable, of which only the waiting is known. Inside `with` a `StreamLoader` may also be iterated
            itself; others only through the meter.
    quiet:  print nothing.

    What counts is the time that the program waits for a batch. A GPU works on while Python goes ahead, so the time
    of a step here is not that of its kernels; but when data comes in time, the program waits for the GPU and not
    for data, whatever it is that it waits in.
    """
    if not hasattr(loader, "__iter__"):
        raise UsageError(f"watch gets a loader, not {type(loader).__name__}", fix="Give what the loop is over")
    return Watch(loader, quiet)


_NOTHING = "no verdict: fewer than two batches came from the loader that is watched"


class Watch:
    """What `watch` gives. verdict: None before the end, and for a loop that got fewer than two batches."""

    def __init__(self, loader: Iterable[Any], quiet: bool) -> None:
        self.loader, self._quiet, self._inside = loader, quiet, False
        self.verdict: Verdict | None = None
        self._watched = _OwnLoader(loader) if isinstance(loader, StreamLoader) else _OtherLoader(loader)

    def __iter__(self) -> Iterator[Any]:
        alone = not self._inside
        try:
            yield from self._watched.batches()
        finally:
            if alone:
                self._end()

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __enter__(self) -> Watch:
        self._inside = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._inside = False
        self._end()

    def _end(self) -> None:
        figures = self._watched.figures()
        self.verdict = judge(figures) if figures.steps > 0 and figures.seconds > 0 else None
        if not self._quiet:
            text = _NOTHING if self.verdict is None else self.verdict.text
            print(f"streamio: {text}", file=sys.stderr, flush=True)


class _OwnLoader:
    """A StreamLoader, which counts everything itself."""

    def __init__(self, loader: StreamLoader) -> None:
        self._loader, self._before = loader, loader.stats()

    def batches(self) -> Iterator[Any]:
        return iter(self._loader)

    def figures(self) -> Figures:
        stats = self._loader.stats().since(self._before)
        return Figures(
            seconds=stats.seconds - stats.first_wait, waited=stats.waited - stats.first_wait,
            first_wait=stats.first_wait, steps=stats.batches - (self._before.batches == 0),
            workers=stats.workers, threads=stats.makers // max(1, stats.workers), idle=stats.idle,
            stages=stats.stages, cpus=worker_count("auto"),
        )  # fmt: skip


class _OtherLoader:
    """Anything else that gives batches, over a data set of ours or not."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader, self._clock = loader, LoopClock()
        dataset = loader if isinstance(loader, BatchStream) else getattr(loader, "dataset", None)
        self._dataset = dataset if isinstance(dataset, BatchStream) else None
        self._before = None if self._dataset is None else self._dataset.stats()
        self._workers = 0 if dataset is loader else getattr(loader, "num_workers", None)

    def batches(self) -> Iterator[Any]:
        self._clock.begin()
        return self._clock.timed(self._loader)

    def figures(self) -> Figures:
        clock, stages = self._clock, {}
        if self._dataset is not None and self._before is not None:
            stages = dict(less(self._dataset.stats(), self._before).seconds)
        return Figures(
            seconds=(clock.nanoseconds - clock.first_wait) / 1e9, waited=(clock.waited - clock.first_wait) / 1e9,
            first_wait=clock.first_wait / 1e9, steps=clock.batches - 1, workers=self._workers, stages=stages,
            cpus=worker_count("auto"),
        )  # fmt: skip
