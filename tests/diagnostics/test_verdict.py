"""From the figures of a loop to a verdict: arithmetic that can be done by hand, and what it never says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio.diagnostics.verdict import DATA_BOUND, Figures, judge

STAGES = ("read", "decode", "transform", "collate", "hand-over")


def figures(**changes: Any) -> Figures:
    """41 s, of which 23 s were waited for 2 workers that never waited."""
    usual: dict[str, Any] = {
        "seconds": 41.0, "waited": 23.0, "steps": 100, "workers": 2, "idle": 0.0, "cpus": 4,
        "stages": {"read": 8.0, "decode": 56.0, "collate": 12.0, "hand-over": 4.0},
    }  # fmt: skip
    return Figures(**{**usual, **changes})


def estimates(**changes: Any) -> dict[str, float]:
    return {one.change.split(" (")[0]: one.seconds for one in judge(figures(**changes)).advice}


@st.composite
def any_figures(draw: st.DrawFn) -> Figures:
    seconds = draw(st.floats(1e-3, 1e5))
    workers = draw(st.none() | st.integers(0, 64))
    threads = draw(st.integers(1, 4)) if workers else 1
    stages = draw(st.dictionaries(st.sampled_from(STAGES), st.floats(0, 1e6)))
    return Figures(
        seconds=seconds, waited=seconds * draw(st.floats(0, 1)), steps=draw(st.integers(1, 10**6)), workers=workers,
        threads=threads, idle=draw(st.none() | st.floats(0, 2e5)), stages=stages, cpus=draw(st.integers(1, 256)),
    )  # fmt: skip


def test_twice_the_workers_make_in_half_the_time_while_the_loop_works() -> None:
    assert estimates()["4 workers instead of 2"] == 20.5
    assert estimates(cpus=3)["3 workers instead of 2"] == pytest.approx(41 * 2 / 3)
    assert estimates(cpus=64)["64 workers instead of 2"] == 18  # no faster than the loop itself


def test_a_stage_that_takes_no_time_leaves_the_others() -> None:
    decode = "pictures packed smaller or decoded"
    assert estimates()[decode] == 18  # 12.3 s of making are left, beside 18 s of the loop
    assert estimates(stages={"read": 60.0, "decode": 40.0})[decode] == pytest.approx(24.6)
    assert judge(figures()).stage == "decode"


def test_a_loop_that_makes_its_batches_itself_has_both_one_after_the_other() -> None:
    found = estimates(workers=0, idle=0.0)
    assert found["4 workers instead of none"] == 18  # 23 s in four parts, beside 18 s
    assert found["pictures packed smaller or decoded"] == pytest.approx(18 + 23 * 0.3)


def test_what_workers_waited_they_did_not_make() -> None:
    assert figures(idle=20.0).making == 31  # 10 of 41 s each


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "data-bound: 100 steps took 41.0 s, 23.0 s of it waiting for data (56 %); with data at once 18.0 s"),
        ({}, "by 2 workers: read 10 %, decode 70 %, collate 15 %, hand-over 5 %"),
        ({}, "4 workers instead of 2 (num_workers=4): about 20.5 s"),
        ({}, "or cache= (decode is 70 %): 18.0 s at best"),
        ({"first_wait": 9.0}, "took 41.0 s (and 9.0 s until the first batch)"),
        ({"cpus": 2}, "more workers would not help: they have 2 usable CPUs"),
        ({"threads": 2}, "by 2 workers of 2 threads"),
        ({"waited": 1.0, "idle": 66.0}, "compute-bound: 100 steps took 41.0 s, 1.0 s of it waiting for data (2 %)"),
        ({"waited": 1.0, "idle": 66.0}, "save 1.0 s at most, more workers nothing; 1 would do instead of 2"),
        ({"waited": 1.0, "idle": 66.0}, "workers waited for the loop 80 % of their time"),
        ({"stages": {}, "workers": None, "idle": None}, "what makes these batches is not known"),
    ],
)  # fmt: skip
def test_the_text_says_it(changes: dict[str, Any], said: str) -> None:
    assert said in judge(figures(**changes)).text


@given(any_figures())
def test_no_change_is_said_to_do_more_than_data_at_once_or_harm(found: Figures) -> None:
    verdict = judge(found)
    for one in verdict.advice:
        assert found.free <= one.seconds * (1 + 1e-9) and one.seconds < found.seconds
    assert [one.seconds for one in verdict.advice] == sorted(one.seconds for one in verdict.advice)


@given(any_figures())
def test_a_loop_is_data_bound_if_it_waits_and_only_then_gets_advice(found: Figures) -> None:
    verdict = judge(found)
    assert verdict.bound == ("data" if found.waited > DATA_BOUND * found.seconds else "compute")
    assert verdict.bound == "data" or not verdict.advice
    assert str(verdict).startswith(f"{verdict.bound}-bound: ")


@given(any_figures())
def test_shares_of_stages_add_up_and_the_largest_is_named(found: Figures) -> None:
    verdict = judge(found)
    if verdict.stage is None:
        assert verdict.shares == {} and not sum(found.stages.values())
    else:
        assert sum(verdict.shares.values()) == pytest.approx(1)
        assert found.stages[verdict.stage] == max(found.stages.values())


@given(any_figures(), st.integers(1, 100), st.integers(1, 100))
def test_more_workers_are_never_said_to_be_slower(found: Figures, some: int, more: int) -> None:
    assert found.with_workers(some + more) <= found.with_workers(some)
