"""Lanes: the order in parallel pieces over shards of their own, with all promises of the plan kept."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio.errors import TailError, UsageError
from streamio.order.lanes import LaneOrder, lanes_are_kept, residue
from streamio.order.plan import Plan
from streamio.order.shuffle import Shuffle

MODES: tuple[Shuffle, ...] = ("none", "shards", "block", "global")
sizes_lists = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any)


def lane_order(sizes: list[int], lanes: int, shuffle: Shuffle = "none", epoch: int = 0) -> LaneOrder:
    return LaneOrder(np.array(sizes, np.int64), lanes, shuffle, 3, epoch, 16)


def plan(sizes: list[int], batch: int, world: int, lanes: int, **more: object) -> Plan:
    return Plan(sizes=np.array(sizes, np.int64), batch_size=batch, world_size=world, lanes=lanes, **more)  # type: ignore[arg-type]


@given(sizes=sizes_lists, lanes=st.integers(1, 9), shuffle=st.sampled_from(MODES), epoch=st.integers(0, 2))
def test_every_row_comes_once(sizes: list[int], lanes: int, shuffle: Shuffle, epoch: int) -> None:
    places = np.arange(sum(sizes), dtype=np.int64)
    assert sorted(lane_order(sizes, lanes, shuffle, epoch)(places).tolist()) == places.tolist()


@given(sizes=sizes_lists, lanes=st.integers(2, 9), shuffle=st.sampled_from(MODES))
def test_a_lane_reads_its_own_rows_in_every_epoch(sizes: list[int], lanes: int, shuffle: Shuffle) -> None:
    places = np.arange(sum(sizes), dtype=np.int64)
    for lane in range(lanes):
        mine = places[places % lanes == lane]
        epochs = [set(lane_order(sizes, lanes, shuffle, e)(mine).tolist()) for e in range(3)]
        assert epochs[0] == epochs[1] == epochs[2]
        starts, counts = lane_order(sizes, lanes, shuffle).pieces(lane)
        pieces = {row for start, count in zip(starts, counts, strict=True) for row in range(start, start + count)}
        assert pieces == epochs[0]


@given(sizes=sizes_lists, lanes=st.integers(2, 9))
def test_lanes_are_equal_within_one_and_share_only_border_shards(sizes: list[int], lanes: int) -> None:
    order = lane_order(sizes, lanes, "block")
    counts = [int(order.pieces(lane)[1].sum()) for lane in range(lanes)]
    assert sum(counts) == sum(sizes) and max(counts) - min(counts) <= 1
    shard_of = np.repeat(np.arange(len(sizes)), sizes)
    readers = Counter(
        int(shard_of[start]) for lane in range(lanes) for start, n in np.transpose(order.pieces(lane)) if n
    )
    assert sum(readers.values()) - len(readers) <= lanes - 1


def test_the_example_of_the_docstring() -> None:
    assert lane_order([3, 2, 2], 2)(np.arange(7)).tolist() == [0, 4, 1, 5, 2, 6, 3]


@given(
    sizes=sizes_lists, batch=st.integers(2, 6), world=st.sampled_from([1, 2, 3, 4, 8]), lanes=st.integers(2, 8),
    shuffle=st.sampled_from(MODES), tail=st.sampled_from(["even", "drop", "pad"]), workers=st.integers(1, 3),
)  # fmt: skip
def test_the_plan_keeps_its_promises_in_lanes(
    sizes: list[int], batch: int, world: int, lanes: int, shuffle: Shuffle, tail: str, workers: int
) -> None:
    try:
        p = plan(sizes, batch, world, lanes, shuffle=shuffle, tail=tail)
    except TailError:
        return
    got = [b for rank in range(world) for w in range(workers) for b in p.share(rank, w, workers)]
    assert Counter(b.step for b in got) == dict.fromkeys(range(p.steps), world)
    real = Counter(int(r) for b in got for r in (b.rows if b.valid is None else b.rows[b.valid]))
    n, step = sum(sizes), batch * world
    assert max(real.values(), default=1) == 1 and real.total() == (n // step * step if tail == "drop" else n)
    lengths = {len(b.rows) for b in got}
    assert tail == "even" or lengths <= {batch}
    for s in range(p.steps):
        of_step = [len(b.rows) for b in got if b.step == s]
        assert min(of_step) >= 1 and max(of_step) <= batch and max(of_step) - min(of_step) <= 1


@pytest.mark.parametrize("shuffle", MODES)
@pytest.mark.parametrize("tail", ["even", "pad"])
def test_a_step_holds_the_same_samples_on_1_2_3_4_and_8_ranks(shuffle: Shuffle, tail: str) -> None:
    for lanes in (2, 4, 8, 24):
        steps = []
        for world in (1, 2, 3, 4, 8):
            p = plan([130, 70, 301, 7], 24 // world, world, lanes, shuffle=shuffle, seed=4, tail=tail)
            steps.append([sorted(r for k in range(world) for r in p.rows(s, k).tolist()) for s in range(p.steps)])
        assert all(s == steps[0] for s in steps)


@pytest.mark.parametrize(("world", "lanes"), [(2, 2), (2, 8), (4, 8), (8, 8), (8, 2), (8, 4), (4, 1)])
@pytest.mark.parametrize("tail", ["even", "pad"])
def test_the_ranks_of_a_node_read_only_their_lanes(world: int, lanes: int, tail: str) -> None:
    """Two nodes: the first half of the ranks and the second. Together they read all lanes, each its own."""
    p = plan([50] * 20, 5, world, lanes, shuffle="block", tail=tail, block_samples=64)
    order = LaneOrder(np.array([50] * 20), lanes, "block", 0, 0, 64)
    lane_of = np.empty(1000, np.int64)
    lane_of[order(np.arange(1000))] = np.arange(1000) % lanes
    lanes_of = [
        {int(lane_of[r]) for rank in ranks for b in p.share(rank) for r in b.rows}
        for ranks in (range(world // 2), range(world // 2, world))
    ]
    assert lanes_of[0] | lanes_of[1] == set(range(lanes))
    assert lanes == 1 or not lanes_of[0] & lanes_of[1]


@given(world=st.integers(1, 32), lanes=st.integers(1, 32))
def test_ranks_take_all_residues(world: int, lanes: int) -> None:
    taken = [residue(rank, world, lanes) for rank in range(world)]
    assert sorted(taken) == list(range(world))
    if lanes_are_kept(world, lanes) and world >= lanes:
        assert all(taken[r] % lanes == r // (world // lanes) for r in range(world))


def test_lanes_with_repeats_are_refused() -> None:
    with pytest.raises(UsageError, match=r"repeat=2 with lanes=2.*epochs"):
        plan([10], 2, 1, 2, repeat=2)
    with pytest.raises(UsageError, match="lanes=0"):
        plan([10], 2, 1, 0)


def test_the_order_in_lanes_never_changes() -> None:
    """Part of a checkpoint: these numbers may change only with the version of the permutation."""
    p = plan([5, 4, 3], 3, 2, 2, shuffle="block", seed=1, epoch=2)
    assert [[p.rows(s, r).tolist() for r in range(2)] for s in range(p.steps)] == GOLDEN


GOLDEN = [[[11, 5, 10], [0, 1, 2]], [[9, 6, 7], [3, 4, 8]]]
