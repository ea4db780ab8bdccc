"""What is asked of a table, and the samples of it that a batch is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streamio.shards.manifest import FieldSpec
from streamio.types import Alloc, Column, Rows, new_array

KEY, VALID, SOURCE = "__key__", "__valid__", "__source__"
ADDED = (KEY, VALID, SOURCE)
"""What a batch has beside the fields of the table."""


class Table(Protocol):
    """What a data set reads from: rows 0 … N-1 of named fields. `ShardSet` is one.

    Used in the process that opened it or in a copy unpickled elsewhere; it opens handles by itself.
    """

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Samples of each shard; N is their sum."""
        ...

    @property
    def fields(self) -> Mapping[str, FieldSpec]: ...

    @property
    def fingerprint(self) -> str:
        """Changes with the samples; a saved state belongs to one."""
        ...

    def gather(self, rows: Rows, fields: Sequence[str], alloc: Alloc = new_array) -> dict[str, Column]:
        """The fields of these rows, in this order, repeats included."""
        ...

    def keys(self, rows: Rows) -> list[str]: ...

    def locate(self, row: int) -> tuple[str, int]:
        """(shard, row in the shard), for messages."""
        ...


@dataclass(frozen=True, slots=True)
class Picked:
    """Samples to read: rows of a table, and what is known of each before it is read.

    visits: int64 (n,), see `streamio.order.base.Picks`.
    more:   further fields of the batch, each (n,): `__valid__` and the like.
    epoch:  in which they come.
    places: int64 (n,), the rows that should be here, by which randomness is keyed: a sample in the place of
            another one is augmented as that one would have been, and not as where it comes itself. None: `rows`.
    """

    rows: Rows
    visits: NDArray[np.int64]
    more: Mapping[str, NDArray[Any]]
    epoch: int = 0
    places: Rows | None = None

    def take(self, kept: NDArray[np.int64]) -> Picked:
        more = {name: value[kept] for name, value in self.more.items()}
        places = None if self.places is None else self.places[kept]
        return Picked(self.rows[kept], self.visits[kept], more, self.epoch, places)

    def with_others(self, at: NDArray[np.int64], rows: Rows) -> Picked:
        """Other rows at these indices."""
        others = self.rows.copy()
        others[at] = rows
        return replace(self, rows=others, places=self.rows if self.places is None else self.places)
