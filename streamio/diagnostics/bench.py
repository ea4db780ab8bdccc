"""How fast a loop gets its batches."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """One epoch, measured in the loop that took it.

    bytes:   of the values in the batches: pixels where pictures were decoded.
    seconds: from asking for the first batch to getting the last; first_batch: to getting the first, which
             includes the start of the workers.
    """

    samples: int
    batches: int
    bytes: int
    seconds: float
    first_batch: float

    @property
    def samples_per_second(self) -> float:
        """After the first batch, so that the start of the workers does not count; of all in a run of one batch."""
        if self.batches < 2:
            return self.samples / max(self.seconds, 1e-9)
        rest = self.samples * (self.batches - 1) / self.batches
        return rest / max(self.seconds - self.first_batch, 1e-9)

    @property
    def bytes_per_second(self) -> float:
        return self.samples_per_second * self.bytes / max(self.samples, 1)


def bench(batches: Iterable[Any]) -> BenchReport:
    """Take all batches (dicts with `__key__`) and measure. What they raise goes through."""
    begin = time.perf_counter()
    first, samples, count, size = 0.0, 0, 0, 0
    for batch in batches:
        if not count:
            first = time.perf_counter() - begin
        samples += len(batch["__key__"])
        size += sum(map(_bytes, batch.values()))
        count += 1
    seconds = time.perf_counter() - begin
    return BenchReport(samples=samples, batches=count, bytes=size, seconds=seconds, first_batch=first)


def _bytes(values: Any) -> int:
    """Bytes of one field of a batch: a tensor, or a list of bytes, texts and arrays."""
    if isinstance(values, list):
        return sum(map(_bytes, values))
    if isinstance(values, bytes | str):
        return len(values)
    return int(getattr(values, "nbytes", 0))
