"""The user's functions: how they want to be called, and whether they can go to a worker."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from streamio.batching.decode import Values
from streamio.batching.picked import Table
from streamio.errors import TransformError, UsageError
from streamio.pickling import GRADIENT, Fault, find_fault, has_cloudpickle, main_is_imported


def as_samples(values: Mapping[str, Values], count: int) -> list[dict[str, Any]]:
    """Fields of a batch -> one dict for each of its samples; array fields as views."""
    return [{name: value[i] for name, value in values.items()} for i in range(count)]


def with_fields(
    samples: Sequence[Mapping[str, Any] | None], more: Mapping[str, Values]
) -> list[dict[str, Any] | None]:
    """New dicts of samples, with further fields of the batch; None stays None."""
    return [
        None if sample is None else {**sample, **{name: values[i] for name, values in more.items()}}
        for i, sample in enumerate(samples)
    ]


def takes_rng(function: Callable[..., Any]) -> bool:
    """Whether a function wants (sample, rng): a parameter called rng, or two without a default."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False  # builtins have no signature; they take the sample
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters.values() if p.kind in positional and p.default is p.empty]
    return "rng" in parameters or len(needed) >= 2


def raised_by(name: str, error: Exception, table: Table, row: int) -> TransformError:
    """The error for a sample on which a function of the user's raised. name: of the argument in the call."""
    shard, local = table.locate(row)
    (key,) = table.keys(np.array([row]))
    wrapped = TransformError(f"{name} raised {type(error).__name__}: {error}", shard=shard, row=local, key=key)
    wrapped.__cause__ = error
    return wrapped


def go_by_value(functions: Mapping[str, Any]) -> bool:
    """Whether functions can go to a worker under spawn or forkserver only with cloudpickle; False: just so.

    functions: by the words for them in the call (`transform`, `decode['jpg']`).

    Raises UsageError with the path of what cannot go at all (`transform.steps[1].fn`).
    """
    by_value = False
    for name, function in functions.items():
        fault = find_fault(function, name)
        if fault is not None and has_cloudpickle():
            by_value, fault = True, find_fault(function, name, by_value=True)
        if fault is not None:
            raise UsageError(
                f"{fault.path}={_shown(fault.value)} is {fault.what}, which cannot be sent to a worker process "
                f"under spawn or forkserver: {fault.reason}",
                fix=_way_out(fault),
            )
    return by_value


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


_LONGEST = 160


def _way_out(fault: Fault) -> str:
    value = fault.value
    if fault.what == GRADIENT:
        return "Keep its values only: .detach(), or make it under 'with torch.no_grad():'"
    defined = value if isinstance(value, FunctionType | type) else type(value)
    name = defined.__name__
    cloudpickle = "; or run 'pip install streamio[notebook]': cloudpickle sends it as it is"
    if defined.__module__ == "__main__" and name != "<lambda>" and not main_is_imported():
        return (
            f"Move it to a module: put '%%writefile my_{name.lower()}.py' on top of its cell, run that, and write "
            f"'from my_{name.lower()} import {name}'{cloudpickle}"
        )
    if defined is value or "<locals>" in defined.__qualname__:
        return (
            f"Define it with 'def' (or as a class) at the top level of a module{cloudpickle}; or use num_workers=0 "
            "or the start method fork"
        )
    return (
        "Open or make it in the worker when it is first used, and leave it out of the pickle (__getstate__); or "
        "use num_workers=0 or the start method fork"
    )
