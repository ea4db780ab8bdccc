"""Where large files are cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from streamio.sources.logs.ranges import MOST, SMALLEST, cut, range_bytes


@given(st.integers(0, 10**15), st.integers(1, 10**12))
def test_ranges_tile_a_file_and_are_of_equal_length(size: int, target: int) -> None:
    if size // target > 300:
        target = size // 300 + 1
    ranges = cut(size, target)
    assert ranges[0][0] == 0 and ranges[-1][1] == size
    assert all(a[1] == b[0] for a, b in pairwise(ranges))
    lengths = {end - begin for begin, end in ranges}
    assert max(lengths) - min(lengths) <= 1
    if size >= target:
        assert 2 * target <= 3 * max(lengths) and 2 * min(lengths) <= 3 * target


@given(st.lists(st.integers(0, 10**13), min_size=1, max_size=50))
def test_there_are_not_too_many_ranges_and_none_is_small(sizes: list[int]) -> None:
    target = range_bytes(sizes)
    assert target >= SMALLEST
    assert sum(len(cut(size, target)) for size in sizes) <= 2 * MOST + len(sizes)
