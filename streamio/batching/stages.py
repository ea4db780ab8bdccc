"""What is counted while batches are made: the time of each stage, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, TypeAlias

READ, DECODE, TRANSFORM, COLLATE, HANDOVER = "read", "decode", "transform", "collate", "hand-over"
STAGES = (READ, DECODE, TRANSFORM, COLLATE)
"""What a batch goes through where it is made, counted in nanoseconds; hand-over comes after them."""

SAMPLES, BATCHES, IDLE = "samples", "batches", "idle"

Count: TypeAlias = Callable[[str, int], None]
"""Adds so many to what goes by this name."""


def spent(count: Count, stage: str, since: int) -> int:
    """Count the time since then (of `perf_counter_ns`) as spent in a stage. Now, from which the next one counts."""
    now = perf_counter_ns()
    count(stage, now - since)
    return now


def counted_batch(count: Count, batch: Any, samples: int, since: int, *, batches: int = 1) -> Any:
    """The batch (or several) as it is; counted, with the time since its samples began to be collated."""
    spent(count, COLLATE, since)
    count(SAMPLES, samples)
    count(BATCHES, batches)
    return batch
