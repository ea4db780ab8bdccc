"""What makes the order of a set, beside the set itself: checked once, and known again by a state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamio.errors import UsageError
from streamio.order.balance import Draw, Lots
from streamio.order.base import Order
from streamio.order.epoch import EpochOrder
from streamio.order.plan import check_count, check_lanes
from streamio.order.shuffle import BLOCK_SAMPLES, Shuffle


@dataclass(frozen=True, kw_only=True)
class OrderSettings:
    """See `Plan` for each. Raises UsageError for values out of range and for two that exclude each other."""

    seed: int = 0
    shuffle: Shuffle = "none"
    block_samples: int = BLOCK_SAMPLES
    lanes: int = 1
    repeat: int = 1
    draw: Draw | None = None

    def __post_init__(self) -> None:
        for name in ("block_samples", "lanes", "repeat"):
            check_count(name, getattr(self, name))
        check_lanes(self.lanes, self.repeat)
        if self.draw is None:
            return
        if not isinstance(self.draw, Draw):
            raise UsageError(f"draw={self.draw!r}", fix="Give streamio.Draw(classes=…) or streamio.Draw(weights=…)")
        if self.repeat > 1:
            raise UsageError(f"repeat={self.repeat} with a draw", fix="Say how many with Draw(samples=…)")
        if self.lanes > 1 or self.shuffle in ("block", "shards"):
            raise UsageError(
                f"a draw is in random order over the whole set, not shuffle={self.shuffle!r} in {self.lanes} lanes",
                fix="Leave shuffle= and lanes= out",
            )

    def samples(self, sizes: NDArray[np.int64]) -> int:
        """Positions of an epoch over shards of these sizes."""
        if self.draw is not None and self.draw.samples is not None:
            return self.draw.samples
        return int(sizes.sum()) * self.repeat

    def order(self, sizes: NDArray[np.int64], epoch: int, lots: Lots | None = None) -> Order:
        """The order of one epoch. lots: of the draw, if there is one."""
        if lots is not None:
            return lots.order(self.seed, epoch)
        return EpochOrder(
            sizes, shuffle=self.shuffle, seed=self.seed, epoch=epoch, lanes=self.lanes,
            block_samples=self.block_samples, repeat=self.repeat,
        )  # fmt: skip

    def facts(self, lots: Lots | None = None) -> dict[str, int | str]:
        """What a state must know again: two orders with the same facts, over the same data, are the same."""
        facts: dict[str, int | str] = {"seed": self.seed, "shuffle": self.shuffle}
        if lots is not None:
            return {"seed": self.seed, "draw": lots.fingerprint}
        if self.shuffle == "block":
            facts["block_samples"] = self.block_samples
        return {**facts, "lanes": self.lanes, "repeat": self.repeat}
