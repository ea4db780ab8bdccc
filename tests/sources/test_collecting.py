"""However a source cuts its chunks, batches are cut as asked, and their marks say exactly where the run is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamio.errors import SampleError
from streamio.sources.base import Chunk
from streamio.sources.collecting import Collector, Limits
from streamio.types import ArrayColumn

_CHUNKS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.sets(st.integers(0, 8))) | st.none(), max_size=20
)


def chunks(plan: list[tuple[str, int, set[int]] | None], told: dict[int, str]) -> Iterator[Chunk | None]:
    """Numbers that go on from chunk to chunk, each with itself + 1 as its cursor; those in the set are bad.

    told: gets the good ones, and the partition of each.
    """
    at = 0
    for part in plan:
        if part is None:
            yield None
            continue
        name, size, bad = part
        numbers = np.arange(at, at + size, dtype=np.int64)
        at += size
        wrong = {i: SampleError("bad") for i in bad if i < size}
        told |= {int(numbers[i]): name for i in range(size) if i not in wrong}
        yield Chunk(partition=name, columns={"x": ArrayColumn(numbers)}, cursors=numbers + 1, bad=wrong)
    for name in "abc":
        yield Chunk(partition=name, ended=True)


@given(plan=_CHUNKS, size=st.integers(1, 7), ahead=st.booleans(), drop=st.booleans())
def test_every_good_row_comes_once_in_full_batches(
    plan: list[tuple[str, int, set[int]] | None], size: int, ahead: bool, drop: bool
) -> None:
    home: dict[int, str] = {}
    limits = Limits(size=size, looks_ahead=ahead, drop_rest=drop)
    made = list(Collector(chunks(plan, home), limits, lambda chunk: None, lambda: False).batches())
    came: list[list[int]] = []
    of_partition: list[tuple[int, str]] = []
    ended: list[str] = []
    for batch in made:
        if batch is None:
            continue
        pieces, mark = batch
        rows = [(p.chunk.partition, int(n)) for p in pieces for n in p.chunk.columns["x"].values[p.begin : p.end]]
        came.append([number for _, number in rows])
        of_partition += [(number, name) for name, number in rows]
        for name, cursor in mark.cursors.items():
            last = max((number for number, n in of_partition if n == name), default=-1)
            assert last < cursor and not [n for n, part in home.items() if last < n < cursor and part == name]
        assert not ended or ahead
        ended += mark.ended
    good = list(home)
    left = len(good) % size
    expected = good[: len(good) - left] if drop else good
    assert list(chain(*came)) == expected
    assert all(len(batch) == size for batch in came[:-1])
    if ahead and not drop and came:
        assert sorted(ended) == ["a", "b", "c"]


def test_what_is_left_is_given_when_it_is_over() -> None:
    def silent() -> Iterator[Chunk | None]:
        yield Chunk(partition="a", columns={"x": ArrayColumn(np.arange(3))}, cursors=np.arange(1, 4))
        while True:
            yield None

    limits = Limits(size=10, looks_ahead=False)
    ((pieces, mark),) = Collector(silent(), limits, lambda chunk: None, lambda: True).batches()
    assert [len(p.chunk) for p in pieces] == [3] and mark.cursors == {"a": 3}
