"""Where the shards are written: in this process, or in worker processes on this machine.

A worker is a fresh interpreter that is told to serve jobs over a pipe. Unlike a process pool it never
imports the caller's `__main__`, so `streamio.pack` may stand anywhere in a script; and unlike a fork it is
safe in a process with threads. It ends as soon as its pack does, however that ends.

    parent                                worker
      Job                 ->                 write_shard(job)
      (samples, files, bytes)  <-            now and then
      ShardDone or an exception  <-
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, TypeAlias

from streamio.errors import StreamioError, WorkerDied, WorkerError
from streamio.packing.pieces import Task, Tasks
from streamio.packing.walk import Tick
from streamio.packing.write import Job, Join, PieceDone, ShardDone, perform, write_shard

_Pipe: TypeAlias = "Connection[Any, Any]"


def run(jobs: Sequence[Job], workers: int, tick: Tick, *, inherit: Sequence[int] = ()) -> list[ShardDone]:
    """Do all jobs with a team of their own; see `Team`."""
    with Team(workers, inherit) as team:
        return team.run(jobs, tick)


class Team:
    """Up to so many workers. A context: when it is left they are gone.

    inherit: file descriptors that the workers keep open (the lock of the output).
    """

    def __init__(self, size: int, inherit: Sequence[int] = ()) -> None:
        self._size = size
        self._inherit = inherit
        self._workers: list[_Worker] = []

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.kill()

    def start(self, count: int) -> None:
        """Have so many workers, if the team may. Early, as each takes a while until it is ready."""
        if count > 1:
            while len(self._workers) < min(count, self._size):
                self._workers.append(_Worker(self._inherit))

    def run(self, jobs: Sequence[Job], tick: Tick) -> list[ShardDone]:
        """Do all jobs; results in the order of the jobs, whoever did them.

        Raises what a job raised, and WorkerDied, naming the shard, if a worker ends without being told to.
        """
        tasks = Tasks(jobs, self._size)
        crew = min(tasks.workers, len(tasks))
        if crew <= 1:
            return [write_shard(job, tick) for job in jobs]
        self.start(crew)
        done = dict(self._work(tasks, tick))
        return [done[at] for at in range(len(jobs))]

    def _work(self, tasks: Tasks, tick: Tick) -> Iterator[tuple[int, ShardDone]]:
        """Hand out tasks in order, one to each worker that is free; gives results as they come."""
        free = self._workers[::-1]
        busy: dict[_Pipe, tuple[_Worker, Task]] = {}
        while True:
            while free and (task := tasks.next()):
                worker = free.pop()
                worker.send(task.what)
                busy[worker.pipe] = worker, task
            if not busy:
                return
            for pipe in wait(list(busy)):
                worker, task = busy[pipe]  # type: ignore[index]
                kind, answer = worker.receive(task.what)
                if kind == "tick":
                    tick(*answer)
                    continue
                if kind == "error":
                    raise answer
                if isinstance(answer, PieceDone):
                    tasks.add(task, answer)
                else:
                    yield task.at, answer
                del busy[worker.pipe]
                free.append(worker)


class _Worker:
    """A worker process, seen from the parent."""

    def __init__(self, inherit: Sequence[int]) -> None:
        self.pipe, theirs = Pipe()
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve({theirs.fileno()})"
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-X", f"utf8={sys.flags.utf8_mode}", "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), *inherit),
                process_group=0,  # a Ctrl-C in the terminal goes to the parent alone
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # numpy would start a thread for each CPU
            )
        except OSError as error:
            self.pipe.close()
            raise WorkerError(f"no worker process could be started: {error}", fix="Use --workers 1") from error
        finally:
            theirs.close()

    def send(self, job: Job | Join) -> None:
        try:
            self.pipe.send(job)
        except (BrokenPipeError, ConnectionResetError):
            raise self._died(job) from None

    def receive(self, job: Job | Join) -> tuple[str, Any]:
        try:
            message: tuple[str, Any] = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            raise self._died(job) from None
        return message

    def kill(self) -> None:
        """End it; between jobs there is nothing that could be lost."""
        self.pipe.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()

    def _died(self, job: Job | Join) -> WorkerDied:
        code = self._process.wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        hint = "Perhaps the memory ran out: " if code == -signal.SIGKILL else ""
        return WorkerDied(
            f"a worker process {how} while it wrote shard {job.number} of '{job.split}'; nothing was packed",
            fix=f"{hint}Try again with fewer workers",
        )


def serve(descriptor: int) -> None:
    """Do jobs until the pipe is closed. Runs in the worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe: _Pipe = Connection(descriptor)
    jobs: queue.SimpleQueue[Job | Join] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, jobs.put), daemon=True).start()

    def tell(kind: str, answer: Any) -> None:
        try:
            pipe.send((kind, answer))
        except OSError:
            os._exit(1)

    while True:
        job = jobs.get()
        try:
            tell("done", perform(job, lambda *counts: tell("tick", counts)))
        except StreamioError as error:
            tell("error", error)
        except Exception as error:
            text = "".join(traceback.format_exception(error))
            tell("error", WorkerError(f"a worker process failed on shard {job.number}: {error!r}\n{text}"))


def _listen(pipe: _Pipe, put: Callable[[Job | Join], None]) -> None:
    """Receive jobs; end the process at once when the parent is done or gone, even in the middle of a job."""
    try:
        while True:
            put(pipe.recv())
    except (EOFError, OSError):
        os._exit(0)
