"""Some of the rows of a set, as `where` chose them: small to send, quick to look up."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from streamio.errors import UsageError
from streamio.types import Rows


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Rows of a set, ascending: row i of the selection is row `rows[i]` of the set."""

    rows: Rows

    def bits(self) -> bytes:
        """One bit for each row up to the last one chosen."""
        mask = np.zeros(int(self.rows[-1]) + 1 if len(self.rows) else 0, np.bool_)
        mask[self.rows] = True
        return np.packbits(mask).tobytes()

    def pack(self) -> bytes:
        """For a pickle. Half of a million rows at random take 125 KB; regular choices next to nothing."""
        return zlib.compress(self.bits(), 1)

    @classmethod
    def unpack(cls, data: bytes) -> Selection:
        bits = np.frombuffer(zlib.decompress(data), np.uint8)
        return cls(np.flatnonzero(np.unpackbits(bits)).astype(np.int64, copy=False))

    def fingerprint(self, base: str) -> str:
        return xxhash.xxh3_64_hexdigest(base.encode() + self.bits())

    def of(self, rows: Rows) -> Selection:
        """A selection from this selection."""
        return Selection(self.rows[rows])


def chosen_rows(choice: Any, samples: int) -> Rows:
    """What a user gave to `where`, as ascending rows.

    choice: a mask (bool, one for each sample) or row numbers, each once; a list, array or tensor.
    """
    array = np.asarray(choice)
    if array.ndim == 1 and array.dtype == np.bool_:
        if len(array) != samples:
            raise UsageError(
                f"where: a mask of {len(array):,} for {samples:,} samples", fix="Give one bool for each"
            )
        return np.flatnonzero(array).astype(np.int64, copy=False)
    rows = as_rows(array, "where")
    outside = rows[(rows < 0) | (rows >= samples)]
    if len(outside):
        raise UsageError(f"where: row {outside[0]} of {samples:,} samples", fix=f"Rows are 0 to {samples - 1}")
    ordered: NDArray[np.int64] = np.sort(rows)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise UsageError(f"where: row {twice[0]} comes twice", fix="A selection has each row once")
    return ordered


def as_rows(rows: Any, what: str) -> Rows:
    """Row numbers as int64 (n,). Raises UsageError for anything else, such as floats and masks."""
    array = np.asarray(rows)
    if array.ndim == 1 and len(array) == 0:
        return np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise UsageError(
            f"{what}: rows of kind {array.dtype.name} and shape {array.shape}",
            fix="Give row numbers: integers in one dimension",
        )
    return array.astype(np.int64, copy=False)
