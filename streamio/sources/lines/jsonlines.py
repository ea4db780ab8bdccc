"""JSON lines -> columns: a whole block at once, or line by line where one of them is broken.

All ways give the same. The quickest is for blocks in which every field of numbers has one in every line: the
decoder checks the types, and nobody looks at the values again. The next takes any values. The last is for blocks
with lines that are broken, or that Python reads and the decoder does not; it uses that decoder for each line that
it takes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter, methodcaller
from typing import Any, NamedTuple

import numpy as np

from streamio.errors import DecodeError
from streamio.extras import extra
from streamio.sources.fields import FieldType, from_values, infer, shortened
from streamio.sources.lines.readers import FIX_LINE, Decoded, not_utf8
from streamio.sources.lines.split import Lines
from streamio.sources.values import Bad, from_numbers
from streamio.types import Column

_PATIENCE = 3
"""Blocks that lack numbers, after which no other one is expected to have them all."""


class JsonReader:
    """One JSON object on each line.

    types: the fields to read; None: they are to be inferred first. tell: whether others are to be told, once.

    A key that comes twice has its last value; a key that is not there and null are no value. NaN, Infinity, numbers
    beyond the largest float and whole numbers of any length are read as Python reads them. Text with lone
    surrogates is no Unicode, and its line is bad.
    """

    def __init__(self, types: Mapping[str, FieldType] | None, *, tell: bool) -> None:
        extra("msgspec", "logs")  # lacking, it is missed now, and not in a worker
        self._types, self._tell, self._patience = types or {}, tell, _PATIENCE

    def infer(self, blocks: Iterable[Lines]) -> dict[str, FieldType]:
        return infer(row for lines in blocks for row in self._objects(lines))

    def read(self, lines: Lines) -> Decoded:
        found = self.at_once(lines)
        rows, bad = (found.rows, Bad()) if found is not None else self._one_by_one(lines)
        others = self._others(lines) if self._tell and (found is None or not found.way.strict) else ()
        columns: dict[str, Column] = {}
        for name, get in self._rows.getters.items():
            type, column = self._types[name], None
            if found is not None and found.way.typed and type in _PLAIN:
                column = from_numbers(map(get, rows), len(rows), type)
            if column is not None:
                columns[name] = column
            else:
                columns[name], misfits = from_values(list(map(get, rows)), type, name)
                bad = {**misfits, **bad}
        return Decoded(columns=columns, bad=bad, others=others)

    @cached_property
    def _rows(self) -> Rows:
        return Rows(self._types)

    def at_once(self, lines: Lines) -> Found | None:
        """The rows of all lines; None where one of them may be broken, or holds more or less than one object.

        Where each line begins with `{` and ends with `}`, no object goes over the end of a line: within one,
        neither follows the other. So as many objects as lines means one on each.
        """
        block = lines.block
        data = np.frombuffer(block, np.uint8)
        if (data[lines.starts] != ord("{")).any() or (data[lines.stops - 1] != ord("}")).any():
            return None
        if lines.holes or not _is_utf8(block):  # the decoder does not look into what it leaves out
            return None
        found = self._rows.decode(block, typed=self._patience > 0, strict=self._tell)
        if found is not None and not found.way.typed:
            self._patience -= 1
        return found if found is not None and len(found.rows) == len(lines) else None

    def _one_by_one(self, lines: Lines) -> tuple[list[Any], Bad]:
        decode, make = self._rows.decoder(_ANY).decode, self._rows.make
        rows: list[Any] = []
        bad: Bad = {}
        for i, piece in enumerate(lines.pieces()):
            try:
                rows.append(_decoded(piece, decode, make))
            except DecodeError as error:
                rows.append(make({}))
                bad[i] = error
        return rows, bad

    def _others(self, lines: Lines) -> Sequence[str]:
        """Names of further fields; from then on none are told."""
        others = sorted({name for row in self._objects(lines) for name in row} - self._types.keys())
        self._tell = not others
        return others

    def _objects(self, lines: Lines) -> Iterator[dict[str, Any]]:
        """All fields of the lines that are good."""
        decode = Rows({}).all_fields.decode
        for piece in lines.pieces():
            try:
                yield _decoded(piece, decode, dict)
            except DecodeError:
                pass


class Way(NamedTuple):
    """How a block is decoded. typed: plain numbers are of their types, and there. strict: no further fields."""

    typed: bool
    strict: bool


class Found(NamedTuple):
    """The rows of a block, and the way that found them."""

    rows: list[Any]
    way: Way


_ANY = Way(typed=False, strict=False)

_PLAIN: dict[FieldType, Any] = {
    **{FieldType.parse(name): int for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")},
    **{FieldType.parse(name): int | float for name in ("float16", "float32", "float64")},
    FieldType.parse("bool"): bool,
}
"""What the decoder is to find, for types of fields whose arrays numpy then fills as it should."""


class Rows:
    """How rows with these fields are held: as objects with slots, less work than dicts of all fields.

    Where a name has signs that msgspec does not take (quotes, backslashes, control characters) they are dicts.
    """

    def __init__(self, types: Mapping[str, FieldType]) -> None:
        extra("msgspec.json", "logs")
        self._msgspec = extra("msgspec", "logs")
        self._types = types
        self._attributes = {f"f{i}": name for i, name in enumerate(types)}
        self._decoders: dict[Way, Any] = {}
        try:
            self._type = self._row_type(_ANY)
        except ValueError:
            self._type = None

    def decode(self, block: bytes, *, typed: bool, strict: bool) -> Found | None:
        """All rows, in the first way that goes; None where none does. typed, strict: whether to try that."""
        strictly = (True, False) if strict else (False,)
        ways = [Way(typed=True, strict=strict)] if typed else []
        for way in [*ways, *(Way(typed=False, strict=one) for one in strictly)]:
            if way != _ANY and self._type is None:
                continue
            try:
                return Found(self.decoder(way).decode_lines(block), way)
            except self._msgspec.ValidationError:
                pass
            except (ValueError, RecursionError):
                return None
        return None

    def decoder(self, way: Way) -> Any:
        if self._type is None:
            return self.all_fields
        if way not in self._decoders:
            self._decoders[way] = self._msgspec.json.Decoder(self._row_type(way))
        return self._decoders[way]

    @cached_property
    def all_fields(self) -> Any:
        """A decoder to dicts."""
        return self._msgspec.json.Decoder(dict[str, Any])

    def _row_type(self, way: Way) -> Any:
        fields: list[Any] = []
        later: list[Any] = []
        for attribute, type in zip(self._attributes, self._types.values(), strict=True):
            if way.typed and type in _PLAIN:
                fields.append((attribute, _PLAIN[type]))  # no default: it has to be there
            else:
                later.append((attribute, Any, None))
        return self._msgspec.defstruct(
            "Row", fields + later, rename=self._attributes, gc=False, forbid_unknown_fields=way.strict
        )

    @cached_property
    def getters(self) -> dict[str, Callable[[Any], Any]]:
        """What gets each field of a row, None where it has none."""
        if self._type is None:
            return {name: methodcaller("get", name) for name in self._types}
        return {name: attrgetter(attribute) for attribute, name in self._attributes.items()}

    def make(self, values: Mapping[str, Any]) -> Any:
        """A row of the values of some fields; others are left out."""
        if self._type is None:
            return values
        return self._type(*[values.get(name) for name in self._types])


def _is_utf8(block: bytes) -> bool:
    if block.isascii():
        return True
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True


def _decoded(piece: bytes, decode: Callable[[bytes], Any], make: Callable[[dict[str, Any]], Any]) -> Any:
    """The row of one line. Raises DecodeError for what is no object in JSON.

    decode: of the bytes, right or not at all. make: a row of the dict that Python's reader gives.
    """
    try:
        text = piece.decode()
        return decode(piece)
    except UnicodeDecodeError as error:
        raise not_utf8(piece, error) from None
    except (ValueError, RecursionError):
        pass  # it is stricter than Python, whose writer makes NaN of NaN
    try:
        value = json.loads(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise DecodeError(f"text with a lone surrogate, in {shortened(piece)}", fix=FIX_LINE) from None
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"no JSON ({error}): {shortened(piece)}", fix=FIX_LINE) from None
    if not isinstance(value, dict):
        raise DecodeError(f"JSON, but no object: {shortened(value)}", fix=FIX_LINE)
    return make(value)
