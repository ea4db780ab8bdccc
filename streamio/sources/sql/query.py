"""SQL of what is read: the rows of a table or query, all of them, between two keys, or those with some keys."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamio.errors import UsageError
from streamio.sources.sql.dialects import Dialect


@dataclass(frozen=True, kw_only=True)
class Query:
    """The rows to read.

    relation: what stands behind FROM.
    where:    the user's condition, or "".
    shown:    what messages call it.
    """

    relation: str
    where: str
    shown: str

    @classmethod
    def of(cls, dialect: Dialect, table: str | None, query: str | None, where: str | None) -> Query:
        """Of what the user gave: a table, or a query; the rows of it that match a condition. Raises UsageError."""
        for name, value in {"table": table, "query": query, "where": where}.items():
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise UsageError(f"{name}={value!r}", fix="Give text, or leave it out")
        if (table is None) == (query is None):
            raise UsageError(
                "neither table= nor query= is given" if table is None else "table= and query= are both given",
                fix="Give the name of a table, or a SELECT",
            )
        condition = dialect.text(where.strip()) if where else ""
        if table is not None:
            return cls(relation=dialect.relation(table), where=condition, shown=table)
        assert query is not None
        text = dialect.text(query.strip().rstrip(";"))
        return cls(relation=f"({text}\n) AS {dialect.quote('q')}", where=condition, shown="query")

    def select(self, what: str, *conditions: str, order: Sequence[str] = (), group: Sequence[str] = ()) -> str:
        """A SELECT of these expressions, of the rows that match all conditions too."""
        where = [f"({self.where}\n)"] if self.where else []
        where += [condition for condition in conditions if condition]
        sql = f"SELECT {what} FROM {self.relation}"
        if where:
            sql += f" WHERE {' AND '.join(where)}"
        if group:
            sql += f" GROUP BY {', '.join(group)}"
        return sql + (f" ORDER BY {', '.join(order)}" if order else "")


def named(dialect: Dialect, expressions: Mapping[str, str]) -> str:
    """Expressions with their names, as they stand behind SELECT."""
    return ", ".join(f"{sql} AS {dialect.quote(name)}" for name, sql in expressions.items())


@dataclass(frozen=True, kw_only=True)
class KeyPart:
    """One column of the key.

    name: of the column.
    sql:  its expression.
    read: the expression by which it is fetched: a number or text from which the same value can be made again.
    type: the database's name of its type, to which what was fetched is cast; "" where that is not needed.
    """

    name: str
    sql: str
    read: str
    type: str = ""

    def given(self, placeholder: str) -> str:
        """A value of it that is a parameter."""
        return f"CAST({placeholder} AS {self.type})" if self.type else placeholder


@dataclass(frozen=True)
class Paging:
    """Conditions on a key. The database compares as it sorts, by the type and collation of each column."""

    dialect: Dialect
    parts: tuple[KeyPart, ...]

    @property
    def order(self) -> list[str]:
        """What to order by."""
        return [part.sql for part in self.parts]

    @property
    def read(self) -> dict[str, str]:
        """Expressions that fetch the key, by names that no field has."""
        return {key_name(i): part.read for i, part in enumerate(self.parts)}

    def between(self, first: Sequence[Any], last: Sequence[Any], given: list[Any]) -> str:
        """The condition: from one key to another one, both with. Its parameters are added to those given."""
        low = self._beyond(first, ">", given)
        return f"{low} AND {self._beyond(last, '<', given)}"

    def _beyond(self, key: Sequence[Any], sign: str, given: list[Any]) -> str:
        """At the key or on its other side. Not as a row value: few databases use an index for one."""

        def value(part: KeyPart, one: Any) -> str:
            given.append(one)
            return part.given(self.dialect.placeholder(len(given)))

        part, *others = self.parts[len(self.parts) - len(key) :]
        if not others:
            return f"{part.sql} {sign}= {value(part, key[0])}"
        # a >= x AND (a > x OR (b ...)): the first is what an index is used for.
        at_least = f"{part.sql} {sign}= {value(part, key[0])}"
        beyond = f"{part.sql} {sign} {value(part, key[0])}"
        return f"({at_least} AND ({beyond} OR {self._beyond(key[1:], sign, given)}))"

    def among(self, keys: Sequence[Sequence[Any]]) -> tuple[str, list[Any]]:
        """(condition, parameters): the rows of these keys. keys: the values of each column."""
        lists = self.dialect.lists
        if lists == "any" and len(keys) == 1:
            return f"{self.order[0]} = ANY({self._array(1)})", [list(keys[0])]
        if lists == "any":
            arrays = ", ".join(self._array(i) for i in range(1, len(keys) + 1))
            return f"({', '.join(self.order)}) IN (SELECT * FROM unnest({arrays}))", list(map(list, keys))
        if lists == "unnest":
            columns = ", ".join(part.given("unnest(?)") for part in self.parts)
            return f"({', '.join(self.order)}) IN (SELECT {columns})", [list(values) for values in keys]
        if lists == "json" and all(map(_goes_as_json, keys)):
            rows = keys[0] if len(keys) == 1 else list(zip(*keys, strict=True))
            values = [f"json_extract(value, '$[{i}]')" for i in range(len(keys))] if len(keys) > 1 else ["value"]
            inner = f"SELECT {', '.join(values)} FROM json_each(?)"
            return f"({', '.join(self.order)}) IN ({inner})", [json.dumps(rows)]
        return self._among_placeholders(keys)

    def _array(self, number: int) -> str:
        return f"CAST(${number} AS {self.parts[number - 1].type}[])"

    def _among_placeholders(self, keys: Sequence[Sequence[Any]]) -> tuple[str, list[Any]]:
        given: list[Any] = []

        def value(part: KeyPart, one: Any) -> str:
            given.append(one)
            return part.given(self.dialect.placeholder(len(given)))

        if len(self.parts) == 1:
            (part,) = self.parts
            return f"{part.sql} IN ({', '.join(value(part, one) for one in keys[0])})", given
        rows = (
            " AND ".join(f"{part.sql} = {value(part, one)}" for part, one in zip(self.parts, row, strict=True))
            for row in zip(*keys, strict=True)
        )
        return f"({' OR '.join(f'({row})' for row in rows)})", given

    @property
    def most(self) -> int:
        """Keys that one statement may ask for."""
        if self.dialect.lists in ("any", "unnest"):
            return 1 << 20
        return self.dialect.parameters if len(self.parts) == 1 else _MOST_ROWS


def _goes_as_json(values: Sequence[Any]) -> bool:
    """Whether SQLite makes the same values again of their JSON."""
    return all(type(value) is int or (type(value) is str and "\0" not in value) for value in values)


_MOST_ROWS = 400
"""Of OR: SQLite takes expressions of 1000 levels."""


def key_name(number: int) -> str:
    """The name of a key column in a result."""
    return f"__key_{number}"
