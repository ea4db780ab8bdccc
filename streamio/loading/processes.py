"""Batches made by worker processes, which live as long as the loader. `worker` is the other side.

Each worker has two pipes of its own: one for commands, one for what it made. The main process takes batches in the
order of the steps, from each worker in turn, and waits for the pipe *and* for the end of any worker. Each message
bears the number of its iteration, so what was made for one that was abandoned is never taken for the next.
"""

from __future__ import annotations

import atexit
import multiprocessing.util
import os
import pickle
import select
import signal
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from typing import Any

from streamio.batching.stages import HANDOVER, IDLE, spent
from streamio.errors import StreamioError, UsageError, WorkerDied
from streamio.loading import worker
from streamio.loading.base import Batches, Transport, TransportCounts, timed_out
from streamio.loading.deaths import how_it_ended
from streamio.loading.messages import Inbox, Kind, Message, enlarge
from streamio.loading.worker import SENT
from streamio.mainguard import EXIT_CODE, leave_import_of_main, no_guard
from streamio.stream import BatchStream, EpochStart
from streamio.world import SharedCounts

_PATIENCE = 3.0
"""Seconds for workers to end by themselves when they are to; who makes a batch finishes it."""

_START = 60.0
"""Seconds for a worker to start, on top of a timeout for batches: importing torch takes long on a busy machine."""

_SLICE = 1.0
"""Seconds of waiting after which all is looked at again, whatever was heard."""


class ProcessTransport(Transport):
    """context: how workers start. threads, bundle, ahead: of each, see `worker.Role`. timeout: seconds, or 0."""

    def __init__(
        self, stream: BatchStream, *, workers: int, threads: int, bundle: int, ahead: int, slot_bytes: int,
        context: str | None, timeout: float,
    ) -> None:  # fmt: skip
        self._stream, self._context, self.timeout = stream, context, timeout
        self.bundle = bundle
        self._roles = [
            worker.Role(
                number=number, workers=workers, threads=threads, bundle=bundle, ahead=ahead, slot_bytes=slot_bytes
            )
            for number in range(workers)
        ]  # fmt: skip
        self._workers: list[_Worker] = []
        self.counted = SharedCounts((IDLE, HANDOVER, SENT))
        self._iteration = self._handed_over = 0
        self._finalize = weakref.finalize(self, _end, self._workers)
        self._finalize.atexit = False  # `_end_all` is earlier
        _living.add(self)

    def begin(self, at: EpochStart, first: int = 0) -> Batches:
        self.start()
        self._iteration += 1
        command = pickle.dumps(worker.Begin(self._iteration, at, first))
        for each in self._workers:
            each.begin(command)
        return ProcessBatches(self, self._workers, self._iteration, first)

    def start(self) -> None:
        """Start the workers, if there are none, and do not wait for them."""
        if self._workers:
            return
        leave_import_of_main()
        if multiprocessing.current_process().daemon:
            raise UsageError(
                "a daemonic process may not have worker processes", fix="Use transport='thread', or num_workers=0"
            )
        context = multiprocessing.get_context(self._context)
        try:
            with _interrupts_later():
                for role in self._roles:
                    self._workers.append(_Worker(role, context))  # before the fork: see `after_fork`
                    self._workers[-1].start(context, self._stream, self.counted)
        except BaseException:
            self.kill()
            raise
        for each in self._workers:
            each.watch([other.sentinel for other in self._workers])

    @property
    def as_they_come(self) -> bool:
        """Whether batches are taken from whoever has one."""
        return self._stream.as_they_come

    def are_ready(self) -> bool:
        """Whether all workers have started, and would begin at once. Raises WorkerDied."""
        self.raise_deaths()
        return bool(self._workers) and all(each.is_ready() for each in self._workers)

    def raise_deaths(self, iteration: int = 0, first: int = 0) -> None:
        """Raise WorkerDied if a worker has ended; the others are ended too."""
        for each in self._workers:
            if (exitcode := each.exitcode) is not None:
                if exitcode == EXIT_CODE:
                    self.kill()
                    raise no_guard()
                doing = each.doing(iteration, first, self.counted)
                error = WorkerDied(f"worker process {each.pid} {how_it_ended(exitcode, doing)}")
                self.kill()
                raise error

    def pids(self) -> list[int]:
        return [each.pid for each in self._workers if each.exitcode is None]

    def close(self) -> None:
        self._forget(_PATIENCE)

    def kill(self) -> None:
        """End the workers, whatever they do: a stopped process does not hear a request."""
        self._forget(0)

    def _forget(self, patience: float) -> None:
        self._handed_over += sum(each.received for each in self._workers)
        _end(self._workers, patience)

    def counts(self) -> TransportCounts:
        totals = self.counted.totals()
        return TransportCounts(
            name="process", workers=len(self._roles), ahead=sum(role.ahead * role.bundle for role in self._roles),
            handed_over=self._handed_over + sum(each.received for each in self._workers),
            makers=sum(role.threads for role in self._roles), idle=totals[IDLE] / 1e9,
            handover=totals[HANDOVER] / 1e9,
        )  # fmt: skip

    def after_fork(self) -> None:
        """In a child process: these are not its workers. It must not hold their pipes open either."""
        for each in self._workers:
            each.let_go()
        self._workers.clear()


class ProcessBatches(Batches):
    """One iteration over the workers, each in its turn; a worker whose share is over is passed over."""

    def __init__(self, transport: ProcessTransport, workers: list[_Worker], iteration: int, first: int) -> None:
        self._transport, self._iteration, self._first = transport, iteration, first
        self._turns = deque(workers)
        self._taken: dict[_Worker, deque[Any]] = {each: deque() for each in workers}
        """Batches of the bundle that came last from a worker, for its next turns."""

    def __next__(self) -> Any:
        try:
            while self._turns:
                if self._transport.as_they_come:
                    self._turn_to_who_is_ready()
                batch = self._of(self._turns[0])
                if batch is not None:
                    self._turns.rotate(-1)
                    return batch[0]
                self._turns.popleft()
        except BaseException:  # also Ctrl-C: half a message may have been read
            self._turns.clear()
            self._transport.kill()
            raise
        raise StopIteration

    def _turn_to_who_is_ready(self) -> None:
        """Wait for whoever has something, or for the end of any; a timeout counts for all together."""
        timeout, until = self._transport.timeout, time.monotonic() + self._transport.timeout
        while True:
            for _ in range(len(self._turns)):
                if self._has_one(self._turns[0]):
                    return
                self._turns.rotate(-1)
            heard = wait([end for each in self._turns for end in (each.results, each.sentinel)], _SLICE)
            if not heard or any(isinstance(end, int) for end in heard):
                self._transport.raise_deaths(self._iteration, self._first)
            if timeout and time.monotonic() > until + (0 if self._turns[0].has_started else _START):
                raise timed_out(timeout)

    def _of(self, sender: _Worker) -> tuple[Any] | None:
        """The next batch of a worker; None where its share is over. Raises what the worker raised."""
        taken = self._taken[sender]
        if not taken:
            message = self._message(sender)
            if message.kind is Kind.END:
                return None
            since = time.perf_counter_ns()
            made = self._unpacked(message)
            spent(self._transport.counted.add, HANDOVER, since)
            if message.kind is Kind.ERROR:
                raise made
            taken.extend(made if message.kind is Kind.BUNDLE else [made])
            sender.took_bundle()
        sender.taken += 1
        return (taken.popleft(),)

    def _unpacked(self, message: Message) -> Any:
        try:
            return pickle.loads(message.body)
        except (OSError, StreamioError):  # its memory may be gone with the worker
            self._transport.raise_deaths(self._iteration, self._first)
            raise

    def _message(self, sender: _Worker) -> Message:
        timeout, started = self._transport.timeout, sender.has_started
        until = time.monotonic() + timeout + (0 if started else _START)
        while (message := sender.message(self._iteration)) is None:
            if sender.has_started and not started:
                started, until = True, time.monotonic() + timeout
            left = until - time.monotonic() if timeout else _SLICE
            if not sender.wait(min(_SLICE, max(0.0, left))):
                self._transport.raise_deaths(self._iteration, self._first)
                if left <= 0:
                    raise timed_out(timeout)
        return message

    def ready(self) -> bool:
        return bool(self._turns) and self._has_one(self._turns[0])

    def _has_one(self, sender: _Worker) -> bool:
        return bool(self._taken[sender]) or sender.has_message(self._iteration)

    def ready_now(self) -> int:
        return sum(each.waiting(self._iteration, self._transport.counted) for each in self._turns)

    def close(self) -> None:
        turns = list(self._turns)
        self._turns.clear()
        self._taken.clear()
        for each in turns:
            each.stop()


class _Worker:
    """One worker process, as the main process sees it: how to tell it something, and what it said."""

    def __init__(self, role: worker.Role, context: Any) -> None:
        self._role = role
        self._their_commands, self._commands = context.Pipe(duplex=False)
        self._results, self._their_results = context.Pipe(duplex=False)
        enlarge(self._results)
        self._inbox = Inbox(self._results)
        self._process: Any = None
        self._kept: Message | None = None
        self.has_started = self._is_gone = False
        self.taken = 0
        """Batches of this iteration that the loop got."""

    def start(self, context: Any, stream: BatchStream, counts: SharedCounts) -> None:
        self._process = context.Process(
            target=worker.main, args=(stream, self._role, counts, self._their_commands, self._their_results),
            name=f"streamio-{self._role.number}", daemon=True,
        )  # fmt: skip
        try:
            self._process.start()
        finally:
            self._their_commands.close()
            self._their_results.close()

    def watch(self, sentinels: list[int]) -> None:
        """`wait` also ends when one of these does."""
        self._poll = select.poll()
        for fd in (*sentinels, self._results.fileno()):
            self._poll.register(fd, select.POLLIN)

    @property
    def results(self) -> Any:
        """The pipe that its messages come through."""
        return self._results

    @property
    def sentinel(self) -> int:
        sentinel: int = self._process.sentinel
        return sentinel

    @property
    def pid(self) -> int:
        pid: int = self._process.pid
        return pid

    @property
    def exitcode(self) -> int | None:
        """None as long as it lives."""
        exitcode: int | None = self._process.exitcode
        return exitcode

    @property
    def received(self) -> int:
        """Bytes that it sent."""
        return self._inbox.received

    def begin(self, command: bytes) -> None:
        self.taken = 0
        self._tell(command)

    def took_bundle(self) -> None:
        self._tell(b"")

    def stop(self) -> None:
        self._tell(pickle.dumps(None))

    def _tell(self, command: bytes) -> None:
        with suppress(OSError):  # it ended; that is found out where its batch is waited for
            self._commands.send_bytes(command)

    def is_ready(self) -> bool:
        """Whether it has started. Not to be asked during an iteration."""
        if not self.has_started:
            self.has_message(-1)
        return self.has_started

    def has_message(self, iteration: int) -> bool:
        self._kept = self._kept or self.message(iteration)
        return self._kept is not None

    def message(self, iteration: int) -> Message | None:
        """Its next message of an iteration, if it is there. Those of earlier ones are dropped."""
        if self._kept is not None and self._kept.iteration == iteration:
            kept, self._kept = self._kept, None
            return kept
        while (message := self._read()) is not None:
            if message.iteration == iteration:
                return message
            if message.kind in (Kind.BATCH, Kind.BUNDLE):
                with suppress(Exception):
                    pickle.loads(message.body)  # its slot is free again when this is gone
        return None

    def _read(self) -> Message | None:
        try:
            message = self._inbox.read()
        except EOFError:
            self._is_gone = True
            return None
        self.has_started = self.has_started or message is not None
        return message

    def wait(self, seconds: float) -> bool:
        """Whether it may have sent more, within so many seconds. Ends early when a worker does."""
        heard = [fd for fd, _ in self._poll.poll(seconds * 1000)]
        if self._is_gone:
            self.end(_PATIENCE)  # it cannot send any more, so its end is all there is to wait for
        return self._results.fileno() in heard and not self._is_gone

    def waiting(self, iteration: int, counts: SharedCounts) -> int:
        """Batches that it has sent and that were not taken."""
        return max(0, self._sent(iteration, counts) - self.taken)

    def _sent(self, iteration: int, counts: SharedCounts) -> int:
        sent_in, sent = divmod(counts.of_worker(self._role.number, SENT), 1 << 32)
        return sent if sent_in == iteration else 0

    def doing(self, iteration: int, first: int, counts: SharedCounts) -> str:
        """What it did when it ended: it had made all that it sent, whether or not that was taken."""
        while self._read() is not None:  # that it has started may be among what it said
            pass
        if not (iteration and self.has_started):
            return " as it started"
        sent = self._sent(iteration, counts)
        return f" at batch {first + self._role.number + sent * self._role.workers} of its epoch"

    def let_go(self) -> None:
        """Close our ends of the pipes: it is told to end, and can where it waits to send something."""
        self._commands.close()
        self._results.close()

    def end(self, patience: float) -> None:
        """Wait for its end, and kill it if that takes longer."""
        if self._process is None or self._process.pid is None:
            return
        self._process.join(patience)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()


def _end(workers: list[_Worker], patience: float = _PATIENCE) -> None:
    for each in workers:
        each.let_go()
    until = time.monotonic() + patience
    for each in workers:
        each.end(max(0.0, until - time.monotonic()))
    workers.clear()


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Ctrl-C waits until the workers, which begin with this setting, ignore it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_living: weakref.WeakSet[ProcessTransport] = weakref.WeakSet()


def _end_all() -> None:
    for transport in list(_living):
        transport.close()


def _after_fork() -> None:
    for transport in list(_living):
        transport.after_fork()


# It comes before that of multiprocessing, imported above, which would wait for ever for a stopped worker.
atexit.register(_end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
