"""The contract of the transports: how batches get from where they are made to the loop that asks for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from streamio.errors import WorkerTimeout
from streamio.stream import EpochStart


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportCounts:
    """name: "inline", "thread" or "process". workers: threads or processes; 0 for inline. ahead: batches that may
    be made before the loop asks for them, over all workers. handed_over: bytes that came from other processes.

    makers:   threads that make batches: of all workers, or the one of the loop.
    idle:     seconds that makers waited because the loop had not taken what they made; of all together.
    handover: seconds for pickling, pipes and unpickling, of all together.
    """

    name: str
    workers: int
    ahead: int
    handed_over: int
    makers: int = 1
    idle: float = 0
    handover: float = 0


class Batches(Iterator[Any], ABC):
    """The batches of one epoch for one rank, in the order of its steps. For one thread at a time."""

    @abstractmethod
    def close(self) -> None:
        """No more is wanted: whoever makes batches ends soon, and may begin another epoch. Waits for nobody."""

    def ready(self) -> bool:
        """Whether the next batch is there, so that `next` would not wait. False where that cannot be known."""
        return False

    def ready_now(self) -> int:
        """How many batches are there, so that as many `next` would not wait."""
        return int(self.ready())


class Transport(ABC):
    """Makes the batches of a data set somewhere. It lives as long as its loader, and serves one epoch at a time.

    Nothing is started before the first `begin`. What `begin` gave is closed before the next one.
    """

    @abstractmethod
    def begin(self, at: EpochStart, first: int = 0) -> Batches:
        """The batches of an epoch from its step `first` on."""

    @abstractmethod
    def close(self) -> None:
        """End all threads and processes, and wait for them. The next `begin` starts new ones."""

    @abstractmethod
    def counts(self) -> TransportCounts: ...

    def pids(self) -> list[int]:
        """Worker processes that live now."""
        return []


def timed_out(seconds: float) -> WorkerTimeout:
    return WorkerTimeout(
        f"no worker delivered a batch within {seconds:g} seconds",
        fix="A worker hangs or storage stalls: look at the workers with 'py-spy dump', or raise timeout=",
    )
