"""StreamLoader: the batches of a data set, one epoch an iteration, made wherever that is best."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from streamio.callers import counts_batches
from streamio.device import Device
from streamio.errors import UsageError
from streamio.loading.auto import AutoTransport
from streamio.loading.base import Batches, Transport
from streamio.loading.budget import PREFETCH_BYTES, made_ahead, worker_count
from streamio.loading.device import Convert, Placement
from streamio.loading.inline import InlineTransport
from streamio.loading.marks import MarkedBatches
from streamio.loading.pinning import PinnedBatches, pins
from streamio.loading.processes import ProcessTransport
from streamio.loading.procmem import ProcessMemory, memory_of
from streamio.loading.stats import LoaderStats, LoopClock, Reporter, check_report_every
from streamio.loading.threads import ThreadTransport
from streamio.loading.trainers import Counted, EpochListener, count_in, no_attribute, with_count
from streamio.sizes import parse_size
from streamio.stream import BatchStream

StartMethod = Literal["fork", "spawn", "forkserver"]
TransportName = Literal["auto", "inline", "thread", "process"]


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
    prefetch_bytes: memory for batches made ahead, over all workers, as a number or like "256MB"; there are 2
                    batches for each of them at least.
    pin_memory:     page-locked batches for copies to the GPU; "auto": where CUDA is available.
    timeout:        seconds to wait for a batch of a worker before `WorkerTimeout`; 0 waits for ever.
    report_every:   seconds from one line of figures on stderr to the next, on rank 0; None prints none.

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
        prefetch_bytes: int | str = PREFETCH_BYTES,
        pin_memory: bool | Literal["auto"] = "auto",
        timeout: float = 0,
        report_every: float | None = None,
    ) -> None:
        if not isinstance(dataset, BatchStream):
            raise UsageError(f"StreamLoader reads a data set of streamio, not {type(dataset).__name__}")
        self._options: dict[str, Any] = {
            "num_workers": num_workers, "transport": transport, "threads": threads, "context": context,
            "prefetch_bytes": _budget(prefetch_bytes), "pin_memory": pin_memory, "timeout": timeout,
            "report_every": report_every,
        }  # fmt: skip
        _check(**self._options)
        check_report_every(report_every)
        if not dataset.threads_may_make and (transport == "thread" or threads > 1):
            raise UsageError(
                f"threads for a {type(dataset).__name__}, which reads its shards from front to back",
                fix="Use transport='process' with threads=1: each worker has shards of its own",
            )
        self.dataset = dataset
        self.num_workers = 0 if transport == "inline" else worker_count(num_workers, threads)
        self._transport = self._make_transport()
        self._pins = pins(pin_memory)
        self._placement: Placement | None = None
        self._current: Batches | None = None
        self._iterations, self._ended_by = 0, ""
        self._at: tuple[int, int] | None = None  # epoch, batches of it that the loop got
        self._before: Counted | None = None
        self._clock = LoopClock()
        self._reporter = None if report_every is None else Reporter(report_every, self._figures)

    def _make_transport(self) -> Transport:
        options, name = self._options, self._options["transport"]
        if name == "auto":
            name = "inline" if self.num_workers == 0 else "process"
            if self._options["num_workers"] == "auto":
                name = "inline" if multiprocessing.current_process().daemon else "auto"
        if name == "inline":
            return InlineTransport(self.dataset)
        workers, threads, budget = self.num_workers, options["threads"], options["prefetch_bytes"]
        size, most = self.dataset.batch_bytes(), self.dataset.bundle_batches
        bundle, ahead = made_ahead(size, most, workers, budget)
        if name == "thread":
            return ThreadTransport(
                self.dataset, threads=workers, bundle=bundle, ahead=ahead, timeout=options["timeout"]
            )
        processes = ProcessTransport(
            self.dataset, workers=workers, threads=threads, bundle=bundle, ahead=max(ahead, 2 * threads),
            slot_bytes=2 * budget // workers, context=options["context"], timeout=options["timeout"],
        )  # fmt: skip
        return AutoTransport(self.dataset, processes) if name == "auto" else processes

    def __len__(self) -> int:
        """Batches of the epoch to come; exact. After a resume that is the rest of one, but for Lightning."""
        before = self._before
        return len(self.dataset) + (before.batches if before and before.epoch == self.dataset.epoch else 0)

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration will be."""
        return self.dataset.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next one; see that of the data set."""
        self.dataset.set_epoch(epoch)
        if self._at is not None:
            self._at = self._before = None

    def state_dict(self) -> dict[str, Any]:
        """Where the loop is, after the batch that it got last: JSON-able, under 1 KB, alike on all ranks."""
        epoch, got = self._at or (None, 0)
        state = self.dataset.state_at(got, epoch)
        if not counts_batches(sys._getframe(1)):
            return state
        if self._before is not None and self._before.epoch == state["epoch"]:
            got += self._before.batches
        inside = bool(state["start"]) and epoch in (None, state["epoch"])  # else it is the start of the next one
        return with_count(state, got if inside else 0, self.dataset.step_samples())

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Go on there with the next iteration; see that of the data set."""
        counts = counts_batches(sys._getframe(1))
        before = count_in(state, self.dataset.step_samples()) if counts else None
        self.dataset.load_state_dict(state, strict=strict)
        self._at, self._before = None, before

    def __iter__(self) -> Iterator[Any]:
        with suppress(TypeError):  # an epoch of unknown length
            len(self)  # whatever makes an epoch impossible is raised here, before any worker starts
        return self._epoch()

    def _epoch(self) -> Iterator[Any]:
        mine, process = self._end_current("another iteration over this StreamLoader has begun"), os.getpid()
        steps = None
        if self._reporter is not None:
            with suppress(TypeError):
                steps = len(self.dataset)
        at = self.dataset.begin_epoch()
        self._at = (at.epoch, 0)
        self._clock.begin()
        batches = self._transport.begin(at)
        marks = None
        if self.dataset.marks_batches:
            batches = marks = MarkedBatches(batches, self.dataset, at)
        batches = PinnedBatches(batches) if self._pins else batches
        self._current = batches = batches if self._placement is None else self._placement.placed(batches)
        number = 0
        try:
            for batch in self._clock.timed(batches, batches.ready_now):
                number += 1
                self._at = (at.epoch, number)
                if marks is not None:
                    marks.delivered()
                if self._reporter is not None and at.rank == 0:
                    self._reporter.look(number, steps)
                yield batch
                del batch  # else its memory is not free while the next one is made
                self._check_turn(mine, process)
            if marks is not None:
                marks.ended()
        finally:
            if mine == self._iterations and process == os.getpid():
                batches.close()

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

    def stats(self) -> LoaderStats:
        """What was delivered so far, by whom, and where the time went. To read workers' memory takes some ms."""
        return self._figures(memory_of(self._transport.pids()))

    def _figures(self, memory: tuple[ProcessMemory, ...] = ()) -> LoaderStats:
        counts, data, clock = self._transport.counts(), self.dataset.stats(), self._clock
        return LoaderStats(
            transport=counts.name, workers=counts.workers, makers=counts.makers, ahead=counts.ahead,
            epoch=self.epoch if self._at is None else self._at[0], epoch_seconds=clock.epoch_nanoseconds / 1e9,
            batches=clock.batches, samples=round(data.samples / max(1, data.batches) * clock.batches),
            seconds=clock.nanoseconds / 1e9, waited=clock.waited / 1e9, first_wait=clock.first_wait / 1e9,
            idle=counts.idle, handover=counts.handover, handed_over=counts.handed_over, data=data, memory=memory,
            ready=0 if self._current is None else self._current.ready_now(),
            ready_mean=clock.ready / max(1, clock.batches),
        )  # fmt: skip

    def to(self, device: Device = "auto", convert: Convert | None = None, *, ahead: int = 2) -> StreamLoader:
        """A loader of the same batches, on a device. It begins where the next iteration of this one would.

        device:  "auto" is CUDA where there is one, else the CPU; "cuda", "cuda:1", "cpu", or another of torch.
                 "cuda" is the current device (`torch.cuda.set_device`) when an epoch begins.
        convert: function of a batch, which runs on the device, and on the CPU where that is the device:
                 `streamio.device.Normalize`, or your own.
        ahead:   batches that may be copied to a CUDA device before the loop asks for them. So many, and the one
                 that the loop has, take memory there.

        On CUDA, copying and converting happen on a stream of their own, from page-locked memory, while the loop has
        another batch. `state_dict` counts the batches that the loop got, not those copied ahead. This loader stays
        what it is; iterate over one of the two. Raises UsageError for a device that is not there.
        """
        if self._placement is not None:
            raise UsageError(f"these batches go to '{self._placement.device}' already", fix="Call to() once")
        placement = Placement(device, convert, ahead)
        if placement.device.type == "cuda" and self._options["pin_memory"] is False:
            raise UsageError(
                f"pin_memory=False with to('{placement.device}'), which copies from page-locked memory",
                fix="Leave pin_memory= out",
            )
        return _rebuild(self.dataset, self._options, placement)

    def commit(self) -> None:
        """Tell the message broker that all batches which the loop got were used: after the optimiser's step, say.

        What was made ahead is not among them. Raises UsageError where there is nobody to tell.
        """
        self.dataset.commit()

    def worker_pids(self) -> list[int]:
        """Process ids of the workers that live now."""
        return self._transport.pids()

    def close(self) -> None:
        """End the workers and wait for them, as the end of a `with` block does. An iteration starts new ones."""
        self._end_current("the StreamLoader was closed")
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def batch_sampler(self) -> EpochListener:
        """For Lightning, which sets the epoch through it."""
        return EpochListener(self.set_epoch)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(name)

    def __reduce__(self) -> Any:
        return _rebuild, (self.dataset, self._options, self._placement)

    def __repr__(self) -> str:
        return f"StreamLoader({self.dataset!r}, num_workers={self.num_workers})"


def _rebuild(dataset: BatchStream, options: dict[str, Any], placement: Placement | None = None) -> StreamLoader:
    loader = StreamLoader(dataset, **options)
    loader._placement = placement
    loader._pins = loader._pins and (placement is None or placement.device.type == "cuda")
    return loader


def _budget(prefetch_bytes: Any) -> int:
    """In bytes. Raises UsageError."""
    if isinstance(prefetch_bytes, int) and prefetch_bytes == 0:
        return 0
    try:
        return parse_size(prefetch_bytes)
    except UsageError as error:
        raise UsageError(f"prefetch_bytes={prefetch_bytes!r}", fix=error.fix) from None


def _check(*, num_workers: Any, transport: Any, threads: Any, context: Any, timeout: Any, **_: Any) -> None:
    """Raise UsageError for options that make no sense, alone or together."""
    if context not in (None, *get_args(StartMethod)):
        raise UsageError(f"context={context!r}", fix=f"Use one of {', '.join(get_args(StartMethod))}, or None")
    if transport not in get_args(TransportName):
        raise UsageError(f"transport={transport!r}", fix=f"Use one of {', '.join(get_args(TransportName))}")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout < 0:
        raise UsageError(f"timeout={timeout!r}", fix="Give seconds, or 0 to wait for ever")
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
