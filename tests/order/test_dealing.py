"""Partitions are dealt to one reader each, and ranks make as many batches as each other."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio.errors import TailError
from streamio.order.dealing import dealt, even_batches


@given(count=st.integers(0, 50), ranks=st.integers(1, 5), workers=st.integers(1, 5))
def test_each_partition_has_one_reader(count: int, ranks: int, workers: int) -> None:
    shares = [dealt(count, r, ranks, w, workers) for r in range(ranks) for w in range(workers)]
    assert sorted(partition for share in shares for partition in share) == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_the_table_of_the_module_is_true() -> None:
    assert [list(dealt(7, r, 2, w, 2)) for r in (0, 1) for w in (0, 1)] == [[0, 4], [2, 6], [1, 5], [3]]
    assert even_batches([[25, 31], [12, 20]], 10) == [[3, 4], [3, 4]]


_SAMPLES = st.integers(1, 4).flatmap(
    lambda workers: st.lists(
        st.lists(st.integers(0, 300), min_size=workers, max_size=workers), min_size=1, max_size=4
    )
)


@given(samples=_SAMPLES, size=st.integers(1, 40))
def test_ranks_make_as_many_batches_none_of_them_empty_or_too_large(samples: list[list[int]], size: int) -> None:
    least = max(sum(-(-count // size) for count in rank) for rank in samples)
    if any(sum(rank) < least for rank in samples):
        with pytest.raises(TailError, match=r"rank \d has"):
            even_batches(samples, size)
        return
    batches = even_batches(samples, size)
    assert {sum(rank) for rank in batches} == {least}
    for counts, made in zip(chain(*samples), chain(*batches), strict=True):
        assert (made == 0) == (counts == 0)
        assert made <= counts <= made * size
