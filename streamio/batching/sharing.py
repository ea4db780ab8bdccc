"""One joiner for the samples of several data sets, where these agree on what a batch looks like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from streamio.batching.declared import (
    Collate,
    How,
    added_fields,
    as_declaration,
    as_function,
    check_declaration,
)
from streamio.batching.joining import Joiner
from streamio.batching.options import JoinOptions
from streamio.batching.picked import ADDED
from streamio.batching.reading import SampleReader
from streamio.errors import UsageError

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
