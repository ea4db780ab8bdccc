"""Samples of several data sets in one batch: one joiner, where these agree on what a batch looks like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from time import perf_counter_ns
from typing import Any, TypeAlias

import numpy as np

from streamio.batching.declared import (
    Collate,
    How,
    added_fields,
    as_declaration,
    as_function,
    check_declaration,
)
from streamio.batching.decode import Columns
from streamio.batching.joining import Joiner, cut, merge, refuse_empty
from streamio.batching.options import JoinOptions
from streamio.batching.picked import ADDED, KEY, SOURCE, VALID, Picked
from streamio.batching.reading import Made, SampleReader
from streamio.batching.stages import Count, counted_batch
from streamio.errors import UsageError
from streamio.types import Alloc, Rows, new_array

_PLACE = "__place__"  # of a sample in its batch, until the parts are put together

Parts: TypeAlias = Sequence[tuple[SampleReader, Picked]]
"""Who reads which samples of a batch, taken from what `in_places` gave; none of them empty."""

Members: TypeAlias = Mapping[str, tuple[SampleReader, Joiner]]


def common_joiner(members: Members, collate: Collate | None) -> Joiner:
    """The joiner for samples of all of them. collate: of the mixture, in the place of theirs.

    Raises UsageError where they have different fields, forms or declarations, or a function to collate.
    """
    (first, (_, one)), *_ = members.items()
    mine = one.options
    for name, (_, joiner) in members.items():
        yours = joiner.options
        if yours.collate is not None:
            raise UsageError(f"the set '{name}' has a collate= of its own", fix="Give collate= to the Mixture")
        if set(mine.fields) != set(yours.fields):
            differ = ", ".join(sorted(set(mine.fields) ^ set(yours.fields)))
            raise UsageError(
                f"the sets '{first}' and '{name}' have different fields: {differ}",
                fix="Give both the same with fields=…, or use batches='single'",
            )
        forms = [(o.fields if o.as_tuple else None, o.layout) for o in (mine, yours)]
        if forms[0] != forms[1]:
            raise UsageError(
                f"the batches of '{first}' and '{name}' have different forms: {forms[0]}, {forms[1]}",
                fix="Give both the same fields= and layout=",
            )
    _check_filled(members)
    options = JoinOptions(
        fields=mine.fields, as_tuple=mine.as_tuple, layout=mine.layout, collate=as_function(collate),
        declared=_declared(members, collate),
    )  # fmt: skip
    return Joiner(options, frozenset[str]().union(*(joiner.pictures for _, joiner in members.values())))


def _check_filled(members: Members) -> None:
    """Raise UsageError for members of which one says what was filled, and another does not."""
    added = {name: added_fields({}, reader.options.missing) for name, (reader, _) in members.items()}
    (first, mine), *others = added.items()
    for name, yours in others:
        if set(mine) != set(yours):
            raise UsageError(
                f"missing= brings {', '.join(mine) or 'nothing'} in '{first}', and "
                f"{', '.join(yours) or 'nothing'} in '{name}'",
                fix="Fill the same fields in both; the values may differ",
            )


def _declared(members: Members, collate: Collate | None) -> Mapping[str, How]:
    """How the fields are joined: as the mixture says, or as all members say."""
    given = as_declaration(collate)
    common = next(iter(members.values()))[1].options.declared
    declared: Mapping[str, How] = {}
    for name, (reader, joiner) in members.items():
        options = joiner.options
        if options.declared != common or (options.declared and collate is not None):
            raise UsageError(
                f"the set '{name}' declares a collate= of its own",
                fix="Give one to the Mixture, or the same to all sets",
            )
        declared = check_declaration(
            given, reader.decoders, missing={}, asked=options.fields if options.as_tuple else None,
            others=(*options.fields, *ADDED), has_transform=reader.options.by_sample,
        )  # fmt: skip
    return declared or common


def in_places(picked: Picked) -> Picked:
    """The samples of a batch with their places in it, before they are taken apart."""
    return replace(picked, more={_PLACE: np.arange(len(picked.rows)), **picked.more})


def join_fields(joiner: Joiner, parts: Parts, alloc: Alloc, count: Count) -> Any:
    """The batch of some parts, field by field, in the order of the batch."""
    asked = sum(len(picked.rows) for _, picked in parts)
    read: list[tuple[SampleReader, Picked, dict[str, Any]]] = []
    for reader, picked in parts:
        # Of a part all samples may be skipped, unless nothing else is left of the batch.
        may_be_empty = picked is not parts[-1][1] or any(len(done.rows) for _, done, _ in read)
        read.append((reader, *reader.values(picked, new_array, joined=True, may_be_empty=may_be_empty)))
    since = perf_counter_ns()
    merged = _Merged(read, alloc)
    refuse_empty(asked, len(merged))
    batch = joiner.fields(merged.values, merged, merged.more(joiner), alloc)
    return counted_batch(count, batch, len(merged), since)


def join_bundle(
    joiner: Joiner, parts: Parts, alloc: Alloc, count: Count, spans: Sequence[tuple[int, int]]
) -> list[Any] | None:
    """Several batches at once, see `read_bundle`."""
    read: list[tuple[SampleReader, Picked, Columns]] = []
    for reader, picked in parts:
        values = reader.at_once(picked, new_array)
        if values is None:
            return None
        read.append((reader, picked, values))
    since = perf_counter_ns()
    merged = _Merged(read, alloc)
    batches = cut(joiner, merged.values, merged, merged.more(joiner), spans)
    counted: list[Any] = counted_batch(count, batches, len(merged), since, batches=len(batches))
    return counted


class _Merged(Sequence[str]):
    """The parts of a batch in one order: the keys of its samples, which are read where one is needed; and

    values: its fields.
    """

    def __init__(self, read: Sequence[tuple[SampleReader, Picked, Columns]], alloc: Alloc) -> None:
        self._read, self._alloc = read, alloc
        self._places = _ranks([picked.more[_PLACE] for _, picked, _ in read])
        self._count = sum(map(len, self._places))
        self.values = {name: self._field([values[name] for *_, values in read]) for name in read[0][2]}

    def more(self, joiner: Joiner) -> dict[str, Any]:
        """What was known of each sample before it was read; with its key, if that is asked for."""
        names = [name for name in self._read[0][1].more if name != _PLACE]
        more = {name: self._field([picked.more[name] for _, picked, _ in self._read]) for name in names}
        return {**more, KEY: self._keys} if KEY in joiner.options.fields else more

    @cached_property
    def _keys(self) -> list[str]:
        keys: list[str] = self._field([list(reader.keys(picked.rows)) for reader, picked, _ in self._read])
        return keys

    def _field(self, values: Sequence[Any]) -> Any:
        return merge(list(zip(self._places, values, strict=True)), self._count, self._alloc)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return self._keys[index]


def join_samples(joiner: Joiner, parts: Parts, alloc: Alloc, count: Count) -> Any:
    """The same, sample by sample."""
    asked = sum(len(picked.rows) for _, picked in parts)
    made: list[tuple[SampleReader, Made]] = []
    for reader, picked in parts:
        may_be_empty = picked is not parts[-1][1] or any(done.samples for _, done in made)
        made.append((reader, reader.samples(picked, may_be_empty=may_be_empty)))
    since = perf_counter_ns()
    places = _ranks([part.picked.more[_PLACE] for _, part in made])
    left = sum(map(len, places))
    refuse_empty(asked, left)

    def field(values: Sequence[Any]) -> Any:
        return merge(list(zip(places, values, strict=True)), left, new_array)

    keys = field([list(reader.keys(part.picked.rows)) for reader, part in made])
    more = {name: field([part.picked.more[name] for _, part in made]) for name in (SOURCE, VALID)
            if name in made[0][1].picked.more}  # fmt: skip
    batch = joiner.samples(field([part.samples for _, part in made]), keys, more, alloc)
    return counted_batch(count, batch, left, since)


def _ranks(places: Sequence[Rows]) -> list[Rows]:
    """Places in a batch, of which some are gone, as places in what is left."""
    left = np.sort(np.concatenate(places))
    return [np.searchsorted(left, part) for part in places]
