"""A limit on how long a step may wait, for waits that take no limit themselves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Watchdog:
    """Calls `bark` once, from a thread of its own, when more than `seconds` pass between two calls of `pat`.

    Used as a context manager; 0 seconds never bark and start no thread. `resting` stands for time that does not
    count, as while the training loop works on its batch.
    """

    def __init__(self, seconds: float, bark: Callable[[], None]) -> None:
        self.barked = False
        self._seconds, self._bark = seconds, bark
        self._deadline = float("inf")
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def pat(self) -> None:
        """The wait begins now."""
        self._deadline = time.monotonic() + self._seconds

    def rest(self) -> None:
        """The wait is over; nothing counts until the next `pat`."""
        self._deadline = float("inf")

    def _watch(self) -> None:
        while not self._over.wait(min(1.0, self._seconds / 10)):
            if time.monotonic() > self._deadline:
                self.barked = True
                self._bark()
                return

    def __enter__(self) -> Self:
        # Made here: a thread that is never started would keep us, and so the loader behind `bark`, in a circle
        # that only the garbage collector breaks, and torch then waits 5 seconds for each worker.
        if self._seconds:
            self._thread = threading.Thread(target=self._watch, name="streamio-watchdog", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
