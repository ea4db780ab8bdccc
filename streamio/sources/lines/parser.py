"""LineParser: blocks of whole lines -> columns, with the place of each line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamio.errors import UsageError
from streamio.sources.fields import FieldType, parse_fields
from streamio.sources.lines.jsonlines import JsonReader
from streamio.sources.lines.readers import FunctionReader, LineReader, PatternReader, TextReader
from streamio.sources.lines.split import split_lines
from streamio.sources.values import Bad
from streamio.types import Column

Parse: TypeAlias = str | re.Pattern[str] | Callable[[Any], Mapping[str, Any] | None]
"""What a user may say: "jsonl", "text", a regular expression with named groups, or a function of a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """The n samples of a block of lines.

    columns: by field, each of n.
    starts:  int64 (n,): the place in the block of each line's first byte.
    ends:    int64 (n,): the place where the next one begins, for going on there; the last one is the block's end.
             So blank lines, and those that a function leaves out, belong to the sample before; those at the start
             to the first one. A block without samples has no place: it is done with.
    numbers: int64 (n,): of each line in the block, counted from 0 with blank ones.
    total:   lines in the block, blank ones too.
    bad:     why a line has no values, by index; those in the columns are undefined.
    others:  fields that were found and are not declared, for telling once; a parser names them once.
    holes:   (begin, end) in the block of runs of NUL bytes that were left out, for telling.
    """

    columns: Mapping[str, Column]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    numbers: NDArray[np.int64]
    total: int
    bad: Bad
    others: tuple[str, ...] = ()
    holes: tuple[tuple[int, int], ...] = ()

    def __len__(self) -> int:
        return len(self.ends)


class LineParser:
    """Makes columns of blocks of lines. Picklable, if a function that it was given is.

    parse:  "jsonl": each line is one JSON object.
            "text": each line is the value of the field `text`, without its line end.
            A regular expression with named groups, which a line has to match from its beginning; the groups are
            text, from which declared numbers are read.
            A function of a line (of its bytes, if its parameter is declared so) that returns a dict, or None for
            what is no sample.
    fields: {name: type}, see `FieldType`; None: all fields, of types that `inferred` finds once. Then what has no
            value in a line, or another type, is as for declared ones, and further fields are left out and told.

    Lines end with `\\n` or `\\r\\n`; blank ones are left out, as are byte order marks and NUL bytes before a line.
    """

    def __init__(
        self, parse: Parse, fields: Mapping[str, FieldType | str] | None = None, *, tell: bool = False
    ) -> None:
        self._parse, self._tell = parse, tell
        types = None if fields is None else parse_fields(fields)
        self._reader = _reader(parse, types, tell)
        if types is None and isinstance(self._reader, PatternReader | TextReader):
            types = self._reader.infer(())
        self._types = types

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self._parse, self._types, self._tell)

    @property
    def fields(self) -> dict[str, FieldType] | None:
        """The types of the fields; None: they are to be inferred first."""
        return self._types

    @property
    def may_leave_out(self) -> bool:
        """Whether lines that are not blank may be no samples: a function decides."""
        return isinstance(self._reader, FunctionReader)

    def inferred(self, blocks: Iterable[bytes]) -> Self:
        """A parser with the fields that the good lines of some blocks have; itself, if it has fields already.

        Raises UsageError where no line is good.
        """
        if self._types is not None:
            return self
        types = self._reader.infer(map(split_lines, blocks))
        if not types:
            raise UsageError(
                "no line from which the fields could be inferred", fix='Declare them: fields={"text": "str", …}'
            )
        return type(self)(self._parse, types, tell=True)

    def __call__(self, block: bytes) -> Parsed:
        """The samples of a block of whole lines; the last one may lack its line end.

        Broken lines are in `bad`. Raises UsageError where the fields are not known yet.
        """
        if self._types is None:
            raise UsageError("the fields of the lines are not known", fix="Use the parser that inferred() returns")
        lines = split_lines(block)
        decoded = self._reader.read(lines)
        if decoded.kept is not None:
            lines = lines.kept(decoded.kept)
        return Parsed(
            columns=decoded.columns, starts=lines.starts, ends=lines.ends, numbers=lines.numbers,
            total=lines.total, bad=decoded.bad, others=tuple(decoded.others), holes=lines.holes,
        )  # fmt: skip


def _again(kind: type[LineParser], parse: Parse, types: Mapping[str, FieldType] | None, tell: bool) -> LineParser:
    return kind(parse, types, tell=tell)


def _reader(parse: Parse, types: dict[str, FieldType] | None, tell: bool) -> LineReader:
    if parse == "jsonl":
        return JsonReader(types, tell=tell)
    if parse == "text":
        if types is None:
            return TextReader("text", FieldType.parse("str"))
        if len(types) > 1:
            raise UsageError(f"parse='text' with the fields {', '.join(types)}", fix="It has one: the whole line")
        return TextReader(*next(iter(types.items())))
    if isinstance(parse, str | re.Pattern):
        return PatternReader(_pattern(parse), types)
    if callable(parse):
        return FunctionReader(parse, types, tell=tell)
    raise UsageError(f"parse={parse!r}", fix=_CHOICES)


def _pattern(given: str | re.Pattern[Any]) -> re.Pattern[str]:
    try:
        pattern = re.compile(given)
    except re.error as error:
        raise UsageError(f"parse={given!r} is no regular expression: {error}", fix=_CHOICES) from error
    if not pattern.groupindex:
        raise UsageError(f"parse={given!r} is an expression without named groups", fix=_CHOICES)
    if isinstance(pattern.pattern, bytes):
        raise UsageError(f"parse={given!r} is an expression of bytes", fix="Leave out the b before it")
    return pattern


_CHOICES = (
    'Use "jsonl", "text", a regular expression with named groups such as r"(?P<level>\\w+): (?P<text>.*)", or a '
    "function of a line that returns a dict"
)
