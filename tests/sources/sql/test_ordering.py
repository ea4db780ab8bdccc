"""Whether a query has an order of its own, what is behind a key, and what runs ahead in a thread of its own."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamio import UsageError
from streamio.sources.ahead import in_own_thread
from streamio.sources.sql.cursors import Given, Trail, as_key, at, behind, up_to
from streamio.sources.sql.dialects import DIALECTS
from streamio.sources.sql.ordering import behind_order, takes_offset
from streamio.sources.sql.query import KeyPart, Paging


@pytest.mark.parametrize(
    ("query", "end"),
    [
        ("SELECT a FROM t ORDER BY a", "a"),
        ("select a from t order\n by a desc, b", "a desc, b"),
        ("WITH x AS (SELECT 1 ORDER BY 1) SELECT * FROM x", None),
        ("SELECT * FROM (SELECT a FROM t ORDER BY a) q", None),
        ("SELECT rank() OVER (ORDER BY a) FROM t", None),
        ("SELECT array_agg(a ORDER BY b) FROM t ORDER BY c", "c"),
        ("SELECT 'it''s ORDER BY a' FROM t", None),
        ('SELECT "ORDER BY" FROM t', None),
        ("SELECT a FROM t -- ORDER BY a", None),
        ("SELECT a FROM t /* ORDER BY\n a */", None),
        ("SELECT $$ ORDER BY a $$ FROM t", None),
        ("SELECT $x$ ( $x$ FROM t ORDER BY a", "a"),
        ("SELECT a FROM border by", None),
        ("SELECT a FROM t UNION SELECT b FROM u ORDER BY 1", "1"),
    ],
)
def test_only_an_order_of_the_whole_result_is_one(query: str, end: str | None) -> None:
    found = behind_order(query)
    assert (found if found is None else " ".join(found.split())) == end


def test_an_offset_goes_only_where_none_is_and_nothing_else_ends_the_query() -> None:
    assert takes_offset(" a, b DESC NULLS LAST") and takes_offset(" unlimited, forced")
    for end in (" a LIMIT 5", " a OFFSET 3", " a FETCH FIRST 5 ROWS ONLY", " a FOR UPDATE"):
        assert not takes_offset(end)


KEY = st.tuples(st.integers(0, 3), st.text("ab'", max_size=2), st.integers(0, 2))


@given(st.lists(KEY, max_size=12), KEY, st.integers(1, 3))
@settings(max_examples=60)
def test_what_is_behind_a_key_is_what_sorts_behind_it(keys: list[Any], whole: Any, columns: int) -> None:
    rows, key = sorted({key[:columns] for key in keys}), whole[:columns]
    names = ["a", "b", "c"][:columns]
    paging = Paging(DIALECTS["sqlite"], tuple(KeyPart(name=name, sql=name, read=name) for name in names))
    connection = sqlite3.connect(":memory:")
    connection.execute(f"CREATE TABLE t ({', '.join(names)})")
    connection.executemany(f"INSERT INTO t VALUES ({', '.join('?' * columns)})", rows)
    for condition, is_there in {
        behind: lambda row: row > key, up_to: lambda row: row <= key, at: lambda row: row == key
    }.items():  # fmt: skip
        values = Given(paging.dialect)
        sql = f"SELECT * FROM t WHERE {condition(paging, key, values)} ORDER BY {', '.join(names)}"
        assert connection.execute(sql, values.parameters).fetchall() == [row for row in rows if is_there(row)]
    connection.close()


def trail(*arrays: Any, cursor: Any = None) -> Any:
    parts = tuple(KeyPart(name=f"k{i}", sql=f"k{i}", read=f"k{i}") for i in range(len(arrays)))
    return Trail(Paging(DIALECTS["sqlite"], parts), "order", cursor).cursors(
        [pa.array(values) for values in arrays]
    )


@pytest.mark.parametrize(
    "values",
    [
        [1, 2, 2**62],
        np.array([2**63, 2**64 - 1], np.uint64),
        ["a", "b'"],
        [0.1, 0.2],
        [b"\x00", b"\xff"],
        [datetime(2026, 1, 1, 2, 3, 4, 5), datetime(2026, 1, 2, tzinfo=None)],
        [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)],
        [date(2026, 1, 1), date(2026, 1, 2)],
        [Decimal("1.50"), Decimal("2.25")],
    ],
    ids=lambda values: type(values[0]).__name__,
)
def test_keys_of_any_type_come_back_from_json(values: list[Any]) -> None:
    cursors = trail(values)
    as_json = json.loads(json.dumps(list(cursors if isinstance(cursors, list) else cursors.tolist())))
    assert [as_key(cursor) for cursor in as_json] == [[value] for value in values]
    both = json.loads(json.dumps(trail(list(range(len(values))), values)))
    assert [as_key(cursor) for cursor in both] == [[i, value] for i, value in enumerate(values)]


def test_keys_that_come_twice_are_noticed_within_and_between_batches() -> None:
    assert trail([1, 1, 2], ["a", "b", "b"]) == [[1, "a"], [1, "b"], [2, "b"]]
    with pytest.raises(UsageError, match=r"k0, k1 is not unique: several rows have \(2, 'b'\)"):
        trail([1, 2, 2], ["a", "b", "b"])
    with pytest.raises(UsageError, match="k0 is not unique: several rows have 5"):
        trail([5, 6], cursor=5)
    with pytest.raises(UsageError, match="1 NULL keys"):
        trail([1, None])


def test_an_iterator_in_a_thread_of_its_own_gives_all_and_closes_there() -> None:
    seen: list[Any] = []

    def make() -> Iterator[int]:
        try:
            for number in range(100):
                seen.append(threading.current_thread())
                yield number
        finally:
            seen.append("closed")
            seen.append(threading.current_thread())

    assert list(in_own_thread(make)) == list(range(100))
    assert len({one for one in seen if one != "closed"}) == 1 and seen[0] is not threading.current_thread()
    seen.clear()
    some = in_own_thread(make)
    assert next(some) == 0
    some.close()  # type: ignore[attr-defined]
    assert seen[-2] == "closed" and len(seen) < 10


def test_an_error_in_its_thread_comes_behind_what_was_made_before() -> None:
    def make() -> Iterator[int]:
        yield 1
        raise ValueError("two")

    values = in_own_thread(make)
    assert next(values) == 1
    with pytest.raises(ValueError, match="two"):
        next(values)
