"""The words of the design as types: what travels between the layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamio.memory import Recycler

Rows: TypeAlias = NDArray[np.int64]
"""Numbers of samples in a shard set (or, where a reader is asked, in one shard), shape (n,)."""

Alloc: TypeAlias = Callable[[tuple[int, ...], "np.dtype[Any]"], NDArray[Any]]
"""Gives the memory for one field of a batch: (shape, dtype) -> C-contiguous array, contents undefined.
Whoever makes the final array of a field asks for it; a transport may hand out shared memory."""


@dataclass(frozen=True, slots=True)
class ArrayColumn:
    """One field of a batch whose values have one dtype and shape.

    values: shape (n, *shape); owned by the batch, writable.
    """

    values: NDArray[Any]

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class ListColumn:
    """One field of a batch whose values differ in size or kind.

    values: n items, each a `memoryview` (raw bytes as stored, usually a view into the shard's memory map,
    valid as long as it is held), an `ndarray` or, from sources, text and JSON (values that need no decoding),
    None (the row has no such field), or a StreamioError (the value cannot be read: its sample is a bad one).
    """

    values: Sequence[Any]

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class NullableColumn:
    """One field of a batch whose values have one dtype and shape, where some samples have none.

    values:  shape (n, *shape); undefined where the sample has no such field.
    lacking: bool (n,), which these are.
    """

    values: NDArray[Any]
    lacking: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.values)


Column: TypeAlias = ArrayColumn | ListColumn | NullableColumn


_memory = Recycler()


def new_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The plain `Alloc`: memory of this process."""
    return _memory.array(shape, dtype)
