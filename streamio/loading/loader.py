"""StreamLoader: a DataLoader whose settings are right from the start, and whose errors say what happened."""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal, get_args

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data._utils.signal_handling import (  # type: ignore[attr-defined]
    _remove_worker_pids,
)
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from streamio.errors import StreamioError, UsageError, WorkerDied, WorkerTimeout
from streamio.loading.budget import PREFETCH_BYTES, batches_ahead, worker_count
from streamio.loading.orphans import end_with_parent
from streamio.loading.watchdog import Watchdog
from streamio.stream import BatchStream

StartMethod = Literal["fork", "spawn", "forkserver"]


class StreamLoader:
    """Iterates over the batches of a `ShardDataset` or `Mixture`, made in worker processes; one epoch an iteration.

        loader = StreamLoader(ds)
        for epoch in range(10):
            for pictures, labels in loader: ...

    Epochs advance by themselves (`set_epoch` goes elsewhere) and reach workers, which live on between epochs.
    What a batch holds does not depend on any argument of the loader. A loader runs one epoch at a time: the next
    iteration ends the one before, whose next batch is a UsageError.

    num_workers:    processes; 0 makes batches in this one. "auto": the CPUs that are really usable (affinity,
                    cgroup quota), shared by the ranks of the node.
    context:        "fork", "spawn" or "forkserver"; None is Python's default.
    prefetch_bytes: memory for batches made ahead, over all workers.
    pin_memory:     page-locked batches for copies to the GPU; "auto": where CUDA is available.
    timeout:        seconds to wait for a batch before `WorkerTimeout`; 0 waits for ever.

    Raises, while iterating: the exception of the data set itself (not a copy of its traceback), `WorkerDied` with
    the signal and the likely cause, `WorkerTimeout`. In each of these cases no worker is left behind.
    """

    def __init__(
        self,
        dataset: BatchStream,
        *,
        num_workers: int | Literal["auto"] = "auto",
        context: StartMethod | None = None,
        prefetch_bytes: int = PREFETCH_BYTES,
        pin_memory: bool | Literal["auto"] = "auto",
        timeout: float = 0,
    ) -> None:
        if not isinstance(dataset, BatchStream):
            raise UsageError(f"StreamLoader reads a data set of streamio, not {type(dataset).__name__}")
        if context not in (None, *get_args(StartMethod)):
            raise UsageError(f"context={context!r}", fix=f"Use one of {', '.join(get_args(StartMethod))}, or None")
        if not isinstance(timeout, int | float) or timeout < 0:
            raise UsageError(f"timeout={timeout!r}", fix="Give seconds, or 0 to wait for ever")
        self.dataset = dataset
        self.num_workers = worker_count(num_workers)
        self._timeout = timeout
        self._iterations = 0
        self._at: tuple[int, int] | None = None  # epoch, batches of it that the loop got
        ahead = batches_ahead(dataset.batch_bytes(), max(1, self.num_workers), prefetch_bytes)
        workers: dict[str, Any] = {}
        if self.num_workers:
            workers = {
                "num_workers": self.num_workers, "persistent_workers": True, "prefetch_factor": ahead,
                "multiprocessing_context": context, "worker_init_fn": end_with_parent,
            }  # fmt: skip
        pin = torch.cuda.is_available() if pin_memory == "auto" else pin_memory
        self._loader = DataLoader(
            _Guarded(dataset), batch_size=None, collate_fn=_as_it_is, pin_memory=pin, **workers
        )

    def __len__(self) -> int:
        """Batches of one epoch; exact."""
        return len(self.dataset)

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration will be."""
        return self.dataset.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next one."""
        self.dataset.set_epoch(epoch)
        self._at = None

    def state_dict(self) -> dict[str, Any]:
        """Where the loop is, after the batch that it got last: JSON-able, under 1 KB, alike on all ranks."""
        return self.dataset.state_at(0) if self._at is None else self.dataset.state_at(self._at[1], self._at[0])

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Go on there with the next iteration; see that of the data set."""
        self.dataset.load_state_dict(state, strict=strict)
        self._at = None

    def __iter__(self) -> Iterator[Any]:
        with suppress(TypeError):  # an epoch of unknown length
            len(self)  # whatever makes an epoch impossible is raised here, before any worker starts
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        self._iterations += 1
        mine = self._iterations
        epoch = self.dataset.epoch
        self._at = (epoch, 0)
        with Watchdog(self._timeout, self._kill_workers) as watchdog:
            for number, batch in enumerate(self._delivered(watchdog), 1):
                self._at = (epoch, number)
                yield batch
                if self._iterations != mine:
                    raise UsageError(
                        "another iteration over this StreamLoader has begun, which ended this one",
                        fix="For two epochs at a time, make a StreamLoader (and a data set) for each",
                    )
                watchdog.pat()

    def _delivered(self, watchdog: Watchdog) -> Iterator[Any]:
        """The batches of the workers; no worker is left where they end with an error."""
        try:
            watchdog.pat()
            for batch in _prepared(iter(self._loader)):
                watchdog.rest()
                if isinstance(batch, _Raised):
                    raise batch.error
                yield batch
        except StreamioError:
            self._kill()
            raise
        except (RuntimeError, OSError, EOFError) as error:
            explained = self._timed_out() if watchdog.barked else self._death()
            self._kill()
            if explained is None:
                raise
            raise explained from error

    def _timed_out(self) -> WorkerTimeout:
        return WorkerTimeout(
            f"no worker delivered a batch within {self._timeout:g} seconds",
            fix="A worker hangs or storage stalls: look at the workers with 'py-spy dump', or raise timeout=",
        )

    def _death(self) -> WorkerDied | None:
        """What became of a worker that ended by itself, or None if all live.

        A connection breaks a moment before the exit code of who broke it can be read.
        """
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            for worker in self._workers():
                if worker.exitcode is not None:
                    return WorkerDied(f"worker process {worker.pid} {_how_it_ended(worker.exitcode)}")
            time.sleep(0.01)
        return None

    def worker_pids(self) -> list[int]:
        """Process ids of the workers that live now."""
        return [w.pid for w in self._workers() if w.is_alive()]

    def close(self) -> None:
        """End the workers and wait for them. The next iteration starts new ones."""
        iterator, self._loader._iterator = self._loader._iterator, None
        if isinstance(iterator, _MultiProcessingDataLoaderIter):
            iterator._shutdown_workers()

    def _kill(self) -> None:
        """End the workers although one of them died or hangs: a stopped process would not hear a request."""
        self._kill_workers()
        self.close()

    def _kill_workers(self) -> None:
        for worker in self._workers():
            worker.kill()

    def _workers(self) -> list[Any]:
        return list(getattr(self._loader._iterator, "_workers", ()))

    def __repr__(self) -> str:
        return f"StreamLoader({self.dataset!r}, num_workers={self.num_workers})"


def _as_it_is(batch: Any) -> Any:
    """In the place of torch's default, which walks through the batch and makes lists of its tuples."""
    return batch


def _prepared(iterator: Any) -> Any:
    """Take the workers from torch's handler of SIGCHLD, which would raise wherever the training loop then is.

    torch also looks after them every 5 seconds while it waits for a batch, and raises there.
    """
    if isinstance(iterator, _MultiProcessingDataLoaderIter) and iterator._worker_pids_set:
        _remove_worker_pids(id(iterator))
        iterator._worker_pids_set = False
        iterator._workers_done_event = _OneWayEvent(iterator._workers_done_event)  # type: ignore[assignment]
    return iterator


class _OneWayEvent:
    """What tells the workers to end, without the trust that they are well.

    They look at the event before each batch. One that is killed or stopped just then takes its lock along, and
    whoever asks for it would wait for ever.
    """

    def __init__(self, shared: Any) -> None:
        self._shared = shared
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        sender = threading.Thread(target=self._shared.set, name="streamio-end", daemon=True)
        sender.start()
        sender.join(1)


class _Raised:
    """An exception on its way from a worker, at the place of the batch that it stopped."""

    def __init__(self, error: StreamioError) -> None:
        self.error = error
        if error.__cause__ is not None:  # a cause does not travel; its traceback is what the user looks for
            error.add_note("".join(traceback.format_exception(error.__cause__)))


class _Guarded(IterableDataset[Any]):
    """The data set, with its own exceptions handed over as values: a DataLoader would only copy their text."""

    def __init__(self, dataset: BatchStream) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Iterator[Any]:
        return self._guard(iter(self._dataset))

    def _guard(self, batches: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from batches
        except StreamioError as error:
            yield _Raised(error)


_CAUSES: dict[int, str] = {
    signal.SIGKILL: "likely out of memory: look at 'dmesg', use fewer workers or smaller batches",
    signal.SIGBUS: "likely /dev/shm is full, or a shard was cut while it was read: look at 'df /dev/shm'",
    signal.SIGSEGV: "a fault in a library: run with num_workers=0 and 'python -X faulthandler'",
    signal.SIGTERM: "somebody ended it: a job scheduler, or the training script",
}


def _how_it_ended(exitcode: int) -> str:
    if exitcode == 0:
        return "ended by itself: a transform called exit(), or it was interrupted (Ctrl-C)"
    if exitcode > 0:
        return (
            f"ended with exit code {exitcode}: look at what it printed. Under spawn and forkserver a script must "
            "start its training below 'if __name__ == \"__main__\":'; else run with num_workers=0"
        )
    number = -exitcode
    name = signal.Signals(number).name if number in set(signal.Signals) else "unknown"
    cause = _CAUSES.get(number, "run with num_workers=0 to see what it was doing")
    return f"was killed by signal {number} ({name}); {cause}"
