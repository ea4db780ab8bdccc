"""Which samples take the place of a bad one."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from streamio.order.balance import Draw
from streamio.order.lengths import Buckets
from streamio.order.standins import ATTEMPTS, TableStandIns, among


@dataclass
class Shards:
    sizes: NDArray[np.int64]

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        n = int(self.sizes.sum())
        return {"w": np.arange(n) % 3, "long": (np.arange(n) * 7919) % 101}


SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=6).map(lambda sizes: Shards(np.array(sizes, np.int64)))


@given(SIZES, st.integers(0, 1 << 40), st.integers(0, 1 << 62), st.data())
def test_others_of_the_set_come_once_and_never_the_bad_one(
    shards: Shards, seed: int, visit: int, data: Any
) -> None:
    n = int(shards.sizes.sum())
    row = data.draw(st.integers(0, n - 1))
    rows = TableStandIns(shards, seed).of(row, visit)
    assert rows.dtype == np.int64 and len(rows) == len(set(rows.tolist())) <= ATTEMPTS
    assert row not in rows and all(0 <= other < n for other in rows)
    assert (len(rows) > 0) == (n > 1)
    assert rows.tolist() == pickle.loads(pickle.dumps(TableStandIns(shards, seed))).of(row, visit).tolist()


def test_the_first_are_of_the_same_shard_and_the_later_ones_of_all() -> None:
    shards = Shards(np.array([50, 50, 50, 50]))
    chains = [TableStandIns(shards, 0).of(row, 0) for row in range(200)]
    assert all(chain[0] // 50 == row // 50 for row, chain in enumerate(chains))
    assert {int(other) // 50 for chain in chains[:50] for other in chain} == {0, 1, 2, 3}


def test_a_shard_of_nothing_but_the_bad_one_leaves_it_to_others() -> None:
    assert set(TableStandIns(Shards(np.array([5, 1, 5])), 0).of(5, 0).tolist()) <= {*range(11)} - {5}
    assert len(TableStandIns(Shards(np.array([5, 1, 5])), 0).of(5, 0)) > 4
    assert TableStandIns(Shards(np.array([1])), 0).of(0, 0).tolist() == []


def test_another_visit_seed_or_row_draws_others_and_all_come_alike() -> None:
    shards = Shards(np.array([100]))
    firsts = np.array([TableStandIns(shards, 1).of(50, visit)[0] for visit in range(2000)])
    counts = np.bincount(firsts, minlength=100)
    assert counts[50] == 0 and (np.delete(counts, 50) > 0).all() and counts.max() < 60
    assert TableStandIns(shards, 1).of(50, 0).tolist() != TableStandIns(shards, 2).of(50, 0).tolist()


def test_what_a_draw_never_draws_never_stands_in() -> None:
    shards = Shards(np.array([30]))
    for row in range(30):
        rows = TableStandIns(shards, 0, Draw(weights="w")).of(row, 5)
        assert len(rows) and not any(other % 3 == 0 for other in rows.tolist())
    classes = TableStandIns(shards, 0, Draw(classes=np.arange(30) // 29)).of(4, 0)  # 29 and 1 of a class
    assert 29 in classes.tolist()


@given(st.integers(0, 199), st.integers(0, 1000), st.booleans())
def test_in_buckets_nothing_longer_stands_in_but_for_the_shortest(row: int, visit: int, drawn: bool) -> None:
    shards = Shards(np.array([120, 80]))
    lengths = shards.columns["long"]
    draw = Draw(weights=np.ones(200)) if drawn else None
    rows = TableStandIns(shards, 3, draw, Buckets(lengths="long")).of(row, visit)
    assert len(rows) and row not in rows
    if (lengths <= lengths[row]).sum() > 1:
        assert (lengths[rows] <= lengths[row]).all()
        assert (np.diff(lengths[rows]) <= 0).all()  # the longest first
    else:
        assert lengths[rows[0]] == np.sort(lengths)[1]


@given(st.sets(st.integers(0, 1 << 50), max_size=40), st.integers(0, 1 << 63))
def test_among_some_rows_all_but_the_bad_one_are_tried(some: set[int], key: int) -> None:
    rows = np.array(sorted(some), np.int64)
    row = int(rows[0]) if len(rows) else 5
    others = among(rows, row, key)
    assert row not in others and set(others.tolist()) <= some
    assert len(set(others.tolist())) == len(others) == min(ATTEMPTS, max(0, len(rows) - 1))
