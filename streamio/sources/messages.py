"""Messages of brokers -> columns: what their values are parsed to, and what else of a message comes along.

Kafka, Redis and NATS share this. A message has a *value* (bytes, or in Redis an entry: bytes by name), and *facts*
about it, such as its key and time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from streamio.codecs import codec_named
from streamio.codecs.text import is_exact_in_orjson
from streamio.errors import DecodeError, SampleError, TransformError, UsageError
from streamio.sources.fields import FieldType, from_values, infer, parse_fields, shortened
from streamio.sources.lines.jsonlines import JsonReader
from streamio.sources.lines.readers import FIX_LINE
from streamio.sources.lines.split import Lines
from streamio.sources.values import Bad
from streamio.types import ArrayColumn, Column, ListColumn

Parse: TypeAlias = Literal["json", "raw"] | Callable[[Any], Mapping[str, Any] | None]
Facts: TypeAlias = Mapping[str, "Sequence[Any] | NDArray[np.int64]"]
"""By name, of n messages: bytes, text or JSON values; int64 (n,) for numbers, and for times in microseconds."""

_FIX = "Correct what writes such messages, or leave them out with on_error='skip'"
_VALUE = "value"
_json = codec_named("json").decode


@dataclass(frozen=True, kw_only=True)
class MessageReader:
    """Makes columns of messages. Small to pickle.

    parse: how a value is read.
    types: of the fields of a value.
    facts: of what comes along, the field that it is in and its type.
    """

    parse: Parse
    types: Mapping[str, FieldType]
    facts: Mapping[str, tuple[str, FieldType]] = field(default_factory=dict)

    @property
    def fields(self) -> dict[str, FieldType]:
        return {**self.types, **dict(self.facts.values())}

    def read(self, values: Sequence[Any], facts: Facts) -> tuple[dict[str, Column], Bad, NDArray[np.int64] | None]:
        """(columns, errors by row, the messages that are rows; None: all of n) of n messages.

        values: bytes, or None where there is no value: then it has no field. Entries are dicts of bytes.
        facts:  all that are asked for, maybe more.
        """
        if self.parse == "json" and all(values):
            columns, bad = self._objects(values)
            return self._with_facts(columns, bad, facts), bad, None
        if self.parse == "raw" and self.types.keys() == {_VALUE} and dict not in set(map(type, values)):
            column, bad = from_bytes(values, self.types[_VALUE], _VALUE)
            return self._with_facts({_VALUE: column}, bad, facts), bad, None
        rows, bad = _rows(self.parse, values)
        kept = None
        if rows.count(None):
            kept = np.array([i for i, row in enumerate(rows) if row is not None or i in bad], np.int64)
            at = kept.tolist()
            rows, bad = [rows[i] or _NOTHING for i in at], {place: bad[i] for place, i in enumerate(at) if i in bad}
            facts = {name: _picked(facts[name], kept) for name in self.facts}
        columns = dict[str, Column]()
        read = from_bytes if self.parse == "raw" else from_values
        for name, kind in self.types.items():
            columns[name], misfits = read([row.get(name) for row in rows], kind, name)  # type: ignore[union-attr]
            bad = {**misfits, **bad}
        return self._with_facts(columns, bad, facts), bad, kept

    def _with_facts(self, columns: dict[str, Column], bad: Bad, facts: Facts) -> dict[str, Column]:
        """Those of the values, and of what comes along. Adds what does not fit to `bad`."""
        for fact, (name, kind) in self.facts.items():
            columns[name], misfits = _fact(facts[fact], kind, name)
            for row, error in misfits.items():
                bad.setdefault(row, error)
        return columns

    def _objects(self, values: Sequence[bytes]) -> tuple[dict[str, Column], Bad]:
        """JSON, read as the lines of a file are: many at a time. values: none empty."""
        stops = np.cumsum(np.fromiter(map(len, values), np.int64, len(values)) + 1) - 1
        starts = np.concatenate([np.zeros(min(1, len(stops)), np.int64), stops[:-1] + 1])
        lines = Lines(
            block=b"\n".join(values), starts=starts, stops=stops, ends=stops, numbers=np.arange(len(stops)),
            total=len(stops),
        )  # fmt: skip
        found = self._json.read(lines)
        for error in found.bad.values():
            error.fix = _FIX if error.fix == FIX_LINE else error.fix
        return found.columns, found.bad

    @cached_property
    def _json(self) -> JsonReader:
        return JsonReader(self.types, tell=False)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_json"}


def message_reader(
    parse: Parse, types: Mapping[str, Any] | None, meta: Sequence[str] | Mapping[str, str] | None,
    known: Mapping[str, str], first: Callable[[], Sequence[Any]], where: str, *, entries: bool = False,
) -> MessageReader:  # fmt: skip
    """What a user asked for. Raises UsageError for what cannot be, and where types are not known.

    types:   declared, by field: of the value's fields, and of facts that come along.
    meta:    facts that come along, by name or as {fact: field}. None: all for "raw" bytes, otherwise none.
    known:   the facts that there are, and their usual types.
    first:   gives the values of some messages, from which types that were not declared are inferred.
    where:   "topic 'clicks'", for messages.
    entries: whether values are dicts of bytes.
    """
    if parse not in ("json", "raw") and not callable(parse):
        raise UsageError(f"parse={parse!r}", fix='Use "json", "raw", or a function that gives a dict of fields')
    if meta is None:
        meta = tuple(known) if parse == "raw" and not entries else ()
    asked = dict(meta) if isinstance(meta, Mapping) else {name: name for name in meta}
    unknown = [name for name in asked if name not in known]
    if isinstance(meta, str) or unknown:
        raise UsageError(f"meta={meta!r}", fix=f"Give a list of some of {', '.join(map(repr, known))}")
    declared = parse_fields(dict(types)) if types else {}
    facts = {fact: (name, _fact_type(declared, known[fact], name)) for fact, name in asked.items()}
    own = {name: kind for name, kind in declared.items() if name not in asked.values()}
    if parse == "raw" and not entries:
        own = own or {_VALUE: FieldType.parse("bytes")}
        if own.keys() != {_VALUE}:
            raise UsageError(
                f"types= names {', '.join(map(repr, own))}, and with parse='raw' a message has one field, 'value'",
                fix='Use types={"value": "str"}, or parse="json"',
            )
    own = own or _inferred(parse, first(), where)
    clash = [name for name in asked.values() if name in own]
    if clash:
        raise UsageError(
            f"the messages have a field '{clash[0]}' of their own, and meta= makes one too",
            fix=f"Give it another name: meta={{'{clash[0]}': 'message_{clash[0]}'}}",
        )
    return MessageReader(parse=parse, types=own, facts=facts)


def from_bytes(values: Sequence[bytes | None], type: FieldType, name: str) -> tuple[Column, Bad]:
    """A column of values that came as bytes, None where there is none.

    Text is UTF-8, numbers are written as text, lists and arrays as JSON, times in ISO 8601. What is nothing of the
    kind makes a bad row.
    """
    if type.kind == "bytes":
        return ListColumn([None if value is None else memoryview(value) for value in values]), {}
    read = _READ.get(type.kind, _json)
    if type.kind == "number" and type.shape == ():
        read = codec_named(type.codec).decode
    made, bad = _each(values, read)
    column, misfits = from_values(made, type, name)
    for error in bad.values():
        error.where.setdefault("field", name)
    return column, {**misfits, **bad}


_READ: Mapping[str, Callable[[bytes], Any]] = {
    "text": codec_named("text").decode,
    "time": codec_named("text").decode,
}
_NOTHING: Mapping[str, Any] = {}


def _rows(parse: Parse, values: Sequence[Any]) -> tuple[list[Mapping[str, Any] | None], Bad]:
    """The fields of each message; None for one that is no row, or is bad."""
    if parse == "json":
        return _objects(values)
    if parse == "raw":
        return [value if isinstance(value, dict) else {_VALUE: value} for value in values], {}
    assert callable(parse)
    rows: list[Mapping[str, Any] | None] = []
    bad: Bad = {}
    for i, value in enumerate(values):
        row: Any = None
        try:
            row = parse(value)
            if row is not None and not isinstance(row, Mapping):
                found, row = shortened(row), None
                raise DecodeError(f"the parse function returned {found}", fix=_FIX_RESULT)
        except SampleError as error:
            bad[i] = error
        except Exception as error:
            bad[i] = TransformError(f"the parse function raised {type(error).__name__}: {error}")
            bad[i].__cause__ = error
        rows.append(row)
    return rows, bad


_FIX_RESULT = "Return a dict of fields, or None for a message that is no sample"


def _objects(values: Sequence[bytes | None]) -> tuple[list[Mapping[str, Any] | None], Bad]:
    """JSON objects. A message without a value has no field."""
    rows, bad = _each(values, _json)
    for i, row in enumerate(rows):
        if row is None and values[i] is None:
            rows[i] = _NOTHING
        elif type(row) is not dict and i not in bad:
            bad[i] = DecodeError(f"the message is {shortened(row)}, and no JSON object", fix=_FIX)
            rows[i] = None
    return rows, bad


def _each(values: Sequence[bytes | None], read: Callable[[bytes], Any]) -> tuple[list[Any], Bad]:
    """What `read` makes of each; None where there is nothing, or an error."""
    if read is _json and (made := _quickly(values)) is not None:
        return made, {}
    rows: list[Any] = []
    bad: Bad = {}
    for i, value in enumerate(values):
        try:
            rows.append(None if value is None else read(value))
        except SampleError as error:
            error.fix = error.fix or _FIX
            bad[i] = error
            rows.append(None)
    return rows, bad


def _quickly(values: Sequence[bytes | None]) -> list[Any] | None:
    """JSON of all values, where none needs a closer look."""
    if None in values or not is_exact_in_orjson(b" ".join(values)):  # type: ignore[arg-type]
        return None
    try:
        return list(map(orjson.loads, values))  # type: ignore[arg-type]
    except ValueError:
        return None


def _fact(values: Any, kind: FieldType, name: str) -> tuple[Column, Bad]:
    if isinstance(values, np.ndarray):
        return ArrayColumn(values // kind.unit if kind.kind == "time" else values), {}
    if any(isinstance(value, bytes) for value in values):
        return from_bytes(values, kind, name)
    return from_values(values, kind, name)


def _fact_type(declared: Mapping[str, FieldType], usual: str, name: str) -> FieldType:
    """The type of a fact: bytes may be declared anything, times in other units, and the rest is what it is."""
    kind = FieldType.parse(usual)
    given = declared.get(name, kind)
    if given != kind and kind.kind != "bytes" and not (kind.kind == "time" == given.kind):
        raise UsageError(f"is declared {given}, and is {kind}", fix="Leave it out of types=", field=name)
    return given


def _inferred(parse: Parse, values: Sequence[Any], where: str) -> dict[str, FieldType]:
    rows = [row for row in _rows(parse, values)[0] if row]
    if not rows:
        found = f"none of the first {len(values)} messages is good" if values else "it is empty"
        raise UsageError(
            f"the types of the fields cannot be inferred: {found}", path=where,
            fix='Declare them, such as types={"text": "str", "label": "int64"}',
        )  # fmt: skip
    if parse == "raw":
        return dict.fromkeys([name for row in rows for name in row], FieldType.parse("bytes"))
    return infer(rows)


def _picked(values: Any, at: NDArray[np.int64]) -> Any:
    return values[at] if isinstance(values, np.ndarray) else [values[i] for i in at.tolist()]
