"""Run facts, read when iteration starts: which rank of how many, which worker of how many, which epoch.

They are not known when a data set is made: the process group may come later, workers certainly do. A worker
under spawn is a new interpreter without a process group, so the facts of its parent travel in its pickle.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import get_spawning_popen
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed
from torch.utils.data import get_worker_info

from streamio.errors import UsageError

T = TypeVar("T")


class WorkerNumber(NamedTuple):
    """Worker `id` of `num_workers`, in the words of torch."""

    id: int
    num_workers: int


_here: WorkerNumber | None = None


def become_worker(number: int, workers: int) -> None:
    """Called once in a worker process of a `StreamLoader`, before it does anything."""
    global _here
    _here = WorkerNumber(number, workers)
    torch.set_num_threads(1)  # there are as many workers as there are CPUs


def this_worker() -> WorkerNumber | None:
    """Which worker process this is, of a `StreamLoader` or of a `DataLoader`; None in the main process."""
    if _here is not None:
        return _here
    info = get_worker_info()
    return None if info is None else WorkerNumber(info.id, info.num_workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """rank of world_size (0 … world_size - 1), worker of workers (0 of 1 in the main process)."""

    rank: int = 0
    world_size: int = 1
    worker: int = 0
    workers: int = 1


def current_world(given: tuple[int, int] | None = None, parent: tuple[int, int] | None = None) -> World:
    """The facts of this process now.

    given:  (rank, world_size) from the user; goes before everything (for data-parallel groups of one's own).
    parent: (rank, world_size) of the process that started this one as a worker.

    Else `torch.distributed` if it is initialised, else the environment variables RANK and WORLD_SIZE, else a
    world of one. Raises UsageError for values that make no sense.
    """
    info = this_worker()
    ranks = given or _from_torch() or (parent if info is not None else None) or _from_environment(os.environ)
    rank, world_size = check_ranks(*ranks)
    if info is None:
        return World(rank=rank, world_size=world_size)
    return World(rank=rank, world_size=world_size, worker=info.id, workers=info.num_workers)


def check_ranks(rank: int, world_size: int) -> tuple[int, int]:
    """Give the pair back if it makes sense. Raises UsageError otherwise."""
    if world_size < 1 or not 0 <= rank < world_size:
        raise UsageError(f"rank {rank} of world_size {world_size}", fix="Ranks count from 0 to world_size - 1")
    return int(rank), int(world_size)


def _from_torch() -> tuple[int, int] | None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return None


def _from_environment(environment: Mapping[str, str]) -> tuple[int, int]:
    rank, size = environment.get("RANK"), environment.get("WORLD_SIZE")
    if rank is None and size in (None, "", "1"):
        return 0, 1
    try:
        return int(rank or ""), int(size or "")
    except ValueError:
        raise UsageError(
            f"the environment says RANK={rank!r} and WORLD_SIZE={size!r}",
            fix="Set both to numbers (torchrun does), or pass rank= and world_size=",
        ) from None


def from_first_rank(make: Callable[[], T], given: tuple[int, int] | None) -> T:
    """What rank 0 makes, on all ranks, which must all call it. An error that it has is raised on all of them.

    given: ranks that the user gave, of which nobody knows how to reach each other; without them and a process group
           each makes its own.
    """
    if given is not None or this_worker() is not None or _from_torch() in (None, (0, 1)):
        return make()
    told: list[Any] = [None, None]
    if torch.distributed.get_rank() == 0:
        try:
            told[0] = make()
        except Exception as error:
            told[1] = error
    torch.distributed.broadcast_object_list(told, src=0)
    if told[1] is not None:
        raise told[1]
    return told[0]  # type: ignore[no-any-return]


def from_all_ranks(value: T) -> list[T]:
    """The values of all ranks, in their order, on every rank; all must call it."""
    if _from_torch() is None:
        return [value]
    told: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(told, value)
    return told


_FIRST_WORD, MOST_WORDS = 4, 508
"""Of an epoch counter's cell, 4 KB: where the words of a start begin, and how many there may be."""


class EpochCounter:
    """The number of the next epoch: one value for a data set and its copies in worker processes.

    `for epoch in …: for batch in loader` advances it; `set` reaches workers that live on. Nothing is locked,
    so that nothing can hang; instead every copy comes to the same number by itself:

    - A new worker starts from what the value was when its parent forked or pickled it, which is before any
      worker of that epoch began.
    - A worker that lives on counts by itself, unless `set` was called since: then it takes what was set (and not
      what is next, which another worker may have advanced already).
    - Who begins an epoch writes down that the next one follows; all of its workers write the same number.
    """

    def __init__(self) -> None:
        self._cell = shared(_FIRST_WORD + MOST_WORDS)
        # It holds: the next epoch; how often `set` was called, with which epoch and how many words; the words.
        self._start: tuple[int, int] | None = None  # the cell when this process came to be
        self._last: tuple[int, int] | None = None  # epoch begun here, calls of set seen
        self._pid = os.getpid()
        _counters.add(self)

    def set(self, epoch: int, start: Sequence[int] = ()) -> None:
        """Make `epoch` the next one, here and in all workers. start: where in it, in the words of its plan."""
        if epoch < 0:
            raise UsageError(f"epoch {epoch}", fix="Epochs count from 0")
        if len(start) > MOST_WORDS:
            raise UsageError(f"a start of {len(start)} numbers", fix=f"{MOST_WORDS} at most")
        self._cell[_FIRST_WORD : _FIRST_WORD + len(start)] = torch.tensor(list(start), dtype=torch.int64)
        self._cell[2], self._cell[3] = epoch, len(start)
        self._cell[0] = epoch
        self._cell[1] += 1

    @property
    def next(self) -> int:
        """The epoch that the next iteration of the main process will be."""
        return int(self._cell[0])

    def last_set(self) -> tuple[int, tuple[int, ...]]:
        """(epoch, start) of the last `set`; (0, ()) before any."""
        _, _, epoch, words = self._cell[:_FIRST_WORD].tolist()
        return epoch, tuple(self._cell[_FIRST_WORD : _FIRST_WORD + words].tolist())

    def start_of(self, epoch: int) -> tuple[int, ...]:
        """Where this epoch begins: () is at its beginning, but where `set` said otherwise."""
        last, start = self.last_set()
        return start if epoch == last else ()

    def begin(self) -> int:
        """The epoch that begins now, in this process. Call `started` with it when the first batch is asked for."""
        if self._pid != os.getpid():
            self._pid, self._last = os.getpid(), None
        following, calls, last_set = self._cell[:3].tolist()
        if get_worker_info() is None:
            return int(following)
        if self._last is None:
            self._last = self._start or (following, calls)
        elif self._last[1] != calls:
            self._last = (last_set, calls)
        else:
            self._last = (self._last[0] + 1, calls)
        return self._last[0]

    def started(self, epoch: int) -> None:
        """Note that `epoch` runs, so that the next one is `epoch + 1`; unless `set` was called meanwhile."""
        if int(self._cell[0]) == epoch and (self._last is None or self._last[1] == int(self._cell[1])):
            self._cell[0] = epoch + 1

    def resumed(self, epoch: int) -> None:
        """The iteration that has just begun in this process is in the middle of `epoch`; the next one follows it.

        No `set`: all workers say so, each at its time.
        """
        if get_worker_info() is not None:
            self._last = (epoch, int(self._cell[1]))
        self._cell[0] = epoch + 1

    def remember(self) -> None:
        """Keep the value of now for a child process that is about to be made."""
        self._start = (int(self._cell[0]), int(self._cell[1]))

    def __getstate__(self) -> dict[str, Any]:
        # On the way to a worker torch hands over the shared cell; a plain copy gets one of its own.
        self.remember()
        used = _FIRST_WORD + int(self._cell[3])
        cell = self._cell if get_spawning_popen() is not None else self._cell[:used].tolist()
        return {"cell": cell, "start": self._start}

    def __setstate__(self, state: dict[str, Any]) -> None:
        cell = state["cell"]
        if isinstance(cell, list):
            self._cell = shared(_FIRST_WORD + MOST_WORDS)
            self._cell[: len(cell)] = torch.tensor(cell, dtype=torch.int64)
        else:
            self._cell = cell
        self._start, self._last, self._pid = state["start"], None, os.getpid()
        _counters.add(self)


_counters: weakref.WeakSet[EpochCounter] = weakref.WeakSet()


def _before_fork() -> None:
    for counter in list(_counters):
        counter.remember()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)


class SharedCounts:
    """Counts of a data set and its copies in worker processes: each process adds to a place of its own.

    Workers of one id share a place only if they belong to loaders that run at the same time. Adding takes 0.3 µs,
    so it is for batches and not for samples.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._setup(tuple(names), shared(PLACES, len(names)))

    def _setup(self, names: tuple[str, ...], cells: torch.Tensor) -> None:
        self._names, self._cells, self._width = names, cells, len(names)
        self._columns = {name: column for column, name in enumerate(names)}
        self._numbers = (
            memoryview(cells.numpy().data).cast("B").cast("q")
        )  # a tensor takes ten times as long to add to

    def add(self, name: str, count: int) -> None:
        place = own_place() if _place is None else _place
        at, numbers, lock = place * self._width + self._columns[name], self._numbers, _counting
        lock.acquire()  # `with` takes a third of the time of all this
        try:
            numbers[at] += count
        finally:
            lock.release()

    def put(self, name: str, value: int) -> None:
        """Make this the value of this process, whatever was added."""
        self._numbers[(own_place() if _place is None else _place) * self._width + self._columns[name]] = value

    def of_worker(self, number: int, name: str) -> int:
        """What one worker process counted, or put."""
        return self._numbers[(1 + number % (PLACES - 1)) * self._width + self._columns[name]]

    def totals(self) -> dict[str, int]:
        return dict(zip(self._names, self._cells.sum(0).tolist(), strict=True))

    def __getstate__(self) -> dict[str, Any]:
        # On the way to a worker torch hands over the shared cells; a plain copy begins to count anew.
        return {"names": self._names, "cells": self._cells if get_spawning_popen() is not None else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        names, cells = state["names"], state["cells"]
        self._setup(names, shared(PLACES, len(names)) if cells is None else cells)


_counting = threading.Lock()
_place: int | None = None


def own_place() -> int:
    """The row of this process in cells that all write to, of `PLACES` rows: one for the main process and for each
    number of a worker. It is a worker, or not, before it counts anything."""
    global _place
    if _place is None:
        info = this_worker()
        _place = 0 if info is None else 1 + info.id % (PLACES - 1)
    return _place


def counting() -> threading.Lock:
    """Held by a thread while it adds to the row of its process."""
    return _counting


def _after_fork() -> None:
    global _counting, _place
    _counting, _place = threading.Lock(), None  # a thread of the parent may have held the other


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def shared(*shape: int) -> torch.Tensor:
    """int64 zeros that worker processes share with the one that makes them."""
    return torch.zeros(shape, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call, no-any-return]


PLACES = 257
