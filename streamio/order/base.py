"""What an order is: positions of one epoch -> which rows come there."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from streamio.types import Rows


class Picks(NamedTuple):
    """What comes at some positions.

    rows:   int64 (n,).
    visits: int64 (n,): the how-manieth coming of its row this is, in the sense that two comings of one row have
            two numbers; with one coming an epoch, the epoch. Augmentation is keyed by it.
    """

    rows: Rows
    visits: NDArray[np.int64]


class Order(Protocol):
    """One epoch's order over positions 0 … samples - 1: pure arithmetic, the same in every process."""

    @property
    def samples(self) -> int:
        """Positions of the epoch."""
        ...

    def __call__(self, positions: Rows) -> Picks:
        """What comes there. Ask for many positions at once, in any order; each lies in [0, samples)."""
        ...
