"""All orders under one property: any set, any topology, any chain of stops and resumes.

The multiset of samples is exactly right, ranks have as many batches, workers change nothing, and with the same
global batch the steps of 1, 2, 3, 4 and 8 ranks hold the same samples.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from streamio import Buckets, Draw, Mixture, ShardDataset, TailError, UsageError
from streamio.shards.manifest import FieldSpec
from streamio.types import Alloc, ArrayColumn, Column, Rows, new_array

pytestmark = [
    pytest.mark.filterwarnings("ignore:lanes=.*neither divides the other:UserWarning"),
    pytest.mark.timeout(400),  # all examples, on a busy machine
]


class Numbers:
    """A table of nothing but its row numbers, in shards of these sizes."""

    def __init__(self, sizes: Sequence[int], name: str = "") -> None:
        self.sizes, self.fingerprint = np.array(sizes, np.int64), f"{name}{sizes}"
        rows = np.arange(sum(sizes))
        self.columns = {"class": rows % 3, "weight": rows % 4 + 1, "length": rows * 7 % 13 + 1}
        self.fields = {"row": FieldSpec(codec="int", stored="row.int", samples=sum(sizes), dtype="<i8", shape=())}

    def gather(self, rows: Rows, fields: Sequence[str], alloc: Alloc = new_array) -> dict[str, Column]:
        return {field: ArrayColumn(rows.copy()) for field in fields}

    def keys(self, rows: Rows) -> list[str]:
        return [str(row) for row in rows.tolist()]

    def locate(self, row: int) -> tuple[str, int]:
        return "shard", row


@dataclass(frozen=True)
class Case:
    """sizes: of the shards of one set, or of several in a mixture. options: of each set; mix: of the mixture."""

    sizes: tuple[tuple[int, ...], ...]
    options: Mapping[str, Any]
    tail: str
    mix: Mapping[str, Any] | None = None

    def data(self, batch: int, rank: int = 0, world: int = 1) -> Any:
        shared: dict[str, Any] = {"tail": self.tail, "rank": rank, "world_size": world}
        if self.mix is None:
            return ShardDataset(Numbers(self.sizes[0]), batch, **self.options, **shared)
        sets = {
            str(i): (ShardDataset(Numbers(sizes, str(i)), 1, **self.options), weight)
            for i, (sizes, weight) in enumerate(zip(self.sizes, (5, 2, 3), strict=False))
        }
        return Mixture(sets, batch, **self.mix, **shared)


def kinds() -> st.SearchStrategy[tuple[dict[str, Any], dict[str, Any] | None]]:
    shuffles = st.sampled_from([False, True, "global", "shards"])
    blocks = st.integers(1, 60)
    plain = st.builds(lambda s, b: ({"shuffle": s, "block_samples": b}, None), shuffles, blocks)
    lanes = st.builds(lambda s, n: ({"shuffle": s, "lanes": n, "block_samples": 20}, None), shuffles,
                      st.sampled_from([2, 4, 24]))  # fmt: skip
    repeat = st.builds(lambda s, n: ({"shuffle": s, "repeat": n}, None), shuffles, st.integers(2, 4))
    draws = st.builds(
        lambda how, by, n: ({"draw": Draw(**{by[0]: by[1]}, how=how, samples=n)}, None),
        st.sampled_from(["even", "independent"]), st.sampled_from([("classes", "class"), ("weights", "weight")]),
        st.integers(30, 200),
    )  # fmt: skip
    buckets = st.builds(
        lambda w, n: ({"shuffle": True, "buckets": Buckets(lengths="length", window=w, max_tokens=n)}, None),
        st.integers(10, 100), st.none() | st.integers(13, 80),
    )  # fmt: skip
    mixtures = st.builds(
        lambda s, b, stop: ({"shuffle": s}, {"batches": b, "stop": stop}),
        shuffles, st.sampled_from(["mixed", "single"]), st.sampled_from(["all", "first"]) | st.integers(50, 300),
    )  # fmt: skip
    return st.one_of(plain, lanes, repeat, draws, buckets, mixtures)


@st.composite
def cases(draw: st.DrawFn, tails: Sequence[str] = ("even", "drop", "pad")) -> Case:
    one_set = st.lists(st.integers(0, 50), min_size=1, max_size=5).filter(lambda sizes: sum(sizes) >= 24).map(tuple)
    options, mix = draw(kinds())
    sizes = tuple(draw(st.lists(one_set, min_size=2, max_size=3))) if mix else (draw(one_set),)
    return Case(sizes, options, draw(st.sampled_from(list(tails))), mix)


def steps_of(case: Case, batch: int, world: int, state: Any = None, workers: int = 1) -> list[list[int]]:
    """The real rows of each step over all ranks, of what is left of an epoch. Ranks have as many batches."""
    by_rank = []
    for rank in range(world):
        data = case.data(batch, rank, world)
        if state is not None:
            data.load_state_dict(state)
        plan = data._plan_of(data.epoch)
        got = sorted(b.step for w in range(workers) for b in plan.share(rank, w, workers))
        assert got == list(range(plan.steps))
        shares = sorted((b for w in range(workers) for b in plan.share(rank, w, workers)), key=lambda b: b.step)
        by_rank.append([(b.rows if b.valid is None else b.rows[b.valid]).tolist() for b in shares])
    assert len({len(steps) for steps in by_rank}) == 1
    return [[row for part in step for row in part] for step in zip(*by_rank, strict=True)]


def flat(steps: Sequence[Sequence[int]]) -> list[int]:
    return [row for step in steps for row in step]


def state_after(case: Case, batch: int, world: int, state: Any, done: int) -> Any:
    data = case.data(batch, world - 1, world)
    if state is not None:
        data.load_state_dict(state)
    after = data.state_at(done, epoch=data.epoch)
    assert len(json.dumps(after)) < 1000
    return json.loads(json.dumps(after))


@given(case=cases(tails=["even"]), chain=st.data())
def test_any_chain_of_stops_and_topologies_gives_every_sample_as_often_as_one_run(
    case: Case, chain: st.DataObject
) -> None:
    budget = getattr(case.options.get("buckets"), "max_tokens", None)
    batch = chain.draw(st.integers(1, 12))
    try:
        whole = flat(steps_of(case, batch, 1))
    except (TailError, UsageError):
        assume(False)
    seen: list[int] = []
    state = None
    for _ in range(chain.draw(st.integers(1, 4))):
        world, workers = chain.draw(st.integers(1, 4)), chain.draw(st.integers(1, 3))
        size = batch if budget else chain.draw(st.integers(1, 12))
        try:
            steps = steps_of(case, size, world, state, workers)
        except TailError:
            continue
        done = chain.draw(st.integers(0, len(steps)))
        seen += flat(steps[:done])
        state = state_after(case, size, world, state, done)
        if state["epoch"] == 1:
            break
    else:
        seen += flat(steps_of(case, batch, 1, state))
    if case.mix is None or case.mix["batches"] == "mixed":
        assert Counter(seen) == Counter(whole)
    else:  # an epoch has whole batches, and their size has changed: no sample comes twice before its set is through
        sizes = [sum(s) for s in case.sizes]
        edges = np.cumsum([0, *sizes])
        for i, size in enumerate(sizes):
            own = [row for row in seen if edges[i] <= row < edges[i + 1]]
            assert all(len(set(own[k : k + size])) == len(own[k : k + size]) for k in range(0, len(own), size))


@given(case=cases(), times=st.integers(1, 2), stop=st.floats(0, 1))
def test_with_the_same_global_batch_any_ranks_have_the_same_steps_from_any_point(
    case: Case, times: int, stop: float
) -> None:
    assume(getattr(case.options.get("buckets"), "max_tokens", None) is None)
    batch = 24 * times
    try:
        whole = steps_of(case, batch, 1)
    except (TailError, UsageError):
        assume(False)
    done = int(stop * len(whole))
    state = state_after(case, batch, 1, None, done) if whole else None
    for world in (1, 2, 3, 4, 8):
        try:
            assert [sorted(s) for s in steps_of(case, batch // world, world)] == [sorted(s) for s in whole]
            if done < len(whole):
                rest = steps_of(case, batch // world, world, state, workers=2)
                assert [sorted(s) for s in rest] == [sorted(s) for s in whole[done:]]
        except TailError:
            assert case.tail == "even"


@pytest.mark.parametrize("tail", ["even", "drop", "pad"])
def test_the_cases_hold_all_kinds(tail: str) -> None:
    """That the properties above look at what they say."""
    options: dict[str, Any] = {"shuffle": True, "lanes": 2}
    case = Case(((30, 20),), options, tail)
    assert sorted(flat(steps_of(case, 4, 2, workers=3)))[:48] == list(range(50))[:48] or tail == "drop"
