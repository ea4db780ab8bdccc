"""How many samples of an epoch were read and were bad, over all workers of a rank, in memory that they share."""

from __future__ import annotations

import time
from dataclasses import dataclass
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from streamio.world import PLACES, counting, own_place, shared

_EPOCH, _READ, _BAD, _FIRST, _FIRST_AT, _LAST, _LAST_AT = range(7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """read, bad: samples of the epoch, a sample that comes twice counted twice. first, last: rows of bad ones."""

    read: int
    bad: int
    first: int
    last: int


class EpochTally:
    """Counts the samples of one epoch after the other.

    Each process writes into a place of its own and begins it anew with each epoch, so nothing is locked between
    processes. Workers of one id share a place only if they belong to loaders that run at the same time.
    """

    def __init__(self) -> None:
        self._open(shared(PLACES, 7))

    def _open(self, cells: torch.Tensor) -> None:
        self._cells = cells
        self._numbers: NDArray[np.int64] = cells.numpy()

    def add(self, epoch: int, read: int, bad: list[int]) -> None:
        """So many samples were read, and these rows of them were bad."""
        mine = self._numbers[own_place()]
        with counting():
            if mine[_EPOCH] != epoch + 1:
                mine[_READ:] = 0
                mine[_EPOCH] = epoch + 1
            mine[_READ] += read
            if bad:
                now = time.monotonic_ns()
                if not mine[_BAD]:
                    mine[_FIRST], mine[_FIRST_AT] = bad[0], now
                mine[_LAST], mine[_LAST_AT] = bad[-1], now
                mine[_BAD] += len(bad)

    def of(self, epoch: int) -> Tally:
        """The counts of all workers."""
        all_places = self._numbers[self._numbers[:, _EPOCH] == epoch + 1]
        places = all_places[all_places[:, _BAD] > 0]
        first = last = -1
        if len(places):
            first = int(places[places[:, _FIRST_AT].argmin(), _FIRST])
            last = int(places[places[:, _LAST_AT].argmax(), _LAST])
        return Tally(
            read=int(all_places[:, _READ].sum()), bad=int(all_places[:, _BAD].sum()), first=first, last=last
        )

    def __getstate__(self) -> dict[str, Any]:
        # On the way to a worker torch hands over the shared cells; a plain copy begins to count anew.
        return {"cells": self._cells if get_spawning_popen() is not None else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["cells"] is None:
            self.__init__()  # type: ignore[misc]
        else:
            self._open(state["cells"])
