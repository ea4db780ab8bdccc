"""The arithmetic of windows: pieces tile windows, windows tile the line, rows tile the shards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio.order.tokens import Cut, Line, Split, Truncated, Windows, edges_of

COUNTS = st.lists(st.one_of(st.just(0), st.integers(0, 4), st.integers(0, 60)), max_size=30)
LENGTHS = st.integers(1, 20)
CUTS = st.sampled_from([Windows, Truncated, Split])


def line_of(counts: list[int]) -> Line:
    return Line(edges_of(np.array(counts, np.int64)))


def all_rows(cut: Cut) -> Any:
    return np.arange(cut.rows, dtype=np.int64)


def tokens_of(line: Line, starts: Any, lengths: Any) -> list[tuple[int, int]]:
    """(document, token in it) for every token of some spans, put where the pieces say."""
    found: list[Any] = [None] * int(lengths.sum())
    for _, document, start, length, place in zip(
        *(column.tolist() for column in line.pieces(starts, lengths)), strict=True
    ):
        assert length > 0
        for i in range(length):
            assert found[place + i] is None
            found[place + i] = (document, start + i)
    return found


def test_the_worked_example() -> None:
    line = line_of([5, 0, 1, 5])
    windows = Windows(line, 3)
    assert windows.rows == 3 and windows.dropped == 1
    pieces = line.pieces(*windows.spans(np.array([1], np.int64)))
    assert [column.tolist() for column in pieces] == [[0, 0, 0], [0, 2, 3], [3, 0, 0], [2, 1, 1], [0, 2, 3]]
    assert windows.documents(all_rows(windows)).tolist() == [0, 0, 3]
    assert windows.rows_before(np.array([0, 1, 2, 3, 4])).tolist() == [0, 2, 2, 2, 3]


@given(COUNTS, LENGTHS, CUTS)
def test_pieces_tile_the_spans_of_any_rows_in_any_order(counts: list[int], length: int, kind: Any) -> None:
    line = line_of(counts)
    cut = kind(line, length)
    flat = [(document, i) for document, n in enumerate(counts) for i in range(n)]
    rows = np.concatenate([all_rows(cut)[::-1], all_rows(cut)[:3]])
    starts, lengths = cut.spans(rows)
    expected = [flat[t] for a, n in zip(starts.tolist(), lengths.tolist(), strict=True) for t in range(a, a + n)]
    assert tokens_of(line, starts, lengths) == expected
    kept = lengths > 0
    assert cut.documents(rows)[kept].tolist() == [flat[a][0] for a in starts[kept].tolist()]


@given(COUNTS, LENGTHS)
def test_every_token_is_a_target_once_but_the_first_and_those_dropped(counts: list[int], length: int) -> None:
    windows = Windows(line_of(counts), length)
    starts, lengths = windows.spans(all_rows(windows))
    assert (lengths == length + 1).all()
    targets = (starts[:, None] + 1 + np.arange(length)).reshape(-1)
    total = sum(counts)
    if windows.rows == 0:
        assert total <= length and windows.dropped == total
        return
    assert targets.tolist() == list(range(1, total - windows.dropped))
    assert 0 <= windows.dropped < length


@given(COUNTS, LENGTHS)
def test_documents_are_rows_truncated_or_split(counts: list[int], length: int) -> None:
    line = line_of(counts)
    whole, split = Truncated(line, length), Split(line, length)
    assert whole.spans(all_rows(whole))[1].tolist() == [min(n, length) for n in counts]
    assert whole.dropped == sum(max(0, n - length) for n in counts) and split.dropped == 0
    parts = [[min(length, n - a) for a in range(0, max(n, 1), length)] for n in counts]
    assert split.spans(all_rows(split))[1].tolist() == [n for part in parts for n in part]
    assert split.documents(all_rows(split)).tolist() == [d for d, part in enumerate(parts) for _ in part]


@given(COUNTS, LENGTHS, CUTS, st.data())
def test_rows_belong_to_the_document_and_so_to_the_shard_in_which_they_begin(
    counts: list[int], length: int, kind: Any, data: st.DataObject
) -> None:
    cut = kind(line_of(counts), length)
    inner = data.draw(st.lists(st.integers(0, len(counts)), max_size=4))
    shards = np.array([0, *sorted(inner), len(counts)], np.int64)
    sizes = np.diff(cut.rows_before(shards))
    begins = np.searchsorted(shards, cut.documents(all_rows(cut)), side="right") - 1
    assert sizes.tolist() == np.bincount(begins, minlength=len(shards) - 1).tolist()
    assert sizes.sum() == cut.rows


def test_positions_beyond_32_bits_are_exact() -> None:
    line = line_of([2**40, 0, 2**40 + 1])
    windows = Windows(line, 2048)
    assert windows.rows == 2**30 and windows.dropped == 0
    row = np.array([2**29 - 1, 2**29], np.int64)
    pieces = line.pieces(*windows.spans(row))
    assert pieces.document.tolist() == [0, 2, 2] and pieces.start.tolist() == [2**40 - 2048, 0, 0]
    assert pieces.length.tolist() == [2048, 1, 2049]


def test_numbers_that_are_not_int64_are_refused() -> None:
    with pytest.raises(AssertionError):
        Line(np.array([0, 3], np.int32))  # type: ignore[arg-type]
