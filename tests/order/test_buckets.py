"""Buckets and budgets: similar lengths in a batch, every sample once, on any ranks, from any point."""

from __future__ import annotations

from collections import Counter
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from streamio.errors import TailError, UsageError
from streamio.order import buckets, budgets
from streamio.order.base import Picks
from streamio.order.buckets import BucketOrder
from streamio.order.budgets import BudgetPlan
from streamio.order.epoch import EpochOrder
from streamio.order.plan import BatchRows, Plan, Tail
from streamio.types import Rows

T = TypeVar("T")

RANKS = (1, 2, 3, 4, 8)
TAILS: tuple[Tail, ...] = ("even", "drop", "pad")


def shuffled(samples: int, epoch: int = 0) -> EpochOrder:
    return EpochOrder(np.array([samples], np.int64), shuffle="global", seed=5, epoch=epoch)


def skewed(samples: int) -> NDArray[np.int64]:
    """Lengths as those of sentences: most are short, some are 50 times as long."""
    return np.minimum(np.exp(np.random.default_rng(1).normal(4, 1, samples)).astype(np.int64) + 1, 2048)


class Some:
    """An order of these rows, one after the other, that counts what it is asked for."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.samples, self.asked = rows, len(rows), 0

    def __call__(self, positions: Rows) -> Picks:
        self.asked += len(positions)
        return Picks(self.rows[positions], positions + 100)


@st.composite
def budgeted(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of a `BudgetPlan` that holds all samples."""
    lengths = draw(st.lists(st.integers(0, 30), min_size=1, max_size=150))
    return {
        "order": shuffled(len(lengths), epoch=draw(st.integers(0, 3))),
        "lengths": np.array(lengths, np.int32),
        "budget": draw(st.integers(max(1, *lengths, 1), 200)),
        "batch_size": draw(st.none() | st.integers(1, 10)),
        "window": draw(st.integers(1, 200)),
        "seed": draw(st.integers(0, 3)),
    }


def plan_or_skip(what: dict[str, Any], **more: Any) -> BudgetPlan:
    try:
        return BudgetPlan(**what, **more)
    except TailError:
        assume(False)
        raise


def shares(plan: BudgetPlan | Plan) -> list[list[BatchRows]]:
    return [list(plan.share(rank)) for rank in range(plan.world_size)]


def by_step(plan: BudgetPlan | Plan) -> list[list[list[int]]]:
    """Rows of each rank in each step."""
    return [[batch.rows.tolist() for batch in step] for step in zip(*shares(plan), strict=True)]


def batches(plan: BudgetPlan) -> list[list[int]]:
    """All batches as they come, without regard to ranks."""
    return flat(by_step(plan))


def flat(lists: list[list[T]]) -> list[T]:
    return list(chain.from_iterable(lists))


def in_lengths(plan: BudgetPlan | Plan, lengths: NDArray[np.int64]) -> list[list[list[int]]]:
    return [[lengths[rows].tolist() for rows in step] for step in by_step(plan)]


@given(what=budgeted(), ranks=st.sampled_from(RANKS), tail=st.sampled_from(TAILS))
def test_samples_come_exactly_as_often_as_the_tail_says_in_as_many_batches_on_all_ranks(
    what: dict[str, Any], ranks: int, tail: Tail
) -> None:
    plan = plan_or_skip(what, world_size=ranks, tail=tail)
    one_rank = batches(BudgetPlan(**what))
    got = shares(plan)
    assert {len(of_rank) for of_rank in got} == {plan.steps}
    assert all(batch.step == step for of_rank in got for step, batch in enumerate(of_rank))
    got_batches = batches(plan)
    if tail == "even":
        assert Counter(flat(got_batches)) == Counter(range(plan.samples))
    elif tail == "drop":
        assert got_batches == one_rank[: len(one_rank) // ranks * ranks]
    else:
        assert got_batches == [one_rank[i % len(one_rank)] for i in range(-(-len(one_rank) // ranks) * ranks)]
        real = [row for of_rank in got for batch in of_rank for row in batch.rows[batch.valid].tolist()]
        assert Counter(real) == Counter(range(plan.samples))


@given(what=budgeted(), ranks=st.sampled_from(RANKS), tail=st.sampled_from(TAILS))
def test_no_batch_is_empty_or_above_the_budget_or_the_batch_size(
    what: dict[str, Any], ranks: int, tail: Tail
) -> None:
    for rows in batches(plan_or_skip(what, world_size=ranks, tail=tail)):
        assert 1 <= len(rows) <= (what["batch_size"] or len(rows))
        assert len(rows) * max(1, *(int(what["lengths"][row]) for row in rows), 1) <= what["budget"]


@given(what=budgeted(), ranks=st.sampled_from(RANKS))
def test_even_changes_only_the_last_two_steps(what: dict[str, Any], ranks: int) -> None:
    plan = plan_or_skip(what, world_size=ranks)
    one_rank = batches(BudgetPlan(**what))
    same = max(0, (plan.steps - 2) * ranks)
    assert batches(plan)[:same] == one_rank[:same]
    assert flat(batches(plan)) == flat(one_rank)


@given(what=budgeted(), ranks=st.sampled_from(RANKS))
def test_an_even_epoch_is_refused_only_where_the_last_batches_have_too_few_samples(
    what: dict[str, Any], ranks: int
) -> None:
    one_rank = batches(BudgetPlan(**what))
    full, rest = divmod(len(one_rank), ranks)
    steps = min(2, full + 1)
    samples = sum(map(len, one_rank[-rest - (steps - 1) * ranks :]))
    impossible = rest > 0 and samples < steps * ranks
    try:
        BudgetPlan(**what, world_size=ranks)
    except TailError:
        assert impossible
    else:
        assert not impossible


@given(what=budgeted(), workers=st.integers(1, 5), ranks=st.sampled_from(RANKS), tail=st.sampled_from(TAILS))
def test_workers_that_take_every_wth_step_make_what_one_would(
    what: dict[str, Any], workers: int, ranks: int, tail: Tail
) -> None:
    plan = plan_or_skip(what, world_size=ranks, tail=tail)
    whole = [(b.step, b.rows.tolist(), b.visits.tolist()) for b in plan.share(ranks - 1)]
    parts = [
        b
        for w in range(workers)
        for b in BudgetPlan(**what, world_size=ranks, tail=tail).share(ranks - 1, w, workers)
    ]
    assert sorted((b.step, b.rows.tolist(), b.visits.tolist()) for b in parts) == whole
    assert [plan.rows(step, ranks - 1).tolist() for step in range(plan.steps)] == [rows for _, rows, _ in whole]


@given(what=budgeted(), legs=st.lists(st.tuples(st.sampled_from(RANKS), st.integers(1, 6)), max_size=8))
def test_any_ranks_take_over_after_any_step_again_and_again_and_each_sample_comes_once(
    what: dict[str, Any], legs: list[tuple[int, int]]
) -> None:
    rows: list[int] = []
    epoch = start = 0
    for ranks, steps in [*legs, (1, 10**6)]:
        plan = plan_or_skip(what, world_size=ranks, start=start)
        steps = min(steps, plan.steps)
        rows += flat(flat(by_step(plan)[:steps]))
        epoch, start = plan.state_at(steps)
        if epoch:
            break
    assert (epoch, start) == (1, 0)
    assert Counter(rows) == Counter(range(len(what["lengths"])))


@given(what=budgeted(), ranks=st.sampled_from(RANKS), tail=st.sampled_from(TAILS))
def test_on_as_many_ranks_every_batch_after_a_resume_is_the_one_that_would_have_come(
    what: dict[str, Any], ranks: int, tail: Tail
) -> None:
    plan = plan_or_skip(what, world_size=ranks, tail=tail)
    whole = by_step(plan)
    for step in range(plan.steps):
        epoch, start = plan.state_at(step)
        assert epoch == 0
        assert by_step(BudgetPlan(**what, world_size=ranks, tail=tail, start=start)) == whole[step:]
    assert plan.state_at(plan.steps) == (1, 0)


def test_cut_and_shared_out_as_in_the_tables_of_the_docstrings() -> None:
    lengths = np.array([5, 9, 1, 7, 2, 4, 3])
    what: dict[str, Any] = {"order": Some(np.arange(7)), "lengths": lengths, "budget": 12}
    assert in_lengths(BudgetPlan(**what), lengths) == [[[9]], [[5, 4]], [[3, 2, 1]], [[7]]]
    assert in_lengths(BudgetPlan(**what, world_size=3), lengths) == [[[9], [5], [4]], [[3, 2], [1], [7]]]
    rows = BucketOrder(Some(np.arange(7)), lengths, 2)(np.arange(7, dtype=np.int64)).rows
    assert lengths[rows].tolist() == [7, 9, 1, 2, 3, 4, 5]


def test_pad_goes_round_a_short_epoch_as_often_as_it_takes() -> None:
    what: dict[str, Any] = {"order": Some(np.arange(4)), "lengths": np.full(4, 5), "budget": 10, "tail": "pad"}
    first, second = batches(BudgetPlan(**what))
    got = shares(BudgetPlan(**what, world_size=5))
    assert [batch.rows.tolist() for [batch] in got] == [first, second, first, second, first]
    assert [batch.valid.tolist() for [batch] in got if batch.valid is not None] == [[True] * 2] * 2 + [
        [False] * 2
    ] * 3
    resumed = shares(BudgetPlan(**what, world_size=4, start=2))
    assert [batch.rows.tolist() for [batch] in resumed] == [second, first, second, first]


def test_the_largest_part_is_halved_first() -> None:
    assert budgets._halved([0, 8, 9], 2) == [0, 8, 9]
    assert budgets._halved([0, 8, 9], 5) == [0, 2, 4, 6, 8, 9]
    assert budgets._halved([0, 3, 6], 3) == [0, 2, 3, 6]


def test_refuses_an_even_epoch_that_cannot_be_and_offers_the_others() -> None:
    """Five batches on four ranks need eight samples for two steps."""
    lengths = np.array([5, 9, 1, 7, 2, 4, 3])
    with pytest.raises(TailError, match=r"7 samples, in 5 batches of up to 9.*4 ranks.*pad.*drop"):
        BudgetPlan(order=Some(np.arange(7)), lengths=lengths, budget=9, world_size=4)


def test_the_steps_do_not_depend_on_what_was_asked_before() -> None:
    lengths = skewed(5000)
    what: dict[str, Any] = {
        "order": shuffled(5000),
        "lengths": lengths,
        "budget": 4096,
        "window": 512,
        "world_size": 3,
    }
    asked = BudgetPlan(**what)
    backwards = [asked.rows(step, 1).tolist() for step in reversed(range(asked.steps))]
    assert [b.rows.tolist() for b in BudgetPlan(**what).share(1)] == backwards[::-1]
    with pytest.raises(IndexError, match=f"step {asked.steps} of {asked.steps}"):
        asked.rows(asked.steps, 0)
    with pytest.raises(IndexError, match="rank 3 of 3"):
        asked.rows(0, 3)
    with pytest.raises(IndexError, match="steps done"):
        asked.state_at(asked.steps + 1)


def test_a_plan_over_many_samples_never_counts_them_unless_it_is_iterated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "_COUNTED_SAMPLES", 4000)
    order = Some(np.arange(5000))
    plan = BudgetPlan(order=order, lengths=skewed(5000), budget=4096, window=100, world_size=2)
    share = plan.share(0)
    next(share)
    assert order.asked <= 300
    with pytest.raises(TypeError, match=r"5,000 samples.*up to 4,000"):
        _ = plan.steps
    delivered = 1 + sum(1 for _ in share)
    assert plan.steps == delivered


def test_resuming_a_long_epoch_looks_at_a_few_windows() -> None:
    samples = 1 << 25
    order = Some(np.broadcast_to(np.int64(7), samples))
    plan = BudgetPlan(
        order=order, lengths=np.full(8, 3), budget=96, window=1000, world_size=8, start=samples // 2 + 9
    )
    assert len(next(plan.share(3)).rows) == 32
    assert order.asked <= 4000


def test_state_is_cheap_for_the_step_after_the_last() -> None:
    order = Some(np.arange(20_000))
    plan = BudgetPlan(order=order, lengths=skewed(20_000), budget=8192, window=1000)
    states = [plan.state_at(step) for step in range(plan.steps + 1)]
    assert all(a < b for a, b in pairwise(states))
    assert order.asked <= 2 * 20_000 + 8000  # once to count, once to look closer


def test_visits_and_rows_stay_together_and_belong_to_whoever_gets_them() -> None:
    plan = BudgetPlan(order=Some(np.arange(50)[::-1]), lengths=np.arange(50) % 7, budget=20, window=16)
    for batch in plan.share(0):
        assert (batch.visits == 100 + 49 - batch.rows).all()
        batch.rows[:] = -1
    assert sorted(flat(batches(plan))) == list(range(50))


def test_a_sample_above_the_budget_is_named_before_the_first_batch() -> None:
    lengths = np.full(1000, 10)
    lengths[777] = 4097
    with pytest.raises(
        UsageError, match=r"row 777: length 4,097, and a batch may have 4,096.*budget.*where.*shorter"
    ):
        BudgetPlan(order=shuffled(1000), lengths=lengths, budget=4096, window=64)
    lengths[777] = -1
    with pytest.raises(UsageError, match=r"row 777: length -1.*where"):
        BudgetPlan(order=shuffled(1000), lengths=lengths, budget=4096, window=64)


def test_a_sample_above_the_budget_that_never_comes_is_no_matter() -> None:
    lengths = np.full(1000, 10)
    lengths[777] = 10_000
    rows = np.delete(np.arange(1000), 777)
    plan = BudgetPlan(order=Some(rows), lengths=lengths, budget=4096, window=64)
    assert sorted(flat(batches(plan))) == rows.tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budget": 0}, "budget=0"),
        ({"budget": 1.5}, "budget=1.5"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"world_size": True}, "world_size=True"),
        ({"window": 0}, "window=0"),
        ({"tail": "keep"}, "tail='keep'"),
        ({"start": 11}, "start=11 of 10"),
        ({"order": Some(np.arange(0))}, "no samples"),
        ({"lengths": np.ones(10)}, "float64"),
        ({"lengths": np.ones(10, np.uint64)}, "uint64"),
        ({"lengths": np.ones((10, 1), np.int64)}, r"shape \(10, 1\)"),
    ],
)
def test_refuses_values_out_of_range(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        BudgetPlan(**{"order": shuffled(10), "lengths": np.ones(10, np.int64), "budget": 5, **change})


@given(
    lengths=st.lists(st.integers(-1, 40), min_size=1, max_size=200),
    run=st.integers(1, 12),
    runs=st.integers(1, 12),
    seed=st.integers(0, 3),
)
def test_a_bucket_order_rearranges_each_window_into_runs_of_neighbours_in_length(
    lengths: list[int], run: int, runs: int, seed: int
) -> None:
    n, window = len(lengths), run * runs
    inner, values = shuffled(n), np.array(lengths, np.int16)
    order = BucketOrder(inner, values, run, window, seed=seed)
    positions = np.arange(n, dtype=np.int64)
    rows, before = order(positions).rows, inner(positions).rows
    assert order.samples == n
    for start in range(0, n, window):
        here, was = rows[start : start + window], before[start : start + window]
        assert sorted(here.tolist()) == sorted(was.tolist())
        spans = sorted(
            (values[r].min(), values[r].max()) for r in np.split(here, range(run, len(here), run)) if len(r)
        )
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
    mixed = np.random.default_rng(seed).permutation(n)
    assert (order(mixed).rows == rows[mixed]).all()


@given(n=st.integers(24, 300), per_rank=st.integers(1, 4), runs=st.integers(1, 5), tail=st.sampled_from(TAILS))
def test_steps_of_a_bucketed_plan_are_the_same_on_1_2_3_4_and_8_ranks(
    n: int, per_rank: int, runs: int, tail: Tail
) -> None:
    run = 24 * per_rank
    order = BucketOrder(shuffled(n), skewed(n), run, run * runs, seed=3)
    steps = []
    for ranks in RANKS:
        try:
            plan = Plan(order=order, batch_size=run // ranks, world_size=ranks, tail=tail)
        except TailError:
            continue
        steps.append([flat(step) for step in by_step(plan)])
    assert all(s == steps[0] for s in steps)
    if tail == "even":
        assert Counter(flat(steps[0])) == Counter(range(n))


@given(n=st.integers(30, 300), stops=st.lists(st.tuples(st.sampled_from(RANKS), st.integers(1, 3)), max_size=6))
def test_a_bucketed_epoch_is_resumed_on_other_ranks(n: int, stops: list[tuple[int, int]]) -> None:
    """With the same global batch, the epoch goes on as if nothing had been."""
    order = BucketOrder(shuffled(n), skewed(n), 24, 48)
    whole = [flat(step) for step in by_step(Plan(order=order, batch_size=24))]
    got: list[list[int]] = []
    start = 0
    for ranks, steps in [*stops, (1, 10**6)]:
        try:
            plan = Plan(order=order, batch_size=24 // ranks, world_size=ranks, start=start)
        except TailError:
            continue
        steps = min(steps, plan.steps)
        got += [flat(step) for step in by_step(plan)[:steps]]
        epoch, start = plan.state_at(steps)
        if epoch:
            break
    assert got == whole


def test_the_windows_of_a_bucket_order_are_whole_runs_and_large_enough() -> None:
    lengths = np.ones(10, np.int64)
    assert BucketOrder(shuffled(10), lengths, 7).window == 16_387
    assert BucketOrder(shuffled(10), lengths, 512).window == 51_200
    with pytest.raises(UsageError, match=r"window=10.*run=4.*12"):
        BucketOrder(shuffled(10), lengths, 4, 10)
    with pytest.raises(UsageError, match="run=0"):
        BucketOrder(shuffled(10), lengths, 0)


def waste(plan: Plan | BudgetPlan, lengths: NDArray[np.int64]) -> float:
    """The share of padded batches that is padding."""
    got = [lengths[batch.rows] for batch in plan.share(0)]
    return 1 - sum(int(g.sum()) for g in got) / sum(len(g) * int(g.max()) for g in got)


def test_buckets_and_budgets_leave_little_padding() -> None:
    lengths = skewed(40_000)
    order = shuffled(40_000)
    plain = waste(Plan(order=order, batch_size=32, world_size=2), lengths)
    bucketed = waste(Plan(order=BucketOrder(order, lengths, 64), batch_size=32, world_size=2), lengths)
    by_budget = waste(BudgetPlan(order=order, lengths=lengths, budget=4096, world_size=2), lengths)
    assert plain > 0.7
    assert bucketed < 0.02 and by_budget < 0.06


def test_short_and_long_batches_come_mixed_and_differently_in_each_epoch_and_seed() -> None:
    lengths = skewed(16_384)
    first = [
        [int(lengths[b.rows].max()) for b in BudgetPlan(
            order=shuffled(16_384), lengths=lengths, budget=4096, seed=seed, epoch=epoch
        ).share(0)]
        for seed, epoch in ((0, 0), (0, 1), (1, 0))
    ]  # fmt: skip
    assert first[0] != first[1] != first[2] != first[0]
    for longest in first:
        assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.15


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.int64])
def test_lengths_of_any_kind_and_from_a_memory_map_give_the_same(dtype: type, tmp_path: Path) -> None:
    lengths: NDArray[Any] = (skewed(1000) % 120).astype(dtype)
    lengths.tofile(tmp_path / "lengths")
    mapped = np.memmap(tmp_path / "lengths", dtype, "r")
    expected = BudgetPlan(order=shuffled(1000), lengths=lengths.astype(np.int64), budget=500, window=100)
    got = BudgetPlan(order=shuffled(1000), lengths=mapped, budget=500, window=100)
    assert batches(got) == batches(expected)
    positions = np.arange(1000, dtype=np.int64)
    order = BucketOrder(shuffled(1000), mapped, 10, 100)
    assert (order(positions).rows == BucketOrder(shuffled(1000), lengths, 10, 100)(positions).rows).all()
    assert type(order(positions).rows) is np.ndarray and all(type(b.rows) is np.ndarray for b in got.share(0))


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3) | st.integers(2**53, 2**56)))
def test_sorts_lengths_of_any_size_with_equal_ones_as_they_come(lengths: list[int]) -> None:
    values = np.array(lengths, np.int64)
    places = buckets.by_length(values)
    assert places.dtype == np.int64
    assert (places == np.argsort(values, kind="stable")).all()


def test_golden() -> None:
    """Part of a checkpoint: these change only with `permutation.VERSION`."""
    lengths: Rows = np.arange(20, dtype=np.int64) * 7 % 11 + 1
    order = BucketOrder(Some(np.arange(20)), lengths, 3, 12, seed=1, epoch=2)
    rows = order(np.arange(20, dtype=np.int64)).rows.tolist()
    assert rows == GOLDEN_BUCKETS
    plan = BudgetPlan(
        order=Some(np.arange(20)), lengths=lengths, budget=20, world_size=2, window=12, seed=1, epoch=2
    )
    assert by_step(plan) == GOLDEN_STEPS
    assert [plan.state_at(step) for step in range(6)] == GOLDEN_STATES


GOLDEN_BUCKETS = [5, 2, 10, 9, 6, 3, 7, 4, 1, 0, 11, 8, 13, 18, 15, 12, 17, 14, 19, 16]
GOLDEN_STEPS = [[[1, 4], [3]], [[5, 8, 11, 0], [7, 10, 2]], [[6, 9], [15, 18]], [[17, 12], [14]], [[13, 16], [19]]]
GOLDEN_STATES = [(2, 0), (2, 3), (2, 10), (2, 14), (2, 17), (3, 0)]
