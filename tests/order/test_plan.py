"""The plan: every sample once, every rank as many batches, whatever the sizes and the topology."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio.errors import TailError, UsageError
from streamio.order.plan import Plan

TAILS = ("even", "drop", "pad")
MODES = ("none", "shards", "block", "global")


def make(
    samples: int | list[int], batch: int, world: int = 1, tail: str = "even", shuffle: str = "none", **more: int
) -> Plan:
    sizes = [samples] if isinstance(samples, int) else samples
    return Plan(
        sizes=np.array(sizes, np.int64),
        batch_size=batch,
        world_size=world,
        tail=tail,
        shuffle=shuffle,
        **more,  # type: ignore[arg-type]
    )


def sizes_by_step(plan: Plan) -> list[list[int]]:
    return [[len(plan.rows(step, rank)) for rank in range(plan.world_size)] for step in range(plan.steps)]


shapes = st.tuples(
    st.lists(st.integers(0, 50), min_size=1, max_size=6).filter(any), st.integers(1, 9), st.integers(1, 6)
)


@given(shape=shapes, tail=st.sampled_from(TAILS), shuffle=st.sampled_from(MODES), epoch=st.integers(0, 3))
def test_rows_come_exactly_as_often_as_the_tail_says(
    shape: tuple[list[int], int, int], tail: str, shuffle: str, epoch: int
) -> None:
    sizes, batch, world = shape
    n, step = sum(sizes), batch * world
    try:
        plan = make(sizes, batch, world, tail, shuffle, epoch=epoch)
    except TailError:
        assert tail == "even"
        assert n < world or (batch == 1 and n % world)
        return
    got = [list(plan.batches(range(plan.steps), rank)) for rank in range(world)]
    assert {len(b) for b in got} == {plan.steps}
    rows = Counter(int(r) for b in got for batch_rows in b for r in batch_rows.rows)
    if tail == "even":
        assert rows == Counter(range(n))
    elif tail == "drop":
        assert rows.total() == n // step * step and max(rows.values(), default=1) == 1
    else:
        assert rows.total() == -(-n // step) * step and set(rows) == set(range(n))
        real = Counter(int(r) for b in got for batch_rows in b for r in batch_rows.rows[batch_rows.valid])
        assert real == Counter(range(n))


@given(shape=shapes)
def test_even_slices_are_never_empty_nor_above_the_batch_size_and_only_the_last_two_steps_differ(
    shape: tuple[list[int], int, int],
) -> None:
    sizes, batch, world = shape
    try:
        plan = make(sizes, batch, world)
    except TailError:
        return
    by_step = sizes_by_step(plan)
    assert all(n == batch for step in by_step[:-2] for n in step)
    tail = [n for step in by_step[-2:] for n in step]
    assert min(tail) >= 1 and max(tail) <= batch and max(tail) - min(tail) <= 1


@given(n=st.integers(24, 400), per_rank=st.integers(1, 6), shuffle=st.sampled_from(MODES), epoch=st.integers(0, 3))
def test_a_step_holds_the_same_samples_on_1_2_3_4_and_8_ranks(
    n: int, per_rank: int, shuffle: str, epoch: int
) -> None:
    steps = []
    for world in (1, 2, 3, 4, 8):
        try:
            plan = make([n // 3, n - n // 3], 24 * per_rank // world, world, shuffle=shuffle, epoch=epoch)
        except TailError:
            continue
        steps.append([
            np.concatenate([plan.rows(s, r) for r in range(world)]).tolist() for s in range(plan.steps)
        ])  # fmt: skip
    assert all(s == steps[0] for s in steps)


@given(shape=shapes, shuffle=st.sampled_from(MODES), workers=st.integers(1, 5))
def test_workers_that_take_every_wth_step_make_what_one_would(
    shape: tuple[list[int], int, int], shuffle: str, workers: int
) -> None:
    sizes, batch, world = shape
    plan = make(sizes, batch, world, "pad", shuffle)
    rank = world - 1
    whole = {b.step: b.rows.tolist() for b in plan.batches(range(plan.steps), rank)}
    parts = [b for w in range(workers) for b in plan.batches(range(w, plan.steps, workers), rank)]
    assert {b.step: b.rows.tolist() for b in parts} == whole


@pytest.mark.parametrize(
    ("samples", "world", "batch", "tail", "expected"),
    [
        (100, 3, 4, "even", [[4, 4, 4]] * 7 + [[3, 3, 2], [3, 3, 2]]),
        (33, 1, 16, "even", [[16], [9], [8]]),
        (33, 1, 16, "drop", [[16], [16]]),
        (33, 1, 16, "pad", [[16], [16], [16]]),
        (46, 1, 8, "even", [[8]] * 4 + [[7], [7]]),
        (10, 4, 2, "even", [[2, 1, 1, 1], [2, 1, 1, 1]]),
        (3, 3, 8, "even", [[1, 1, 1]]),  # one step only, smaller than a batch
        (7, 2, 8, "even", [[4, 3]]),
        (1, 1, 1, "even", [[1]]),
        (24, 2, 4, "even", [[4, 4]] * 3),  # nothing to share out
        (5, 2, 8, "drop", []),
        (1000, 1, 128, "drop", [[128]] * 7),
    ],
)
def test_sizes_by_hand(samples: int, world: int, batch: int, tail: str, expected: list[list[int]]) -> None:
    assert sizes_by_step(make(samples, batch, world, tail)) == expected


@pytest.mark.parametrize(("samples", "world", "batch"), [(10, 4, 1), (2, 3, 5), (1, 2, 1)])
def test_refuses_an_even_epoch_that_cannot_be_and_offers_the_others(samples: int, world: int, batch: int) -> None:
    with pytest.raises(TailError, match=r"pad.*drop"):
        make(samples, batch, world)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 0}, "batch_size=0"),
        ({"batch": 2.5}, "batch_size=2.5"),
        ({"batch": True}, "batch_size=True"),
        ({"world": 0}, "world_size=0"),
        ({"tail": "keep"}, "tail='keep'"),
        ({"samples": 0}, "no samples"),
    ],
)
def test_refuses_values_out_of_range(change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(**{"samples": 10, "batch": 2, **change})  # type: ignore[arg-type]


def test_any_step_of_a_billion_samples_costs_no_more_than_the_first() -> None:
    """10^9 samples in 100,000 shards: memory is that of the shard sizes, any step is reached at once."""
    plan = Plan(sizes=np.full(100_000, 10_000), batch_size=256, world_size=8, shuffle="block", seed=3)
    rows = plan.rows(plan.steps // 2, 5)
    assert len(rows) == 256 and rows.min() >= 0 and rows.max() < 10**9
