"""The orders: each mode is a bijection that mixes as much as it says, and depends on nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio.errors import UsageError
from streamio.order.shuffle import BLOCK_SAMPLES, RowOrder, Shuffle, row_starts, shuffle_mode, shuffled

MODES: tuple[Shuffle, ...] = ("none", "shards", "block", "global")
sizes_lists = st.lists(st.integers(0, 60), min_size=1, max_size=12).filter(any)


def make_order(sizes: list[int], mode: Shuffle, seed: int, epoch: int, block: int) -> RowOrder:
    each = np.array(sizes, np.int64)
    return shuffled(row_starts(each), each, mode, seed, epoch, block)


def rows_of(
    sizes: list[int], mode: Shuffle, seed: int = 0, epoch: int = 0, block: int = BLOCK_SAMPLES
) -> list[int]:
    order = make_order(sizes, mode, seed, epoch, block)
    return order(np.arange(sum(sizes), dtype=np.int64)).tolist()


@given(
    sizes=sizes_lists,
    mode=st.sampled_from(MODES),
    seed=st.integers(0, 9),
    epoch=st.integers(0, 9),
    block=st.integers(1, 80),
)
def test_every_row_comes_once_in_every_mode(
    sizes: list[int], mode: Shuffle, seed: int, epoch: int, block: int
) -> None:
    assert sorted(rows_of(sizes, mode, seed, epoch, block)) == list(range(sum(sizes)))


@given(sizes=sizes_lists, mode=st.sampled_from(MODES), block=st.integers(1, 80), data=st.data())
def test_any_positions_in_any_order_give_what_the_whole_gives(
    sizes: list[int], mode: Shuffle, block: int, data: st.DataObject
) -> None:
    whole = rows_of(sizes, mode, block=block)
    some = data.draw(st.lists(st.integers(0, sum(sizes) - 1), max_size=30))
    order = make_order(sizes, mode, 0, 0, block)
    assert order(np.array(some, np.int64)).tolist() == [whole[i] for i in some]


@given(sizes=sizes_lists, block=st.integers(1, 80), seed=st.integers(0, 99))
def test_blocks_are_whole_shards_of_at_least_the_block_size(sizes: list[int], block: int, seed: int) -> None:
    """Read along the order, a new shard may appear only within its block, and each block is large enough."""
    rows = rows_of(sizes, "block", seed, block=block)
    ends = np.cumsum(sizes)
    shards = np.searchsorted(ends, rows, side="right")
    last_seen = {int(s): i for i, s in enumerate(shards)}
    first_seen = {int(s): i for i, s in reversed(list(enumerate(shards)))}
    edges = [i for i in range(len(rows) + 1) if all((last_seen[s] < i) == (first_seen[s] < i) for s in last_seen)]
    block_edges = [edges[0]]
    for edge in edges[1:]:
        if edge - block_edges[-1] >= min(block, sum(sizes)):
            block_edges.append(edge)
    assert block_edges[-1] == sum(sizes) or sum(sizes) - block_edges[-1] < block


def test_shards_come_whole_and_in_stored_order_within() -> None:
    rows = rows_of([3, 2, 4], "shards", seed=5)
    pieces = {0: [0, 1, 2], 3: [3, 4], 5: [5, 6, 7, 8]}
    at = 0
    while at < len(rows):
        piece = pieces.pop(rows[at])
        assert rows[at : at + len(piece)] == piece
        at += len(piece)


def test_a_set_up_to_one_block_is_shuffled_globally() -> None:
    rows = np.array(rows_of([100] * 10, "block", seed=1))
    assert np.abs(rows - np.arange(1000)).mean() > 250
    assert len(np.unique(rows[:50] // 100)) >= 6


@pytest.mark.parametrize("mode", ["shards", "block", "global"])
def test_seed_and_epoch_change_the_order(mode: Shuffle) -> None:
    orders = {tuple(rows_of([5] * 40, mode, seed, epoch)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_golden_order() -> None:
    """May change only with `permutation.VERSION`."""
    assert rows_of([3, 2, 2, 4], "block", seed=1, epoch=2, block=4) == GOLDEN_BLOCK
    assert rows_of([3, 2, 2], "global", seed=1, epoch=2) == GOLDEN_GLOBAL


GOLDEN_BLOCK = [5, 2, 0, 6, 1, 3, 9, 10, 7, 4, 8]
GOLDEN_GLOBAL = [2, 1, 4, 3, 0, 5, 6]


def test_says_what_can_be_said() -> None:
    assert [shuffle_mode(s) for s in (False, True, "block", "shards", "global", "none")] == [
        "none", "block", "block", "shards", "global", "none",
    ]  # fmt: skip
    with pytest.raises(UsageError, match="shuffle='blocks'"):
        shuffle_mode("blocks")
