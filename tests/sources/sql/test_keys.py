"""The keys of rows: from the row to its key and back, and which rows are read together. No database."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio.sources.sql.dialects import DIALECTS
from streamio.sources.sql.keys import KeyColumn, Keys, places
from streamio.sources.sql.query import KeyPart, Paging
from streamio.sources.sql.table import _runs

INT64 = st.integers(-(2**63), 2**63 - 1)
KINDS: dict[str, tuple[Any, Any]] = {
    "int": (pa.int64(), INT64),
    "float": (pa.float64(), st.floats(allow_nan=False)),
    "text": (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=8)),
    "bytes": (pa.binary(), st.binary(max_size=8)),
}


def kept(kind: Any, values: list[Any], piece: int) -> KeyColumn:
    column = KeyColumn(kind, "k")
    for start in range(0, len(values), piece):
        whole = pa.array([*values[start : start + piece], *values[:1]], kind)
        column.append(whole.slice(0, len(whole) - 1))
    column.finish()
    return column


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
def test_a_row_gives_its_key(name: str, data: st.DataObject) -> None:
    kind, one = KINDS[name]
    values = data.draw(st.lists(one, min_size=1, max_size=40))
    rows = np.array(data.draw(st.lists(st.integers(0, len(values) - 1), max_size=50)), np.int64)
    column = kept(kind, values, data.draw(st.integers(1, 50)))
    assert len(column) == len(values)
    assert column.read(rows).to_pylist() == [values[row] for row in rows]
    column.close()


@given(first=st.integers(-100, 2**62), count=st.integers(1, 30), piece=st.integers(1, 40))
def test_numbers_without_gaps_need_no_file(first: int, count: int, piece: int) -> None:
    column = kept(pa.int64(), list(range(first, first + count)), piece)
    column.close()
    assert column.is_here and column.read(np.arange(count)).to_pylist() == list(range(first, first + count))
    gap = kept(pa.int64(), [first, first + 2], piece)
    gap.close()
    assert not gap.is_here


def test_a_digest_changes_with_any_key() -> None:
    texts = [["ab", "c"], ["a", "bc"], ["ab", "c", ""], ["ab"], ["abc", ""]]
    digests = [Keys([kept(pa.string(), values, 1)]).digest for values in texts]
    assert len(set(digests)) == len(texts)
    assert kept(pa.string(), ["x", "y", "z"], 1).digest == kept(pa.string(), ["x", "y", "z"], 1).digest


def test_far_rows_are_read_one_by_one() -> None:
    column = KeyColumn(pa.int64(), "k")
    numbers = np.arange(0, 3_000_000, 3)
    column.append(pa.array(numbers))
    column.finish()
    rows = np.array([0, 999_999, 5, 500_000])
    assert column.read(rows).to_pylist() == numbers[rows].tolist()
    column.close()


@given(data=st.data())
def test_every_key_is_found_where_it_is(data: st.DataObject) -> None:
    kinds = [KINDS[name] for name in data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3))]
    some = [data.draw(st.lists(one, min_size=1, max_size=3)) for _, one in kinds]
    rows = st.tuples(*(st.sampled_from(values) for values in some))
    wanted = data.draw(st.lists(rows, unique_by=repr, max_size=10))
    there = data.draw(st.lists(rows, unique_by=repr, max_size=10))

    def columns(of: list[Any]) -> list[Any]:
        return [pa.array([row[i] for row in of], kind) for i, (kind, _) in enumerate(kinds)]

    expected = [there.index(row) if row in there else -1 for row in wanted]
    found = places(columns(wanted), columns(there)).tolist()
    assert [there[at] if at >= 0 else None for at in found] == [there[at] if at >= 0 else None for at in expected]


@given(st.lists(st.integers(0, 3000), unique=True, min_size=1, max_size=200))
def test_rows_that_lie_together_are_read_together(rows: list[int]) -> None:
    ascending = np.array(sorted(rows))
    for begin, end in _runs(ascending):
        assert end - begin >= min(32, len(rows))
        assert ascending[end - 1] - ascending[begin] < 2 * (end - begin)


def test_a_whole_range_is_one_run_and_scattered_rows_are_none() -> None:
    assert _runs(np.arange(100, 164)) == [(0, 64)]
    assert _runs(np.array([7])) == [(0, 1)]
    assert _runs(np.arange(0, 6400, 100)) == []
    assert _runs(np.concatenate([np.arange(50), np.arange(500, 540), [900]])) == [(0, 50), (50, 90)]


KEYS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=2).map(
    sorted
)


@given(KEYS, st.integers(1, 3))
def test_a_range_of_several_columns_is_that_of_tuples(ends: list[tuple[int, ...]], columns: int) -> None:
    parts = tuple(KeyPart(name=n, sql=n, read=n) for n in "abc"[:columns])
    first, last = (end[:columns] for end in ends)
    given_values: list[Any] = []
    condition = Paging(DIALECTS["sqlite"], parts).between(first, last, given_values)
    expression = condition.replace("?", "{}").format(*given_values)
    expression = expression.replace("AND", "and").replace("OR", "or")
    for row in np.ndindex(*[5] * columns):
        assert eval(expression, dict(zip("abc", row, strict=False))) == (first <= row <= last)
