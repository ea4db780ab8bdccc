from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio.packing.assign import ShardTask, assign, shuffled, validation

KEYS = list("abcdefghij")


def _named(tasks: list[ShardTask]) -> list[tuple[str, int, str]]:
    return [(task.split, task.number, "".join(KEYS[at] for at in task.samples)) for task in tasks]


def test_the_table_in_the_docstring() -> None:
    """Golden: may change only with a new major version, since it moves samples between train and val."""
    tasks = assign(KEYS, [40] * 10, seed=0, shuffle=True, shard_size=100, val=0.2)
    assert _named(tasks) == [
        ("train", 0, "id"), ("train", 1, "jb"), ("train", 2, "hc"), ("train", 3, "ga"), ("val", 0, "fe"),
    ]  # fmt: skip


def test_the_order_is_golden() -> None:
    keys = [f"n{i:02d}/image_{i}" for i in range(12)]
    assert shuffled(keys, 1).tolist() == [7, 0, 10, 1, 6, 4, 11, 9, 5, 8, 3, 2]


def test_without_shuffle_the_order_stays() -> None:
    tasks = assign(KEYS, [1] * 10, seed=5, shuffle=False, shard_samples=4)
    assert _named(tasks) == [("all", 0, "abcd"), ("all", 1, "efgh"), ("all", 2, "ij")]


@pytest.mark.parametrize(
    ("sizes", "limit", "shards"),
    [
        ([1, 1, 5, 1, 1], 2, ["ab", "c", "de"]),  # a sample larger than the limit is alone
        ([9, 9, 9], 1, ["a", "b", "c"]),
        ([9, 1, 1], 2, ["a", "bc"]),
        ([1, 1, 9], 2, ["ab", "c"]),
        ([1, 1, 1, 1], 2, ["ab", "cd"]),  # exactly full
        ([0, 0, 0, 0], 1, ["abcd"]),
        ([2], 2, ["a"]),
        ([], 2, []),
    ],
)
def test_a_shard_ends_before_it_is_too_large(sizes: list[int], limit: int, shards: list[str]) -> None:
    tasks = assign(KEYS[: len(sizes)], sizes, seed=0, shuffle=False, shard_size=limit)
    assert _named(tasks) == [("all", n, keys) for n, keys in enumerate(shards)]


@given(
    sizes=st.lists(st.integers(0, 50), min_size=2, max_size=60),
    limits=st.one_of(
        st.builds(lambda n: {"shard_size": n}, st.integers(1, 120)),
        st.builds(lambda n: {"shard_samples": n}, st.integers(1, 20)),
    ),
    val=st.floats(0, 0.99),
    shuffle=st.booleans(),
    seed=st.integers(-(2**70), 2**70),
)
def test_every_sample_lies_in_one_shard_within_the_limits(
    sizes: list[int], limits: dict[str, Any], val: float, shuffle: bool, seed: int
) -> None:
    keys = [f"k{i}" for i in range(len(sizes))]
    tasks = assign(
        keys, sizes, seed=seed, shuffle=shuffle, val=val, labels=[i % 3 for i in range(len(keys))], **limits
    )
    assert sorted(at for task in tasks for at in task.samples.tolist()) == list(range(len(keys)))
    for task in tasks:
        total = sum(sizes[at] for at in task.samples)
        assert len(task.samples) == 1 or total <= limits.get("shard_size", total)
        assert 0 < len(task.samples) <= limits.get("shard_samples", len(sizes))
    for split in {task.split for task in tasks}:
        assert [t.number for t in tasks if t.split == split] == list(range(sum(t.split == split for t in tasks)))
    if val:
        assert {task.split for task in tasks} == {"train", "val"}


def test_the_order_depends_on_the_seed_and_the_key_alone() -> None:
    keys = [f"k{i}" for i in range(1000)]
    place = {keys[at]: n for n, at in enumerate(shuffled(keys, 7))}
    fewer = [key for key in reversed(keys) if key != "k5"]
    again = [fewer[at] for at in shuffled(fewer, 7)]
    assert again == sorted(fewer, key=place.__getitem__)
    assert shuffled(keys, 7).tolist() != shuffled(keys, 8).tolist()
    # A sorted input must not stay nearly sorted: mean distance of a perfect shuffle is a third.
    assert np.abs(shuffled(keys, 7) - np.arange(1000)).mean() > 280


def test_validation_takes_its_share_of_every_label() -> None:
    labels = ["a"] * 100 + ["b"] * 50 + ["c"] * 7 + [None] * 3
    keys = [f"k{i}" for i in range(160)]
    held = validation(keys, seed=3, share=0.1, labels=labels)
    count = Counter(label for label, here in zip(labels, held, strict=True) if here)
    # Quotas are 10, 5, 0.7 and 0.3 of 16: the rest of one goes to the largest remainder.
    assert count == {"a": 10, "b": 5, "c": 1}


@pytest.mark.parametrize(("n", "share", "held"), [(2, 0.01, 1), (2, 0.99, 1), (10, 0.25, 2), (1000, 0.1, 100)])
def test_both_splits_hold_something(n: int, share: float, held: int) -> None:
    keys = [str(i) for i in range(n)]
    assert int(validation(keys, seed=0, share=share, labels=None).sum()) == held


def test_a_new_sample_moves_few_others_between_the_splits() -> None:
    keys = [f"k{i}" for i in range(500)]
    before = set(np.flatnonzero(validation(keys, seed=0, share=0.2, labels=None)))
    after = set(np.flatnonzero(validation([*keys, "new"], seed=0, share=0.2, labels=None)))
    assert len(before ^ after) <= 2
