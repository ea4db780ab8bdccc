"""The formats that streamio knows, by name and by file suffix."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from streamio.errors import UsageError
from streamio.shards.base import ShardFormat
from streamio.shards.hdf5 import HDF5
from streamio.shards.lmdb import LMDB
from streamio.shards.tar import TAR

FORMATS: dict[str, ShardFormat] = {format.name: format for format in (TAR, LMDB, HDF5)}


def format_named(name: str) -> ShardFormat:
    """The format with this name. Raises UsageError, with the known ones and the nearest."""
    if name in FORMATS:
        return FORMATS[name]
    near = difflib.get_close_matches(name.lower(), [*FORMATS, *_SUFFIXES], n=1)
    guess = f"Did you mean '{_SUFFIXES.get(near[0], near[0])}'? " if near else ""
    raise UsageError(f"unknown format {name!r}", fix=f"{guess}Known formats: {', '.join(FORMATS)}")


def format_of(path: str | os.PathLike[str]) -> ShardFormat:
    """The format of a shard file, by its suffix. Raises UsageError for any other."""
    suffix = Path(path).suffix.lower()
    if suffix[1:] in _SUFFIXES:
        return FORMATS[_SUFFIXES[suffix[1:]]]
    known = ", ".join(f".{suffix}" for suffix in _SUFFIXES)
    raise UsageError("is no shard by its name", fix=f"Shards end in {known}, uncompressed", path=os.fspath(path))


_SUFFIXES = {format.suffix[1:]: format.name for format in FORMATS.values()}
