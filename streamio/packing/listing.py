"""Reads `.csv` and `.jsonl` tables: a column of paths, perhaps one of labels, and further columns."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from streamio.errors import UsageError
from streamio.packing.report import named, shown

LISTS = (".csv", ".jsonl")
PATH_COLUMNS = ("path", "file", "filename", "file_name", "image")
LABEL_COLUMNS = ("label", "class", "cls", "target")

Exists: TypeAlias = Callable[[str], bool]
_Columns: TypeAlias = dict[str, list[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One row per path; the lists are equally long.

    name:         file name of the table, for messages.
    lines:        line number of each row.
    labels:       int or str, None where the row has none; None as a whole where there is no label column.
    label_column: its name; an `extra` column where it holds neither whole numbers nor text.
    extra:        further columns: int, float, bool, str, list or dict, None where the row has no value.
    """

    name: str
    lines: list[int]
    path_column: str
    paths: list[str]
    label_column: str | None
    labels: list[Any] | None
    extra: _Columns


def is_list(path: str) -> bool:
    return path.lower().endswith(LISTS) and os.path.isfile(path)


def read_table(path: str, exists: Exists) -> Table:
    """Read a table. `exists` says of a value whether it names a file; it finds a path column of another name.

    Raises UsageError, with the line, for what is no table, has no path column, or mixes kinds in a column.
    """
    name = shown(os.path.basename(path))
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            text = file.read()
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", path=shown(path)) from error
    if "\0" in text:
        raise UsageError("holds zero bytes, so it is no UTF-8 text", fix="Save it as UTF-8", path=shown(path))
    columns, lines = (_csv if path.lower().endswith(".csv") else _jsonl)(text, name)
    if not lines:
        raise UsageError("the list has no rows", path=name)
    path_column = _path_column(columns, exists, name)
    paths = columns.pop(path_column)
    for line, value in zip(lines, paths, strict=True):
        if not isinstance(value, str) or not value or not _encodable(value):
            raise UsageError(f"line {line}: {value!r} in column {path_column!r} is no path", path=name)
    label_column = next((c for want in LABEL_COLUMNS for c in columns if c.lower() == want), None)
    labels = _labels(columns[label_column], lines, label_column, name) if label_column else None
    if label_column and labels is not None:
        del columns[label_column]
    extra = {column: _one_kind(values, lines, column, name) for column, values in columns.items()}
    for column in extra:
        _check_name(column, name)
    return Table(
        name=name, lines=lines, path_column=path_column, paths=paths,
        label_column=label_column, labels=labels, extra=extra,
    )  # fmt: skip


def _csv(text: str, name: str) -> tuple[_Columns, list[int]]:
    """Columns with their values as numbers where all are numbers, else text."""
    csv.field_size_limit(2**31 - 1)
    first = text.split("\n", 1)[0]
    delimiter = next((mark for mark in ",;\t" if mark in first), ",")  # `;` where the comma is a decimal point
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        header = [column.strip() for column in next(reader, [])]
        start = reader.line_num + 1
        for row in reader:
            if row:
                rows.append(row)
                lines.append(start)
            start = reader.line_num + 1
    except csv.Error as error:
        raise UsageError(f"line {reader.line_num}: {error}", path=name) from error
    if "" in header:
        raise UsageError(f"column {header.index('') + 1} has no name in the first line",
                         fix="Name it, or leave it out (pandas: to_csv(…, index=False))", path=name)  # fmt: skip
    twice = sorted({column for column in header if header.count(column) > 1})
    if twice:
        raise UsageError(f"column {twice[0]!r} comes twice in the first line", path=name)
    for line, row in zip(lines, rows, strict=True):
        if len(row) != len(header):
            raise UsageError(
                f"line {line} has {len(row)} values, the first line {len(header)} columns",
                fix=f'Put values that hold {delimiter!r} into "double quotes"', path=name,
            )  # fmt: skip
    return {column: _numbers([row[at] for row in rows]) for at, column in enumerate(header)}, lines


_INT = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|nan|[+-]?inf", re.IGNORECASE)


def _numbers(values: list[str]) -> list[Any]:
    """Numbers with None for blanks, if all that are not blank are numbers as one writes them (`007` is text)."""
    filled = [value for value in values if value.strip()]
    if filled and all(_INT.fullmatch(value.strip()) for value in filled):
        return [int(value) if value.strip() else None for value in values]
    if filled and all(_FLOAT.fullmatch(v.strip()) and not re.match(r"[+-]?0[0-9]", v.strip()) for v in filled):
        return [float(value) if value.strip() else None for value in values]
    return list(values)


def _jsonl(text: str, name: str) -> tuple[_Columns, list[int]]:
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    for line, source in enumerate(text.split("\n"), 1):
        if not source.strip():
            continue
        try:
            row = json.loads(source)
        except ValueError as error:
            raise UsageError(f"line {line} is no JSON: {error}", path=name) from error
        if not isinstance(row, dict):
            raise UsageError(f"line {line} is no JSON object but a {type(row).__name__}", path=name)
        rows.append(row)
        lines.append(line)
    columns = dict.fromkeys(column for row in rows for column in row)
    return {column: [row.get(column) for row in rows] for column in columns}, lines


def _path_column(columns: _Columns, exists: Exists, name: str) -> str:
    if any(exists(column) for column in columns):
        raise UsageError(
            "the first line holds values, not the names of the columns",
            fix=f"Add a first line such as: {','.join(['path', 'label', *map(str, range(3, len(columns) + 1))])}",
            path=name,
        )
    for want in PATH_COLUMNS:
        for column in columns:
            if column.lower() == want:
                return column
    for column, values in columns.items():
        first = next((value for value in values if value), None)
        if isinstance(first, str) and exists(first):
            return column
    raise UsageError(
        f"no column holds paths of files; found the columns {named(list(columns))}",
        fix=f"Name the column of paths '{PATH_COLUMNS[0]}'; paths are relative to the list file",
        path=name,
    )


def _labels(values: list[Any], lines: Sequence[int], column: str, name: str) -> list[Any] | None:
    """int or str (without blanks around it) with None for blanks; None as a whole if the column holds neither."""
    labels = [(value.strip() or None) if isinstance(value, str) else value for value in values]
    kinds = {type(value) for value in labels if value is not None}
    if kinds <= {int} or kinds <= {str}:
        return labels
    if kinds == {int, str}:
        first = next(type(value) for value in labels if value is not None)
        at = next(i for i, value in enumerate(labels) if value is not None and type(value) is not first)
        raise UsageError(
            f"line {lines[at]}: {labels[at]!r} in column {column!r}, which mixes numbers and names of classes",
            fix="Write all labels as numbers or all as text", path=name,
        )  # fmt: skip
    return None


def _one_kind(values: list[Any], lines: Sequence[int], column: str, name: str) -> list[Any]:
    """Values of one kind; whole numbers among floats become floats."""
    kinds = {_kind(value) for value in values} - {None}
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    if len(kinds) > 1:
        first = next(_kind(value) for value in values if value is not None)
        at = next(i for i, value in enumerate(values) if _kind(value) not in (None, first))
        raise UsageError(
            f"line {lines[at]}: column {column!r} holds {type(values[at]).__name__}, before it {first.__name__}",
            fix="Values of one column must be of one kind", path=name,
        )  # fmt: skip
    return values


def _kind(value: Any) -> Any:
    """The type of a value; one for all that is nested."""
    return None if value is None else dict if isinstance(value, list | dict) else type(value)


def _check_name(column: str, name: str) -> None:
    """A column becomes a field, and so a part of file names in a tar."""
    if not column.isprintable() or "/" in column or column != column.strip(" .") or not column:
        raise UsageError(
            f"column {column!r} cannot be a field",
            fix="Column names need letters or digits, and no slash and no dot at either end", path=name,
        )  # fmt: skip
    if column.startswith("__"):
        raise UsageError(f"column {column!r}: names with two leading underscores are taken", path=name)


def _encodable(value: str) -> bool:
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return False
    return "\0" not in value
