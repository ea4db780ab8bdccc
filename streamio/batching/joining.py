"""Values of samples -> a batch: field by field, or sample by sample where the user's functions are in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamio.batching.collate import by_field, collate, join_values, lacks_field, stack
from streamio.batching.declared import Apart, join_declared
from streamio.batching.decode import Columns, Values, channels_last
from streamio.batching.options import JoinOptions
from streamio.batching.picked import ADDED, KEY, Picked
from streamio.batching.reading import SampleReader
from streamio.batching.stages import counted_batch
from streamio.errors import SampleError, TransformError, UsageError
from streamio.types import Alloc, new_array


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
        declared = self.options.declared
        batch: dict[str, Any] = {}
        for name, column in values.items():
            if name in declared:
                batch |= join_declared(name, column, keys, alloc, declared[name])
            else:
                batch[name] = column if isinstance(column, np.ndarray) else stack(name, column, keys, alloc)
        return self._shape({**batch, **self._turned(batch, decoded=True), **more})

    def samples(self, samples: list[Any], keys: Sequence[str], more: Mapping[str, Any], alloc: Alloc) -> Any:
        """A list of samples as one batch. more: what a batch of samples has, whatever the transform left of it."""
        if self.options.collate is not None:
            try:
                return self.options.collate(samples)
            except Exception as error:
                raise TransformError(
                    f"collate raised {type(error).__name__}: {error}; the batch starts with '{keys[0]}'"
                ) from error
        join = self._by_declaration if self.options.declared else collate
        batch = join(samples, keys, alloc)
        if not isinstance(batch, dict):
            return batch
        return self._shape({**batch, **self._turned(batch, decoded=False), **more})

    def _turned(self, batch: Mapping[str, Any], *, decoded: bool) -> dict[str, Any]:
        """The pictures of a batch as `layout` has them. decoded: by us, and not what a transform returned."""
        if self.options.layout == "hwc":
            return {}
        return {name: _channels_first(name, batch[name], decoded) for name in self.pictures & batch.keys()}

    def _by_declaration(self, samples: list[Any], keys: Sequence[str], alloc: Alloc) -> dict[str, Any]:
        declared = self.options.declared
        for i, sample in enumerate(samples):
            if not isinstance(sample, Mapping):
                raise SampleError(
                    f"the transform returned a {type(sample).__name__}, and collate= declares fields",
                    fix="Return a dict of fields, or give a function as collate=", key=keys[i],
                )  # fmt: skip
        columns = by_field(samples, keys)
        batch: dict[str, Any] = {}
        for name in (*columns, *(name for name in declared if name not in columns)):
            if name not in columns:
                raise lacks_field(name, keys[0])
            if name in declared:
                made = join_declared(name, columns[name], keys, alloc, declared[name])
            else:
                made = {name: join_values(name, columns[name], keys, alloc)}
            if len(made) > 1 and (twice := made.keys() & columns.keys() - {name}):
                raise SampleError(
                    f"the transform returned a field '{min(twice)}', which collate= adds to '{name}'",
                    fix='Give that another name: Pad(mask="name", lengths="name"), or rename the field',
                )
            batch |= made
        return batch

    def _shape(self, batch: dict[str, Any]) -> Any:
        """The batch as the user wants it: a dict, or a tuple of the fields asked for."""
        if not self.options.as_tuple:
            return batch
        missing = [name for name in self.options.fields if name not in batch]
        if missing:
            raise UsageError(
                f"the transform or prepare returned no {', '.join(missing)}, which fields= asks for",
                fix="Return them, or return a tuple in the order you want",
            )
        return tuple(batch[name] for name in self.options.fields)


def _channels_first(field: str, pictures: Any, decoded: bool, dims: int = 4) -> Any:
    """(B, H, W, C) seen as (B, C, H, W): no copy; torch calls this memory `channels_last`, and GPUs prefer it.

    What a function of the user's returned may be so already, as pictures of torchvision are; tensors are left.
    """
    if isinstance(pictures, Apart):
        return Apart(_channels_first(field, one, decoded, dims=3) for one in pictures)
    if not isinstance(pictures, np.ndarray) or pictures.ndim != dims:
        return pictures
    last = channels_last(pictures.shape)
    if last is None and not decoded:
        raise UsageError(
            f"transform= or prepare= gave {pictures.shape}, of which layout='chw' cannot tell the channels",
            fix="Turn them there, and give layout='hwc', which leaves them", field=field,
        )  # fmt: skip
    return pictures if last is False else np.moveaxis(pictures, -1, -3)


def read_batch(reader: SampleReader, joiner: Joiner, picked: Picked, alloc: Alloc) -> Any:
    """The batch of some samples of one table: gathered, decoded, transformed and joined."""
    if reader.options.by_sample or joiner.options.collate is not None:
        made = reader.samples(picked)
        refuse_empty(len(picked.rows), len(made.samples))
        since = perf_counter_ns()
        batch = joiner.samples(made.samples, reader.keys(made.picked.rows), made.picked.more, alloc)
        return counted_batch(reader.count, batch, len(made.samples), since)
    left, values = reader.values(picked, alloc, joined=True)
    refuse_empty(len(picked.rows), len(left.rows))
    since = perf_counter_ns()
    more: dict[str, Any] = dict(left.more)
    if KEY in joiner.options.fields:
        more[KEY] = reader.table.keys(left.rows)
    batch = joiner.fields(values, reader.keys(left.rows), more, alloc)
    return counted_batch(reader.count, batch, len(left.rows), since)


def read_bundle(
    reader: SampleReader, joiner: Joiner, picked: Picked, alloc: Alloc, spans: Sequence[tuple[int, int]]
) -> list[Any] | None:
    """Several batches, read at once and cut apart at these spans; None where each is to be read by itself."""
    values = reader.at_once(picked, alloc)
    if values is None:
        return None
    since = perf_counter_ns()
    more: dict[str, Any] = dict(picked.more)
    if KEY in joiner.options.fields:
        more[KEY] = reader.table.keys(picked.rows)
    batches = cut(joiner, values, reader.keys(picked.rows), more, spans)
    counted: list[Any] = counted_batch(reader.count, batches, len(picked.rows), since, batches=len(batches))
    return counted


def cut(
    joiner: Joiner, values: Columns, keys: Sequence[str], more: Mapping[str, Any], spans: Sequence[tuple[int, int]]
) -> list[Any]:
    """The batches of a bundle, each joined by itself."""
    batches = []
    for start, stop in spans:
        own, others = ({name: each[start:stop] for name, each in of.items()} for of in (values, more))
        batches.append(joiner.fields(own, KeysFrom(keys, start, stop), others, new_array))
    return batches


class KeysFrom(Sequence[str]):
    """Some of the keys of a bundle, which are read only where one is needed."""

    def __init__(self, keys: Sequence[str], start: int, stop: int) -> None:
        self._keys, self._range = keys, range(start, stop)

    def __len__(self) -> int:
        return len(self._range)

    def __getitem__(self, index: Any) -> Any:
        at = self._range[index]
        return [self._keys[i] for i in at] if isinstance(index, slice) else self._keys[at]


def refuse_empty(asked: int, left: int) -> None:
    """Raise SampleError for a batch of which nothing is left. Bad samples never empty one: see `SampleReader`."""
    if not left:
        raise SampleError(
            f"prepare or transform returned None for all of the {asked} samples of a batch that were not bad, or "
            "they lack a field that missing= skips",
            fix="A batch may get smaller, not empty: use where(…) to leave out samples before they are read",
        )


def choose_fields(
    known: Sequence[str], fields: Sequence[str] | None, tail: str, added: Sequence[str] = ()
) -> tuple[tuple[str, ...], bool]:
    """(fields to deliver, whether as a tuple). Raises UsageError for names that are not there.

    known: those of the table; None asks for all of them, in a dict. added: those that a tuple may name beside them.
    """
    if fields is None:
        return (*known, ADDED[0]), False
    if isinstance(fields, str):
        raise UsageError(f"fields={fields!r}", fix=f"Give a sequence of names: fields=({fields!r},)")
    if not fields:
        raise UsageError("fields is empty", fix=f"Name some of {', '.join(known)}, or leave fields= out for all")
    unknown = [name for name in fields if name not in (*known, *ADDED, *added)]
    if unknown:
        there = ", ".join((*known, *added, ADDED[0]))
        raise UsageError(f"no field {', '.join(map(repr, unknown))}", fix=f"Fields: {there}")
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
