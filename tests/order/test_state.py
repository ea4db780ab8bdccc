"""A run goes on exactly where it was, on any topology; a state that belongs elsewhere is refused."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio.errors import TailError, UsageError
from streamio.order.plan import Plan
from streamio.order.state import State

MODES = ("none", "shards", "block", "global")
STATE = State(epoch=3, start=(70,), data="00ff", samples=100, order={"seed": 1, "shuffle": "block"})


def plan(samples: int, batch: int, world: int, start: int = 0, shuffle: str = "block", tail: str = "even") -> Plan:
    sizes = np.array([samples // 3, samples - samples // 3], np.int64)
    return Plan(
        sizes=sizes,
        batch_size=batch,
        world_size=world,
        start=start,
        shuffle=shuffle,
        tail=tail,
        seed=2,
        epoch=1,  # type: ignore[arg-type]
    )


def rows(p: Plan, steps: range) -> list[list[int]]:
    """The rows of each step, over all ranks."""
    return [[int(r) for rank in range(p.world_size) for r in p.rows(step, rank)] for step in steps]


@given(
    n=st.integers(8, 300), batch=st.integers(2, 7), worlds=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    shuffle=st.sampled_from(MODES), data=st.data(),
)  # fmt: skip
def test_every_sample_comes_once_over_any_chain_of_topologies(
    n: int, batch: int, worlds: list[int], shuffle: str, data: st.DataObject
) -> None:
    seen: list[int] = []
    start = 0
    for world in worlds:
        try:
            p = plan(n, batch, world, start, shuffle)
        except TailError:
            assert n - start < world
            continue
        done = data.draw(st.integers(0, p.steps))
        seen += [r for step in rows(p, range(done)) for r in step]
        epoch, start = p.state_at(done)
        if epoch == 2:
            break
    else:
        seen += [
            r
            for step in rows(plan(n, batch, 1, start, shuffle), range(plan(n, batch, 1, start).steps))
            for r in step
        ]
    assert Counter(seen) == Counter(range(n))


@given(n=st.integers(24, 300), per=st.integers(1, 3), tail=st.sampled_from(["even", "drop", "pad"]), data=st.data())
def test_with_the_same_global_batch_the_rest_is_what_the_uninterrupted_run_has(
    n: int, per: int, tail: str, data: st.DataObject
) -> None:
    whole = plan(n, 12 * per, 1, tail=tail)
    done = data.draw(st.integers(0, whole.steps))
    epoch, start = whole.state_at(done)
    if epoch == 2:
        assert done == whole.steps and start == 0
        return
    for world in (1, 2, 3):
        try:
            rest = plan(n, 12 * per // world, world, start, tail=tail)
        except TailError:
            continue
        assert rows(rest, range(rest.steps)) == rows(whole, range(done, whole.steps))


def test_nothing_left_is_the_next_epoch() -> None:
    assert plan(100, 8, 1).state_at(13) == (2, 0)
    assert plan(100, 8, 1, tail="drop").state_at(12) == (2, 0)
    assert plan(100, 8, 1).state_at(0) == (1, 0)
    with pytest.raises(IndexError, match="14 steps done of 13"):
        plan(100, 8, 1).state_at(14)


def test_a_state_is_small_json_and_comes_back() -> None:
    text = json.dumps(STATE.to_json())
    assert len(text) < 1000
    assert State.from_json(json.loads(text)) == STATE


@pytest.mark.parametrize(
    "change",
    [{"data": "ff00"}, {"seed": 2}, {"shuffle": "global"}, {"samples": 90}, {"permutation": 99}, {"lanes": 2}],
)
def test_state_08_a_state_of_another_order_is_refused_with_the_field_that_differs(
    change: dict[str, Any],
) -> None:
    """lhotse-speech/lhotse#785."""
    ((name, value),) = change.items()
    other = replace(STATE, **change) if hasattr(STATE, name) else replace(STATE, order={**STATE.order, **change})
    with pytest.raises(UsageError, match=rf"saved with {name}=.*here {name} is {value!r}.*strict=False"):
        STATE.check(other)
    STATE.check(replace(STATE, epoch=9, start=()))


@pytest.mark.parametrize(
    "damage",
    [{"epoch": -1}, {"start": None}, {"start": [1.5]}, {"order": 3}, {"samples": "1"}, {"data": 7}],
)
def test_a_damaged_state_is_refused(damage: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="damaged"):
        State.from_json({**STATE.to_json(), **damage})
    with pytest.raises(UsageError, match="no data, order"):
        State.from_json({k: v for k, v in STATE.to_json().items() if k not in ("order", "data")})
    with pytest.raises(UsageError, match="not list"):
        State.from_json([])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="version=1, here version is 2"):
        State.from_json({**STATE.to_json(), "version": 1})
