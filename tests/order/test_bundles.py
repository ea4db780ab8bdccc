"""Bundles: the batches of a share, some at a time, none lost and none moved."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamio.order.bundles import BUNDLE_BYTES, bundle_size, bundled, joined, spans
from streamio.order.plan import BatchRows

lengths = st.lists(st.integers(1, 5), max_size=60)


def batches_of(sizes: list[int], marked: bool = False) -> list[BatchRows]:
    made, at = [], 0
    for step, size in enumerate(sizes):
        rows = np.arange(at, at + size)
        made.append(BatchRows(step, rows, rows + 7, rows % 2 == 0 if marked else None, 3))
        at += size
    return made


@given(lengths, st.integers(1, 16))
def test_bundles_hold_all_batches_in_their_order_and_grow_to_the_most(sizes: list[int], most: int) -> None:
    batches = batches_of(sizes)
    bundles = list(bundled(iter(batches), most))
    assert [batch.step for bundle in bundles if bundle for batch in bundle] == list(range(len(sizes)))
    expected = [min(most, 2**i) for i in range(len(bundles))]
    assert [len(bundle or ()) for bundle in bundles[:-1]] == expected[:-1]


@given(lengths.filter(bool), st.booleans())
def test_a_bundle_end_to_end_can_be_cut_into_its_batches_again(sizes: list[int], marked: bool) -> None:
    bundle = batches_of(sizes, marked)
    whole = joined(bundle)
    for batch, (start, stop) in zip(bundle, spans(bundle), strict=True):
        assert batch.rows.tolist() == whole.rows[start:stop].tolist()
        assert batch.visits.tolist() == whole.visits[start:stop].tolist()
        assert (whole.valid is None) is (not marked)
        if batch.valid is not None and whole.valid is not None:
            assert batch.valid.tolist() == whole.valid[start:stop].tolist()
    assert (whole.step, whole.epoch) == (0, 3)


def test_where_nothing_is_there_now_is_told_at_once() -> None:
    def coming() -> Iterator[BatchRows | None]:
        first, second, third = batches_of([1, 1, 1])
        yield from (None, first, second, None, third)

    steps = [None if bundle is None else [batch.step for batch in bundle] for bundle in bundled(coming(), 2)]
    assert steps == [None, [0], None, [1, 2]]


def test_large_batches_are_made_alone_and_small_ones_within_a_bound() -> None:
    assert [bundle_size(n) for n in (0, 1, BUNDLE_BYTES // 8, BUNDLE_BYTES, 10 * BUNDLE_BYTES)] == [16, 16, 8, 1, 1]
