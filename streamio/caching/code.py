"""What a user's function does, as a text that changes when it does: names the values it makes in a cache on a disk.

It holds the bytecode with its constants, defaults and what the function closes over; the functions, classes and
values of its module that it names; and for whatever comes from an installed package the version of that. Comments,
docstrings and line numbers are left out.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib.metadata
import sys
import sysconfig
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from streamio.errors import UsageError
from streamio.version import __version__

_INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def code_key(name: str, function: Any) -> str:
    """A hash of all that the function does. Raises UsageError where it depends on what cannot be seen.

    name: of the argument, for the message.
    """
    try:
        text = _Reader().value(function)
    except _Unseen as unseen:
        raise UsageError(
            f"{name}={function!r} depends on {unseen}, of which a cache on a disk cannot see whether it changes",
            fix="Give cache_key='a text that you change whenever what the function does changes'",
        ) from None
    return hashlib.blake2b(f"{sys.version_info[:2]} {text}".encode(), digest_size=16).hexdigest()


class _Unseen(Exception):
    """Something of which not all can be read; the text names it."""


class _Reader:
    """Values as texts; functions and classes once each, however they refer to each other."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, Any]] = {}

    def value(self, value: Any) -> str:
        if value is None or value is ... or isinstance(value, bool | int | float | complex | str | bytes | range):
            return f"{type(value).__name__} {value!r}"
        if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            return f"array {value.dtype} {value.shape} {hashlib.blake2b(value.tobytes()).hexdigest()}"
        if id(value) in self._seen:
            return f"again {self._seen[id(value)][0]}"
        self._seen[id(value)] = len(self._seen), value
        return self._of_many(value)

    def _of_many(self, value: Any) -> str:
        if isinstance(value, tuple | list):
            return f"{type(value).__name__} ({', '.join(map(self.value, value))})"
        if isinstance(value, set | frozenset):
            return f"set ({', '.join(sorted(_Reader().value(item) for item in value))})"
        if isinstance(value, Mapping):
            return f"dict ({', '.join(f'{self.value(k)}: {self.value(v)}' for k, v in value.items())})"
        if isinstance(value, types.ModuleType):
            return self._module(value)
        if isinstance(value, functools.partial):
            return f"partial {self.value((value.func, value.args, value.keywords))}"
        if isinstance(value, types.MethodType):
            return f"method {self.value(value.__func__)} of {self.value(value.__self__)}"
        if isinstance(value, types.FunctionType):
            return _installed(value) or self._function(value)
        if isinstance(value, staticmethod | classmethod):
            return self.value(value.__func__)
        if isinstance(value, property):
            return self.value((value.fget, value.fset))
        if isinstance(value, type):
            return _installed(value) or self._class(value)
        if isinstance(value, types.BuiltinFunctionType | np.ufunc):
            return _installed(value) or f"builtin {value.__name__}"
        if _installed(type(value)):
            raise _Unseen(f"an object of {type(value).__module__}.{type(value).__qualname__}")
        return self._object(value)

    def _module(self, module: types.ModuleType) -> str:
        """Its version where it is installed, else its file: what it gives is not known by name."""
        known = _version(module.__name__)
        if known is not None:
            return f"module {module.__name__} {known}"
        try:
            return (
                f"module {module.__name__} {hashlib.blake2b(Path(str(module.__file__)).read_bytes()).hexdigest()}"
            )
        except OSError:
            raise _Unseen(f"the module {module.__name__}") from None

    def _function(self, function: types.FunctionType) -> str:
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        facts = (function.__defaults__, function.__kwdefaults__, cells)
        return f"{self._code(function.__code__, function.__globals__)} {self.value(facts)}"

    def _code(self, code: types.CodeType, names: Mapping[str, Any]) -> str:
        """The instructions with what they name; of globals their values, of attributes the names."""
        parts = []
        for step in dis.get_instructions(code):
            argument = step.argval
            if isinstance(argument, types.CodeType):
                parts.append(self._code(argument, names))
            elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and argument in names:
                parts.append(f"global {argument} {self.value(names[argument])}")
            else:
                known = isinstance(argument, int | float | complex | str | bytes | tuple | frozenset | range)
                parts.append(f"{step.opname} {_Reader().value(argument) if known else ''}")
        return f"code {code.co_argcount} {code.co_varnames} {'; '.join(parts)}"

    def _class(self, kind: type) -> str:
        left_out = ("__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "__static_attributes__")
        parts = {name: value for name, value in vars(kind).items() if name not in left_out}
        for name, value in list(parts.items()):
            if isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType):
                parts[name] = "slot"
        return f"class {kind.__qualname__} {self.value(kind.__bases__)} {self.value(parts)}"

    def _object(self, value: Any) -> str:
        slots = [n for kind in type(value).__mro__ for n in getattr(kind, "__slots__", ()) if hasattr(value, n)]
        facts = getattr(value, "__dict__", {}) | {name: getattr(value, name) for name in slots}
        return f"object {self.value(type(value))} {self.value(facts)}"


def _installed(value: Any) -> str | None:
    """The name and version of what comes from Python or an installed package; None for code of the user's."""
    module = getattr(value, "__module__", None) or type(getattr(value, "__self__", None)).__module__
    version = _version(module)
    return None if version is None else f"{module}.{getattr(value, '__qualname__', '')} {version}"


@functools.cache
def _version(module: str) -> str | None:
    """The version of the package that a module is of; None for what is not installed, and may change any day."""
    top = module.split(".")[0]
    if top == "streamio":
        return __version__
    if top in sys.builtin_module_names or top in sys.stdlib_module_names:
        return sys.version
    found = sys.modules.get(top)
    file = getattr(found, "__file__", None) or ""
    if top == "__main__" or not file.startswith(_INSTALLED):
        return None
    for name in importlib.metadata.packages_distributions().get(top, ()):
        return importlib.metadata.version(name)
    return None
