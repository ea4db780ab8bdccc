"""Turns the names of classes into numbers, and joins a table onto the files of a folder."""

from __future__ import annotations

import posixpath
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from streamio.errors import UsageError
from streamio.packing.listing import Table
from streamio.packing.report import named, plural, shown
from streamio.packing.samples import Sample

Classes: TypeAlias = "tuple[str, ...] | None"
"""Names of classes in the order of their numbers."""
Values: TypeAlias = tuple[tuple[str, Any], ...]


def class_numbers(names: Iterable[str], given: Classes, what: str) -> dict[str, int]:
    """The number of each class: by name in sorted order, or as `given` numbers them.

    Raises UsageError for names that are not among the given ones. `what` gave the names, for the message.
    """
    found = sorted(set(names))
    if given is None:
        return {name: number for number, name in enumerate(found)}
    numbers = {name: number for number, name in enumerate(given)}
    unknown = [name for name in found if name not in numbers]
    if unknown:
        raise UsageError(
            f"{plural(len(unknown), what)} not among the {plural(len(given), 'class', 'classes')} of "
            f"'classes_from': {named(unknown)}",
            fix=f"Exclude them, or pack without 'classes_from'; the classes are {named(given)}",
        )
    return numbers


def table_classes(table: Table, given: Classes) -> tuple[list[int | None], Classes]:
    """The class number of each row, and the names: text is sorted and numbered, numbers stay as they are."""
    labels = table.labels
    if labels is None:
        if given is not None:
            raise UsageError("has no labels, which 'classes_from' is for", path=table.name)
        return [None] * len(table.paths), None
    used = {label for label in labels if label is not None}
    if any(isinstance(label, str) for label in used):
        numbers = class_numbers(used, given, "label")
        classes = given if given is not None else tuple(numbers)
        return [None if label is None else numbers[label] for label in labels], classes
    if given is not None and not used <= set(range(len(given))):
        row = next(i for i, label in enumerate(labels) if label is not None and not 0 <= label < len(given))
        raise UsageError(
            f"line {table.lines[row]}: label {labels[row]}, but 'classes_from' has {len(given)} classes",
            path=table.name,
        )
    return list(labels), given


def row_values(table: Table, numbers: Sequence[int | None], row: int) -> Values:
    """The fields that a row gives: `cls`, and every further column that has a value."""
    values: list[tuple[str, Any]] = []
    if numbers[row] is not None:
        values.append(("cls", numbers[row]))
    values += [(name, column[row]) for name, column in table.extra.items() if column[row] is not None]
    return tuple(values)


def check_fields(item: Sample, table: Table, row: int) -> None:
    """Raise UsageError if a column and a file give the same field."""
    names = {name: path for name, path, _ in item.files}
    for name, _ in item.values:
        if name in names:
            raise UsageError(
                f"line {table.lines[row]}: both a column and the file {shown(names[name])} give the field '{name}'",
                fix="Rename the column", path=table.name,
            )  # fmt: skip
    if len({name for name, _ in item.values}) < len(item.values):
        raise UsageError(
            f"the columns '{table.label_column}' and 'cls' both give the field 'cls'",
            fix="Rename or remove one of them", path=table.name,
        )  # fmt: skip


def joined(samples: list[Sample], table: Table, given: Classes) -> tuple[list[Sample], Classes, list[str]]:
    """Samples with the values of the rows that name one of their files (or their key), and notes.

    A name that differs only in how its characters are composed (a Mac writes `é` as two) matches where no
    file has exactly that name, and only if one file alone does.
    """
    numbers, classes = table_classes(table, given)
    places = {path: at for at, item in enumerate(samples) for _, path, _ in item.files}
    for at, item in enumerate(samples):
        places.setdefault(item.key, at)
    rows: dict[int, int] = {}
    missing: list[int] = []
    for row, path in enumerate(table.paths):
        at_exact = places.get(posixpath.normpath(path))
        if at_exact is None:
            missing.append(row)
        else:
            _claim(rows, at_exact, row, table, numbers)
    notes: list[str] = []
    if missing:
        open_places = {name: at for name, at in places.items() if at not in rows}
        missing, matched = _composed(rows, open_places, missing, table, numbers)
        if matched:
            count = plural(len(matched), "name", "names")
            notes.append(f"matched {count} of {table.name} to a name composed in another way: {_exact(matched)}")
    if missing:
        count = plural(len(missing), "row")
        paths = named([table.paths[row] for row in missing])
        notes.append(f"{table.name} has {count} for files that are not packed: {paths}")
    result = [
        item._replace(values=row_values(table, numbers, rows[at])) if at in rows else item
        for at, item in enumerate(samples)
    ]
    for at, row in rows.items():
        check_fields(result[at], table, row)
    bare = [item.files[0][1] for item in result if item.value("cls") is None]
    if bare and table.labels is not None:
        notes.append(f"{plural(len(bare), 'sample has', 'samples have')} no label in {table.name}: {_exact(bare)}")
    return result, classes, notes


def _claim(rows: dict[int, int], at: int, row: int, table: Table, numbers: Sequence[int | None]) -> None:
    before = rows.setdefault(at, row)
    if row_values(table, numbers, before) != row_values(table, numbers, row):
        raise UsageError(
            f"lines {table.lines[before]} and {table.lines[row]} say different things about "
            f"{shown(table.paths[row])}",
            path=table.name,
        )


def _composed(
    rows: dict[int, int], places: dict[str, int], missing: list[int], table: Table, numbers: Sequence[int | None]
) -> tuple[list[int], list[str]]:
    """Match by NFC form; gives the rows that still name no file, and the paths that were matched."""
    found: dict[str, set[int]] = {}
    for name, at in places.items():
        found.setdefault(unicodedata.normalize("NFC", name), set()).add(at)
    left: list[int] = []
    matched: list[str] = []
    for row in missing:
        name = unicodedata.normalize("NFC", posixpath.normpath(table.paths[row]))
        candidates = found.get(name, set())
        if len(candidates) == 1:
            _claim(rows, next(iter(candidates)), row, table, numbers)
            matched.append(table.paths[row])
        else:
            left.append(row)
    return left, matched


def _exact(names: Sequence[str]) -> str:
    """Names with everything escaped that could look like something else."""
    return named([name if unicodedata.is_normalized("NFC", name) else ascii(name)[1:-1] for name in names])
