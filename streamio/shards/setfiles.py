"""The files of a packed set, in a folder or behind a URL: found, and refused before anything is read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from pathlib import Path
from typing import Protocol

import numpy as np
import xxhash

from streamio.errors import BadIndex, BadManifest, CorruptShard, MissingShard, StorageError, UsageError
from streamio.shards.index import INDEX_SUFFIX, ShardIndex
from streamio.shards.manifest import MANIFEST_NAME, Manifest
from streamio.storage.cache import ShardCache
from streamio.storage.files import join, read_bytes, redact

LISTED = 20
"""Messages name this many files and count the rest."""


MOST_OPEN = 4096
"""Shards that are on this machine anyway. Each takes 4 KB and two of the 65,530 maps of a process. Batches that
are shuffled over many small shards need most of them, and to open one takes 0.3 ms."""


class SetFiles(Protocol):
    """Where the parts of a set are. Everything is a name until it is asked for; nothing stays open.

    place:     what messages and `repr` call the set; without secrets.
    notes:     what is odd about its shards, for warnings.
    promised:  whether checksums of the shards were written when they were made.
    most_open: shards that a process best has open at a time.
    """

    @property
    def manifest(self) -> Manifest: ...

    @property
    def place(self) -> str: ...

    @property
    def notes(self) -> Sequence[str]: ...

    @property
    def promised(self) -> bool: ...

    @property
    def most_open(self) -> int: ...

    def hold(self, number: int) -> AbstractContextManager[Path]:
        """The shard as a file on this machine, downloaded where it is not, that stays until the block ends.

        Opened or mapped inside the block, it stays readable after it.
        """
        ...

    def index(self, number: int) -> ShardIndex: ...


class LocalFiles:
    """A folder that `streamio pack` wrote. Raises, for all its files at once, if it is not whole.

    check: False leaves out the look at the shards and indexes (to repair or verify them).
    """

    promised = True
    notes = ()
    most_open = MOST_OPEN

    def __init__(self, folder: str | os.PathLike[str], *, check: bool = True) -> None:
        self.folder = Path(folder)
        self.place = os.fspath(folder)
        self.manifest = _local_manifest(self.folder)
        if check:
            self._check()

    def hold(self, number: int) -> AbstractContextManager[Path]:
        return nullcontext(self.shard_path(number))

    def shard_path(self, number: int) -> Path:
        return self.folder / self.manifest.shards[number].name

    def index_path(self, number: int) -> Path:
        return self.folder / (self.manifest.shards[number].name + INDEX_SUFFIX)

    def index(self, number: int) -> ShardIndex:
        return fitting(ShardIndex.load(self.index_path(number)), self.manifest, number)

    def _check(self) -> None:
        there = {entry.name for entry in os.scandir(self.folder)}
        names = [shard.name for shard in self.manifest.shards]
        sizes = [_size(self.folder / name) if name in there else None for name in names]
        shards = [name for name, size in zip(names, sizes, strict=True) if size is None]
        indexes = [name + INDEX_SUFFIX for name in names if name + INDEX_SUFFIX not in there]
        if shards or indexes:
            raise MissingShard(
                f"{len(shards)} of {len(names)} shards and {len(indexes)} indexes are missing: "
                f"{listed([*shards, *indexes])}",
                fix="Copy the set again or pack it again" if shards
                else f"Run: streamio index {self.place}",
                path=self.place,
            )  # fmt: skip
        wrong = []
        for shard, size in zip(self.manifest.shards, sizes, strict=True):
            if size is not None and size != shard.bytes:
                state = "cut" if size < shard.bytes else "longer than it was"
                wrong.append(f"{shard.name} ({size:,} of {shard.bytes:,} bytes, {state})")
        if wrong:
            raise CorruptShard(
                f"{len(wrong)} of {len(names)} shards have not the size that was written: {listed(wrong)}",
                fix="Copy the set again or pack it again",
                path=self.place,
            )


class RemoteFiles:
    """A set behind a URL: manifest and indexes are read, shards are downloaded whole into the cache.

    Nothing is asked about a shard before it is needed: a request for each would take longer than the epoch.
    """

    promised = True
    notes = ()
    most_open = 512
    """Their indexes are no files here, and take memory: about 50 bytes a sample."""

    def __init__(self, url: str, cache: str | os.PathLike[str] | None) -> None:
        self.url = url
        self.place = redact(url)
        self._cache = ShardCache(cache)
        address = join(url, MANIFEST_NAME)
        self.manifest = Manifest.from_json(read_bytes(address), redact(address))

    def hold(self, number: int) -> AbstractContextManager[Path]:
        entry = self.manifest.shards[number]
        return self._cache.hold(join(self.url, entry.name), bytes=entry.bytes, checksum=entry.checksum)

    def index(self, number: int) -> ShardIndex:
        entry = self.manifest.shards[number]
        address = join(self.url, entry.name + INDEX_SUFFIX)
        data = read_bytes(address)
        if xxhash.xxh3_64_hexdigest(data) != entry.index_checksum:
            raise BadIndex(
                "is not the index that the manifest names",
                fix="Copy the set to the server again",
                path=redact(address),
            )
        index = ShardIndex.from_buffer(np.frombuffer(data, np.uint8), redact(address))
        return fitting(index, self.manifest, number)


def first_shards(files: SetFiles, shards: int) -> SetFiles:
    """The files of the first so many shards of a set that grows. Raises UsageError for another, or for fewer."""
    there = len(files.manifest.shards)
    if not files.manifest.grows:
        raise UsageError("the set does not grow", fix="Leave shards= out", path=files.place)
    if not 1 <= shards <= there:
        raise UsageError(
            f"{shards} of {there} shards", fix="Copy the others too, or ask for fewer", path=files.place
        )
    first = copy(files)
    first.manifest = files.manifest.first(shards)  # type: ignore[misc]
    return first


def fitting(index: ShardIndex, manifest: Manifest, number: int) -> ShardIndex:
    """The index, if it counts the samples that the manifest counts; rows are found by those numbers."""
    entry = manifest.shards[number]
    if index.samples != entry.samples:
        raise BadIndex(
            f"the index has {index.samples:,} samples, the manifest {entry.samples:,}",
            fix="Delete the index and run 'streamio index', or copy the set again",
            shard=entry.name,
        )
    return index


def _size(path: Path) -> int | None:
    """Bytes of a file; None where there is none, as at the end of a link whose target has gone."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def listed(names: Iterable[str]) -> str:
    """`a, b, c and 7 more`."""
    every = list(names)
    rest = len(every) - LISTED
    return ", ".join(every[:LISTED]) + (f" and {rest:,} more" if rest > 0 else "")


def _local_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise _no_manifest(folder) from None
    except NotADirectoryError:
        raise UsageError("is no folder", fix="Give the folder of a packed set, or tars", path=folder) from None
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", path=path) from error
    return Manifest.from_json(data, os.fspath(path))


def _no_manifest(folder: Path) -> BadManifest:
    """What a folder without a manifest seems to be, and what to do then."""
    names = sorted(entry.name for entry in os.scandir(folder))
    tars = [name for name in names if name.endswith((".tar", ".lmdb", ".h5"))]
    sets = [name for name in names if (folder / name / MANIFEST_NAME).is_file()]
    if sets:
        fix = f"The sets are in its folders: {listed(os.path.join(folder, name) for name in sets)}"
    elif any(name.startswith("shard-") for name in tars):
        fix = "Copy the manifest too, or pack again; packing that was stopped leaves none"
    elif tars:
        kind = Path(tars[0]).suffix
        fix = f"Tars of others are opened by pattern: '{os.path.join(folder, '*' + kind)}' (see 'streamio index')"
    else:
        fix = f"Pack the folder first: streamio pack {folder} OUT"
    held = f"it holds {listed(names[:5])}{' …' if len(names) > 5 else ''}" if names else "the folder is empty"
    return BadManifest(f"no {MANIFEST_NAME} here; {held}", fix=fix, path=folder)
