"""Values of samples -> a batch: field by field, or sample by sample where the user's functions are in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamio.batching.collate import collate, stack
from streamio.batching.decode import Values
from streamio.batching.options import JoinOptions
from streamio.batching.reading import ADDED, KEY, Picked, SampleReader
from streamio.errors import SampleError, StreamioError, TransformError, UsageError
from streamio.types import Alloc


class Joiner:
    """Makes batches of arrays, lists and whatever the user's collate returns; torch comes after it.

    pictures: the fields that are pictures, which `layout` turns.
    """

    def __init__(self, options: JoinOptions, pictures: frozenset[str]) -> None:
        self.options, self.pictures = options, pictures

    def fields(
        self, values: Mapping[str, Values], keys: Sequence[str], more: Mapping[str, Any], alloc: Alloc
    ) -> Any:
        """n values of each field as one batch. more: what is joined already."""
        batch = {n: v if isinstance(v, np.ndarray) else stack(n, v, keys, alloc) for n, v in values.items()}
        if self.options.layout == "chw":
            batch |= {name: _channels_first(batch[name]) for name in self.pictures & batch.keys()}
        return self._shape({**batch, **more})

    def samples(self, samples: list[Any], keys: Sequence[str], more: Mapping[str, Any], alloc: Alloc) -> Any:
        """A list of samples as one batch. more: what a batch of samples has, whatever the transform left of it."""
        if self.options.collate is not None:
            try:
                return self.options.collate(samples)
            except Exception as error:
                raise TransformError(
                    f"collate raised {type(error).__name__}: {error}; the batch starts with '{keys[0]}'"
                ) from error
        batch = collate(samples, keys, alloc)
        return self._shape({**batch, **more}) if isinstance(batch, dict) else batch

    def _shape(self, batch: dict[str, Any]) -> Any:
        """The batch as the user wants it: a dict, or a tuple of the fields asked for."""
        if not self.options.as_tuple:
            return batch
        missing = [name for name in self.options.fields if name not in batch]
        if missing:
            raise UsageError(
                f"the transform returned no {', '.join(missing)}, which fields= asks for",
                fix="Return them, or return a tuple in the order you want",
            )
        return tuple(batch[name] for name in self.options.fields)


def _channels_first(pictures: Any) -> Any:
    """(B, H, W, C) seen as (B, C, H, W): no copy; torch calls this memory `channels_last`, and GPUs prefer it."""
    return pictures.transpose(0, 3, 1, 2) if isinstance(pictures, np.ndarray) and pictures.ndim == 4 else pictures


def read_batch(reader: SampleReader, joiner: Joiner, picked: Picked, alloc: Alloc) -> Any:
    """The batch of some samples of one table: gathered, decoded, transformed and joined."""
    if reader.options.transform is not None or joiner.options.collate is not None:
        made = reader.samples(picked)
        refuse_empty(len(picked.rows), len(made.samples), reader.last_failure)
        return joiner.samples(made.samples, reader.keys(made.picked.rows), made.picked.more, alloc)
    left, values = reader.values(picked, alloc, joined=True)
    refuse_empty(len(picked.rows), len(left.rows), reader.last_failure)
    more: dict[str, Any] = dict(left.more)
    if KEY in joiner.options.fields:
        more[KEY] = reader.table.keys(left.rows)
    return joiner.fields(values, reader.keys(left.rows), more, alloc)


def refuse_empty(asked: int, left: int, failure: StreamioError | None) -> None:
    """Raise SampleError for a batch of which nothing is left."""
    if left:
        return
    if failure is None:
        raise SampleError(
            f"transform returned None for all {asked} samples of a batch",
            fix="A batch may get smaller, not empty: use where(…) to leave out samples before they are read",
        )
    raise SampleError(
        f"none of the {asked} samples of a batch is left; the last that did not decode: {failure}",
        fix="With on_error='skip' a batch may get smaller, not empty: look at the data or the decoder",
    )


def choose_fields(known: Sequence[str], fields: Sequence[str] | None, tail: str) -> tuple[tuple[str, ...], bool]:
    """(fields to deliver, whether as a tuple). Raises UsageError for names that are not there.

    known: those of the table; None asks for all of them, in a dict.
    """
    if fields is None:
        return (*known, ADDED[0]), False
    if isinstance(fields, str):
        raise UsageError(f"fields={fields!r}", fix=f"Give a sequence of names: fields=({fields!r},)")
    if not fields:
        raise UsageError("fields is empty", fix=f"Name some of {', '.join(known)}, or leave fields= out for all")
    unknown = [name for name in fields if name not in known and name not in ADDED]
    if unknown:
        raise UsageError(f"no field {', '.join(map(repr, unknown))}", fix=f"Fields: {', '.join(known)}, {ADDED[0]}")
    if (tail == "pad") != ("__valid__" in fields):
        raise UsageError(
            f"tail={tail!r} with fields={tuple(fields)!r}",
            fix="Batches of tail='pad' need their mask: name '__valid__' in fields (and only with 'pad')",
        )
    return tuple(fields), True


def merge(parts: Sequence[tuple[NDArray[np.int64], Values]], count: int, alloc: Alloc) -> Values:
    """One field of a batch from parts of it: (places in the batch, values at these places).

    One array where all parts are arrays of one dtype and shape, else a list.
    """
    kinds = {(v.dtype, v.shape[1:]) if isinstance(v, np.ndarray) else None for _, v in parts}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is not None:
        out = alloc((count, *kind[1]), kind[0])
        for places, values in parts:
            out[places] = values
        return out
    merged: list[Any] = [None] * count
    for places, values in parts:
        for place, value in zip(places.tolist(), values, strict=True):
            merged[place] = value
    return merged
