"""The memory of this process as arrays, to copy values from many maps at once by their addresses.

Shards are memory maps anywhere in the address space, so values of several are no part of one array; but the space
itself is one. An address must lie in memory that is mapped and held: nothing here can tell.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Addresses = NDArray[np.int64]

LARGE_ITEM = 16 << 10
"""Items of this many bytes are copied one by one, smaller ones many at once. Measured on one core in GB/s (one by
one, at once): 768 bytes 2.9, 30; 4 KB 6.7, 17; 12 KB 13, 15; 32 KB 18.5, 16.5; 150 KB 21, 18. Both ways release
the GIL."""

_AT_ONCE = 256 << 10
"""Bytes that are picked at once. They are written twice, so they should not leave the processor's cache."""

_START, _END = 8, 1 << 48  # numpy takes the address 0 for no memory


def words(places: Addresses) -> Addresses:
    """The int64 at each place; a place is an address // 8."""
    return _space("<i8", 8, 8)[places - 1]


def copy_items(places: Addresses, out: NDArray[Any], at: NDArray[np.int64] | None) -> None:
    """out[at[i]] = the value at the address places[i]; at None: out[i]. `out` is C-contiguous."""
    size = out.dtype.itemsize * (out[:1].size or 0)
    if size == 0 or len(places) == 0:
        return
    starts = places - _START
    if size >= LARGE_ITEM:
        items, memory = out.reshape(len(out), -1).view(np.uint8), _space("|u1", 1, 1)
        targets: Sequence[int] | range = range(len(starts)) if at is None else at.tolist()
        for target, start in zip(targets, starts.tolist(), strict=True):
            items[target] = memory[start : start + size]
        return
    memory, values = _space(f"|V{size}", size, 1), out.reshape(len(out), -1).view(f"V{size}")[:, 0]
    step = _AT_ONCE // size
    for i in range(0, len(starts), step):
        part = slice(i, i + step)
        values[part if at is None else at[part]] = memory[starts[part]]


_LARGE_SPAN = 1 << 10
_BLOCKS = (256, 32, 4, 1)
"""Spans of _LARGE_SPAN bytes are copied one by one; a smaller one as whole blocks of the largest size that fits it,
of which the last ends where the span ends. Measured on one core, for windows of 8 KB made of spans of 3.2 KB
(0.4 KB) in the mean: 3.4 µs a window (6.7); all spans one by one 4.7 (13)."""


def copy_spans(places: Addresses, sizes: NDArray[np.int64], out: NDArray[np.uint8], at: NDArray[np.int64]) -> None:
    """out[at[i] : at[i] + sizes[i]] = the bytes from the address places[i] on. `out` has one dimension."""
    large = np.flatnonzero(sizes >= _LARGE_SPAN)
    memory, target = _space("|u1", 1, 1).data, out.data
    spans = (places[large] - _START).tolist(), sizes[large].tolist(), at[large].tolist()
    for start, size, place in zip(*spans, strict=True):
        target[place : place + size] = memory[start : start + size]
    most = _LARGE_SPAN
    for block in _BLOCKS:
        chosen = np.flatnonzero((sizes >= block) & (sizes < most))
        most = block
        if len(chosen):
            _copy_blocks(block, places[chosen], sizes[chosen], out, at[chosen])


def _copy_blocks(
    block: int, places: Addresses, sizes: NDArray[np.int64], out: NDArray[np.uint8], at: NDArray[np.int64]
) -> None:
    counts = -(-sizes // block)
    span = np.repeat(np.arange(len(sizes)), counts)
    number = np.arange(len(span)) - np.repeat(np.cumsum(counts) - counts, counts)
    within = np.minimum(number * block, (sizes - block)[span])
    kind = f"|V{block}"
    targets = np.ndarray((len(out) - block + 1,), kind, out.data, 0, (1,))
    targets[at[span] + within] = _space(kind, block, 1)[places[span] + within - _START]


@lru_cache(maxsize=64)
def _space(kind: str, size: int, step: int) -> NDArray[Any]:
    """The space from _START on as items of so many bytes, one at every `step` bytes, overlapping."""
    return np.asarray(_Space(kind, (_END - _START - size) // step, step))


class _Space:
    def __init__(self, kind: str, count: int, step: int) -> None:
        self.__array_interface__ = {
            "shape": (count,), "strides": (step,), "typestr": kind, "data": (_START, True), "version": 3,
        }  # fmt: skip


def are_cached(places: Sequence[int]) -> bool:
    """Whether the pages at these addresses are in memory. True where the system does not say."""
    if _libc is None:
        return True
    page = ctypes.c_ubyte(1)
    for place in places:
        _libc.mincore(ctypes.c_void_p(place // _PAGE * _PAGE), ctypes.c_size_t(1), ctypes.byref(page))
        if not page.value & 1:
            return False
    return True


def will_need(starts: Addresses, ends: Addresses) -> None:
    """Tell the system which memory will be read, so that it fetches all of it at once and nothing else."""
    if len(starts) == 0:
        return
    order = np.argsort(starts)
    starts, ends = starts[order] // _PAGE * _PAGE, np.maximum.accumulate(ends[order])
    # What goes on in the page where the last one ends, or in the next one, is one read.
    joined = starts[1:] <= ends[:-1] + _PAGE
    firsts = starts[np.append(True, ~joined)]
    lasts = ends[np.append(~joined, True)]
    assert _libc is not None
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_WILLNEED)


_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None) if hasattr(mmap, "MADV_WILLNEED") else None
