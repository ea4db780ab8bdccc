"""Collation by declaration: what the user says of each field, checked at once, and carried out on each batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np

from streamio.batching.collate import lacks_field, stack
from streamio.batching.decode import NUMBER_CODECS, FieldDecoder, Values
from streamio.batching.missing import Fill, WhenMissing, filled_field
from streamio.batching.padding import Pad, pad
from streamio.batching.ragged import Jagged, Ragged, end_to_end
from streamio.errors import SampleError, ShapeMismatch, UsageError
from streamio.types import Alloc

How: TypeAlias = Literal["stack", "list"] | Pad | Ragged
Collate: TypeAlias = Callable[[list[Any]], Any] | Mapping[str, How]
"""What a user may give: a function of a list of samples, or how each field is joined."""

_NO_ARRAYS = NUMBER_CODECS | {"bytes", "text"}


class Apart(list[Any]):
    """Values that stay apart, also where they would go into one array."""


def as_function(collate: Collate | None) -> Callable[[list[Any]], Any] | None:
    """The user's function, unless it is a declaration."""
    return None if isinstance(collate, Mapping) else collate


def as_declaration(collate: Collate | None) -> dict[str, How]:
    """How each field is joined. Raises UsageError for what is no way to do it."""
    if not isinstance(collate, Mapping):
        return {}
    for field, how in collate.items():
        if not isinstance(how, Pad | Ragged) and not (isinstance(how, str) and how in ("stack", "list")):
            raise UsageError(
                f"collate gives {how!r} for the field {field!r}",
                fix="Use 'stack', 'list', streamio.Pad() or streamio.Ragged(), the last two with brackets; a way "
                "of your own is a function of all samples: collate=function",
            )
    return dict(collate)


def added_fields(declared: Mapping[str, How], missing: Mapping[str, WhenMissing]) -> list[str]:
    """The further fields of a batch, such as masks, that declarations bring."""
    names = [name for field, how in declared.items() for name in _added(field, how).values()]
    return [*names, *(filled_field(field) for field, rule in missing.items() if isinstance(rule, Fill))]


def _added(field: str, how: How) -> dict[str, str]:
    """Further fields of one: what it is -> its name."""
    if isinstance(how, Pad):
        given = {"mask": how.mask, "lengths": how.lengths}
        return {what: f"{field}_{what}" if name is True else str(name) for what, name in given.items() if name}
    return {"offsets": f"{field}_offsets"} if isinstance(how, Ragged) and not how.nested else {}


def check_declaration(
    declared: Mapping[str, How],
    decoders: Mapping[str, FieldDecoder],
    *,
    missing: Mapping[str, WhenMissing],
    asked: Sequence[str] | None,
    others: Iterable[str],
    has_transform: bool,
) -> dict[str, How]:
    """The declarations with the names of all that they bring, and without what nobody asked for.

    decoders: of the fields that are read. asked: the fields of batches that are tuples. others: names that are
    taken.

    Raises UsageError for fields that are not there or hold no arrays, for names that come twice, and for what a
    tuple needs but leaves out.
    """
    names, taken = added_fields(declared, missing), {*decoders, *others, *declared}
    twice = [name for i, name in enumerate(names) if name in taken or name in names[:i]]
    if twice:
        raise UsageError(
            f"two fields of a batch would be called '{twice[0]}'",
            fix='Give another name: Pad(mask="name", lengths="name"); or leave one out with False',
        )
    for field, how in declared.items():
        _check_field(field, how, decoders, has_transform)
    return {field: _asked_for(field, how, asked) for field, how in declared.items()}


def _check_field(field: str, how: How, decoders: Mapping[str, FieldDecoder], has_transform: bool) -> None:
    if has_transform:
        return  # which may make any field, and anything of those that are there
    if field not in decoders:
        raise UsageError(
            f"collate names the field '{field}'", fix=f"The fields that are read: {', '.join(decoders)}"
        )
    decoder = decoders[field]
    holds_none = decoder.raw or (decoder.function is None and decoder.codec in _NO_ARRAYS)
    if isinstance(how, Pad | Ragged) and holds_none:
        kind = "bytes" if decoder.raw else {"int": "numbers", "float": "numbers", "bool": "numbers"}.get(
            decoder.codec, decoder.codec
        )  # fmt: skip
        raise UsageError(
            f"collate gives {type(how).__name__} for the field '{field}', which holds {kind} and not arrays",
            fix="Make arrays of it with decode={field: function of the bytes} or transform=, or use 'list'",
        )


def _asked_for(field: str, how: How, asked: Sequence[str] | None) -> How:
    if isinstance(how, str):
        return how
    names = _added(field, how)
    if asked is not None:
        given = [getattr(how, what, None) for what in names]
        lost = [n for n, one in zip(names.values(), given, strict=True) if one is not True and n not in asked]
        if lost and field in asked:
            raise UsageError(f"fields= leaves out '{lost[0]}', which goes with '{field}'", fix="Name it in fields=")
        names = {what: name for what, name in names.items() if name in asked}
    if isinstance(how, Ragged):
        return how
    return replace(how, mask=names.get("mask", False), lengths=names.get("lengths", False))


def join_declared(field: str, values: Values, keys: Sequence[str], alloc: Alloc, how: How) -> dict[str, Any]:
    """The values of a field as it was declared: the field, and what comes with it. Arrays are in memory of `alloc`.

    how: of `check_declaration`. Raises SampleError and ShapeMismatch with the key of a sample that does not go
    with the others.
    """
    if how == "list":
        return {field: Apart(values)}
    if how == "stack":
        return {field: _stacked(field, values, keys, alloc)}
    if isinstance(how, Ragged):
        joined, offsets = end_to_end(field, values, keys, alloc, how)
        if how.nested:
            return {field: Jagged(joined, offsets)}
        return {field: joined, _added(field, how)["offsets"]: offsets}
    assert isinstance(how, Pad)
    padded = pad(field, values, keys, alloc, how)
    extra = {how.mask: padded.mask, how.lengths: padded.lengths}
    return {field: padded.values, **{str(name): value for name, value in extra.items() if name is not False}}


def _stacked(field: str, values: Values, keys: Sequence[str], alloc: Alloc) -> Any:
    """One array of all; of tensors a list, which becomes one."""
    joined = values if isinstance(values, np.ndarray) else stack(field, values, keys, alloc)
    if isinstance(joined, np.ndarray):
        return joined
    for value, key in zip(values, keys, strict=True):
        if value is None:
            raise lacks_field(field, key)
        if not hasattr(value, "detach"):
            raise SampleError(
                f"a {type(value).__name__} does not stack", fix='Declare the field "list"', key=key, field=field
            )
        if (value.shape, value.dtype) != (values[0].shape, values[0].dtype):
            raise ShapeMismatch(
                f"a tensor {tuple(value.shape)} of {value.dtype} among others of {tuple(values[0].shape)}, "
                f"{values[0].dtype}", fix="Declare the field with streamio.Pad(), Ragged() or 'list'",
                key=key, field=field,
            )  # fmt: skip
    return joined
