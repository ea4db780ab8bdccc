"""FieldType: what the values of one field of a source are, as a user writes it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

import numpy as np

from streamio.batching.decode import NUMBER_CODECS
from streamio.codecs import BYTES, codec_for
from streamio.errors import UsageError
from streamio.shards.manifest import FieldSpec
from streamio.shards.uniform import is_plain

Kind: TypeAlias = Literal["number", "list", "time", "text", "json", "bytes"]

_UNITS = {"s": 1_000_000, "ms": 1000, "us": 1}
_WRITTEN = re.compile(r"\s*([A-Za-z][\w.]*)\s*(?:\[([\w\s,]*)\])?\s*")
_KINDS_OF_NUMBER = {"b": "bool", "i": "int", "u": "int", "f": "float"}
_HINT = (
    'Use a number such as "int64", "float32" or "bool", with its shape as in "float32[3,4]" or "int32[]" (any '
    'length), "timestamp[us]", "str", "bytes", "json", or a kind of file such as "jpg"'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldType:
    """The type of a field of a source.

    | written | values | in a batch |
    | --- | --- | --- |
    | `int64`, `uint8`, `float32`, `bool`, … | numbers | tensor (n,) |
    | `float32[3,4]` | nested lists of this shape | tensor (n, 3, 4) |
    | `int32[]` | lists of any length | arrays; `collate=` joins them |
    | `timestamp[us]`, `[ms]`, `[s]` | moments | int64 (n,): microseconds, … since 1970 in UTC |
    | `str` | text | list of str |
    | `json` | any value | list |
    | `bytes` | bytes | list of bytes |
    | `jpg`, `npy`, … | the bytes of a file of this kind | what they decode to |

    kind:  number (of one shape), list (numbers of any length), time, text, json, bytes (files too).
    codec: name of the codec that decodes it, in a batch.
    dtype: of numbers, in the byte order of the machine; int64 for time.
    shape: of one value; None where there is none, or any.
    unit:  microseconds of one unit of a time; 0 for others.
    """

    text: str
    kind: Kind
    codec: str
    dtype: np.dtype[np.generic] | None = None
    shape: tuple[int, ...] | None = None
    unit: int = 0

    def __str__(self) -> str:
        return self.text

    @classmethod
    def parse(cls, text: str | Self) -> Self:
        """A type from its text; one that is a type already as it is. Raises UsageError for what is none."""
        if not isinstance(text, str):
            if isinstance(text, cls):
                return text
            raise UsageError(f"{text!r} is no type of a field", fix=_HINT)
        match = _WRITTEN.fullmatch(text)
        if match is None:
            raise UsageError(f"{text!r} is no type of a field", fix=_HINT)
        name, inner = match[1], match[2]
        if name == "timestamp" and (inner or "").strip() in _UNITS:
            return cls(
                text=f"timestamp[{inner.strip()}]", kind="time", codec="int", dtype=np.dtype(np.int64), shape=(),
                unit=_UNITS[inner.strip()],
            )  # fmt: skip
        if inner is None:
            plain = {"str": ("text", "text"), "json": ("json", "json"), "bytes": ("bytes", "bytes")}.get(name)
            if plain is not None:
                return cls(text=name, kind=plain[0], codec=plain[1])  # type: ignore[arg-type]
            if codec_for(name) is not BYTES and codec_for(name).name not in NUMBER_CODECS | {"text"}:
                return cls(text=name, kind="bytes", codec=codec_for(name).name)
        return cls._of_numbers(text, name, inner)

    @classmethod
    def _of_numbers(cls, text: str, name: str, inner: str | None) -> Self:
        dtype = _number_dtype(name)
        sizes = [] if inner is None or not inner.strip() else [part.strip() for part in inner.split(",")]
        if dtype is None or not all(size.isdecimal() and int(size) > 0 for size in sizes):
            raise UsageError(f"{text!r} is no type of a field", fix=_HINT)
        if inner is not None and not sizes:
            return cls(text=f"{dtype.name}[]", kind="list", codec="npy", dtype=dtype)
        shape = tuple(map(int, sizes))
        if shape:
            written = f"{dtype.name}[{','.join(map(str, shape))}]"
            return cls(text=written, kind="number", codec="npy", dtype=dtype, shape=shape)
        return cls(text=dtype.name, kind="number", codec=_KINDS_OF_NUMBER[dtype.kind], dtype=dtype, shape=())

    def spec(self, name: str) -> FieldSpec:
        """What batching needs to know of a field of this type and name."""
        if self.dtype is None or self.shape is None:
            return FieldSpec(stored=name, codec=self.codec, samples=0)
        dtype = self.dtype.newbyteorder("<").str
        return FieldSpec(stored=name, codec=self.codec, dtype=dtype, shape=self.shape, samples=0)

    @property
    def elements(self) -> int:
        """Numbers in one value; 1 where there are none, or any."""
        return math.prod(self.shape or ())


def _number_dtype(name: str) -> np.dtype[np.generic] | None:
    """The dtype of this name, of one real number with a size that is the same everywhere."""
    if name in ("str", "bytes", "object", "int", "uint", "float", "long", "ulong"):
        return None if name not in ("int", "float") else np.dtype({"int": np.int64, "float": np.float64}[name])
    try:
        dtype = np.dtype(name)
    except TypeError:
        return None
    return dtype if dtype.kind in _KINDS_OF_NUMBER and is_plain(dtype.newbyteorder("<")) else None


def parse_fields(fields: object) -> dict[str, FieldType]:
    """{name: type text} as types. Raises UsageError, naming the field, for what is none."""
    if not isinstance(fields, Mapping) or not fields or not all(isinstance(name, str) for name in fields):
        raise UsageError(f"fields={fields!r}", fix='Give {name: type}, such as {"text": "str", "label": "int64"}')
    types: dict[str, FieldType] = {}
    for name, text in fields.items():
        try:
            types[name] = FieldType.parse(text)
        except UsageError as error:
            error.where.setdefault("field", name)
            raise
    return types
