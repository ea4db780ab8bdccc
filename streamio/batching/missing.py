"""What becomes of samples that lack a field: an error, left out, or filled with a value."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamio.batching.decode import IMAGE_CODECS, NUMBER_CODECS, Failure, FieldDecoder
from streamio.batching.picked import Table
from streamio.errors import SampleError, UsageError
from streamio.types import ArrayColumn, Column, NullableColumn, Rows


@dataclass(frozen=True, eq=False)
class Fill:
    """The value that a sample gets which lacks a field, as if it had been stored: see `missing` of `ShardDataset`.

        missing={"txt": Fill(""), "price": Fill(0.0), "jpg": Fill(0)}
        batch["txt_filled"]         # bool (n,): True where it was filled

    value: a number for a field of numbers; an array of the right dtype and shape for one of arrays (for pictures
           uint8 (height, width, 3), or 0 to 255 for all of it where they are decoded to one size); text; or
           whatever a `decode` function or JSON gives. Each sample gets a copy.
    """

    value: Any

    def __call__(self) -> Any:
        """The value, for one sample."""
        return copy.deepcopy(self.value)


WhenMissing: TypeAlias = Fill | Literal["error", "skip"]


def filled_field(field: str) -> str:
    """The field of the batch that says where another one was filled."""
    return f"{field}_filled"


def as_rules(missing: Mapping[str, WhenMissing] | None) -> dict[str, WhenMissing]:
    """The rules by field. Raises UsageError for what is no rule."""
    if missing is None:
        return {}
    if not isinstance(missing, Mapping):
        raise UsageError(f"missing={missing!r}", fix='Give {field: "error", "skip" or Fill(value)}')
    for field, rule in missing.items():
        if not isinstance(rule, Fill) and not (isinstance(rule, str) and rule in ("error", "skip")):
            raise UsageError(
                f"missing gives {rule!r} for the field '{field}'",
                fix='Use "error", "skip" or streamio.Fill(value)',
            )
    return dict(missing)


def check_rules(
    rules: Mapping[str, WhenMissing], known: Sequence[str], read: Sequence[str], *, makes_more: bool
) -> None:
    """Raise UsageError for rules of fields that are not there.

    known, read: fields of the table, and those that are read. makes_more: a transform may make others.
    """
    for field in rules:
        if field not in read and (field in known or not makes_more):
            raise UsageError(
                f"missing names the field '{field}'", fix=f"The fields that are read: {', '.join(read)}"
            )


def with_rules(decoders: Mapping[str, FieldDecoder], rules: Mapping[str, WhenMissing]) -> dict[str, FieldDecoder]:
    """Decoders that know what to do without a value. Raises UsageError for a fill that does not suit its field."""
    made = dict(decoders)
    for field, rule in rules.items():
        if field in made and isinstance(rule, Fill):
            made[field] = replace(made[field], fill=_suited(rule, made[field]))
        elif field in made:  # with "skip" for those that take the place of another one
            made[field] = replace(made[field], required=True)
    return made


def _suited(fill: Fill, decoder: FieldDecoder) -> Fill:
    """The fill in the type that the field has."""
    if decoder.raw or decoder.function is not None:
        return fill
    fits: Fill | None = fill
    if decoder.codec in NUMBER_CODECS:
        fits = _number(fill, {"int": int, "float": float, "bool": bool}[decoder.codec])
        needs = f"a number, {decoder.codec}"
    elif decoder.codec in IMAGE_CODECS:
        fits = _picture(fill, None if decoder.op is None else decoder.op.size)
        needs = "an array uint8 (height, width, 3) of its size, or a number from 0 to 255 where all have one"
    elif decoder.codec == "npy":
        fits = fill if isinstance(fill.value, np.ndarray) else None
        needs = "an array of its dtype and dimensions, such as np.zeros((0, 4), np.float32)"
    if fits is None:
        raise UsageError(f"missing gives {fill.value!r} for the field '{decoder.field}'", fix=f"Give {needs}")
    return fits


def _number(fill: Fill, kind: Callable[[Any], Any]) -> Fill | None:
    try:
        value = kind(fill.value)
    except (TypeError, ValueError, OverflowError):
        return None
    return Fill(value) if isinstance(fill.value, int | float | np.generic) and _same(value, fill.value) else None


def _same(value: Any, given: Any) -> bool:
    return bool(value == given) or (value != value and given != given)


def _picture(fill: Fill, size: tuple[int, int] | None) -> Fill | None:
    value = np.asarray(fill.value)
    if size is not None and value.ndim == 0 and value.dtype.kind in "iu" and 0 <= value <= 255:
        return Fill(np.full((*size, 3), value, np.uint8))
    right = value.dtype == np.uint8 and value.ndim == 3 and value.shape[2] == 3
    return Fill(value) if right and size in (None, value.shape[:2]) else None


class MissingRules:
    """The rules of one reader. Those for fields of the table hold before the transform, those for others after it.

    read: the fields that are read from the table.
    """

    def __init__(self, rules: Mapping[str, WhenMissing], read: Iterable[str], table: Table) -> None:
        stored = {field: rule for field, rule in rules.items() if field in set(read)}
        self._table = table
        self._made = {field: rule for field, rule in rules.items() if field not in stored}
        self._skipped = [field for field, rule in stored.items() if rule == "skip"]
        self._filled = [field for field, rule in stored.items() if isinstance(rule, Fill)]

    def left(self, rows: Rows) -> NDArray[np.int64] | None:
        """Indices of the rows that lack nothing for which they are left out; None: all of them."""
        if not self._skipped:
            return None
        lack = np.any([_lacking(column) for column in self._table.gather(rows, self._skipped).values()], axis=0)
        return np.flatnonzero(~lack) if lack.any() else None

    def masks(self, rows: Rows) -> dict[str, NDArray[np.bool_]]:
        """The fields that say which of these rows were filled, each bool (n,)."""
        if not self._filled:
            return {}
        columns = self._table.gather(rows, self._filled)
        return {filled_field(field): _lacking(columns[field]) for field in self._filled}

    def after(self, samples: list[Any], values: Mapping[str, Any]) -> tuple[list[Any], list[Failure]]:
        """What a transform returned, by the rules; None for what is left out. values: with the masks of the rows.

        A field that is None, or is not there, is missing. Samples that are no mappings have no fields, and are left
        as they are.
        """
        if not self._made and not self._filled:
            return samples, []
        settled, failures = list(samples), list[Failure]()
        for i, sample in enumerate(samples):
            if not isinstance(sample, Mapping):
                continue
            said = {filled_field(field): bool(values[filled_field(field)][i]) for field in self._filled}
            try:
                settled[i] = _settled({**sample, **said}, self._made)
            except SampleError as error:
                settled[i] = None
                failures.append(Failure(i, error.where["field"], error))
        return settled, failures


def _lacking(column: Column) -> NDArray[np.bool_]:
    """bool (n,): which samples have no value in this column."""
    if isinstance(column, ArrayColumn):
        return np.zeros(len(column), np.bool_)
    if isinstance(column, NullableColumn):
        return column.lacking
    return np.array([value is None for value in column.values], np.bool_)


def _settled(sample: dict[str, Any], rules: Mapping[str, WhenMissing]) -> dict[str, Any] | None:
    for field, rule in rules.items():
        absent = sample.get(field) is None
        if isinstance(rule, Fill):
            sample[filled_field(field)] = absent
            if absent:
                sample[field] = rule()
        elif absent and rule == "skip":
            return None
        elif absent:
            raise SampleError("the transform returned no such field", fix=_FIX, field=field)
    return sample


_FIX = 'missing={field: "skip"} leaves such samples out, and Fill(value) fills them'
