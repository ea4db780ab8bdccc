"""The store of some values, found by all that they depend on: `cache=` and its options, and what they lead to."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from streamio.caching.code import code_key
from streamio.caching.disk import DiskStore
from streamio.caching.memory import MemoryStore, default_limit
from streamio.errors import UsageError
from streamio.version import __version__

_VERSION = 1
"""Of all that makes values and their places; another one is another cache."""

_DISK = "disk:"


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """where: "memory", or "disk:" and a folder. bytes: the limit; None: a share of what is free.

    key: stands for the code of the user's functions, on a disk.
    """

    where: str
    bytes: int | None = None
    key: str | None = None

    @classmethod
    def checked(cls, where: Any, bytes: int | None, key: Any) -> CacheOptions | None:
        """The options, or None for no cache. Raises UsageError for what is none, or is without effect."""
        if where is None:
            for name, value in {"cache_bytes": bytes, "cache_key": key}.items():
                if value is not None:
                    raise UsageError(
                        f"{name}={value!r} without cache=", fix='Give cache="memory" or "disk:/folder"'
                    )
            return None
        if where != "memory" and not (isinstance(where, str) and where.startswith(_DISK) and where != _DISK):
            raise UsageError(
                f"cache={where!r}", fix='Give "memory", or "disk:" and a folder: "disk:/scratch/cache"'
            )
        if key is not None and (where == "memory" or not isinstance(key, str)):
            raise UsageError(
                f"cache_key={key!r}", fix="Give a text, for a cache on a disk; one in memory needs none"
            )
        return cls(where=where, bytes=bytes, key=key)


@dataclass(frozen=True)
class Origin:
    """Something that values depend on.

    name:  of the argument in the call (`decode['txt']`), or in a word what it is.
    facts: plain values, whose `repr` tells it from others.
    code:  a function or value of the user's, which is told from others by all that it does. It lives as long as
           the store is used.
    """

    name: str
    facts: Any
    code: Any = None


_in_memory: weakref.WeakValueDictionary[Any, MemoryStore] = weakref.WeakValueDictionary()
"""Stores of this process by what is in them: data sets that read the same in the same way share one."""


def open_store(options: CacheOptions, origins: Sequence[Origin], slots: int) -> MemoryStore | DiskStore:
    """The store for values of these origins. Raises as `MemoryStore`, `DiskStore` and `code_key` do."""
    if options.where != "memory":
        folder = options.where.removeprefix(_DISK)
        return DiskStore(folder, _key(origins, options.key), slots, options.bytes)
    try:
        shared = _key(origins, None)
    except UsageError:
        shared = None  # each rank has its own
    own = (os.getpid(), *((origin.name, repr(origin.facts), id(origin.code)) for origin in origins), options)
    store = _in_memory.get(own)
    if store is None:
        store = MemoryStore(slots, options.bytes or default_limit(), shared)
        _in_memory[own] = store
    return store


def _key(origins: Sequence[Origin], given: str | None) -> str:
    """32 hex digits that change with all that values depend on. Raises UsageError for functions that hide it."""
    facts: list[Any] = [_VERSION, __version__, given]
    for origin in origins:
        code = "" if origin.code is None or given is not None else code_key(origin.name, origin.code)
        facts.append((origin.name, origin.facts, code))
    return xxhash.xxh3_128_hexdigest(repr(facts).encode())
