"""Lines as columns: every line has its place, and a broken one never takes its neighbours with it."""

from __future__ import annotations

import json
import pickle
import re
import sys
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from streamio.errors import MissingExtra, TransformError, UsageError
from streamio.sources.fields import FieldType
from streamio.sources.lines import LineParser, Parsed
from streamio.sources.lines.jsonlines import JsonReader
from streamio.sources.lines.split import Lines, split_lines
from streamio.types import ArrayColumn, Column, ListColumn, NullableColumn

BOM = b"\xef\xbb\xbf"


def listed(column: Column) -> list[Any]:
    """The values of a column, None where there is none."""
    if isinstance(column, NullableColumn):
        return [None if no else value for value, no in zip(column.values.tolist(), column.lacking, strict=True)]
    if isinstance(column, ArrayColumn):
        return column.values.tolist()
    return [bytes(v) if isinstance(v, memoryview) else getattr(v, "tolist", lambda v=v: v)() for v in column.values]


def good(parsed: Parsed, field: str) -> list[Any]:
    """The values of the samples that are not bad."""
    return [value for i, value in enumerate(listed(parsed.columns[field])) if i not in parsed.bad]


def at(lines: Lines) -> list[tuple[int, int, int, int]]:
    return list(zip(*(a.tolist() for a in (lines.starts, lines.stops, lines.ends, lines.numbers)), strict=True))


def test_every_line_has_its_place() -> None:
    lines = split_lines(b'\n{"a": 1}\r\n\n{"a": 2}')
    assert at(lines) == [(1, 9, 12, 1), (12, 20, 20, 3)]
    assert lines.total == 4 and lines.pieces() == [b'{"a": 1}', b'{"a": 2}']


BLOCKS = st.lists(
    st.sampled_from([b"\n", b"\n", b"\r\n", b"\r", b" ", b"\t", b"a", b"bc", b"\0", BOM, b"\xef"]), max_size=12
).map(b"".join)


def plainly(block: bytes) -> list[tuple[bytes, int]]:
    """(line, number) as one would write it down."""
    found = []
    for number, line in enumerate(block.removesuffix(b"\n").split(b"\n")):
        line = line.removesuffix(b"\r")
        while line.startswith((b"\0", BOM)):
            line = line.removeprefix(b"\0").removeprefix(BOM)
        if line.strip():
            found.append((line, number))
    return found


@given(BLOCKS)
def test_lines_are_split_as_one_would_by_hand(block: bytes) -> None:
    lines = split_lines(block)
    assert list(zip(lines.pieces(), lines.numbers.tolist(), strict=True)) == plainly(block)
    assert lines.total == block.count(b"\n") + (not block.endswith(b"\n") and bool(block))
    assert all(array.dtype == np.int64 for array in (lines.starts, lines.stops, lines.ends, lines.numbers))


@given(BLOCKS)
def test_what_comes_behind_a_line_is_read_from_its_end(block: bytes) -> None:
    lines = split_lines(block)
    for i, end in enumerate(lines.ends.tolist()):
        assert split_lines(block[end:]).pieces() == lines.pieces()[i + 1 :]
    assert not len(lines) or lines.ends[-1] == len(block)


def test_a_hole_of_nul_bytes_is_left_out_and_told() -> None:
    block = b"a\n" + bytes(50_000_000) + b"b\n\0\0\nc\n"
    lines = split_lines(block)
    assert lines.pieces() == [b"a", b"b", b"c"]
    assert lines.holes == ((2, 50_000_002), (50_000_004, 50_000_006))
    parsed = LineParser("jsonl", {"i": "int64"})(bytes(1000) + b'{"i":1}\n{"i":2}\n')
    assert good(parsed, "i") == [1, 2] and parsed.holes == ((0, 1000),) and not parsed.bad


def test_log_11_one_broken_line_does_not_take_its_neighbour_with_it() -> None:
    """LOG-11: what is broken is told by line number and place."""
    long = json.dumps({"i": 6, "text": "x" * 30_000_000}).encode()
    lines = [b'{"i":1}', b'{"i":2}', b'{"i":3{"i":4}', b'{"i":4}', b'{"i":"\xff"}', long, b"", b'{"i":8}']
    block = b"\n".join(lines) + b"\n"
    parsed = LineParser("jsonl", {"i": "int64"})(block)
    assert good(parsed, "i") == [1, 2, 4, 6, 8]
    assert [int(parsed.numbers[i]) + 1 for i in sorted(parsed.bad)] == [3, 5]
    assert [block[parsed.starts[i] :].split(b"\n")[0] for i in sorted(parsed.bad)] == [lines[2], lines[4]]
    assert "no JSON" in str(parsed.bad[2]) and "no UTF-8" in str(parsed.bad[4])


def test_log_10_types_come_from_the_first_lines_and_hold_for_all() -> None:
    """LOG-10: null first and text later is no error; other fields are left out, and told once."""
    first = b'{"a":null}\n' * 5000
    rest = b'{"a":"x"}\n{"b":1}\n{"a":"y","b":2,"c":[1]}\n'
    parser = LineParser("jsonl").inferred([first])
    assert parser.fields == {"a": FieldType.parse("json")}
    assert listed(parser(first).columns["a"]) == [None] * 5000
    parsed = parser(rest)
    assert listed(parsed.columns["a"]) == ["x", None, "y"] and [*parsed.columns] == ["a"]
    assert parsed.others == ("b", "c") and not parsed.bad
    assert parser(rest).others == ()


def test_fields_that_were_declared_are_all_that_is_read_and_the_rest_is_no_news() -> None:
    parser = LineParser("jsonl", {"b": "int64"})
    parsed = parser(b'{"a":"x"}\n{"b":1}\n')
    assert [*parsed.columns] == ["b"] and listed(parsed.columns["b"]) == [None, 1] and parsed.others == ()


ODD = [
    # a line, and the value of its field `a`; None: the line is bad
    (b'{"a":1,"a":2}', 2),
    (b'{"a":1}{"a":2}', None),
    (b'{"a":1} {"a":2}', None),
    (b'{"a":1},{"a":2}', None),
    (b'  {"a":1}\t', 1),
    (b'{"\\u0061":1}', 1),
    (b'{"a":NaN}', "nan"),
    (b'{"a":-Infinity}', float("-inf")),
    (b'{"a":1e400}', float("inf")),
    (b'{"a":18446744073709551616}', 2**64),
    (b'{"a":-123456789012345678901234567890}', -123456789012345678901234567890),
    (b'{"a":1.0}', 1.0),
    (b'{"a":01}', None),
    (b'{"a":1,}', None),
    (b"{'a':1}", None),
    (b'{"a":"\\ud800"}', None),
    (b'{"a":"\\ud83d\\ude00"}', "😀"),
    (b'{"b":"\\udc00","a":1}', None),
    (b'{"b":"\xff","a":1}', None),
    (b'{"a":"\xed\xa0\x80"}', None),
    (b'{"a":"x\ty"}', None),
    (b'{"a":"\x7f"}', "\x7f"),
    (b'{"a":"x\0y"}', None),
    (b'{"a":1}\0', None),
    (b'{"a":{"b":[1,{}]}}', {"b": [1, {}]}),
    (b"[1]", None),
    (b"null", None),
    (b"1", None),
    (b"{", None),
    (b"}", None),
    (b'{"a":', None),
    (b"{}", "nothing"),
    (b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}", None),
]


@pytest.mark.parametrize(("line", "value"), ODD, ids=[str(line[:20]) for line, _ in ODD])
def test_odd_lines_are_read_as_python_reads_them_or_are_bad(line: bytes, value: Any) -> None:
    for ends in (b"\n", b"\r\n"):
        block = ends.join([b'{"a":"before"}', line, b'{"a":"behind"}', b""])
        parsed = LineParser("jsonl", {"a": "json"})(block)
        values = listed(parsed.columns["a"])
        assert values[::2] == ["before", "behind"] and len(parsed) == 3
        assert list(parsed.bad) == ([1] if value is None else [])
        if value == "nan":
            assert values[1] != values[1]
        elif value is not None:
            assert values[1] == (None if value == "nothing" else value)
            assert type(values[1]) is type(value) or value == "nothing"


def test_an_object_over_several_lines_is_no_line() -> None:
    """As many objects as lines is not enough: these are two, on two lines."""
    for text in ('{"a":1}{"a":\n2}', '{"a":1}{"b":{}\n,"a":2}', '{"a":1}{"b":{}\n}'):
        parsed = LineParser("jsonl", {"a": "int64"})(text.encode())
        assert sorted(parsed.bad) == [0, 1]


NAMES = st.sampled_from(["a", "b", "ä", 'q"', "back\\slash", "", "x y", "new\nline"])
TYPES = (
    "int64",
    "uint8",
    "float32",
    "float64",
    "bool",
    "str",
    "json",
    "int32[]",
    "float32[2]",
    "timestamp[ms]",
    "bytes",
)
SCALARS = (
    st.none() | st.booleans() | st.integers(-300, 300) | st.integers() | st.floats() | st.text(max_size=4)
    | st.sampled_from(["2024-01-01T00:00:00Z", "YWJj", 2**63, -(2**63), 2**64, 1e300, 10**400])
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=2), max_leaves=4
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=4)


@st.composite
def json_lines(draw: st.DrawFn) -> bytes:
    """A line, mostly one good object, as any writer may write it, and maybe damaged."""
    text = json.dumps(
        draw(OBJECTS),
        ensure_ascii=draw(st.booleans()),
        separators=draw(st.sampled_from([(",", ":"), (", ", ": ")])),
    )
    line = text.encode("utf-8", "surrogatepass")
    how = draw(st.integers(0, 11))
    place = draw(st.integers(0, len(line)))
    if how == 0:
        line = line[:place]
    elif how == 1:
        line = (
            line[:place]
            + draw(st.sampled_from([b"{", b"}", b'"', b"\xff", b"\0", b",", b" ", b"\r", b"1", BOM]))
            + line[place:]
        )
    elif how == 2:
        line += line
    return line


@given(
    lines=st.lists(json_lines(), max_size=6),
    types=st.dictionaries(NAMES, st.sampled_from(TYPES), min_size=1, max_size=4),
    line_end=st.sampled_from([b"\n", b"\r\n"]), whole=st.booleans(), tell=st.booleans(),
)  # fmt: skip
def test_a_block_gives_what_its_lines_give(
    lines: list[bytes], types: dict[str, str], line_end: bytes, whole: bool, tell: bool
) -> None:
    """The way for whole blocks, the way line by line, and Python's own reader agree on values and on bad lines."""
    block = line_end.join(lines) + (line_end if whole else b"")
    parser = LineParser("jsonl", types, tell=tell)
    parsed = parser(block)
    split = split_lines(block)
    kinds = {name: FieldType.parse(text) for name, text in types.items()}
    reader = JsonReader(kinds, tell=False)
    rows, bad = reader._one_by_one(split)  # what all other ways are held against
    assert {i for i, error in parsed.bad.items() if "field" not in error.where} == set(bad)
    assert set(bad) == {i for i, piece in enumerate(split.pieces()) if python(piece) is None}
    for i, piece in enumerate(split.pieces()):
        alone = parser(piece)
        assert [str(error) for error in alone.bad.values()] == [str(e) for k, e in parsed.bad.items() if k == i]
        if i not in parsed.bad:
            for name in types:
                value = listed(parsed.columns[name])[i]
                assert repr(value) == repr(listed(alone.columns[name])[0])
                if types[name] == "json":
                    assert repr(value) == repr((python(piece) or {}).get(name))
    assert len(rows) == len(parsed)


def python(line: bytes) -> dict[str, Any] | None:
    """What Python's reader makes of a line; None for what is no object of Unicode text."""
    try:
        value = json.loads(line.decode())
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


NUMBERS = {
    "int64": st.integers(-(2**63), 2**63 - 1) | st.just(2**63), "uint8": st.integers(0, 256),
    "int16": st.integers(-(2**15), 2**15), "uint64": st.integers(0, 2**64), "bool": st.booleans(),
    "float64": st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.sampled_from([10**400, -0.0]),
    "float32": st.floats(allow_nan=False, allow_infinity=False) | st.integers(),
    "float16": st.floats(-1e5, 1e5) | st.integers(),
}  # fmt: skip


@given(st.data())
def test_numbers_that_are_not_looked_at_again_are_the_same(data: st.DataObject) -> None:
    types = {
        name: FieldType.parse(name) for name in data.draw(st.sets(st.sampled_from(sorted(NUMBERS)), min_size=1))
    }
    objects = data.draw(st.lists(st.fixed_dictionaries({name: NUMBERS[name] for name in types}), max_size=5))
    lines = split_lines("\n".join(map(json.dumps, objects)).encode())
    quick, careful = JsonReader(types, tell=False), JsonReader(types, tell=False)
    careful._patience = 0
    found = quick.at_once(lines)
    assert (found is not None and found.way.typed) or any(10**400 in one.values() for one in objects)
    one, two = quick.read(lines), careful.read(lines)
    assert {i: str(error) for i, error in one.bad.items()} == {i: str(error) for i, error in two.bad.items()}
    for name, type in types.items():
        made, same = one.columns[name], two.columns[name]
        assert isinstance(made, ArrayColumn) and isinstance(same, ArrayColumn)
        assert made.values.dtype == same.values.dtype == type.dtype
        kept = [i for i in range(len(lines)) if i not in one.bad]
        assert repr(made.values[kept].tolist()) == repr(same.values[kept].tolist())


def way(reader: JsonReader, block: bytes) -> tuple[bool, bool] | None:
    """How a block is read: (its numbers are not looked at again, it has no further fields); None: line by line."""
    found = reader.at_once(split_lines(block))
    assert found is None or len(found.rows) == block.count(b"\n")
    return None if found is None else tuple(found.way)


def test_a_good_block_is_read_at_once_and_a_broken_one_is_not() -> None:
    reader = JsonReader({"a": FieldType.parse("int64")}, tell=False)
    block = b"".join(b'{"a":%d,"z":[{}]}\n' % i for i in range(10))
    assert way(reader, block) == (True, False)
    for broken in (b'{"a":1}{"a":2}\n', b'{"a":NaN}\n', b'{"z":"\xff"}\n', b"\0{}\n", BOM + b"{}\n", b"5\n"):
        assert way(reader, block + broken + block) is None
    odd = JsonReader({"a": FieldType.parse("int64"), 'q"': FieldType.parse("str")}, tell=False)
    assert way(odd, block) == (False, False) and way(odd, block + b'{"a":NaN}\n') is None


def test_numbers_are_looked_at_where_some_are_lacking() -> None:
    reader = JsonReader({"a": FieldType.parse("int64"), "f": FieldType.parse("float32")}, tell=True)
    full, lacks, more = b'{"a":1,"f":2}\n', b'{"a":1}\n', b'{"a":1,"f":1.5,"z":0}\n'
    assert way(reader, full * 3) == (True, True)
    assert way(reader, full + lacks) == (False, True)
    assert way(reader, full + more) == (False, False)
    assert way(reader, full + b'{"a":null,"f":1.5}\n') == (False, True)
    assert way(reader, full) == (False, True), "it goes on to expect what came three times"


def test_a_value_of_another_type_is_bad_and_names_field_and_value() -> None:
    parsed = LineParser("jsonl", {"n": "int64", "s": "str"})(b'{"n":1,"s":"a"}\n{"n":"1","s":2}\n{"n":3,"s":"c"}')
    assert good(parsed, "n") == [1, 3] and good(parsed, "s") == ["a", "c"]
    (error,) = parsed.bad.values()
    assert str(error).startswith("field s: int 2 is no str") or str(error).startswith(
        "field n: str '1' is no int64"
    )


def test_fields_are_inferred_from_the_good_lines() -> None:
    parser = LineParser("jsonl").inferred([b'{"a":1}\n{"a":\n', b'[1]\n{"b":"x","a":2.5}\n'])
    assert {name: str(kind) for name, kind in (parser.fields or {}).items()} == {"a": "float64", "b": "str"}
    assert parser.inferred([b'{"c":1}']) is parser
    for nothing in ([], [b""], [b"{}\n5\n"]):
        with pytest.raises(UsageError, match="Declare them"):
            LineParser("jsonl").inferred(nothing)
    with pytest.raises(UsageError, match="inferred"):
        LineParser("jsonl")(b"{}")


def test_text_lines_are_kept_as_they_are() -> None:
    parsed = LineParser("text")("  in  \r\nä\t\n \n\x0bend".encode())
    assert listed(parsed.columns["text"]) == ["  in  ", "ä\t", "\x0bend"]
    broken = LineParser("text")(b"a\n\xff\nc\n")
    assert good(broken, "text") == ["a", "c"] and list(broken.bad) == [1]
    raw = LineParser("text", {"raw": "bytes"})(b"a\n\xff\n")
    assert listed(raw.columns["raw"]) == [b"a", b"\xff"] and not raw.bad
    assert isinstance(raw.columns["raw"], ListColumn)


LOG = r"(?P<level>[A-Z]+) (?P<ms>\S+)(?: (?P<user>\w+))?"


def test_an_expression_gives_its_groups() -> None:
    parser = LineParser(LOG)
    assert {name: str(kind) for name, kind in (parser.fields or {}).items()} == {
        "level": "str",
        "ms": "str",
        "user": "str",
    }
    parsed = parser(b"INFO 12 bob\nINFO 7\noops\n")
    assert good(parsed, "user") == ["bob", None] and good(parsed, "ms") == ["12", "7"]
    assert list(parsed.bad) == [2] and "'oops' does not match" in str(parsed.bad[2])
    again = LineParser(re.compile(LOG, re.IGNORECASE), {"ms": "int32"})
    assert good(again(b"info 12\n"), "ms") == [12] and [*again(b"").columns] == ["ms"]


@pytest.mark.parametrize(
    ("type", "text", "value"),
    [
        ("int64", "12", 12), ("int64", "-3", -3), ("int64", "1_000", None), ("int64", "1.0", None),
        ("int64", "٣", None), ("uint8", "256", None), ("float32", "1e3", 1000.0), ("float64", "x", None),
        ("bool", "true", True),
        ("str", "12", "12"), ("bytes", "ab", b"ab"), ("json", "[1]", b"[1]"), ("timestamp[s]", "1970-01-02", 86400),
        ("timestamp[s]", "now", None),
    ],
)  # fmt: skip
def test_declared_groups_are_read_from_their_text(type: str, text: str, value: Any) -> None:
    parsed = LineParser(r"(?P<x>\S+)", {"x": type})(f"{text}\n".encode())
    assert (listed(parsed.columns["x"])[0] if not parsed.bad else None) == value
    assert bool(parsed.bad) == (value is None)
    if parsed.bad:
        assert text in str(parsed.bad[0]) and parsed.bad[0].where["field"] == "x"


def halves(line: str) -> dict[str, Any] | None:
    if line == "comment":
        return None
    left, right = line.split("=")
    return {"name": left, "value": int(right)}


def sizes(line: bytes) -> dict[str, Any]:
    return {"size": len(line), "first": line[:1]}


def test_a_function_gives_fields_or_leaves_a_line_out() -> None:
    block = b"comment\na=1\ncomment\n\nb=x\nc=3\ncomment\n"
    parser = LineParser(halves).inferred([block])
    parsed = parser(block)
    assert good(parsed, "name") == ["a", "c"] and good(parsed, "value") == [1, 3]
    assert parsed.numbers.tolist() == [1, 4, 5] and list(parsed.bad) == [1]
    assert parsed.ends.tolist() == [block.index(b"b="), block.index(b"c="), len(block)]
    assert isinstance(parsed.bad[1], TransformError) and isinstance(parsed.bad[1].__cause__, ValueError)
    assert len(parser(b"comment\n")) == 0 and parser(b"comment\n").columns["value"].values.dtype == np.int64  # type: ignore[union-attr]


def test_a_function_whose_parameter_is_bytes_gets_bytes() -> None:
    parsed = LineParser(sizes, {"size": "int64", "first": "bytes"})(b"\xff\xfe\nab")
    assert good(parsed, "size") == [2, 2] and good(parsed, "first") == [b"\xff", b"a"]
    by_text = LineParser(halves, {"value": "int64"})(b"\xff\na=1")
    assert list(by_text.bad) == [0] and good(by_text, "value") == [1]


@pytest.mark.parametrize("result", [5, "text", [("a", 1)]])
def test_a_function_that_returns_no_dict_makes_a_bad_line(result: Any) -> None:
    parsed = LineParser(lambda line: result, {"a": "int64"})(b"x\n")
    assert "returned" in str(parsed.bad[0]) and "Return a dict" in str(parsed.bad[0])


def test_a_missing_package_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgspec", None)
    with pytest.raises(MissingExtra, match=r"reading logs needs .*'msgspec'.*pip install 'streamio\[logs\]'"):
        LineParser("jsonl", {"a": "int64"})
    LineParser("text")


@pytest.mark.parametrize(
    ("parse", "fields", "message"),
    [
        ("json", None, "without named groups"),
        (r"(?P<a", None, "no regular expression"),
        (rb"(?P<a>.)", None, "named groups|bytes"),
        (5, None, "parse=5"),
        (None, None, "parse=None"),
        (LOG, {"lvl": "str"}, "no group of this name.*level, ms, user"),
        (LOG, {"ms": "int32[]"}, "groups of an expression are text"),
        ("text", {"a": "str", "b": "str"}, "It has one"),
        ("text", {"a": "int64"}, "gives text"),
        ("jsonl", {"a": "integer"}, "field a: 'integer' is no type"),
        ("jsonl", {}, "fields="),
        ("jsonl", ["a"], "fields="),
    ],
)
def test_what_cannot_be_parsed_is_refused_at_once(parse: Any, fields: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        LineParser(parse, fields)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LineParser("jsonl").inferred([b'{"a":1}']),
        lambda: LineParser(LOG, {"ms": "int32"}),
        lambda: LineParser("text"),
        lambda: LineParser(halves, {"value": "int64"}),
    ],
)
def test_a_parser_travels_to_another_process(make: Callable[[], LineParser]) -> None:
    parser = make()
    parser(b'{"a":1}\n')
    again = pickle.loads(pickle.dumps(parser))
    assert again.fields == parser.fields
    block = b'INFO 12\n{"a":1,"b":2}\nv=3\n'
    one, two = parser(block), again(block)
    assert {n: listed(c) for n, c in one.columns.items()} == {n: listed(c) for n, c in two.columns.items()}
    assert one.others == two.others
