"""StreamLoader: the batches of a data set, one epoch an iteration, made wherever that is best."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, get_args

from streamio.errors import UsageError
from streamio.loading.auto import AutoTransport
from streamio.loading.base import Batches, Transport
from streamio.loading.budget import PREFETCH_BYTES, batches_ahead, worker_count
from streamio.loading.inline import InlineTransport
from streamio.loading.pinning import PinnedBatches, pins
from streamio.loading.processes import ProcessTransport
from streamio.loading.threads import ThreadTransport
from streamio.stream import BatchStream

StartMethod = Literal["fork", "spawn", "forkserver"]
TransportName = Literal["auto", "inline", "thread", "process"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderStatistics:
    """What a loader did so far, in all epochs.

    transport:   that of now: "inline", "thread" or "process". workers: its threads or processes.
    ahead:       batches that may be made before the loop asks for them, over all workers.
    batches:     that the loop got.
    waited:      seconds that the loop waited for them.
    handed_over: bytes that came through pipes; batches in shared memory are not in them.
    """

    transport: str
    workers: int
    ahead: int
    batches: int
    waited: float
    handed_over: int


class StreamLoader:
    """Iterates over the batches of a `ShardDataset`, `Mixture` or another data set of streamio.

        loader = StreamLoader(ds)
        for epoch in range(10):
            for pictures, labels in loader: ...

    Epochs advance by themselves (`set_epoch` goes elsewhere) and reach workers, which live on between epochs.
    What a batch holds does not depend on any argument of the loader. A loader runs one epoch at a time: the next
    iteration ends the one before, whose next batch is a UsageError. A copy has no workers until it is iterated.

    num_workers:    processes or threads; 0 makes batches in this one. "auto": the CPUs that are really usable
                    (affinity, cgroup quota), shared by the ranks of the node.
    transport:      "inline" makes batches when the loop asks; "thread" in threads of this process, which suits
                    decoders that are written in C; "process" in worker processes. "auto": processes for a given
                    number of workers, else as the first batches cost; see `streamio.loading.auto`.
    threads:        of each worker process. Draws from global generators do not repeat from run to run with more
                    than 1.
    context:        "fork", "spawn" or "forkserver"; None is Python's default.
    prefetch_bytes: memory for batches made ahead, over all workers; there are 2 for each of them at least.
    pin_memory:     page-locked batches for copies to the GPU; "auto": where CUDA is available.
    timeout:        seconds to wait for a batch of a worker before `WorkerTimeout`; 0 waits for ever.

    Raises, while iterating: the exception of the data set itself, with a worker's traceback as a note,
    `WorkerDied` with the signal and the likely cause, `WorkerTimeout`. In each of these cases no worker process is
    left behind.
    """

    def __init__(
        self,
        dataset: BatchStream,
        *,
        num_workers: int | Literal["auto"] = "auto",
        transport: TransportName = "auto",
        threads: int = 1,
        context: StartMethod | None = None,
        prefetch_bytes: int = PREFETCH_BYTES,
        pin_memory: bool | Literal["auto"] = "auto",
        timeout: float = 0,
    ) -> None:
        if not isinstance(dataset, BatchStream):
            raise UsageError(f"StreamLoader reads a data set of streamio, not {type(dataset).__name__}")
        self._options: dict[str, Any] = {
            "num_workers": num_workers, "transport": transport, "threads": threads, "context": context,
            "prefetch_bytes": prefetch_bytes, "pin_memory": pin_memory, "timeout": timeout,
        }  # fmt: skip
        _check(**self._options)
        if not dataset.in_any_order and (transport == "thread" or threads > 1):
            raise UsageError(
                f"threads for a {type(dataset).__name__}, which reads its shards from front to back",
                fix="Use transport='process' with threads=1: each worker has shards of its own",
            )
        self.dataset = dataset
        self.num_workers = 0 if transport == "inline" else worker_count(num_workers, threads)
        self._transport = self._make_transport()
        self._pins = pins(pin_memory)
        self._current: Batches | None = None
        self._iterations, self._ended_by = 0, ""
        self._at: tuple[int, int] | None = None  # epoch, batches of it that the loop got
        self._batches, self._waited = 0, 0.0

    def _make_transport(self) -> Transport:
        options, name = self._options, self._options["transport"]
        if name == "auto":
            name = "inline" if self.num_workers == 0 else "process"
            if self._options["num_workers"] == "auto":
                name = "inline" if multiprocessing.current_process().daemon else "auto"
        if name == "inline":
            return InlineTransport(self.dataset)
        workers, threads, budget = self.num_workers, options["threads"], options["prefetch_bytes"]
        ahead = batches_ahead(self.dataset.batch_bytes(), workers, budget)
        if name == "thread":
            return ThreadTransport(self.dataset, threads=workers, ahead=ahead, timeout=options["timeout"])
        processes = ProcessTransport(
            self.dataset, workers=workers, threads=threads, ahead=max(ahead, threads + 1),
            slot_bytes=2 * budget // workers, context=options["context"], timeout=options["timeout"],
        )  # fmt: skip
        return AutoTransport(self.dataset, processes) if name == "auto" else processes

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
        return self._epoch()

    def _epoch(self) -> Iterator[Any]:
        mine, process = self._end_current("another iteration over this StreamLoader has begun"), os.getpid()
        at = self.dataset.begin_epoch()
        self._at = (at.epoch, 0)
        batches = self._transport.begin(at)
        self._current = batches = PinnedBatches(batches) if self._pins else batches
        number = 0
        try:
            for batch in self._timed(batches):
                number += 1
                self._at = (at.epoch, number)
                yield batch
                del batch  # else its memory is not free while the next one is made
                self._check_turn(mine, process)
        finally:
            if mine == self._iterations and process == os.getpid():
                batches.close()

    def _timed(self, batches: Batches) -> Iterator[Any]:
        """The batches, counted, with the time that they were waited for."""
        while True:
            begin = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                self._waited += time.perf_counter() - begin
            self._batches += 1
            yield batch
            del batch

    def _end_current(self, why: str) -> int:
        """End the iteration that may be under way; the number of the next one."""
        self._iterations, self._ended_by = self._iterations + 1, why
        current, self._current = self._current, None
        if current is not None:
            current.close()
        return self._iterations

    def _check_turn(self, number: int, process: int) -> None:
        if os.getpid() != process:
            raise UsageError("this iteration began in another process", fix="Iterate over the loader anew")
        if number != self._iterations:
            raise UsageError(
                f"{self._ended_by}, which ended this one",
                fix="For two epochs at a time, make a StreamLoader (and a data set) for each",
            )

    def statistics(self) -> LoaderStatistics:
        """What was delivered so far, and by whom."""
        counts = self._transport.counts()
        return LoaderStatistics(
            transport=counts.name, workers=counts.workers, ahead=counts.ahead, handed_over=counts.handed_over,
            batches=self._batches, waited=self._waited,
        )  # fmt: skip

    def worker_pids(self) -> list[int]:
        """Process ids of the workers that live now."""
        return self._transport.pids()

    def close(self) -> None:
        """End the workers and wait for them. The next iteration starts new ones."""
        self._end_current("the StreamLoader was closed")
        self._transport.close()

    def __reduce__(self) -> Any:
        return _rebuild, (self.dataset, self._options)

    def __repr__(self) -> str:
        return f"StreamLoader({self.dataset!r}, num_workers={self.num_workers})"


def _rebuild(dataset: BatchStream, options: dict[str, Any]) -> StreamLoader:
    return StreamLoader(dataset, **options)


def _check(
    *, num_workers: Any, transport: Any, threads: Any, context: Any, prefetch_bytes: Any, timeout: Any, **_: Any
) -> None:
    """Raise UsageError for options that make no sense, alone or together."""
    if context not in (None, *get_args(StartMethod)):
        raise UsageError(f"context={context!r}", fix=f"Use one of {', '.join(get_args(StartMethod))}, or None")
    if transport not in get_args(TransportName):
        raise UsageError(f"transport={transport!r}", fix=f"Use one of {', '.join(get_args(TransportName))}")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout < 0:
        raise UsageError(f"timeout={timeout!r}", fix="Give seconds, or 0 to wait for ever")
    if isinstance(prefetch_bytes, bool) or not isinstance(prefetch_bytes, int) or prefetch_bytes < 0:
        raise UsageError(f"prefetch_bytes={prefetch_bytes!r}", fix="Give a number of bytes")
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise UsageError(f"threads={threads!r}", fix="Give a number of at least 1: threads of each worker process")
    number = worker_count(num_workers)
    if transport == "inline" and num_workers not in ("auto", 0):
        raise UsageError(f"num_workers={num_workers} with transport='inline'", fix="Leave one of them out")
    if transport in ("thread", "process") and number == 0:
        raise UsageError(
            f"num_workers=0 with transport={transport!r}", fix="Use transport='inline', or more workers"
        )
    if threads > 1 and (transport in ("thread", "inline") or number == 0):
        raise UsageError(
            f"threads={threads} without worker processes, whose threads they are",
            fix="For threads of this process use transport='thread' and num_workers=",
        )
