"""What can be sent to another process, and where in an object lies what cannot.

A probe pickles an object as multiprocessing would, but throws the bytes away and leaves out the memory of tensors
and arrays, so it costs little and shares nothing. If it fails, the object is taken apart as pickle would, down to
the smallest part that fails: `transform.steps[1].fn`.

cloudpickle, where it is installed, also sends lambdas, and functions and classes of a notebook.
"""

from __future__ import annotations

import importlib
import io
import pickle
import sys
import threading
from collections import ChainMap
from collections.abc import Iterator, Mapping
from functools import partial
from multiprocessing.reduction import ForkingPickler
from types import FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

GRADIENT = "a tensor that requires a gradient"
_DEEPEST = 40
_FILES = (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO)


class Fault(NamedTuple):
    """value: what cannot be sent. path: of it, `transform.steps[1].fn`. what: it is, in words. reason: pickle's."""

    path: str
    value: Any
    what: str
    reason: str


def find_fault(value: Any, path: str, *, by_value: bool = False) -> Fault | None:
    """The smallest part of a value that cannot be sent; None where all of it can.

    path:     of the value itself. To be called where multiprocessing pickles: its locks ask whether it does.
    by_value: send it with cloudpickle, if that is installed.
    """
    probe = _probes()[1] if by_value and has_cloudpickle() else _Probe
    error = _failure(value, probe)
    return None if error is None else _smallest(value, path, probe, error)


def has_cloudpickle() -> bool:
    """Whether cloudpickle is installed."""
    try:
        importlib.import_module("cloudpickle")
    except ImportError:
        return False
    return True


def dumps_by_value(value: Any) -> bytes:
    """Pickled for another process, functions and classes taken along where these cannot be imported there."""
    file = io.BytesIO()
    _state.by_value = True
    try:
        _probes()[0](file).dump(value)
    finally:
        _state.by_value = False
    return file.getvalue()


def is_by_value() -> bool:
    """Whether `dumps_by_value` is at work in this thread, so that what it meets is taken along in any case."""
    return getattr(_state, "by_value", False)


_state = threading.local()


def main_is_imported() -> bool:
    """Whether workers under spawn and forkserver import the main script, and so what it defines.

    Not that of a notebook, an interactive session, `python -c`, or standard input.
    """
    main: Any = sys.modules["__main__"]
    return getattr(main, "__spec__", None) is not None or getattr(main, "__file__", None) is not None


def _failure(value: Any, probe: Any) -> Exception | None:
    try:
        probe(_Nowhere(), pickle.HIGHEST_PROTOCOL).dump(value)
    except Exception as error:
        return error
    return None


class _Nowhere(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        return len(data)


class _Probe(ForkingPickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, FunctionType | type) and value.__module__ == "__main__" and not main_is_imported():
            raise pickle.PicklingError("workers have no __main__ of an interactive session")
        return _without_memory(value)


def _without_memory(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.requires_grad and not value.is_leaf:
            raise pickle.PicklingError("autograd does not reach across processes")
        return _nothing, ()
    if isinstance(value, _FILES):  # cloudpickle would read all of it
        raise pickle.PicklingError("the other process has another table of open files")
    if type(value) is np.ndarray and not value.dtype.hasobject:
        return _nothing, ()
    return NotImplemented


def _nothing() -> None:
    return None


def _probes() -> tuple[Any, Any]:
    """(pickler by value, its probe). Both know what multiprocessing and torch say of locks, tensors and so on."""
    known: Any = ForkingPickler
    cloud: Any = importlib.import_module("cloudpickle").Pickler
    table = {"dispatch_table": ChainMap(known._extra_reducers, cloud.dispatch_table)}
    by_value: Any = type("ByValue", (cloud,), table)  # pickle looks for the table in the class

    def reducer_override(self: Any, value: Any) -> Any:
        reduced = _without_memory(value)
        return by_value.reducer_override(self, value) if reduced is NotImplemented else reduced

    return by_value, type("Probe", (by_value,), {"reducer_override": reducer_override})


def _smallest(value: Any, path: str, probe: Any, error: Exception) -> Fault:
    seen: list[Any] = []  # keeps them, so that no id is used twice
    while len(seen) < _DEEPEST:
        seen.append(value)
        for where, part in _parts(value, path, by_value=probe is not _Probe):
            if any(part is one for one in seen):
                continue
            if (inner := _failure(part, probe)) is not None:
                value, path, error = part, where, inner
                break
        else:
            break
    return Fault(path, value, what_it_is(value), " ".join(str(error).split()))


def _parts(value: Any, path: str, *, by_value: bool) -> Iterator[tuple[str, Any]]:
    """What pickle would send of a value, with the path of each."""
    if isinstance(value, Mapping):
        yield from ((f"{path}[{name!r}]", part) for name, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"{path}[{i}]", part) for i, part in enumerate(value))
    elif isinstance(value, MethodType):
        yield f"{path}.__self__", value.__self__
    elif isinstance(value, partial):
        yield f"{path}.func", value.func
        yield from ((f"{path}.args[{i}]", part) for i, part in enumerate(value.args))
        yield from ((f"{path}.keywords[{name!r}]", part) for name, part in value.keywords.items())
    elif isinstance(value, FunctionType):
        yield from _variables(value, path) if by_value else ()
    elif not isinstance(value, type | ModuleType):
        yield from ((f"{path}.{name}", part) for name, part in _attributes(value).items())


def _variables(function: FunctionType, path: str) -> Iterator[tuple[str, Any]]:
    """What a function takes from around it."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        try:
            yield f"{path}'s variable {name}", cell.cell_contents
        except ValueError:  # empty as yet
            continue
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f"{path}'s variable {name}", function.__globals__[name]


def _attributes(value: Any) -> dict[str, Any]:
    """The state of an object as it says itself; of a torch module by the names of its parameters and modules."""
    try:
        reduced = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    except Exception:  # a lock, a file, a generator
        return {}
    state = reduced[2] if isinstance(reduced, tuple) and len(reduced) > 2 else None
    states = state if isinstance(state, tuple) else (state,)  # (of __dict__, of __slots__)
    found: dict[str, Any] = {}
    for one in states:
        found |= {str(name): part for name, part in one.items()} if isinstance(one, Mapping) else {}
    if isinstance(value, torch.nn.Module):
        for group in ("_parameters", "_buffers", "_modules"):
            found |= found.pop(group, None) or {}
    return found


def what_it_is(value: Any) -> str:
    """A few words for what cannot be sent."""
    if isinstance(value, torch.Tensor):
        return GRADIENT
    if isinstance(value, GeneratorType):
        return "a generator"
    if isinstance(value, _FILES):
        return "an open file"
    kind = "class" if isinstance(value, type) else "function"
    if not isinstance(value, FunctionType | type):
        owner = type(value)
        if owner.__module__ == "__main__" and not main_is_imported():
            return f"of the class {owner.__name__}, which is defined in a notebook or an interactive session"
        if "<locals>" in owner.__qualname__:
            return f"of the class {owner.__name__}, which is defined inside a function"
        return f"of the type {owner.__module__}.{owner.__qualname__}"
    if value.__name__ == "<lambda>":
        return "a lambda"
    if "<locals>" in value.__qualname__:
        return f"a {kind} that is defined inside a function"
    if value.__module__ == "__main__" and not main_is_imported():
        return f"a {kind} that is defined in a notebook or an interactive session"
    return f"a {kind} that cannot be imported by its name"
