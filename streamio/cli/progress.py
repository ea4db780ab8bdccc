"""Progress of a long run: a live bar on a terminal, a few plain lines anywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from streamio.cli.console import stderr, tell
from streamio.packing.report import Progress, plural
from streamio.sizes import size_text

Callback: TypeAlias = Callable[[Progress], None]

_DOING = {"scan": "scanning", "write": "packing", "commit": "publishing"}


@contextmanager
def progress(quiet: bool) -> Iterator[Callback | None]:
    """Gives the callback for `streamio.pack`; None when there is nothing to show."""
    console = stderr()
    if quiet:
        yield None
    elif console.is_terminal and not console.is_dumb_terminal:
        # What other code writes to stderr meanwhile appears above the bar; stdout is for results alone.
        with Bar(*_columns(), console=console, transient=True, redirect_stdout=False) as bar:
            yield LiveProgress(bar)
    else:
        yield PlainProgress()


def _columns() -> tuple[TextColumn | BarColumn | TimeRemainingColumn, ...]:
    return (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[facts]}", justify="right"),
        TimeRemainingColumn(compact=True),
    )


class LiveProgress:
    """Turns `Progress` into a bar: files, bytes, rate; the time that is left stands beside it."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._task: TaskID | None = None
        self._stage = ""
        self._began = 0.0

    def __call__(self, now: Progress) -> None:
        if self._task is None or now.stage != self._stage:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = None
            self._stage, self._began = now.stage, time.monotonic()
        done, total = _share(now)
        facts = _facts(now, time.monotonic() - self._began)
        if self._task is None:
            self._task = self._bar.add_task(_DOING[now.stage], completed=done, total=total, facts=facts)
        else:
            self._bar.update(self._task, completed=done, total=total, facts=facts)


class PlainProgress:
    """Turns `Progress` into lines, few enough for a log file however long the run: none in the first seconds,
    then one for every twentieth that is done, or at growing intervals where the total is not known."""

    FIRST, MOST = 5.0, 40

    def __init__(self, clock: Callable[[], float] = time.monotonic, write: Callable[[str], None] = tell) -> None:
        self._clock, self._write = clock, write
        self._stage = ""
        self._began = self._last = 0.0
        self._pause = self.FIRST
        self._twentieth = 0
        self._lines = 0

    def __call__(self, now: Progress) -> None:
        clock = self._clock()
        if now.stage != self._stage:
            self._stage, self._began, self._last = now.stage, clock, clock
            self._pause, self._twentieth = self.FIRST, 0
        done, total = _share(now)
        twentieth = 20 * done // total if total else 0
        if clock - self._last < self._pause or (total and twentieth <= self._twentieth) or self._lines >= self.MOST:
            return
        percent = f" {100 * done // total} %" if total else ""
        self._write(f"{_DOING[now.stage]}{percent}: {_facts(now, clock - self._began)}")
        self._last, self._twentieth, self._lines = clock, twentieth, self._lines + 1
        if not total:
            self._pause *= 1.5


def _share(now: Progress) -> tuple[int, int | None]:
    """(done, total) in what grows most evenly: bytes, or samples where all files are empty."""
    if now.total_bytes:
        return now.done_bytes, now.total_bytes
    return now.done_samples, now.total_samples


def _facts(now: Progress, seconds: float) -> str:
    files = plural(now.done_files, "file")
    if now.total_files is not None:
        files = f"{now.done_files:,} of {plural(now.total_files, 'file')}"
    rate = f", {size_text(int(now.done_bytes / seconds))}/s" if seconds > 0.5 and now.done_bytes else ""
    return f"{files}, {size_text(now.done_bytes)}{rate}"
