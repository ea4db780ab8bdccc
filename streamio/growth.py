"""How many shards each epoch has, of a set that grows: one value for a data set and its copies in workers."""

from __future__ import annotations

from typing import Any

from streamio.world import shared


class Growth:
    """Only the main process says something, between the beginnings of two epochs; so nothing is locked.

    shards: that every epoch has until something else is said; 0 for a set that does not grow.
    """

    def __init__(self, shards: int) -> None:
        self._cell = shared(3)  # an epoch, the shards from that one on, and those of the epochs before it
        self._cell[1] = self._cell[2] = shards

    def of(self, epoch: int) -> int:
        """Shards that an epoch has."""
        since, shards, before = self._cell.tolist()
        return int(shards if epoch >= since else before)

    def set(self, epoch: int, shards: int) -> None:
        """Let epochs have so many, from this one on."""
        before = self.of(epoch - 1)
        self._cell[0], self._cell[1], self._cell[2] = epoch, shards, before

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Between processes torch hands over the shared cell; a plain copy gets its own.
        cell = state["_cell"]
        self._cell = cell if cell.is_shared() else cell.clone().share_memory_()
