"""A table is told each row before it is asked for it, together with as many others as it likes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamio.order.announced import AnnouncedPlan
from streamio.order.plan import Plan
from streamio.types import Rows


class Told:
    def __init__(self, likes: int) -> None:
        self.rows_at_once = likes
        self.told: list[Rows] = []

    def announce(self, rows: Rows) -> None:
        self.told.append(rows)


@given(
    samples=st.integers(1, 300), size=st.integers(1, 20), likes=st.integers(0, 100), worker=st.integers(0, 2),
    shuffle=st.sampled_from(["none", "block"]),
)  # fmt: skip
def test_each_batch_is_among_what_was_told_last(
    samples: int, size: int, likes: int, worker: int, shuffle: str
) -> None:
    plan = Plan(sizes=np.array([samples]), batch_size=size, shuffle=shuffle, tail="drop")  # type: ignore[arg-type]
    table = Told(likes)
    announced = AnnouncedPlan(plan, table)
    came = list(plan.share(0, worker, 3))
    for batch, expected in zip(announced.share(0, worker, 3), came, strict=True):
        assert batch is not None and batch.rows.tolist() == expected.rows.tolist()
        assert set(batch.rows.tolist()) <= set(table.told[-1].tolist())
    told = np.concatenate([np.zeros(0, np.int64), *table.told]).tolist()
    assert told == [row for batch in came for row in batch.rows.tolist()]
    assert all(len(rows) <= max(likes, size) for rows in table.told)
    assert [len(rows) for rows in table.told[:1]] == [size] * bool(came)
    assert (announced.steps, announced.epoch, announced.state_at(0)) == (plan.steps, plan.epoch, plan.state_at(0))
