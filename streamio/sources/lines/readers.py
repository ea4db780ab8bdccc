"""What lines become: text, the groups of a regular expression, what a function returns. JSON: jsonlines.py."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streamio.codecs import codec_named
from streamio.errors import DecodeError, SampleError, TransformError, UsageError
from streamio.sources.fields import FieldType, from_values, infer, shortened
from streamio.sources.lines.split import Lines
from streamio.sources.values import Bad
from streamio.types import Column, ListColumn

FIX_LINE = "Correct the line, or leave such lines out with on_error='skip'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """What lines became: n samples.

    columns: by field, each of n.
    bad:     why a sample has no values, by index; those in the columns are undefined.
    others:  names of fields that were found and left out, if that is to be told.
    kept:    bool, for each line: whether it is a sample; None: all are.
    """

    columns: dict[str, Column]
    bad: Bad
    others: Sequence[str] = ()
    kept: NDArray[np.bool_] | None = None


class LineReader(Protocol):
    """Makes columns of lines. One for each way to parse them."""

    def infer(self, blocks: Iterable[Lines]) -> dict[str, FieldType]:
        """The types of the fields, where they follow from the lines of some blocks; {} where no line is good."""
        ...

    def read(self, lines: Lines) -> Decoded:
        """The columns of all lines."""
        ...


class TextReader:
    """Each line is the value of one field: text, or bytes of any kind."""

    def __init__(self, name: str, type: FieldType) -> None:
        if type.kind not in ("text", "bytes", "json"):
            raise UsageError(
                f"parse='text' gives text, and no {type}", fix='Declare it "str", or "bytes" for what is not UTF-8',
                field=name,
            )  # fmt: skip
        self._name, self._type = name, type

    def infer(self, blocks: Iterable[Lines]) -> dict[str, FieldType]:
        return {self._name: self._type}

    def read(self, lines: Lines) -> Decoded:
        pieces = lines.pieces()
        if self._type.kind != "text":
            return Decoded(columns={self._name: ListColumn([memoryview(piece) for piece in pieces])}, bad={})
        values, bad = as_text(pieces)
        return Decoded(columns={self._name: ListColumn(values)}, bad=bad)


class PatternReader:
    """The named groups of a regular expression that a line has to match from its beginning.

    types: of the groups that are read. Numbers are read from their text; a group that did not take part has no
           value.
    """

    def __init__(self, pattern: re.Pattern[str], types: Mapping[str, FieldType] | None) -> None:
        self._pattern = pattern
        self._types = types if types is not None else dict.fromkeys(pattern.groupindex, FieldType.parse("str"))
        unknown = [name for name in self._types if name not in pattern.groupindex]
        if unknown:
            raise UsageError(
                f"fields names '{unknown[0]}', and the expression has no group of this name",
                fix=f"Its groups: {', '.join(pattern.groupindex)}",
            )
        for name, type in self._types.items():
            if type.kind == "list" or type.shape not in (None, ()):
                raise UsageError(
                    f"is declared {type}, and the groups of an expression are text", field=name,
                    fix="Use a function: parse=function, which returns a dict",
                )  # fmt: skip

    def infer(self, blocks: Iterable[Lines]) -> dict[str, FieldType]:
        return dict(self._types)

    def read(self, lines: Lines) -> Decoded:
        texts, bad = as_text(lines.pieces())
        rows: list[Sequence[Any]] = []
        match, nothing = self._pattern.match, (None,) * len(self._types)
        for i, text in enumerate(texts):
            found = match(text) if text is not None else None
            rows.append(nothing if found is None else [found[name] for name in self._types])
            if found is None and text is not None:
                bad[i] = DecodeError(f"{shortened(text)} does not match the expression", fix=FIX_LINE)
        columns = {}
        for (name, type), values in zip(self._types.items(), _turned(rows, len(self._types)), strict=True):
            columns[name], misfits = _from_text(values, type, name)
            bad = {**misfits, **bad}
        return Decoded(columns=columns, bad=bad)


class FunctionReader:
    """What a function makes of each line: a mapping, or None for a line that is no sample.

    function: of the text of a line; of its bytes, if it says so: `def parse(line: bytes) -> dict | None`.
    tell:     whether further fields of its mappings are to be told, once.
    """

    def __init__(
        self, function: Callable[[Any], Any], types: Mapping[str, FieldType] | None, *, tell: bool
    ) -> None:
        self._function, self._types, self._tell = function, types or {}, tell
        self._takes_bytes = _takes_bytes(function)

    def infer(self, blocks: Iterable[Lines]) -> dict[str, FieldType]:
        return infer(row for lines in blocks for row in self._rows(lines)[0] if row is not None)

    def read(self, lines: Lines) -> Decoded:
        rows, bad = self._rows(lines)
        kept = np.array([row is not None or i in bad for i, row in enumerate(rows)], np.bool_)
        samples = np.flatnonzero(kept).tolist()
        rows, bad = [rows[i] for i in samples], {place: bad[i] for place, i in enumerate(samples) if i in bad}
        others = sorted({name for row in rows if row for name in row} - self._types.keys()) if self._tell else ()
        self._tell = self._tell and not others
        columns: dict[str, Column] = {}
        for name, type in self._types.items():
            columns[name], misfits = from_values([row.get(name) if row else None for row in rows], type, name)
            bad = {**misfits, **bad}
        return Decoded(columns=columns, bad=bad, others=others, kept=kept)

    def _rows(self, lines: Lines) -> tuple[list[Mapping[str, Any] | None], Bad]:
        pieces: Sequence[Any] = lines.pieces()
        bad: Bad = {}
        if not self._takes_bytes:
            pieces, bad = as_text(pieces)
        rows: list[Mapping[str, Any] | None] = []
        for i, piece in enumerate(pieces):
            row = None
            try:
                row = self._function(piece) if piece is not None else None
                if row is not None and not isinstance(row, Mapping):
                    raise DecodeError(f"the parse function returned {shortened(row)}", fix=_FIX_RESULT)
            except SampleError as error:
                row, bad[i] = None, error
            except Exception as error:
                bad[i] = TransformError(f"the parse function raised {type(error).__name__}: {error}")
                bad[i].__cause__ = error
            rows.append(row)
        return rows, bad


def as_text(pieces: Sequence[bytes]) -> tuple[list[str | None], Bad]:
    """Each decoded from UTF-8; None, and an error, for what is something else."""
    texts: list[str | None] = []
    bad: Bad = {}
    for i, piece in enumerate(pieces):
        try:
            texts.append(piece.decode())
        except UnicodeDecodeError as error:
            texts.append(None)
            bad[i] = not_utf8(piece, error)
    return texts, bad


def not_utf8(piece: bytes, error: UnicodeDecodeError) -> DecodeError:
    return DecodeError(f"no UTF-8 ({error.reason} at its byte {error.start:,}): {shortened(piece)}", fix=FIX_LINE)


def _takes_bytes(function: Callable[[Any], Any]) -> bool:
    try:
        first = next(iter(inspect.signature(function).parameters.values()), None)
    except (TypeError, ValueError):  # of a builtin
        return False
    return first is not None and first.annotation in (bytes, "bytes")


def _turned(rows: Sequence[Sequence[Any]], width: int) -> Iterable[Sequence[Any]]:
    """Rows as columns."""
    return zip(*rows, strict=True) if rows else [()] * width


def _from_text(values: Sequence[str | None], type: FieldType, name: str) -> tuple[Column, Bad]:
    """Like `from_values`, of values that are written as text, numbers too."""
    if type.kind == "number":
        read = codec_named(type.codec).decode
        return from_values([value if value is None else _number(value, read) for value in values], type, name)
    if type.codec in ("json", "bytes"):
        return ListColumn([value if value is None else memoryview(value.encode()) for value in values]), {}
    return from_values(values, type, name)


def _number(text: str, read: Callable[[bytes], Any]) -> Any:
    """The number, or the text where it is none."""
    try:
        return read(text.encode())
    except DecodeError:
        return text


_FIX_RESULT = "Return a dict of fields, or None for a line that is no sample"
