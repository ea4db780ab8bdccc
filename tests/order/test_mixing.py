"""Mixing: shares hold in every window, any position is reached at once, and an anchor goes on exactly."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio.errors import UsageError
from streamio.order.base import Order, Picks
from streamio.order.mixing import Anchor, MixtureOrder, Schedule, Stop, length, shares
from streamio.order.windows import MILLION, WINDOW, Changing, Steady

some_weights = st.one_of(
    st.lists(st.floats(0, 1), min_size=1, max_size=12),
    st.lists(st.integers(0, 5), min_size=1, max_size=12),
    st.integers(1, 12).map(lambda count: [1] * count),
    st.lists(st.sampled_from([1e-5, 3e-5, 1e-3, 0.5, 1.0]), min_size=1, max_size=12),
    st.lists(st.sampled_from([0.999, 0.998, 0.0999, 0.001]), min_size=2, max_size=6),
).filter(lambda weights: any(weights) and min([w for w in weights if w]) > 2e-6 * sum(weights))
thousandths = st.lists(st.integers(0, 300), min_size=1, max_size=8).filter(lambda parts: sum(parts) < WINDOW)


def positions(start: int, stop: int) -> np.ndarray:
    return np.arange(start, stop, dtype=np.int64)


def counts(sets: np.ndarray, count: int) -> np.ndarray:
    return np.bincount(sets, minlength=count)


def steps_of(weights: Sequence[Sequence[float]], every: int) -> Callable[[int], Sequence[float]]:
    """A schedule that goes round these weights, each for `every` steps."""
    return lambda step: weights[step // every % len(weights)]


# Shares.


@given(some_weights)
def test_shares_sum_to_a_million_and_are_right_to_one(weights: list[float]) -> None:
    found = shares(weights)
    assert found.dtype == np.int64 and found.sum() == MILLION
    exact = sum(map(Fraction, weights))
    for weight, share in zip(weights, found.tolist(), strict=True):
        assert abs(Fraction(weight) * MILLION / exact - share) < 1
        assert (share > 0) == (weight > 0)
    assert shares(found).tolist() == found.tolist()


@pytest.mark.parametrize(
    ("weights", "wanted"),
    [
        ([0.7, 0.3], [700_000, 300_000]),
        ([1, 1, 1], [333_334, 333_333, 333_333]),
        ([1 / 3, 2 / 3], [333_333, 666_667]),
        ([1e-5, 1 - 1e-5], [10, 999_990]),
        ([3, 0, 1], [750_000, 0, 250_000]),
        ([5e-324, 5e-324], [500_000, 500_000]),
        ([1e308, 1e308], [500_000, 500_000]),
        (np.array([2, 6], np.float32), [250_000, 750_000]),
        ([42], [1_000_000]),
    ],
)
def test_shares_are_by_largest_remainder_the_first_of_equals(weights: Any, wanted: list[int]) -> None:
    assert shares(weights).tolist() == wanted


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([1, -1], r"weights \[1, -1\].*at least 0"),
        ([0.5, float("nan")], "nan.*finite"),
        ([0.5, float("inf")], "inf.*finite"),
        (["much"], "much.*finite"),
        ([10**400], "finite"),
        ([0, 0.0], "one of them positive"),
        ([], "one of them positive"),
        ([1, 4e-7], "4e-07 of set 1 is less than a millionth.*or 0"),
    ],
)
def test_what_is_no_weight_is_refused_with_the_way_out(weights: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        shares(weights)


# Windows.


@given(some_weights, st.integers(0, 3 * WINDOW))
def test_each_window_has_each_share_rounded_up_or_down(weights: list[float], first: int) -> None:
    schedule, exact = Schedule(len(weights), weights), shares(weights)
    for window in (first, 10**6 + first):
        sets, _ = schedule.locate(positions(window * WINDOW, (window + 1) * WINDOW))
        got = counts(sets, len(weights))
        assert ((got == exact // WINDOW) | (got == -(-exact // WINDOW))).all()


def check_borders(weights: Sequence[float]) -> None:
    of = tuple(shares(weights).tolist())
    windows = positions(0, 2 * WINDOW + 1)
    table = Steady(of, (0,) * len(of), (-1,) * len(of)).at(windows)
    owed = windows[:, None] * np.array(of) - WINDOW * table.before
    assert (np.abs(owed) < WINDOW).all() and (owed == table.owed).all()
    assert not owed[[0, WINDOW, 2 * WINDOW]].any()
    assert (table.quotas.sum(axis=1) == WINDOW).all()


@given(some_weights)
def test_where_windows_meet_each_set_is_within_one_draw_of_its_share(weights: list[float]) -> None:
    """And nothing is owed after 1,000 windows, so that the shares of a long run are exact."""
    check_borders(weights)


@pytest.mark.parametrize(
    "weights",
    [
        [500, 350, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        [999_001, 999],
        [999_999, 1],
        [333_999, 333_999, 332_002],
        [100_999, 100_998, 100_750, 100_667, 100_501, 100_500, 100_999, 294_586],
        [50_990] * 19 + [31_190],
    ],
)
def test_extras_of_heavy_and_light_sets_keep_within_one_draw(weights: list[int]) -> None:
    """Extras by the largest debt alone are more than a draw off for such weights."""
    check_borders(weights)


@given(thousandths, st.integers(0, 10**9))
def test_shares_in_whole_thousandths_are_exact_in_any_1000_draws(parts: list[int], start: int) -> None:
    parts = [*parts, WINDOW - sum(parts)]
    sets, _ = Schedule(len(parts), parts).locate(positions(start, start + 2 * WINDOW))
    for shift in (0, 1, 137, 500, 999):
        assert counts(sets[shift : shift + WINDOW], len(parts)).tolist() == parts


@given(some_weights, st.integers(0, 10**6))
def test_any_1000_draws_have_each_share_rounded_up_or_down(weights: list[float], window: int) -> None:
    """One more at most where a cycle begins: then who has which extra is dealt anew."""
    count, exact = len(weights), shares(weights)
    schedule = Schedule(count, weights)
    run = positions(window * WINDOW, (window + 4) * WINDOW)
    sets, _ = schedule.locate(run)
    hit = np.cumsum(np.vstack([np.zeros((1, count), np.int64), np.eye(count, dtype=np.int64)[sets]]), axis=0)
    got = hit[WINDOW:] - hit[:-WINDOW]
    anew = ~schedule._windows.at(run[::WINDOW] // WINDOW).owed.any(axis=1)
    across = np.append(np.repeat(anew[1:], WINDOW), False)
    across[::WINDOW] = False
    assert (got >= exact // WINDOW).all() and (got <= -(-exact // WINDOW) + across[:, None]).all()


@given(some_weights, st.integers(0, 10**9))
def test_short_runs_are_right_to_a_few_draws(weights: list[float], window: int) -> None:
    exact = shares(weights) / MILLION
    sets, _ = Schedule(len(weights), weights).locate(positions(0, WINDOW) + window * WINDOW)
    got = np.cumsum(np.eye(len(weights))[sets], axis=0)
    assert np.abs(got - np.arange(1, WINDOW + 1)[:, None] * exact).max() < 4


@pytest.mark.parametrize("weights", [[0.5, 0.5], [0.7, 0.3], [1] * 8, [2, 1, 1], [0.9, 0.05, 0.05]])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_no_rank_is_left_with_one_set_where_batches_are_of_one_sample(weights: list[float], ranks: int) -> None:
    """Draws at equal distances would give rank 0 of 2 the first of two equal sets, and nothing else."""
    sets, _ = Schedule(len(weights), weights).locate(positions(0, 100 * WINDOW))
    for rank in range(ranks):
        got = counts(sets[rank::ranks], len(weights)) / (100 * WINDOW // ranks)
        assert np.abs(got - shares(weights) / MILLION).max() < 0.16


# Positions.


@given(some_weights, st.integers(1, 700), st.integers(0, 5000), st.data())
def test_a_set_gives_its_samples_in_turn(weights: list[float], unit: int, start: int, data: st.DataObject) -> None:
    """Set and index of a stretch, against counting one by one; asked for in any order."""
    schedule = Schedule(len(weights), weights, unit=unit)
    run = positions(start, start + 3000)
    sets, indices = schedule.locate(run)
    assert sets.dtype == indices.dtype == np.int64
    had = schedule.counts_at(start)
    for number in range(len(weights)):
        mine = indices[sets == number]
        assert (mine == had[number] + np.arange(len(mine))).all()
    assert (schedule.counts_at(start + 3000) == had + counts(sets, len(weights))).all()
    draws = run // unit
    assert (np.diff(sets)[np.diff(draws) == 0] == 0).all()  # one set to a draw
    picked = np.array(data.draw(st.lists(st.integers(0, 2999), max_size=20)), np.int64)
    some, at = schedule.locate(run[picked])
    assert (some == sets[picked]).all() and (at == indices[picked]).all()


@pytest.mark.parametrize("weights", [[1, 1, 1], [0.7, 0.3], [1e-5, 0.4, 1]])
def test_closed_form_and_walking_give_the_same(weights: list[float]) -> None:
    closed = Schedule(len(weights), weights)
    walked = Schedule(len(weights), lambda step: weights)
    far = np.concatenate([positions(0, 5000), positions(1_234_000, 1_239_000), positions(997, 3_000_000)[::1013]])
    for one, other in zip(closed.locate(far), walked.locate(far), strict=True):
        assert (one == other).all()
    assert closed.anchor_at(2_345_678) == walked.anchor_at(2_345_678)


def test_positions_beyond_2_to_the_40_are_exact() -> None:
    weights = [333_331, 333_332, 333_337]
    start = 10**15 + 17
    schedule = Schedule(3, weights)
    sets, indices = schedule.locate(positions(start, start + 1000))
    ideal = [start * share / MILLION for share in weights]
    for number in range(3):
        assert abs(indices[sets == number][0] - ideal[number]) < 3
    assert schedule.counts_at(start).sum() == start


GOLDEN_SETS = "201010021000210101200120100102"
GOLDEN_INDICES = [300000299, 500000499, 200000199]
GOLDEN_TWELVE = [3, 8, 7, 2, 1, 0, 9, 10, 4, 11, 6, 5]
GOLDEN_WORDS = (
    1,
    123456000,
    123456000,
    123456789,
    123456789,
    123456789,
    1,
    41152082,
    41151959,
    41151959,
    304,
    -152,
    -152,
    -1,
    -1,
    0,
    333334,
    333333,
    333333,
)


def test_golden_draws() -> None:
    """May change only with `permutation.VERSION`: a checkpoint counts on them."""
    schedule = Schedule(3, [0.5, 0.3, 0.2])
    sets, indices = schedule.locate(np.concatenate([positions(0, 20), positions(10**9 + 990, 10**9 + 1000)]))
    assert "".join(map(str, sets.tolist())) == GOLDEN_SETS
    assert indices[-3:].tolist() == GOLDEN_INDICES
    assert Schedule(12, [1] * 12).locate(positions(0, 12))[0].tolist() == GOLDEN_TWELVE
    assert Schedule(3, [1, 1, 1]).anchor_at(123_456_789).words() == GOLDEN_WORDS


@pytest.mark.parametrize("dtype", [np.float64, np.uint64, np.int32])
def test_positions_are_int64(dtype: Any) -> None:
    with pytest.raises(TypeError, match="int64"):
        Schedule(2, [1, 1]).locate(np.zeros(1, dtype))


def test_no_positions_give_nothing() -> None:
    sets, indices = Schedule(2, [1, 1]).locate(positions(0, 0))
    assert len(sets) == len(indices) == 0


# Schedules of the step.


@given(
    st.integers(1, 6).flatmap(
        lambda k: st.lists(st.lists(st.integers(1, 9), min_size=k, max_size=k), min_size=1, max_size=4)
    ),
    st.integers(1, 40),
    st.integers(1, 300),
)
def test_each_window_has_the_shares_of_the_step_where_it_begins(
    weights: list[list[int]], every: int, samples_per_step: int
) -> None:
    count = len(weights[0])
    schedule = Schedule(count, steps_of(weights, every), samples_per_step=samples_per_step)
    sets, _ = schedule.locate(positions(0, 20 * WINDOW))
    for window in range(20):
        exact = shares(steps_of(weights, every)(window * WINDOW // samples_per_step))
        got = counts(sets[window * WINDOW : (window + 1) * WINDOW], count)
        assert ((got == exact // WINDOW) | (got == -(-exact // WINDOW))).all()


@given(st.lists(st.lists(st.floats(0.001, 1), min_size=5, max_size=5), min_size=1, max_size=9), st.integers(1, 3))
def test_what_is_owed_under_changing_weights_stays_within_two_draws(weights: list[list[float]], every: int) -> None:
    of = [tuple(shares(each).tolist()) for each in weights]
    table = Changing((0,) * 5, (-1,) * 5, lambda window: of[window // every % len(of)]).at(positions(0, 600))
    owed = np.cumsum(table.shares, axis=0)[:-1] - WINDOW * table.before[1:]
    assert (owed == table.owed[1:]).all() and np.abs(owed).max() < 2 * WINDOW


def test_weights_are_asked_at_the_step_where_a_window_begins() -> None:
    asked = []

    def weights(step: int) -> list[float]:
        asked.append(step)
        return [1, step]

    Schedule(2, weights, samples_per_step=256).locate(positions(0, 10))
    assert asked[:4] == [0, 3, 7, 11]


def test_shares_that_fade_to_next_to_nothing_are_none_and_no_error() -> None:
    sets, _ = Schedule(2, lambda step: [1, 1e-9 if step else 1]).locate(positions(0, 3 * WINDOW))
    assert counts(sets, 2).tolist() == [2500, 500]


def test_a_set_that_comes_in_later_is_not_made_up_for() -> None:
    sets, _ = Schedule(2, lambda step: [1, step >= 3000]).locate(positions(0, 6 * WINDOW))
    assert not sets[:3000].any() and counts(sets[3000:], 2).tolist() == [1500, 1500]


@pytest.mark.parametrize(("bad", "words"), [([1], "1 weights for 2 sets"), ([0, 0], "positive"), ([1, -1], "-1")])
def test_wrong_weights_of_a_schedule_name_the_step(bad: list[float], words: str) -> None:
    schedule = Schedule(2, lambda step: bad if step >= 5000 else [1, 1])
    with pytest.raises(UsageError, match=f"for step 5,000: .*{words}"):
        schedule.locate(positions(0, 6000))


def test_threads_see_one_schedule() -> None:
    def weights(step: int) -> list[int]:
        return [1 + step % 7, 3]

    shared = Schedule(2, weights)
    runs = [positions(start, start + 2000) for start in range(0, 1_500_000, 100_000)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda run: shared.locate(run)[1].sum(), [*runs, *runs[::-1]]))
    alone = Schedule(2, weights)
    assert found == [alone.locate(run)[1].sum() for run in [*runs, *runs[::-1]]]


# Anchors.

kinds = st.sampled_from(["constant", "function"])


def made(kind: str, weights: Sequence[float], **options: Any) -> Schedule:
    turned = [weights, list(weights)[::-1]]
    return Schedule(len(weights), weights if kind == "constant" else steps_of(turned, 30), **options)


def same(one: Schedule, other: Schedule, run: np.ndarray) -> bool:
    return all((a == b).all() for a, b in zip(one.locate(run), other.locate(run), strict=True))


@given(
    some_weights,
    kinds,
    st.integers(0, 20_000),
    st.integers(0, 20_000),
    st.sampled_from([1, 64, 100]),
    st.integers(1, 99),
)
def test_an_anchor_goes_on_exactly(
    weights: list[float], kind: str, first: int, more: int, unit: int, samples_per_step: int
) -> None:
    """Also the anchor of an anchor, through JSON, wherever in a window, a draw or a step it was taken."""
    whole = made(kind, weights, unit=unit, samples_per_step=samples_per_step)
    schedule, at = whole, 0
    for step in (first, more):
        at += step
        words = json.loads(json.dumps(schedule.anchor_at(at).words()))
        schedule = made(
            kind, weights, unit=unit, samples_per_step=samples_per_step, anchor=Anchor.from_words(words)
        )
        assert schedule.anchor == whole.anchor_at(at)
        assert same(schedule, whole, positions(at, at + 3000))
    assert (schedule.counts_at(at + 7777) == whole.counts_at(at + 7777)).all()


@given(
    some_weights,
    kinds,
    st.integers(0, 9999),
    st.sampled_from([1, 60]),
    st.sampled_from([1, 50]),
    st.randoms(use_true_random=False),
)
def test_with_other_weights_or_units_each_set_goes_on_at_its_next_sample(
    weights: list[float], kind: str, at: int, unit: int, later_unit: int, random: Any
) -> None:
    before = made(kind, weights, unit=unit)
    others = random.sample(weights, len(weights))
    after = made("constant", others, unit=later_unit, anchor=before.anchor_at(at))
    continued = unit == later_unit and after.anchor == before.anchor_at(at)
    assert continued or after.anchor.counts == tuple(before.counts_at(at).tolist())
    run = positions(at, at + 4000)
    sets, indices = after.locate(run)
    for number, had in enumerate(before.counts_at(at).tolist()):
        mine = indices[sets == number]
        assert (mine == had + np.arange(len(mine))).all()


@pytest.mark.parametrize("weights", [[1, 1, 4], [0.7, 0.3], [5, 4, 3, 2, 1, 1, 1], [333_999, 333_999, 332_002]])
def test_an_anchor_goes_on_exactly_across_cycles(weights: list[float]) -> None:
    whole = Schedule(len(weights), weights)
    for at in (123_456, 999_999, 1_000_000, 5_600_100):
        later = Schedule(len(weights), weights, anchor=whole.anchor_at(at))
        assert later.anchor == whole.anchor_at(at)
        for start in (at, at + 999_500, at + 7 * 10**6, 10**12):
            assert same(later, whole, positions(start, start + 5000))


def test_windows_begin_anew_where_weights_change() -> None:
    anchor = Schedule(2, [0.5, 0.5]).anchor_at(1234)
    sets, _ = Schedule(2, [0.9, 0.1], anchor=anchor).locate(positions(1234, 2234))
    assert counts(sets, 2).tolist() == [900, 100]


def test_another_global_batch_changes_no_draw_and_counts_steps_on() -> None:
    """Steps of 100 until 2,500, then of 50: 25 steps are done, and the 1,500 samples to 4,000 are 30 more."""
    whole = Schedule(2, [0.6, 0.4], samples_per_step=100)
    assert same(
        whole, Schedule(2, [0.6, 0.4], samples_per_step=50, anchor=whole.anchor_at(2500)), positions(2500, 9000)
    )
    asked = []

    def weights(step: int) -> list[float]:
        asked.append(step)
        return [1, 1]

    anchor = Schedule(2, weights, samples_per_step=100).anchor_at(2500)
    later = Schedule(2, weights, samples_per_step=50, anchor=anchor)
    assert later.anchor.window_start == 2000  # the window under way stays
    asked.clear()
    later.locate(positions(2500, 4500))
    assert asked[:2] == [35, 55]  # windows at 3,000 and 4,000
    again = Schedule(2, weights, samples_per_step=50, anchor=later.anchor_at(2700))
    assert again.anchor.window_start == 2000 and again.anchor_at(2700).step == 29


def test_constant_weights_after_a_function_begin_anew_unless_they_continue_it() -> None:
    """What a function left owed may lie on no cycle of the constant weights."""
    function = Schedule(3, lambda step: [1, 1, 1] if step >= 3000 else [5, 3, 1])
    anchor = function.anchor_at(4000)
    later = Schedule(3, [1, 1, 1], anchor=anchor)
    assert later.counts_at(4000).tolist() == function.counts_at(4000).tolist()
    table = later._windows.at(positions(0, WINDOW + 1))
    assert (table.owed[0] == table.owed[WINDOW]).all()


def test_an_anchor_of_ten_sets_is_under_1_kb_of_json() -> None:
    schedule = Schedule(10, [1 / (i + 3) for i in range(10)], unit=4096, samples_per_step=4096)
    assert len(json.dumps(schedule.anchor_at(10**15 + 12345).words())) < 1000


def test_an_anchor_of_other_sets_is_refused() -> None:
    with pytest.raises(UsageError, match="mixture of 2 sets, this one has 3"):
        Schedule(3, [1, 1, 1], anchor=Schedule(2, [1, 1]).anchor_at(5))


@pytest.mark.parametrize(
    "damage",
    [
        lambda w: w[:-1], lambda w: [], lambda w: w[:7], lambda w: [0, *w[1:]], lambda w: [*w[:-1], w[-1] + 1],
        lambda w: [*w[:7], w[7] + 1, *w[8:]], lambda w: ["1", *w[1:]], lambda w: [w[0], w[1], w[2], 10**9, *w[4:]],
        lambda w: [1.5, *w[1:]], lambda w: [*w[:6], 0, *w[7:]], lambda w: [*w[:3], -1, *w[4:]],
        lambda w: [*w[:4], 1 << 70, *w[5:]], lambda w: [*w[:11], 0, 0, *w[13:]], lambda w: [*w[:11], 2, *w[12:]],
    ],
)  # fmt: skip
def test_damaged_words_are_refused(damage: Callable[[list[Any]], list[Any]]) -> None:
    words = list(Schedule(2, [1, 1]).anchor_at(12_345).words())
    assert Anchor.from_words(words) == Schedule(2, [1, 1]).anchor_at(12_345)
    with pytest.raises(UsageError, match="damaged"):
        Anchor.from_words(damage(words))


def test_positions_before_the_anchor_are_refused() -> None:
    schedule = Schedule(2, [1, 1], anchor=Schedule(2, [1, 1]).anchor_at(500))
    schedule.locate(positions(500, 501))
    for call in (lambda: schedule.locate(positions(499, 501)), lambda: schedule.counts_at(499)):
        with pytest.raises(IndexError, match="499 lies before the anchor, at 500"):
            call()


@pytest.mark.parametrize(
    ("options", "words"),
    [({"count": 0}, "count=0"), ({"unit": 0}, "unit=0"), ({"samples_per_step": -1}, "samples_per_step=-1")],
)
def test_wrong_numbers_are_refused(options: dict[str, int], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Schedule(**{"count": 2, "weights": [1, 1], **options})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="2 weights for 3 sets"):
        Schedule(3, [1, 1])


def _halves(step: int) -> list[float]:
    return [1, 1 + step % 2]


@pytest.mark.parametrize("weights", [[0.3, 0.7], _halves])
def test_a_schedule_pickles_small_and_the_same(weights: Any) -> None:
    schedule = Schedule(2, weights, unit=8, anchor=Schedule(2, weights, unit=8).anchor_at(12_345))
    schedule.locate(positions(12_345, 99_999))
    data = pickle.dumps(schedule)
    assert len(data) < 1000 and same(pickle.loads(data), schedule, positions(20_000, 30_000))


# Lengths.


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3000)), min_size=1, max_size=6).filter(
        lambda sets: any(weight for weight, _ in sets)
    ),
    st.sampled_from([1, 1, 7, 64]),
    st.sampled_from(["constant", "function"]),
    st.integers(0, 2500),
)
def test_length_is_the_least_or_greatest_that_keeps_the_rule(
    sets: list[tuple[int, int]], unit: int, kind: str, at: int
) -> None:
    """Against looking at both sides of the end."""
    weights = [weight + (kind == "function") for weight, _ in sets]
    sizes = np.array([size for _, size in sets])
    start = made(kind, weights, unit=unit).anchor_at(at)
    schedule = made(kind, weights, unit=unit, anchor=start)
    shared = np.array(weights) > 0

    def given_after(samples: int) -> np.ndarray:
        return (schedule.counts_at(at + samples) - schedule.counts_at(at))[shared]

    most, least = length("first", sizes.tolist(), schedule), length("all", sizes.tolist(), schedule)
    assert most is not None and least is not None
    assert (most + at) % unit == 0 or most == 0
    assert (given_after(most) <= sizes[shared]).all()
    assert (given_after(most + unit + (most == 0) * unit) > sizes[shared]).any()
    assert (least + at) % unit == 0
    assert (given_after(least) >= sizes[shared]).all()
    assert least <= unit or (given_after(least - unit) < sizes[shared]).any()


@pytest.mark.parametrize(("stop", "wanted"), [("all", 3_333_333_332), ("first", 1_428_571_428), (None, None)])
def test_length_of_1e9_samples_is_exact(stop: Stop | None, wanted: int | None) -> None:
    assert length(stop, [10**9, 10**9], Schedule(2, [0.7, 0.3])) == wanted


def test_lengths_add_up_from_epoch_to_epoch() -> None:
    """An epoch that begins where the last one ended needs no more than its own anchor."""
    whole = Schedule(2, [2, 1])
    assert length("all", [100, 100], whole) in range(297, 304)
    at = 0
    for _ in range(30):
        more = length("all", [100, 100], Schedule(2, [2, 1], anchor=whole.anchor_at(at)))
        assert more is not None and abs(more - 300) < 7
        at += more
    assert whole.counts_at(at)[1] in range(3000, 3000 + 40)


def test_a_length_that_never_comes_is_refused() -> None:
    schedule = Schedule(2, lambda step: [1, step < 10], anchor=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamio.order.mixing._MOST_DRAWS_CHANGING", 10**6)
        with pytest.raises(UsageError, match=r"1,000,000 draws.*larger weights, or the mixture a length"):
            length("all", [10, 1000], schedule)


def test_wrong_stops_and_sizes_are_refused() -> None:
    schedule = Schedule(2, [1, 1])
    with pytest.raises(UsageError, match=r"stop='last'.*'all'"):
        length("last", [1, 1], schedule)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="3 sizes for 2"):
        length("all", [1, 1, 1], schedule)
    with pytest.raises(UsageError, match="set 1 has no samples"):
        length("all", [1, 0], schedule)
    assert length("all", [5, 0], Schedule(2, [1, 0])) == 5


# The order of a mixture.


class Turned:
    """A member's order: row i of epoch e is row i + e, round the set."""

    def __init__(self, samples: int, epoch: int, made: list[int]) -> None:
        self.samples, self._epoch = samples, epoch
        made.append(epoch)

    def __call__(self, positions: np.ndarray) -> Picks:
        assert positions.max() < self.samples
        return Picks((positions + self._epoch) % self.samples, np.full(len(positions), self._epoch, np.int64))


def mixture(
    schedule: Schedule, sizes: Sequence[int], first: int, samples: int
) -> tuple[MixtureOrder, list[list[int]]]:
    made: list[list[int]] = [[] for _ in sizes]
    orders = [lambda e, n=n, m=m: Turned(n, e, m) for n, m in zip(sizes, made, strict=True)]
    offsets = np.cumsum([0, *sizes[:-1]])
    return MixtureOrder(schedule, first=first, samples=samples, sizes=sizes, offsets=offsets, orders=orders), made


@given(
    st.lists(st.integers(1, 900), min_size=1, max_size=5),
    st.integers(0, 4000),
    st.integers(1, 4000),
    st.sampled_from([1, 16]),
)
def test_each_set_goes_through_its_own_epochs(sizes: list[int], first: int, samples: int, unit: int) -> None:
    schedule = Schedule(len(sizes), [i + 1 for i in range(len(sizes))], unit=unit)
    order, _ = mixture(schedule, sizes, first, samples)
    as_order: Order = order
    run = positions(0, samples)
    rows, visits = as_order(run)
    sets, indices = schedule.locate(run + first)
    offsets = np.cumsum([0, *sizes[:-1]])
    own = np.array(sizes)[sets]
    assert (visits == indices // own).all()
    assert (rows == offsets[sets] + (indices % own + visits) % own).all()
    assert (order.sets_of(run) == sets).all()
    # No (row, visit) twice: augmentation is keyed by it.
    assert len(set(zip(rows.tolist(), visits.tolist(), strict=True))) == samples


def test_own_orders_are_made_once_and_few_are_kept() -> None:
    order, made = mixture(Schedule(2, [1, 1]), [100, 10**6], 0, 10_000)
    for start in range(0, 1000, 50):
        order(positions(start, start + 50))
    assert made == [[0, 1, 2, 3, 4], [0]]


def test_positions_outside_the_epoch_are_refused() -> None:
    order, _ = mixture(Schedule(2, [1, 1]), [10, 10], 0, 20)
    assert order(positions(0, 0)).rows.dtype == np.int64
    for outside in (positions(-1, 1), positions(19, 21)):
        with pytest.raises(IndexError, match="of 20 samples"):
            order(outside)
