"""The keyed permutation: a bijection for every size, the same everywhere and for ever, without structure."""

from __future__ import annotations

from itertools import permutations
from math import factorial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio.order.permutation import derive_key, mix, permute


def whole(n: int, key: int) -> np.ndarray:
    return permute(np.arange(n, dtype=np.int64), n, key)


@given(n=st.integers(0, 3000), key=st.integers(0, 2**64 - 1))
def test_is_a_bijection_of_every_size(n: int, key: int) -> None:
    assert np.array_equal(np.sort(whole(n, key)), np.arange(n))


@pytest.mark.slow
def test_is_a_bijection_beyond_2_to_the_27() -> None:
    """Where float64 in the place of int64 would begin to merge neighbours (see STYLE: a trap that was found)."""
    n = 2**27 + 12_345
    seen = np.zeros(n, np.bool_)
    for start in range(0, n, 1 << 22):
        seen[permute(np.arange(start, min(n, start + (1 << 22)), dtype=np.int64), n, 7)] = True
    assert seen.all()


@given(
    n=st.integers(2**52, 2**63 - 1),
    starts=st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=20, unique=True),
    key=st.integers(0, 2**64 - 1),
)
def test_keeps_apart_what_is_apart_up_to_2_to_the_63(n: int, starts: list[int], key: int) -> None:
    positions = np.array(sorted({(s % n + d) % n for s in starts for d in (0, 1)}), np.int64)
    rows = permute(positions, n, key)
    assert rows.dtype == np.int64
    assert len(np.unique(rows)) == len(positions)
    assert rows.min() >= 0
    assert rows.max() < n


@given(n=st.integers(1, 5000), key=st.integers(0, 2**64 - 1), data=st.data())
def test_a_position_alone_gives_what_it_gives_among_others(n: int, key: int, data: st.DataObject) -> None:
    i = data.draw(st.integers(0, n - 1))
    assert permute(np.array([i]), n, key)[0] == whole(n, key)[i]


def reference(position: int, n: int, key: int) -> int:
    """The same by Python's own integers, without a width: what any platform must come to."""
    bits = max(2, (n - 1).bit_length())
    small, word = bits <= 10, 32 if bits <= 32 else 64
    shifts, factors = ((16, 13), (0x85EBCA6B, 0xC2B2AE35)) if word == 32 else ((32, 29), (MIX_A, MIX_B))
    mask = (1 << word) - 1
    while True:
        widths = [bits // 2, bits - bits // 2]
        left, right = position >> widths[1], position & ((1 << widths[1]) - 1)
        for r in range(24 if small else 8):
            x = (right + (mix(key + (r + 1) * 0x9E3779B97F4A7C15) >> (64 - word))) & mask
            for shift, factor in zip(shifts, factors, strict=True):
                x = ((x ^ (x >> shift)) * factor) & mask
            left, right = right, left ^ (x >> (word - widths[0]))
            widths.reverse()
        position = left << widths[1] | right
        if position < n:
            return position


MIX_A, MIX_B = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@given(n=st.integers(2, 2**63 - 1) | st.integers(2, 2**33), key=st.integers(0, 2**64 - 1), data=st.data())
def test_is_what_plain_integers_come_to(n: int, key: int, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, n - 1))
    assert permute(np.array([position], np.int64), n, key)[0] == reference(position, n, key)


@pytest.mark.parametrize("n", [2**32 - 1, 2**32, 2**32 + 1])
def test_keeps_apart_where_the_words_get_wider(n: int) -> None:
    rows = permute(np.arange(n - 10**6, n, dtype=np.int64), n, 3)
    assert len(np.unique(rows)) == 10**6 and rows.min() >= 0 and rows.max() < n


def test_golden_values() -> None:
    """These may change only with `permutation.VERSION`: checkpoints hold positions of this order."""
    assert whole(10, 0).tolist() == GOLDEN_10
    assert permute(np.array([0, 1, 10**18]), 2**62 + 1, 123456789).tolist() == GOLDEN_BIG
    assert derive_key(1, -2, 3 << 70) == GOLDEN_KEY


GOLDEN_10 = [6, 3, 5, 7, 2, 1, 8, 9, 4, 0]
GOLDEN_BIG = [1299210865557829388, 433815659266607062, 396485413578980065]
GOLDEN_KEY = 8232975125425315497


@pytest.mark.parametrize("n", [2, 3, 4, 5, pytest.param(6, marks=pytest.mark.slow)])
def test_all_orders_of_few_samples_are_equally_likely(n: int) -> None:
    """Chi-square over all n! orders, 30 keys for each; the bound is 5 sigma."""
    counts = dict.fromkeys(permutations(range(n)), 0)
    for seed in range(30 * factorial(n)):
        counts[tuple(whole(n, derive_key(seed)).tolist())] += 1
    chi = sum((c - 30) ** 2 / 30 for c in counts.values())
    degrees = factorial(n) - 1
    assert chi < degrees + 5 * (2 * degrees) ** 0.5 + 5


@pytest.mark.parametrize("n", [100, 1000, 65_537])
def test_shows_no_structure_between_neighbours(n: int) -> None:
    """Steps between neighbours, displacement and serial correlation look as numpy's own shuffle makes them."""
    for seed in range(20):
        order = whole(n, derive_key(seed))
        displaced = np.abs(order - np.arange(n)).mean() / n
        assert abs(displaced - 1 / 3) < 4 * 0.32 / n**0.5
        assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 5 / n**0.5
        assert (np.diff(order) == 1).sum() < 10


def test_shows_no_structure_between_epochs_and_seeds() -> None:
    n = 10_000
    orders = [whole(n, derive_key(seed, epoch)) for seed in range(6) for epoch in range(6)]
    for i, a in enumerate(orders):
        for b in orders[:i]:
            assert abs(np.corrcoef(a, b)[0, 1]) < 5 / n**0.5
            assert (a == b).sum() < 12  # Poisson with mean 1


def test_one_bit_in_flips_half_of_the_bits_out() -> None:
    words = [mix(i) for i in range(500)]
    flipped = [(mix(w) ^ mix(w ^ (1 << b))).bit_count() for w in words for b in range(64)]
    assert abs(np.mean(flipped) - 32) < 0.2
    n, rng = 2**40, np.random.default_rng(0)
    x = rng.integers(0, n, 2000)
    for b in range(40):
        changed = permute(x, n, 1) ^ permute(x ^ (1 << b), n, 1)
        assert abs(np.mean([int(c).bit_count() for c in changed]) - 20) < 0.5


def test_refuses_other_dtypes_and_positions_outside() -> None:
    with pytest.raises(TypeError, match="uint64"):
        permute(np.arange(3, dtype=np.uint64), 3, 0)
    with pytest.raises(IndexError, match="0 to 3"):
        permute(np.arange(4), 3, 0)
