"""The key of a row as the cursor behind it: to and from JSON, as a condition, watched for keys that come twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamio.errors import UsageError
from streamio.extras import extra
from streamio.sources.base import Cursor
from streamio.sources.sql.dialects import Dialect
from streamio.sources.sql.query import KeyPart, Paging

_WRITTEN: Mapping[type, tuple[str, Callable[[Any], str], Callable[[str], Any]]] = {
    datetime: ("datetime", datetime.isoformat, datetime.fromisoformat),
    date: ("date", date.isoformat, date.fromisoformat),
    Decimal: ("decimal", str, Decimal),
    bytes: ("bytes", bytes.hex, bytes.fromhex),
}
"""What JSON has no word for: its name, to text and back."""
_READ = {name: read for name, _, read in _WRITTEN.values()}


def as_key(cursor: Cursor) -> list[Any]:
    """The values of the key columns that a cursor holds."""
    values = cursor if isinstance(cursor, list | tuple) else [cursor]
    return [_from_json(value) for value in values]


def _from_json(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    ((name, text),) = value.items()
    return _READ[name](text)


def _to_json(value: Any) -> Any:
    if value is None or isinstance(value, int | float | str):
        return value
    if type(value) not in _WRITTEN:
        raise UsageError(
            f"{type(value).__name__} cannot be a key", fix="Cast it in a query=, or use another column"
        )
    name, write, _ = _WRITTEN[type(value)]
    return {name: write(value)}


class Given:
    """Values that go into a statement: as they stand, or as its parameters."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.parameters: list[Any] = []

    def __call__(self, part: KeyPart, value: Any) -> str:
        literal = self._dialect.literal(value)
        if literal is None:
            self.parameters.append(value)
            literal = self._dialect.placeholder(len(self.parameters))
        return part.given(literal)


def behind(paging: Paging, key: Sequence[Any], given: Given) -> str:
    """The condition for rows behind a key."""
    return _beyond(paging.parts, key, ">", "", given)


def up_to(paging: Paging, key: Sequence[Any], given: Given) -> str:
    """The condition for rows before a key, and those at it."""
    return _beyond(paging.parts, key, "<", "=", given)


def at(paging: Paging, key: Sequence[Any], given: Given) -> str:
    """The condition for the rows at a key."""
    return " AND ".join(f"{part.sql} = {given(part, one)}" for part, one in zip(paging.parts, key, strict=True))


def _beyond(parts: Sequence[KeyPart], key: Sequence[Any], sign: str, last: str, given: Given) -> str:
    """Not one row value, which few databases use an index for: a >= x AND (a > x OR (b …))."""
    part = parts[0]
    if len(parts) == 1:
        return f"{part.sql} {sign}{last} {given(part, key[0])}"
    at_least = f"{part.sql} {sign}= {given(part, key[0])}"
    beyond = f"{part.sql} {sign} {given(part, key[0])}"
    return f"({at_least} AND ({beyond} OR {_beyond(parts[1:], key[1:], sign, last, given)}))"


class Trail:
    """The cursors behind rows that come in the order of a key.

    option: what the key was given as, for messages.
    """

    def __init__(self, paging: Paging, option: str, cursor: Cursor) -> None:
        self._names = [part.name for part in paging.parts]
        self._option = option
        self._last = None if cursor is None else as_key(cursor)

    def cursors(self, arrays: Sequence[Any]) -> NDArray[np.int64] | list[Cursor]:
        """Those of the next rows, of which there is one at least. arrays: an Arrow array of each key column.

        Raises UsageError where a key is NULL, or comes twice.
        """
        pa, compute = extra("pyarrow", "sql"), extra("pyarrow.compute", "sql")
        for array, name in zip(arrays, self._names, strict=True):
            if array.null_count:
                raise null_keys(name, array.null_count)
        same = None
        for array in arrays:
            equal = compute.equal(array.slice(1), array.slice(0, len(array) - 1))
            same = equal if same is None else compute.and_(same, equal)
        found = compute.index(same, True).as_py()
        first, last = ([array[i].as_py() for array in arrays] for i in (0, -1))
        if found >= 0 or first == self._last:
            raise self.twice([array[found + 1].as_py() for array in arrays] if found >= 0 else first)
        self._last = last
        if len(arrays) == 1 and pa.types.is_integer(arrays[0].type) and not pa.types.is_uint64(arrays[0].type):
            return arrays[0].to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]
        columns = [[_to_json(value) for value in array.to_pylist()] for array in arrays]
        return columns[0] if len(columns) == 1 else [list(row) for row in zip(*columns, strict=True)]

    def twice(self, key: Sequence[Any]) -> UsageError:
        """For several rows with this key."""
        names = ", ".join(self._names)
        shown = key[0] if len(key) == 1 else tuple(key)
        listed = ", ".join(repr(name) for name in self._names)
        return UsageError(
            f"{names} is not unique: several rows have {shown!r}, and to go on behind one would lose the others",
            fix=f"Add a column that tells them apart: {self._option}=({listed}, …)",
        )


def null_keys(name: str, count: int) -> UsageError:
    """For rows that a condition on the key never finds."""
    return UsageError(
        f"{count:,} NULL keys: rows in which '{name}' is NULL have no place in the order",
        fix=f'Leave them out, where="{name} IS NOT NULL", or use another key',
    )
