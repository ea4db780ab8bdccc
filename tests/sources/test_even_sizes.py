"""A worker whose batches were counted before it reads makes so many, also of fewer rows than were counted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio import SourceDataset, StreamLoader, UsageError
from streamio.sources.base import Chunk, Cursor, Partition
from streamio.sources.collecting import Collector, Limits
from streamio.types import ArrayColumn
from tests.sources.counting import Counting


def sizes(chunks: Sequence[tuple[int, int]], batches: int, most: int) -> list[int]:
    """Of the batches that are cut from chunks of (rows, rows that were counted)."""

    def read() -> list[Chunk]:
        return [
            Chunk(
                partition="p", columns={"x": ArrayColumn(np.arange(rows))}, cursors=np.arange(rows), passed=passed
            )
            for rows, passed in chunks
        ]

    limits = Limits(size=most, batches=batches, counted=sum(passed for _, passed in chunks))
    made = Collector(iter(read()), limits, lambda chunk: None, lambda: False).batches()
    return [sum(piece.end - piece.begin for piece in batch[0]) for batch in made if batch is not None]


@given(chunks=st.lists(st.integers(0, 40), max_size=12), most=st.integers(1, 30), more=st.integers(0, 5))
def test_sizes_differ_by_one_at_most_where_all_that_was_counted_comes(
    chunks: list[int], most: int, more: int
) -> None:
    rows = sum(chunks)
    batches = min(rows, -(-rows // most) + more)
    found = sizes([(n, n) for n in chunks], batches, most)
    assert len(found) == batches and sum(found) == rows
    assert not found or (max(found) <= most and max(found) - min(found) <= 1)


@given(
    chunks=st.lists(st.integers(1, 40).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), max_size=12),
    most=st.integers(1, 30),
)
def test_no_row_is_lost_and_no_batch_too_large_where_fewer_come(chunks: list[tuple[int, int]], most: int) -> None:
    counted = sum(passed for _, passed in chunks)
    found = sizes(chunks, -(-counted // most), most)
    assert sum(found) == sum(rows for rows, _ in chunks)
    assert all(1 <= size <= most for size in found)
    assert len(found) <= -(-counted // most)


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([(50, 100)] * 4, (18, 22)),  # every second one is there: known after the first chunk
        ([(99, 100)] * 4, (39, 40)),
        ([(100, 100), (100, 100), (0, 20)], (16, 40)),  # nothing at the end
        ([(0, 100), (100, 100)], (1, 40)),  # nothing at the beginning
    ],
    ids=str,
)
def test_gaps_make_batches_smaller_and_not_fewer(chunks: list[tuple[int, int]], expected: tuple[int, int]) -> None:
    counted = sum(passed for _, passed in chunks)
    batches = -(-counted // 40)
    found = sizes(chunks, batches, 40)
    assert len(found) == batches
    assert expected[0] <= min(found) and max(found) <= expected[1], found


class Fewer(Counting):
    """Counts more rows than there are."""

    def count(self, partition: Partition, cursor: Cursor) -> int:
        return super().count(partition, cursor) * 20


def test_ranks_of_which_rows_are_left_out_make_as_many_batches() -> None:
    bad = tuple(range(60)) + tuple(range(1000, 1010))
    lengths = []
    for rank in range(2):
        data = SourceDataset(Counting((100, 100), bad), 10, on_error="skip", rank=rank, world_size=2)
        lengths.append([len(batch["number"]) for batch in StreamLoader(data, num_workers=0)])
    assert [len(rank) for rank in lengths] == [10, 10]
    assert [sum(rank) for rank in lengths] == [40, 90]


def test_a_rank_that_cannot_make_its_batches_says_so() -> None:
    data = SourceDataset(Fewer((100, 100)), 10, rank=0, world_size=2)
    with pytest.raises(UsageError, match=r"worker 0 of rank 0 has no more rows after 19 of 200 batches.*steps="):
        list(StreamLoader(data, num_workers=0))
