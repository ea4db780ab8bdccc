"""A worker process: makes its share of each epoch, as the main process tells it. The other side is `processes`.

The main process sends commands: a `Begin` begins an iteration, None ends it, and an empty message allows one bundle
of batches more. So what is made ahead is bounded. A worker looks for commands before each bundle.
"""

from __future__ import annotations

import pickle
import select
import signal
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from time import perf_counter_ns
from typing import Any, TypeAlias

from streamio.batching.stages import HANDOVER, IDLE, spent
from streamio.errors import WorkerError
from streamio.handover.ring import Handed, SlotRing
from streamio.loading.messages import Kind, send
from streamio.loading.orphans import end_with_parent
from streamio.loading.threads import InOrder
from streamio.order.bundles import Bundle
from streamio.stream import BatchStream, EpochStart
from streamio.types import Alloc
from streamio.world import SharedCounts, become_worker

SENT = "sent"
"""What a worker puts into its counts: the number of the iteration, and in the lower half of the word how many
batches of it were sent."""


Made: TypeAlias = tuple[Handed, int]
"""A batch, or several as one list; and how many they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """number: of the worker, 0 … workers - 1. threads: that make its batches; 1 is the process itself.

    bundle: batches of a bundle, at most. ahead: bundles that it may make before the loop took any.
    slot_bytes: memory for batches on their way.
    """

    number: int
    workers: int
    threads: int
    bundle: int
    ahead: int
    slot_bytes: int


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin an iteration: the worker's share of an epoch, from its step `first` on."""

    iteration: int
    at: EpochStart
    first: int


def main(stream: BatchStream, role: Role, counts: SharedCounts, commands: Connection, results: Connection) -> None:
    """The whole life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the main process says what becomes of it
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    end_with_parent()
    become_worker(role.number, role.workers)
    # Where the main process has gone, or lets its end of a pipe go, nobody wants anything any more. A user's
    # function that raises KeyboardInterrupt wants to end the process: quietly, as DataLoader's workers do.
    with suppress(BrokenPipeError, EOFError, KeyboardInterrupt):
        Worker(stream, role, counts, commands, results).run()


class Worker:
    """Rings: one for each thread, since only one at a time may make something in a ring.

    counts: of IDLE and HANDOVER, and SENT.
    """

    def __init__(
        self, stream: BatchStream, role: Role, counts: SharedCounts, commands: Connection, results: Connection
    ) -> None:
        self._stream, self._role, self._commands, self._results = stream, role, commands, results
        self._counts, self._sent = counts, 0
        self._rings = [SlotRing(max_bytes=role.slot_bytes // role.threads) for _ in range(role.threads)]
        self._iteration = self._may = 0
        self._made: Iterator[Made | None] | None = None
        self._poll = select.poll()
        self._poll.register(commands.fileno(), select.POLLIN)

    def run(self) -> None:
        send(self._results, Kind.READY, 0)
        while True:
            while not self._may or self._poll.poll(0):
                self._obey(self._command())
            self._may -= 1
            self._deliver()

    def _command(self) -> bytes:
        since = perf_counter_ns()
        command = self._commands.recv_bytes()
        # Threads count their own waits; and who has made its share waits for nothing that the loop could give.
        if not self._may and self._made is not None and self._role.threads == 1:
            spent(self._counts.add, IDLE, since)
        return command

    def _obey(self, command: bytes) -> None:
        if not command:
            self._allow()
            return
        self._end()
        order: Begin | None = pickle.loads(command)
        if order is not None:
            self._iteration, self._may, self._sent = order.iteration, self._role.ahead, 0
            self._made = self._begin(order)

    def _allow(self) -> None:
        if self._made is None:  # a bundle was taken behind which there is nothing
            return
        self._may += 1
        if isinstance(self._made, InOrder):
            self._made.more_room()

    def _end(self) -> None:
        if isinstance(self._made, InOrder):
            self._made.stop()
            self._made.join()
        self._made, self._may = None, 0

    def _begin(self, order: Begin) -> Iterator[Made | None]:
        role = self._role
        make = partial(self._make, order.at)
        bundles = self._bundles(order)
        if role.threads == 1:
            return map(make, bundles)
        idle = partial(self._counts.add, IDLE)
        return InOrder(bundles, make, threads=role.threads, room=role.ahead, idle=idle)

    def _bundles(self, order: Begin) -> Iterator[Bundle | None]:
        # A generator, so that what is wrong with the plan is found where batches are asked for.
        role = self._role
        yield from self._stream.bundles(
            order.at, role.bundle, worker=role.number, workers=role.workers, first=order.first
        )

    def _make(self, at: EpochStart, bundle: Bundle | None) -> Made | None:
        if bundle is None:
            return None
        made_in = 0

        def batches(alloc: Alloc) -> Any:
            nonlocal made_in
            since = perf_counter_ns()
            made = self._stream.make_all(at, bundle, alloc)
            made_in = perf_counter_ns() - since
            return made if len(made) > 1 else made[0]

        ring = self._rings.pop()
        since = perf_counter_ns()
        try:
            return ring.make(batches), len(bundle)
        finally:
            self._rings.append(ring)
            spent(self._counts.add, HANDOVER, since + made_in)

    def _deliver(self) -> None:
        """Send the next bundle, or why there is none."""
        assert self._made is not None
        kind, body, since, count = Kind.END, memoryview(b""), 0, 0
        try:
            made = next(self._made)
            if made is None:  # nothing is there now; there may be a command
                self._may += 1
                return
            handed, count = made
            since = perf_counter_ns()
            kind, body = Kind.BATCH if count == 1 else Kind.BUNDLE, ForkingPickler.dumps(handed)
        except StopIteration:
            pass
        except Exception as error:
            kind, body, count = Kind.ERROR, packed_error(error), 0
        if not count:
            self._end()
        send(self._results, kind, self._iteration, body)
        if count:
            self._sent += count
            self._counts.put(SENT, self._iteration << 32 | self._sent)
            spent(self._counts.add, HANDOVER, since)


def packed_error(error: Exception) -> Any:
    """The exception itself as bytes, with its traceback as a note: neither a traceback nor a cause travels."""
    error.add_note(f"In a worker process:\n{''.join(traceback.format_exception(error))}")
    try:
        packed = ForkingPickler.dumps(error)
        pickle.loads(packed)  # many an exception cannot be made again from its arguments
        return packed
    except Exception:
        text = "".join(traceback.format_exception_only(error))
        return ForkingPickler.dumps(WorkerError(f"a worker process raised {text}"))
