"""A column by name, by array or by function: how orders are told about weights, classes and lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from streamio.errors import UsageError

Columns: TypeAlias = Mapping[str, NDArray[Any]]

ColumnOf: TypeAlias = "str | Sequence[Any] | NDArray[Any] | Callable[[Columns], Any]"
"""The name of a column of the set, one value for each sample, or a function of the columns that gives these."""


def column_of(what: str, wanted: ColumnOf, columns: Columns, samples: int) -> NDArray[Any]:
    """The values, (samples,). Raises UsageError, in the words of the argument `what`, for all else."""
    if isinstance(wanted, str):
        if wanted not in columns:
            known = ", ".join(columns) or "none"
            raise UsageError(f"{what}={wanted!r}: the set has no such column", fix=f"Columns: {known}")
        wanted = columns[wanted]
    elif callable(wanted):
        wanted = wanted(columns)
    values = np.asarray(wanted)
    if values.shape != (samples,) or values.dtype.kind not in "biuf":
        raise UsageError(
            f"{what} has shape {values.shape} and kind {values.dtype} for {samples:,} samples",
            fix="Give one number for each sample",
        )
    return values


def fingerprint(*parts: Any) -> str:
    """16 hex digits of numbers, texts and arrays, for a state that must know them again."""
    state = xxhash.xxh3_64()
    for part in parts:
        state.update(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return state.hexdigest()
