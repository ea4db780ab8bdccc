"""No worker: batches are made where and when the loop asks for them."""

from __future__ import annotations

from collections import deque
from typing import Any

from streamio.loading.base import Batches, Transport, TransportCounts
from streamio.order.bundles import Bundle
from streamio.stream import BatchStream, EpochStart


class InlineTransport(Transport):
    """Cheapest where a batch takes less time than handing it over would."""

    def __init__(self, stream: BatchStream) -> None:
        self._stream = stream

    def begin(self, at: EpochStart, first: int = 0) -> InlineBatches:
        return InlineBatches(self._stream, at, first)

    def close(self) -> None:
        pass

    def counts(self) -> TransportCounts:
        return TransportCounts(name="inline", workers=0, ahead=0, handed_over=0)


class InlineBatches(Batches):
    def __init__(self, stream: BatchStream, at: EpochStart, first: int) -> None:
        self._stream, self._at = stream, at
        self._bundles = stream.bundles(at, stream.bundle_batches, first=first)
        self._next: Bundle | None = None
        self._made: deque[Any] = deque()

    def __next__(self) -> Any:
        if not self._made:
            if not self.coming():
                raise StopIteration
            assert self._next is not None
            bundle, self._next = self._next, None
            self._made.extend(self._stream.make_all(self._at, bundle))
        return self._made.popleft()

    @property
    def made(self) -> int:
        """Batches that were made and not yet asked for."""
        return len(self._made)

    def coming(self) -> int:
        """Batches that are made together when none is left; 0 behind the last ones."""
        while self._next is None:
            try:
                self._next = next(self._bundles)
            except StopIteration:
                return 0
        return len(self._next)

    def close(self) -> None:
        self._bundles, self._next = iter(()), None
        self._made.clear()
