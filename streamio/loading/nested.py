"""Batches of any structure, and what is done to every tensor in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def over_tensors(batch: Any, change: Callable[[torch.Tensor], Any], method: str, ask: Callable[[Any], Any]) -> Any:
    """The batch with all its tensors changed: those in dicts, lists, tuples and named tuples of any depth.

    ask: called with what is no tensor but has a method of this name (a PackedSequence, the batches of other
         libraries), for what takes its place. All else stays what it is.
    """

    def walk(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return change(value)
        if isinstance(value, str | bytes):
            return value
        if isinstance(value, Mapping):
            return {name: walk(one) for name, one in value.items()}
        if hasattr(value, method) and not isinstance(value, type):
            return ask(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(walk, value))
        if isinstance(value, tuple | list):
            return type(value)(map(walk, value))
        return value

    return walk(batch)
