"""Reads every byte of a set and compares it with what was written; names shards and samples that differ."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from streamio.errors import StreamioError
from streamio.shards.columns import damaged_rows
from streamio.shards.formats import format_of
from streamio.shards.index import INDEX_SUFFIX, ShardIndex
from streamio.shards.manifest import file_checksum
from streamio.shards.opened import find_files
from streamio.shards.reader import ShardReader
from streamio.shards.setfiles import LocalFiles, SetFiles
from streamio.shards.shardset import Source, plain_source


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardVerdict:
    """What was found about one shard.

    problem: what is wrong, "" where it is whole.
    keys:    the samples that are not as they were written, as far as that can be told.
    """

    name: str
    problem: str = ""
    keys: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problem


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """One verdict for each shard, in the order of the set.

    promised: whether there were checksums to compare with. Shards of others have none; of those only the
              headers are checked.
    """

    place: str
    promised: bool
    shards: tuple[ShardVerdict, ...]

    @property
    def ok(self) -> bool:
        return all(shard.ok for shard in self.shards)

    @property
    def damaged(self) -> tuple[ShardVerdict, ...]:
        return tuple(shard for shard in self.shards if not shard.ok)


def verify(
    source: Source,
    *,
    cache: str | os.PathLike[str] | None = None,
    on_shard: Callable[[ShardVerdict], None] | None = None,
) -> VerifyReport:
    """Check every shard and index of a set (`source` and `cache` as in `streamio.open`).

    on_shard: called with each verdict as soon as it is there, for progress.

    Damage, missing shards included, is reported and not raised; what is raised is a set that cannot be
    recognised (no manifest, no such file).
    """
    files = find_files(plain_source(source), cache, check=False)
    verdicts = []
    for number in range(len(files.manifest.shards)):
        verdicts.append(_verdict(files, number))
        if on_shard is not None:
            on_shard(verdicts[-1])
    return VerifyReport(place=files.place, promised=files.promised, shards=tuple(verdicts))


def _verdict(files: SetFiles, number: int) -> ShardVerdict:
    name = files.manifest.shards[number].name
    index: ShardIndex | None = None
    problems: list[str] = []
    keys: tuple[str, ...] = ()
    try:
        index = _checked_index(files, number)
    except (StreamioError, OSError) as error:
        problems.append(f"index: {error}")
    try:
        with files.hold(number) as path:
            problem, keys = _own(files, number, path, index) if files.promised else _foreign(files, number, path)
        problems += [problem] if problem else []
    except (StreamioError, OSError) as error:
        problems.append(str(error))
    return ShardVerdict(name=name, problem="; ".join(problems), keys=keys)


def _checked_index(files: SetFiles, number: int) -> ShardIndex:
    index = files.index(number)
    if isinstance(files, LocalFiles):
        path = files.index_path(number)
        if file_checksum(path) != files.manifest.shards[number].index_checksum:
            raise StreamioError(
                "its bytes are not those that were written",
                fix=f"Run: streamio index {files.place}", path=files.manifest.shards[number].name + INDEX_SUFFIX,
            )  # fmt: skip
    return index


def _own(files: SetFiles, number: int, path: Path, index: ShardIndex | None) -> tuple[str, tuple[str, ...]]:
    """Compare a shard with its manifest: (problem, keys)."""
    entry = files.manifest.shards[number]
    if not path.is_file():
        return "is missing", ()
    size = path.stat().st_size
    if size != entry.bytes:
        state = "cut" if size < entry.bytes else "longer than it was"
        return f"{size:,} of {entry.bytes:,} bytes: the shard is {state}", _beyond(index, size)
    if file_checksum(path) == entry.checksum:
        return "", ()
    problem = "its bytes are not those that were written"
    if index is None:
        return problem, ()
    with ShardReader(path, index, entry.name) as reader:
        rows = damaged_rows(reader)
    if rows is not None and len(rows) == 0:
        problem += "; the damage lies between the samples' values, which are whole"
    return problem, () if rows is None else tuple(index.keys.take(rows))


def _beyond(index: ShardIndex | None, size: int) -> tuple[str, ...]:
    """Samples of a cut shard that are not whole any more."""
    if index is None:
        return ()
    lost = np.zeros(index.samples, np.bool_)
    for field in index.fields.values():
        lost |= (field.sizes > 0) & (field.offsets + field.sizes > size)
    return tuple(index.keys.take(np.flatnonzero(lost)))


def _foreign(files: SetFiles, number: int, path: Path) -> tuple[str, tuple[str, ...]]:
    """Walk a shard of others again; nobody promised what its values are."""
    index = format_of(path).scan(path, files.manifest.escaped)
    return ("", ()) if index.samples == files.manifest.shards[number].samples else ("it has other samples now", ())
