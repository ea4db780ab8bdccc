"""RandomChoice: one of several batch transforms, drawn for each batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from streamio.batching.functions import takes_rng
from streamio.errors import UsageError


class RandomChoice:
    """Batch transform: one of several, drawn for each batch.

    transforms: functions of a batch, or of (batch, rng).
    weights:    how often each comes, relative to the others; None: all alike.
    """

    def __init__(self, *transforms: Callable[..., Any], weights: Sequence[float] | None = None) -> None:
        if not transforms or not all(callable(transform) for transform in transforms):
            raise UsageError(
                f"RandomChoice of {transforms!r}", fix="Give functions of a batch, one after the other"
            )
        shares = [1.0] * len(transforms) if weights is None else [float(weight) for weight in weights]
        total = math.fsum(shares)
        if len(shares) != len(transforms) or min(shares) < 0 or not 0 < total < math.inf:
            raise UsageError(
                f"weights={weights} for {len(transforms)} transforms",
                fix="Give one for each, none below 0, not all 0",
            )
        self.transforms, self.shares = transforms, [share / total for share in shares]

    @property
    def by_name(self) -> bool:
        """Whether it is called with a dict of fields where batches are tuples: if all that it chooses from are."""
        return all(getattr(transform, "by_name", False) for transform in self.transforms)

    def __call__(self, batch: Any, rng: np.random.Generator) -> Any:
        """What the one that is drawn makes of the batch."""
        chosen = self.transforms[int(rng.choice(len(self.transforms), p=self.shares))]
        return chosen(batch, rng) if takes_rng(chosen) else chosen(batch)

    def __repr__(self) -> str:
        return f"RandomChoice({', '.join(map(repr, self.transforms))})"
