"""Counts of good and bad samples, over processes."""

from __future__ import annotations

import copy
import multiprocessing
from typing import Any

import pytest

from streamio import world
from streamio.tally import EpochTally


def test_each_epoch_is_counted_for_itself() -> None:
    tally = EpochTally()
    tally.add(0, 10, [4, 7])
    tally.add(0, 5, [2])
    first = tally.of(0)
    assert (first.read, first.bad, first.first, first.last) == (15, 3, 4, 2)
    tally.add(3, 8, [])
    assert (tally.of(3).read, tally.of(3).bad, tally.of(3).first) == (8, 0, -1)
    assert tally.of(0).read == 0
    assert copy.deepcopy(tally).of(3).read == 0  # a copy begins anew


def _count(number: int, tally: EpochTally, turn: Any) -> None:
    world.become_worker(number, 3)
    for _ in range(200):
        tally.add(5, 2, [])
    with turn.get_lock():
        tally.add(5, 0, [100 + number])
    tally.add(5, 1, [])


@pytest.mark.parametrize(("context", "count"), [("fork", 3), ("spawn", 2)])
def test_all_workers_count_and_none_is_lost(context: str, count: int) -> None:
    start = multiprocessing.get_context(context)
    tally, turn = EpochTally(), start.Value("i")
    workers = [start.Process(target=_count, args=(n, tally, turn)) for n in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    found = tally.of(5)
    assert (found.read, found.bad) == (count * 401, count)
    assert found.first in (100, 101, 102) and found.last in (100, 101, 102) and found.first != found.last
