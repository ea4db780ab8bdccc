"""When all values of a field are arrays of one dtype and shape: the one place that decides it, for all formats.

Such a field is gathered for a whole batch at once; any other is decoded value by value. So doubt means no.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamio.codecs import npy_header
from streamio.shards.index import FieldIndex

_LONGEST_HEADER = 4096
_ROWS_AT_ONCE = 4096


class ArrayLayout(NamedTuple):
    """What an npy header says: elements of `dtype` in C order start `skip` bytes into the payload."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    skip: int

    @property
    def payload_bytes(self) -> int:
        return self.skip + self.dtype.itemsize * math.prod(self.shape)


def is_plain(dtype: np.dtype[Any]) -> bool:
    """Bool, int, uint, float or complex of a size that every platform has, little-endian or of one byte."""
    widest = 16 if dtype.kind == "c" else 8
    return dtype.kind in "biufc" and dtype.itemsize <= widest and dtype.str[0] in "<|"


def npy_layout(head: bytes) -> ArrayLayout | None:
    """Read an npy header; None unless it is one of a plain array in C order. `head` may go on behind it."""
    header = npy_header(head)
    if header is None or header.fortran or not is_plain(header.dtype):
        return None
    return ArrayLayout(header.dtype, header.shape, header.skip)


def mark_arrays(data: NDArray[np.uint8], fields: Mapping[str, FieldIndex]) -> dict[str, FieldIndex]:
    """Set dtype, shape and skip of the npy fields whose values all are arrays of one layout.

    data: the shard file as bytes; offsets and sizes of `fields` must lie within.
    """
    marked = dict(fields)
    for name, index in fields.items():
        if name.rpartition(".")[2].lower() == "npy" and not index.is_array:
            layout = _common_layout(data, index)
            if layout is not None:
                marked[name] = replace(index, dtype=layout.dtype, shape=layout.shape, skip=layout.skip)
    return marked


def _common_layout(data: NDArray[np.uint8], index: FieldIndex) -> ArrayLayout | None:
    """The layout of the first value, if every row has the field and the same header in front of it."""
    if not len(index.sizes) or (index.sizes != index.sizes[0]).any():
        return None
    first, size = int(index.offsets[0]), int(index.sizes[0])
    layout = npy_layout(data[first : first + min(size, _LONGEST_HEADER)].tobytes()) if size > 0 else None
    if layout is None or layout.payload_bytes != size:
        return None
    head = data[first : first + layout.skip]
    within = np.arange(layout.skip)
    for start in range(0, len(index.offsets), _ROWS_AT_ONCE):
        rows = index.offsets[start : start + _ROWS_AT_ONCE, None] + within
        if (data[rows] != head).any():
            return None
    return layout
