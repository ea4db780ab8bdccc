"""Batches on the device: copied on a stream of their own while the loop has others, and converted there.

Why a tensor is never seen half copied, nor its memory used again too early, in three rules:

    the loop's stream waits for the event that was recorded behind the copy and the conversion of a batch;
    what was made on our stream and is used on the loop's is said so (`record_stream`), so that its memory is not
    given to a later copy before the loop's work on it is done;
    the page-locked batch is kept until its copy is done.

The program itself waits for none of this: only streams wait for each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from streamio.device import Device, find_device
from streamio.errors import UsageError
from streamio.loading.base import Batches
from streamio.loading.nested import over_tensors

Convert = Callable[[Any], Any]
"""A function of a batch on the device; see `streamio.device.Normalize`."""


class Placement:
    """Where the batches of a loader go; see `StreamLoader.to`. Raises UsageError for what makes no sense.

    Streams are kept from epoch to epoch: the memory of the device is divided by streams.
    """

    def __init__(self, device: Device, convert: Convert | None, ahead: int) -> None:
        if convert is not None and not callable(convert):
            raise UsageError(f"convert={convert!r}", fix="Give a function of a batch, or streamio.device.Normalize")
        if isinstance(ahead, bool) or not isinstance(ahead, int) or ahead < 1:
            raise UsageError(f"ahead={ahead!r}", fix="Give a number of at least 1: batches to copy ahead")
        self.device, self.convert, self.ahead = find_device(device), convert, ahead
        self._copies: dict[int, StreamCopies] = {}

    def placed(self, batches: Batches) -> Batches:
        """The batches of an epoch that begins now, on the device."""
        if self.device.type != "cuda":
            return PlacedBatches(batches, PlainCopies(self.device, self.convert), 0)
        # "cuda" alone is the current device, which a rank may have set since.
        index = torch.cuda.current_device() if self.device.index is None else self.device.index
        if index not in self._copies:
            self._copies[index] = StreamCopies(torch.device("cuda", index), self.convert)
        return PlacedBatches(batches, self._copies[index], self.ahead)

    def __reduce__(self) -> Any:
        return Placement, (self.device, self.convert, self.ahead)


class Copies(Protocol):
    """Puts batches on a device. For the thread of the loop. What was begun is taken in that order."""

    def begin(self, batch: Any) -> Any:
        """Begin to copy a batch and to convert it, without waiting for that. What it gives is for `take`."""
        ...

    def take(self, begun: Any) -> Any:
        """The batch on the device: whatever the loop begins from now on finds it whole."""
        ...


class PlacedBatches(Batches):
    """ahead: batches whose copy may have begun before the loop asks for them; of those that are already there."""

    def __init__(self, batches: Batches, copies: Copies, ahead: int) -> None:
        self._batches, self._copies, self._ahead = batches, copies, ahead
        self._begun: deque[Any] = deque()
        self._ended: BaseException | None = None

    def __next__(self) -> Any:
        if not self._begun:
            self._begin_one()
        while len(self._begun) <= self._ahead and self._ended is None and self._batches.ready():
            self._begin_one()
        if self._begun:
            return self._copies.take(self._begun.popleft())
        assert self._ended is not None
        raise self._ended

    def _begin_one(self) -> None:
        if self._ended is not None:
            return
        try:
            self._begun.append(self._copies.begin(next(self._batches)))
        except Exception as error:  # in its turn: batches before it are on their way
            self._ended = error

    def ready(self) -> bool:
        return bool(self._begun) or self._batches.ready()

    def ready_now(self) -> int:
        return len(self._begun) + self._batches.ready_now()

    def close(self) -> None:
        self._batches.close()
        self._begun.clear()


class PlainCopies:
    """For the CPU, where nothing is copied, and for devices whose streams we do not know. The program waits."""

    def __init__(self, device: torch.device, convert: Convert | None) -> None:
        self._device, self._convert = device, convert

    def begin(self, batch: Any) -> Any:
        if self._device.type != "cpu":
            batch = over_tensors(batch, self._moved, "to", self._moved)
        return batch if self._convert is None else self._convert(batch)

    def _moved(self, value: Any) -> Any:
        return value.to(self._device)

    def take(self, begun: Any) -> Any:
        return begun


@dataclass(frozen=True, slots=True)
class _Copy:
    """done: recorded behind the copy and the conversion."""

    batch: Any
    done: torch.cuda.Event


class StreamCopies:
    """For CUDA: see the top of this file. device: with its number."""

    def __init__(self, device: torch.device, convert: Convert | None) -> None:
        self._device, self._convert = device, convert
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._sources: deque[tuple[torch.cuda.Event, Any]] = deque()  # page-locked, and when they are copied
        self._any_opaque = False

    def begin(self, batch: Any) -> _Copy:
        while self._sources and self._sources[0][0].query():  # type: ignore[no-untyped-call]
            self._sources.popleft()
        if self._any_opaque:  # the loop may have let go memory that its stream still uses
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            moved = over_tensors(batch, self._moved, "to", self._moved)
            if self._convert is not None:
                moved = self._convert(moved)
            done = self._stream.record_event()
        self._sources.append((done, batch))
        return _Copy(moved, done)

    def _moved(self, value: Any) -> Any:
        return value.to(self._device, non_blocking=True)

    def take(self, begun: _Copy) -> Any:
        current = torch.cuda.current_stream(self._device)
        current.wait_event(begun.done)

        def used(value: Any) -> Any:
            plain = not isinstance(value, torch.Tensor) or (value.layout == torch.strided and not value.is_nested)
            if plain and hasattr(value, "record_stream"):
                value.record_stream(current)
            else:
                self._any_opaque = True
            return value

        return over_tensors(begun.batch, lambda tensor: used(tensor) if tensor.is_cuda else tensor, "to", used)
