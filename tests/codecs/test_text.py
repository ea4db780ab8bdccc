"""JSON, text and numbers: exact both ways, refused where they would change."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streamio.codecs import codec_for
from streamio.errors import DecodeError, UsageError

JSON, TEXT, INT, FLOAT, BOOL = map(codec_for, ("json", "txt", "cls", "float", "bool"))

UNICODE = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | UNICODE,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(UNICODE, inner, max_size=4),
)


@given(VALUES)
def test_json_comes_back_exactly(value: Any) -> None:
    data = JSON.encode(value)
    assert JSON.decode(data) == value and json.loads(data) == value
    assert repr(JSON.decode(memoryview(data))) == repr(value)  # 1 is not 1.0, True is not 1


@pytest.mark.parametrize("number", [2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**30])
def test_whole_numbers_of_any_length_stay_exact(number: int) -> None:
    assert JSON.decode(JSON.encode({"a": [number]})) == {"a": [number]}
    assert INT.decode(INT.encode(number)) == number


def test_json_of_other_writers_is_read_generously() -> None:
    assert math.isnan(JSON.decode(b'{"a": NaN}')["a"])
    assert JSON.decode(b"[-Infinity]") == [-math.inf]
    assert JSON.decode(b"\xef\xbb\xbf {} \n") == {}


def test_numpy_and_tuples_become_plain_json() -> None:
    value = {
        "a": np.float32(0.5),
        "b": np.arange(3),
        "c": (1, np.int64(2)),
        "d": np.bool_(True),
        "e": torch.ones(2),
    }
    assert JSON.encode(value) == b'{"a":0.5,"b":[0,1,2],"c":[1,2],"d":true,"e":[1.0,1.0]}'


@pytest.mark.parametrize(
    "value",
    [math.nan, [math.inf], {"a": np.float32("nan")}, {1: 2}, {"a": {3}}, [b"x"], ..., [1j], "\ud800"],
    ids=repr,
)
def test_json_refuses_what_it_would_change(value: Any) -> None:
    with pytest.raises(UsageError):
        JSON.encode(value)


def test_json_refuses_lists_within_themselves() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UsageError, match="nested too deep"):
        JSON.encode(endless)
    with pytest.raises(DecodeError):
        JSON.decode(b"[" * 100_000)


@pytest.mark.parametrize("data", [b"", b"{", b"[1,2", b"abc", b"\xff\xfe{", b"1" * 5000, b"nul"])
def test_broken_json_shows_its_start(data: bytes) -> None:
    with pytest.raises(DecodeError, match=rf"no JSON .*{len(data):,} bytes, b'"):
        JSON.decode(data)


@given(UNICODE)
def test_text_comes_back_exactly(text: str) -> None:
    assert TEXT.decode(memoryview(TEXT.encode(text))) == text


def test_text_refuses_other_bytes_and_other_types() -> None:
    with pytest.raises(DecodeError, match=r"no text in UTF-8 .* at byte 3\): 44 bytes, b'caf\\xe9a+'…"):
        TEXT.decode(b"caf\xe9" + b"a" * 40)
    for value in (5, None, ["a"], "\udcff"):
        with pytest.raises(UsageError):
            TEXT.encode(value)


@pytest.mark.parametrize("field", ["cls", "cls2", "class", "count", "index", "inx", "id", "int", "x.INT"])
def test_whole_numbers_as_webdataset_names_them(field: str) -> None:
    assert codec_for(field).encode(3) == b"3" and codec_for(field).decode(b"3") == 3
    assert codec_for(field).peek(b"3\n") == {"": 3}


@given(st.integers())
def test_whole_numbers_come_back(number: int) -> None:
    data = INT.encode(number)
    assert INT.decode(data) == number
    assert INT.peek(data) == ({"": number} if -(2**63) <= number < 2**63 else {})


@given(st.floats())
def test_numbers_come_back(number: float) -> None:
    data = FLOAT.encode(number)
    assert repr(FLOAT.decode(data)) == repr(number) and repr(FLOAT.peek(data)[""]) == repr(number)


@given(st.floats(width=32))
def test_single_precision_comes_back(number: float) -> None:
    back = np.float32(FLOAT.decode(FLOAT.encode(np.float32(number))))
    assert np.array_equal(back, np.float32(number), equal_nan=True)


@pytest.mark.parametrize(
    ("codec", "data", "value"),
    [
        (INT, b" 12\r\n", 12),
        (INT, b"-7", -7),
        (INT, b"+7", 7),
        (INT, b"007", 7),
        (FLOAT, b"1e-3\n", 0.001),
        (FLOAT, b" .5", 0.5),
        (FLOAT, b"3", 3.0),
        (BOOL, b"1\n", True),
        (BOOL, b"False", False),
        (BOOL, b" TRUE ", True),
        (BOOL, b"0", False),
    ],
)
def test_blanks_and_line_ends_around_numbers_are_allowed(codec: Any, data: bytes, value: Any) -> None:
    assert codec.decode(memoryview(data)) == value and type(codec.decode(data)) is type(value)
    assert codec.peek(data) == {"": value}


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (INT, b""), (INT, b"1_000"), (INT, b"1.0"), (INT, b"cat"), (INT, b"1 2"), (INT, "٣".encode()),
        (INT, b"9" * 5000),
        (FLOAT, b""), (FLOAT, b"1_0.5"), (FLOAT, b"1,5"), (FLOAT, b"\xff"),
        (BOOL, b""), (BOOL, b"2"), (BOOL, b"yes"), (BOOL, b"truee"),
    ],
)  # fmt: skip
def test_what_is_no_number_is_an_error_that_shows_it(codec: Any, data: bytes) -> None:
    assert codec.peek(data) == {}
    with pytest.raises(DecodeError, match=r"not (a whole number|a number|0, 1, true or false): .* bytes, b['\"]"):
        codec.decode(data)


@pytest.mark.parametrize(
    ("codec", "value", "data"),
    [
        (INT, True, b"1"),
        (INT, np.uint8(200), b"200"),
        (INT, torch.tensor(5), b"5"),
        (INT, np.array(6), b"6"),
        (FLOAT, 3, b"3.0"),
        (FLOAT, np.float16(0.5), b"0.5"),
        (FLOAT, torch.tensor(0.5), b"0.5"),
        (BOOL, np.bool_(False), b"0"),
        (BOOL, 1, b"1"),
        (BOOL, torch.tensor(True), b"1"),
        (INT, b"raw", b"raw"),
    ],
)
def test_numbers_of_numpy_and_torch_are_taken(codec: Any, value: Any, data: bytes) -> None:
    assert codec.encode(value) == data


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (INT, 1.0), (INT, "3"), (INT, None), (INT, np.arange(2)), (INT, torch.ones(1)), (INT, [1]),
        (FLOAT, "0.5"), (FLOAT, 2**53 + 1), (FLOAT, 1j), (FLOAT, np.zeros(1)),
        (BOOL, 2), (BOOL, 0.0), (BOOL, "true"), (BOOL, None),
    ],
)  # fmt: skip
def test_numbers_that_would_change_are_refused(codec: Any, value: Any) -> None:
    with pytest.raises(UsageError, match=r"a field of this name holds .*, not "):
        codec.encode(value)
