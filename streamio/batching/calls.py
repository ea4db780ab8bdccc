"""Calls that are made again with some of their options changed: what `with_` of a data set does."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any, NamedTuple

from streamio.errors import UsageError


class Call(NamedTuple):
    """The arguments that a class was called with; the first one is what it reads, the others are options."""

    arguments: tuple[Any, ...]
    options: Mapping[str, Any]

    def reading(self, source: Any) -> Call:
        """The same call, as if this had been what it reads: something open, or an address without a password."""
        if self.arguments:
            return self._replace(arguments=(source, *self.arguments[1:]))
        return self._replace(options={**self.options, "source": source})

    def again(self, kind: type, changes: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """(what it reads, the options of a further call). Raises UsageError for changes that are no option."""
        first, *known = _parameters(kind)
        unknown = [name for name in changes if name not in known]
        if unknown:
            fix = (
                f"A data set that reads something else is made anew: {kind.__name__}(…)" if first in unknown else ""
            )
            raise UsageError(
                f"{kind.__name__} has no option {', '.join(map(repr, unknown))} to change",
                fix=fix or f"Options: {', '.join(known)}",
            )
        constructor = signature(kind.__init__)  # type: ignore[misc]
        bound = constructor.bind(None, *self.arguments, **self.options)
        given: dict[str, Any] = {}
        for name, value in list(bound.arguments.items())[1:]:
            given |= value if constructor.parameters[name].kind is Parameter.VAR_KEYWORD else {name: value}
        return given.pop(first), {**given, **changes}


def _parameters(kind: type) -> list[str]:
    """Of the constructor, and of those that it hands further options to."""
    names: dict[str, None] = {}
    for each in kind.__mro__:
        if "__init__" in vars(each):
            _, *parameters = signature(vars(each)["__init__"]).parameters.values()
            names |= {p.name: None for p in parameters if p.kind is not Parameter.VAR_KEYWORD}
            if len(parameters) == len(names):
                break
    return list(names)
