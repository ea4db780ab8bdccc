"""Copies by address: any size, any order, from many arrays at once."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamio.memory import address
from streamio.shards import space
from streamio.shards.space import LARGE_ITEM, are_cached, copy_items, copy_spans, will_need, words


@pytest.mark.parametrize("size", [1, 7, 8, 768, LARGE_ITEM - 1, LARGE_ITEM, LARGE_ITEM + 1])
@given(data=st.data())
@settings(max_examples=10)
def test_items_of_several_arrays_come_in_the_order_asked_for(size: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(size)
    arrays = [rng.integers(0, 256, size * 5 + 3, np.uint8) for _ in range(3)]
    picks = data.draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4 * size + 3)), max_size=40))
    places = np.array([address(arrays[which]) + start for which, start in picks], np.int64)
    out = np.zeros((len(picks), size), np.uint8)
    copy_items(places, out, None)
    for row, (which, start) in zip(out, picks, strict=True):
        assert (row == arrays[which][start : start + size]).all()
    at = rng.permutation(len(picks))
    other = np.zeros_like(out)
    copy_items(places, other, at)
    assert (other[at] == out).all()


def test_more_rows_than_are_picked_at_once_come_whole() -> None:
    values = np.arange(1 << 17, dtype="<i8")
    rows = np.random.default_rng(0).permutation(len(values))
    out = np.empty_like(values)
    copy_items(address(values) + rows * 8, out, None)
    assert (out == rows).all()
    assert (words(address(values) // 8 + rows[:9]) == rows[:9]).all()


@given(
    st.lists(st.one_of(st.integers(0, 40), st.integers(200, 1100), st.sampled_from([256, 1024, 5000])), max_size=30)
)
def test_spans_of_any_lengths_go_where_they_belong_and_nowhere_else(sizes: list[int]) -> None:
    rng = np.random.default_rng(len(sizes))
    source, out = rng.integers(1, 256, 9000, np.uint8), np.zeros(sum(sizes) + 2 * len(sizes) + 1, np.uint8)
    expected = out.copy()
    starts = rng.integers(0, 9000 - 5000, len(sizes))
    at = np.cumsum([size + 2 for size in sizes]) - sizes  # a gap of two bytes in front of each
    for start, size, place in zip(starts, sizes, at, strict=True):
        expected[place : place + size] = source[start : start + size]
    copy_spans(address(source) + starts, np.array(sizes, np.int64), out, at.astype(np.int64))
    assert (out == expected).all()


def test_values_of_no_bytes_touch_no_memory() -> None:
    copy_items(np.array([1, 2]), np.empty((2, 0), np.uint8), None)
    copy_items(np.empty(0, np.int64), np.empty((0, 5), np.uint8), None)


@pytest.mark.skipif(space._libc is None, reason="the system has no madvise")
def test_what_is_announced_is_read_and_is_then_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(os.urandom(64 * mmap.PAGESIZE))
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        first = address(mapped)
        assert are_cached([first, first + 63 * mmap.PAGESIZE])
        # In no order, overlapping, up to the last byte.
        will_need(first + np.array([100_000, 0, 90_000]), first + np.array([mapped.size, 5000, 110_000]))
        will_need(np.empty(0, np.int64), np.empty(0, np.int64))
