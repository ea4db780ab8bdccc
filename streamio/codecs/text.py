"""JSON, text, and single numbers as text (`cls`)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from streamio.codecs.base import Data, Scalar
from streamio.errors import DecodeError, UsageError

_SHOWN = 40


class JsonCodec:
    """Any JSON value.

    Written as strict JSON in UTF-8: NaN and infinity are refused, numpy numbers and arrays become plain
    ones, tuples lists. Read as generously as Python reads it: NaN, Infinity and a byte order mark pass, and
    whole numbers of any length stay exact.
    """

    name = "json"
    extensions = ("json",)

    def encode(self, value: Any) -> bytes:
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        try:
            return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":")).encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"text that is not Unicode: {error}", fix="Replace the lone surrogates") from error
        except RecursionError as error:
            raise UsageError("lists or dicts nested too deep, or within themselves", fix="Flatten them") from error

    def decode(self, data: Data) -> Any:
        try:
            if is_exact_in_orjson(bytes(data)):
                return orjson.loads(data)
        except ValueError:
            pass  # it is stricter than Python, whose writer makes NaN of NaN
        try:
            return json.loads(bytes(data))
        except (ValueError, RecursionError) as error:
            raise _bad(data, f"no JSON ({error})") from error

    def peek(self, data: Data) -> dict[str, Scalar]:
        return {}


class TextCodec:
    """Text in UTF-8, exactly as it is: line ends and a byte order mark stay."""

    name = "text"
    extensions = ("txt", "text", "transcript")

    def encode(self, value: Any) -> bytes:
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        if not isinstance(value, str):
            raise UsageError(f"a text field cannot hold {_words(value)}", fix="Give str(value), or name it x.json")
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"text that is not Unicode: {error}", fix="Replace the lone surrogates") from error

    def decode(self, data: Data) -> str:
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise _bad(data, f"no text in UTF-8 ({error.reason} at byte {error.start:,})") from error

    def peek(self, data: Data) -> dict[str, Scalar]:
        return {}


@dataclass(frozen=True)
class NumberCodec:
    """One number as text; blanks and line ends around it are allowed.

    plain: value -> number, None if it cannot be stored without a change.
    write, read: number -> text, text -> number (ValueError if it is none).
    holds: what it holds, for messages.
    """

    name: str
    extensions: tuple[str, ...]
    plain: Callable[[Any], Scalar | None]
    write: Callable[[Any], str]
    read: Callable[[bytes], Scalar]
    holds: str

    def encode(self, value: Any) -> bytes:
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        number = self.plain(_item(value))
        if number is None:
            raise UsageError(
                f"a field of this name holds {self.holds}, not {_words(value)}",
                fix="Give the field another name, or one that says what it holds: x.npy, x.txt, x.json",
            )
        return self.write(number).encode()

    def decode(self, data: Data) -> Scalar:
        try:
            return self.read(bytes(data).strip())
        except ValueError:
            raise _bad(data, f"not {self.holds}") from None

    def peek(self, data: Data) -> dict[str, Scalar]:
        """The number under ""; {} for whole numbers that a column of 64 bits cannot hold."""
        if len(data) > 1024:
            return {}
        try:
            value = self.decode(data)
        except DecodeError:
            return {}
        return {"": value} if isinstance(value, float) or -(2**63) <= value < 2**63 else {}


def _plain_int(value: Any) -> int | None:
    return int(value) if isinstance(value, int | np.integer) else None


def _plain_float(value: Any) -> float | None:
    if isinstance(value, float | np.floating):
        return float(value)
    if isinstance(value, int | np.integer) and abs(int(value)) <= 2**53:
        return float(value)
    return None


def _plain_bool(value: Any) -> bool | None:
    return bool(value) if isinstance(value, bool | int | np.bool_ | np.integer) and value in (0, 1) else None


def _read_int(text: bytes) -> int:
    if not _WHOLE.fullmatch(text):  # int() would take 1_000 as well
        raise ValueError
    return int(text)


def _read_float(text: bytes) -> float:
    if b"_" in text:
        raise ValueError
    return float(text)


def _read_bool(text: bytes) -> bool:
    try:
        return {b"0": False, b"1": True, b"false": False, b"true": True}[text.lower()]
    except KeyError:
        raise ValueError from None


_WHOLE = re.compile(rb"[+-]?[0-9]+")


def is_exact_in_orjson(data: bytes) -> bool:
    """Whether orjson reads these JSON texts as they are.

    It makes floats of whole numbers beyond 64 bits, so 19 digits in a row go the slow way.
    """
    return _LONG not in data.translate(_DIGITS)


_DIGITS = bytes(48 if 48 <= byte < 58 else 32 for byte in range(256))
_LONG = b"0" * 19

JSON = JsonCodec()
TEXT = TextCodec()
INT = NumberCodec(
    "int", ("int", "cls", "cls2", "class", "count", "index", "inx", "id"),
    _plain_int, str, _read_int, "a whole number",
)  # fmt: skip
FLOAT = NumberCodec("float", ("float", "score"), _plain_float, repr, _read_float, "a number")
BOOL = NumberCodec(
    "bool", ("bool",), _plain_bool, lambda value: "1" if value else "0", _read_bool, "0, 1, true or false"
)
TEXTS = (JSON, TEXT, INT, FLOAT, BOOL)


def _item(value: Any) -> Any:
    """What a numpy number, an array or tensor of no dimensions holds; other values as they are."""
    if isinstance(value, np.generic):
        return value
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def _plain(value: Any) -> Any:
    """A JSON value without numpy and tuples. Raises UsageError for what JSON would change or cannot hold."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        raise UsageError(f"JSON has no {value}", fix="Use None, or a field x.npy")
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy arrays and numbers, tensors
        return _plain(value.tolist())
    if isinstance(value, dict):
        odd = next((key for key in value if not isinstance(key, str)), None)
        if odd is not None:
            raise UsageError(f"JSON has only text as keys, not {odd!r}", fix="Use str(key)")
        return {key: _plain(item) for key, item in value.items()}
    raise UsageError(f"JSON cannot hold {_words(value)}", fix="Give it a field of its own")


def _words(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if shape is not None and hasattr(value, "dtype"):
        return f"an array of {value.dtype} {tuple(shape)}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}"


def _bad(data: Data, what: str) -> DecodeError:
    start = bytes(data[:_SHOWN])
    more = "…" if len(data) > _SHOWN else ""
    return DecodeError(f"{what}: {len(data):,} bytes, {start!r}{more}", fix="Correct the file, or leave it out")
