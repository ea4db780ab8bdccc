"""Batches of a source come with what they say of the run; the loop gets the batch, the data set the rest."""

from __future__ import annotations

from collections import deque
from typing import Any

from streamio.errors import UsageError
from streamio.loading.base import Batches
from streamio.stream import BatchStream, EpochStart


class MarkedBatches(Batches):
    """The batches alone. What they say waits until the loop has them: batches may be copied ahead meanwhile."""

    def __init__(self, batches: Batches, stream: BatchStream, at: EpochStart) -> None:
        self._batches, self._stream, self._at = batches, stream, at
        self._marks: deque[Any] = deque()
        self._taken = 0

    def __next__(self) -> Any:
        if self._at.most is not None and self._taken >= self._at.most:
            raise StopIteration
        try:
            batch, mark = next(self._batches)
        except StopIteration:
            self._check_end()
            raise
        self._taken += 1
        self._marks.append(mark)
        return batch

    def _check_end(self) -> None:
        if self._at.most is not None and self._at.world_size > 1:
            raise UsageError(
                f"rank {self._at.rank} has no more rows after {self._taken:,} of {self._at.most:,} batches, and "
                "the other ranks would wait for it",
                fix="Give fewer steps=, or none: then the rows are counted first",
            )

    def delivered(self) -> None:
        """The loop gets the batch that was taken first of those that it has not got."""
        self._stream.delivered(self._marks.popleft())

    def ended(self) -> None:
        """The loop has got all."""
        self._stream.epoch_ended()

    def ready(self) -> bool:
        return self._batches.ready()

    def ready_now(self) -> int:
        return self._batches.ready_now()

    def close(self) -> None:
        self._batches.close()
