"""The user's functions: how they want to be called, and whether they can go to a worker."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from streamio.batching.decode import Values
from streamio.errors import UsageError


def as_samples(values: Mapping[str, Values], count: int) -> list[dict[str, Any]]:
    """Fields of a batch -> one dict for each of its samples; array fields as views."""
    return [{name: value[i] for name, value in values.items()} for i in range(count)]


def takes_rng(function: Callable[..., Any]) -> bool:
    """Whether a transform wants (sample, rng): a parameter called rng, or two without a default."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False  # builtins have no signature; they take the sample
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters.values() if p.kind in positional and p.default is p.empty]
    return "rng" in parameters or len(needed) >= 2


def check_picklable(functions: Mapping[str, Any]) -> None:
    """Raise UsageError with the name of the argument that cannot go to a worker under spawn or forkserver.

    functions: by the words for them in the call (`transform`, `decode['jpg']`).
    """
    for name, function in functions.items():
        try:
            pickle.dumps(function)
        except Exception as error:
            raise UsageError(
                f"{name}={function!r} cannot be sent to a worker process: {error}",
                fix="Define it with 'def' (or as a class) at the top level of a module; a lambda or a function "
                "inside a function only works with num_workers=0 or multiprocessing_context='fork'",
            ) from error
