"""The workloads: what a sample is, and how many there are.

Standard library only: the peers' environments read this too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Kind = Literal["jpeg", "array", "tokens", "pack"]

CROP = 224
TOKENS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One kind of data set, the same for every loader.

    samples, quick: how many, in a full and in a quick run.
    shape, dtype:   of a sample as the loop gets it. A sample also has a number of its own, for the check.
    batch:          samples in a batch.
    repeat:         how often each sample comes in an epoch.
    """

    name: str
    title: str
    kind: Kind
    samples: int
    quick: int
    shape: tuple[int, ...]
    dtype: str
    batch: int
    repeat: int = 1

    @property
    def sample_bytes(self) -> int:
        """Of a sample as the loop gets it."""
        return math.prod(self.shape) * (4 if self.dtype in ("float32", "int32") else 1)

    def count(self, quick: bool) -> int:
        return self.quick if quick else self.samples


_PICTURE = (CROP, CROP, 3)

WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            name="a", title="JPEG 500 x 375, random crop 224", kind="jpeg", samples=5_000, quick=1_000,
            shape=_PICTURE, dtype="uint8", batch=64,
        ),
        Workload(
            name="b", title="the same packed with --resize-short 256", kind="jpeg", samples=5_000, quick=1_000,
            shape=_PICTURE, dtype="uint8", batch=64,
        ),
        Workload(
            name="c", title="raw pictures, uint8 224 x 224 x 3", kind="array", samples=5_000, quick=1_280,
            shape=_PICTURE, dtype="uint8", batch=64,
        ),
        Workload(
            name="d", title="records of 768 bytes and a label", kind="array", samples=100_000, quick=20_000,
            shape=(768,), dtype="uint8", batch=256,
        ),
        Workload(
            name="e", title="float32 3 x 32 x 32", kind="array", samples=20_000, quick=8_000,
            shape=(3, 32, 32), dtype="float32", batch=256,
        ),
        Workload(
            name="f", title="windows of 2,048 tokens", kind="tokens", samples=20_000_000 // TOKENS, quick=4_096,
            shape=(TOKENS,), dtype="int32", batch=64,
        ),
        Workload(
            name="g", title="packing a folder", kind="pack", samples=100_000, quick=5_000,
            shape=(0,), dtype="uint8", batch=1,
        ),
        Workload(
            name="h", title="one worker hands over batches of 9.6 MB", kind="array", samples=256, quick=256,
            shape=_PICTURE, dtype="uint8", batch=64, repeat=16,
        ),
    )
}  # fmt: skip
