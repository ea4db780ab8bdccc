"""Batches made by threads of this process: nothing is handed over, and decoders written in C run side by side."""

from __future__ import annotations

import atexit
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

from streamio.batching.stages import IDLE
from streamio.loading.base import Batches, Transport, TransportCounts, timed_out
from streamio.stream import BatchStream, EpochStart
from streamio.world import SharedCounts

_PATIENCE = 10.0
"""Seconds to wait for a thread that was told to end; it does when its batch is made, or its storage answers."""


class InOrder(Iterator[Any]):
    """What a function makes of tasks, made by threads, in the order of the tasks.

    tasks:   asked for the next one by one thread at a time; None where none is there now.
    threads: how many make something at the same time.
    room:    tasks that may be begun and not yet taken by `next`; `more_room` gives room again.
    timeout: seconds that `next` waits before it raises WorkerTimeout; 0 waits for ever.
    idle:    told the nanoseconds that a thread waited for room.

    An exception, of the function or of the tasks, comes at its place in the order, and is the last that comes.
    """

    def __init__(
        self, tasks: Iterator[Any], make: Callable[[Any], Any], *, threads: int, room: int, timeout: float = 0,
        idle: Callable[[int], None] = lambda nanoseconds: None,
    ) -> None:  # fmt: skip
        self._tasks, self._make, self._timeout, self._idle = tasks, make, timeout, idle
        self._taking = threading.Lock()
        self._room = threading.Semaphore(room)
        self._coming: queue.SimpleQueue[Future[Any] | None] = queue.SimpleQueue()
        self._next: Future[Any] | None = None
        self._made, self._taken = [0] * threads, 0
        self._ended = False  # nothing further comes
        self._until = 0.0
        self._over = False  # no further task is taken
        self._threads = [
            threading.Thread(target=self._work, args=(number,), name=f"streamio-{number}", daemon=True)
            for number in range(threads)
        ]
        _running.add(self)
        for thread in self._threads:
            thread.start()

    def __next__(self) -> Any:
        if self._ended or (place := self._oldest()) is None:
            self._ended = True
            raise StopIteration
        try:
            made = place.result(self._seconds_left())
        except BaseException as error:
            if not place.done():
                raise (timed_out(self._timeout) if isinstance(error, TimeoutError) else error) from None
            self._ended = True
            raise
        self._next = None
        self._taken += 1
        return made

    def _oldest(self) -> Future[Any] | None:
        """The place of the next result; None behind the last one."""
        self._until = time.monotonic() + self._timeout
        if self._next is None:
            try:
                self._next = self._coming.get(timeout=self._timeout or None)
            except queue.Empty:
                raise timed_out(self._timeout) from None
        return self._next

    def _seconds_left(self) -> float | None:
        return max(0.0, self._until - time.monotonic()) if self._timeout else None

    def ready(self) -> bool:
        """Whether `next` would not wait."""
        if self._next is None and not self._coming.empty():
            self._next = self._coming.get()
        return not self._ended and self._next is not None and self._next.done()

    def ready_now(self) -> int:
        """How many were made and not yet taken, whether or not one before them is."""
        return sum(self._made) - self._taken

    def more_room(self, tasks: int = 1) -> None:
        """So many more may be begun."""
        self._room.release(tasks)

    def stop(self) -> None:
        """Begin nothing more; what is being made is finished and forgotten."""
        self._over = True
        self._room.release(len(self._threads))

    def join(self, patience: float = _PATIENCE) -> None:
        """Wait for the threads to end, after `stop`."""
        until = time.monotonic() + patience
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))

    def _work(self, number: int) -> None:
        while (taken := self._take()) is not None:
            place, task = taken
            try:
                place.set_result(self._make(task))
                self._made[number] += 1
            except BaseException as error:
                self.stop()
                place.set_exception(error)
            del place, task, taken  # else it lives until the next one is made

    def _ends(self) -> bool:
        return self._over

    def _take(self) -> tuple[Future[Any], Any] | None:
        """The next task and the place of its result; None where nothing more is to be done."""
        if not self._room.acquire(blocking=False):
            since = time.perf_counter_ns()
            self._room.acquire()
            self._idle(time.perf_counter_ns() - since)
        with self._taking:
            if self._over:
                return None
            place: Future[Any] = Future()
            try:
                while (task := next(self._tasks)) is None:  # nothing is there now
                    if self._ends():
                        return None
            except StopIteration:
                self._coming.put(None)
                self.stop()
                return None
            except BaseException as error:
                place.set_exception(error)
                self._coming.put(place)
                self._coming.put(None)
                self.stop()
                return None
            self._coming.put(place)
            return place, task


class ThreadTransport(Transport):
    """ahead: bundles that each thread may make before the loop asks for them, of `bundle` batches at most."""

    def __init__(self, stream: BatchStream, *, threads: int, bundle: int, ahead: int, timeout: float) -> None:
        self._stream, self._threads, self._timeout = stream, threads, timeout
        self._bundle, self._ahead = bundle, ahead
        self._last: ThreadBatches | None = None
        self._counts = SharedCounts((IDLE,))

    def begin(self, at: EpochStart, first: int = 0) -> Batches:
        self.close()
        made = InOrder(
            self._stream.bundles(at, self._bundle, first=first), partial(self._stream.make_all, at),
            threads=self._threads, room=self._threads * self._ahead, timeout=self._timeout,
            idle=partial(self._counts.add, IDLE),
        )  # fmt: skip
        self._last = ThreadBatches(made, self._bundle)
        return self._last

    def close(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            last.close()
            last.made.join()

    def counts(self) -> TransportCounts:
        ahead = self._threads * self._ahead * self._bundle
        return TransportCounts(
            name="thread", workers=self._threads, ahead=ahead, handed_over=0, makers=self._threads,
            idle=self._counts.totals()[IDLE] / 1e9,
        )  # fmt: skip


class ThreadBatches(Batches):
    """made: bundles of batches, of so many each."""

    def __init__(self, made: InOrder, size: int) -> None:
        self.made, self._size = made, size
        self._taken: deque[Any] = deque()  # batches of the bundle that was taken last
        self._closed = False

    def __next__(self) -> Any:
        if self._closed:
            raise StopIteration
        if not self._taken:
            self._taken.extend(next(self.made))
            self.made.more_room()
        return self._taken.popleft()

    def ready(self) -> bool:
        return bool(self._taken) or self.made.ready()

    def ready_now(self) -> int:
        return len(self._taken) + self._size * self.made.ready_now()

    def close(self) -> None:
        self._closed = True
        self._taken.clear()
        self.made.stop()


_running: weakref.WeakSet[InOrder] = weakref.WeakSet()


def _end_all() -> None:
    """A thread that still runs when the interpreter is taken down would take the process down with it."""
    pools = list(_running)
    for pool in pools:
        pool.stop()
    for pool in pools:
        pool.join()


atexit.register(_end_all)
