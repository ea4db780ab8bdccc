"""No worker: batches are made where and when the loop asks for them."""

from __future__ import annotations

from typing import Any

from streamio.loading.base import Batches, Transport, TransportCounts
from streamio.stream import BatchStream, EpochStart


class InlineTransport(Transport):
    """Cheapest where a batch takes less time than handing it over would."""

    def __init__(self, stream: BatchStream) -> None:
        self._stream = stream

    def begin(self, at: EpochStart, first: int = 0) -> Batches:
        return InlineBatches(self._stream, at, first)

    def close(self) -> None:
        pass

    def counts(self) -> TransportCounts:
        return TransportCounts(name="inline", workers=0, ahead=0, handed_over=0)


class InlineBatches(Batches):
    def __init__(self, stream: BatchStream, at: EpochStart, first: int) -> None:
        self._stream, self._at = stream, at
        self._rows = stream.share(at, first=first)

    def __next__(self) -> Any:
        while (rows := next(self._rows)) is None:
            pass
        return self._stream.make_seeded(self._at, rows)

    def close(self) -> None:
        self._rows = iter(())
