"""Shards without a manifest: tars that others wrote, or one shard by itself.

Their headers are walked once; the index is kept beside the shard, or in the cache folder where that cannot
be written, and used as long as size and time of the shard stay what they were.
"""

from __future__ import annotations

import glob
import hashlib
import os
import uuid
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash
from braceexpand import braceexpand

from streamio.codecs import codec_for
from streamio.errors import (
    BadIndex,
    BadManifest,
    CorruptShard,
    MissingShard,
    ShardError,
    ShardWarning,
    StorageError,
    UsageError,
)
from streamio.shards.columns import columns_of
from streamio.shards.formats import format_named, format_of
from streamio.shards.index import INDEX_SUFFIX, ShardIndex
from streamio.shards.manifest import MANIFEST_NAME, FieldSpec, Manifest, ShardEntry, file_checksum
from streamio.shards.setfiles import MOST_OPEN, LocalFiles, listed
from streamio.storage.cache import default_cache_root
from streamio.storage.files import download, file_name, is_url, local_path, redact, size

PATTERN = frozenset("*?[{")
_MTIME, _LAYOUT, _NOTES = "mtime_ns", "layout", "notes"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedShard:
    """What `index_tars` and `reindex` did for one shard.

    kept: the index file. made: False where the one that was there still fits.
    """

    path: str
    samples: int
    kept: str
    made: bool


class ForeignFiles:
    """Shards given by name or pattern, as one set; its manifest is made from their indexes.

    The fingerprint covers names, keys and places of everything in the shards, not their payloads.
    """

    most_open = MOST_OPEN
    promised = False
    """`notes` has what the walk of the shards left out or found odd: of each opening, not just of the first."""

    def __init__(self, source: Sequence[str], cache: str | os.PathLike[str] | None = None) -> None:
        names = expand(source)
        self._cache = cache
        self._paths = [_local(name, cache) for name in names]
        self.place = redact(source[0]) if len(source) == 1 else f"{redact(source[0])} … ({len(names)} shards)"
        fields = _FieldUnion()
        entries = []
        self.notes: list[str] = []
        for path, shown in zip(self._paths, _display_names(names), strict=True):
            index = _index_of(path, cache)[0]
            self.notes += _notes(index)
            fields.add(index)
            entries.append(
                ShardEntry(
                    name=shown, samples=index.samples, bytes=index.shard_bytes,
                    checksum=f"layout:{_layout(index)}", index_checksum="",
                )
            )  # fmt: skip
        formats = sorted({format_of(path).name for path in self._paths})
        self.manifest = Manifest(
            format="+".join(formats), fields=fields.specs(), shards=tuple(entries), escaped=False
        )

    def hold(self, number: int) -> AbstractContextManager[Path]:
        return nullcontext(self._paths[number])

    def index(self, number: int) -> ShardIndex:
        index = _index_of(self._paths[number], self._cache)[0]
        entry = self.manifest.shards[number]
        if f"layout:{_layout(index)}" != entry.checksum:
            raise ShardError("was written again since it was opened", fix="Open the set again", shard=entry.name)
        return index


def expand(source: Sequence[str]) -> list[str]:
    """Names from names, brace patterns (`x-{000..010}.tar`) and globs; those of a glob are sorted.

    Raises UsageError for a pattern that finds nothing, MissingShard with all the files that are not there.
    """
    names: list[str] = []
    for pattern in source:
        try:
            parts = list(braceexpand(pattern)) if "{" in pattern and not os.path.exists(pattern) else [pattern]
        except ValueError as error:
            raise UsageError(
                f"{redact(pattern)} is no brace pattern: {error}", fix="Write x-{000..010}.tar"
            ) from None
        for part in parts:
            names += _glob(part, pattern) if _is_glob(part) else [part]
    gone = [name for name in names if not is_url(name) and not os.path.isfile(name)]
    if gone:
        raise MissingShard(
            f"{len(gone)} of {len(names)} shards are not there: {listed(gone)}", fix="Check the pattern"
        )
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise UsageError(f"these shards are given twice: {listed(map(redact, twice))}")
    if not names:
        raise UsageError("no shards are given", fix="Give paths, or a pattern such as x-{000..010}.tar")
    return names


def index_tars(
    tars: Iterable[str | os.PathLike[str]], *, on_done: Callable[[IndexedShard], None] | None = None
) -> list[IndexedShard]:
    """Make the indexes of foreign shards (names, brace patterns, globs) where there are none that fit."""
    done = []
    for name in expand([os.fspath(tar) for tar in tars]):
        path = _local(name, None)
        index, kept, made = _index_of(path, None)
        for note in _notes(index):
            warnings.warn(note, ShardWarning, stacklevel=2)
        done.append(IndexedShard(path=redact(name), samples=index.samples, kept=os.fspath(kept), made=made))
        if on_done is not None:
            on_done(done[-1])
    return done


def reindex(
    folder: str | os.PathLike[str], *, on_done: Callable[[IndexedShard], None] | None = None
) -> list[IndexedShard]:
    """Make the lost, broken or foreign indexes of a packed set again, from its shards alone.

    They come out as they were written. Raises MissingShard for shards that are not there, and CorruptShard
    for one whose bytes are not those that were packed: an index of it would promise too much.
    """
    files = LocalFiles(folder, check=False)
    gone = [shard.name for shard in files.manifest.shards if not (files.folder / shard.name).is_file()]
    if gone:
        raise MissingShard(f"shards are missing: {listed(gone)}", fix="Copy the set again", path=files.place)
    done = []
    for number, entry in enumerate(files.manifest.shards):
        kept = files.index_path(number)
        made = not kept.is_file() or file_checksum(kept) != entry.index_checksum
        if made:
            _rebuild(files, number)
        done.append(
            IndexedShard(
                path=os.fspath(files.shard_path(number)), samples=entry.samples, kept=os.fspath(kept), made=made
            )
        )
        if on_done is not None:
            on_done(done[-1])
    return done


def _rebuild(files: LocalFiles, number: int) -> None:
    entry, path = files.manifest.shards[number], files.shard_path(number)
    if file_checksum(path) != entry.checksum:
        raise CorruptShard(
            "its bytes are not those that were packed, so its index cannot be made again",
            fix="Copy the shard with its index again, or pack again", shard=entry.name,
        )  # fmt: skip
    index = format_named(files.manifest.format).scan(path, files.manifest.escaped)
    index = replace(index, columns=columns_of(path, index, check=True))
    _keep(index, files.index_path(number))


def _index_of(path: Path, cache: str | os.PathLike[str] | None) -> tuple[ShardIndex, Path, bool]:
    """(index, the file it is kept in, whether it was made now)."""
    beside, cached = _places(path, cache)
    stat = os.stat(path)
    for place in (beside, cached):
        index = _load_fitting(place, stat, trusted=place == beside)
        if index is not None:
            return index, place, False
    escaped = _escaped_by_manifest(path)
    index = _scan(path, bool(escaped), stat.st_mtime_ns)
    # The index of a packed set is not ours to replace here (`reindex` makes it whole), nor is another tool's file.
    if escaped is None and (not os.path.exists(beside) or _is_index(beside)):
        try:
            _keep(index, beside)
            return index, beside, True
        except OSError:
            pass
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        _keep(index, cached)
    except OSError as error:
        raise StorageError(
            f"neither {beside} nor {cached} can be written: {error.strerror}",
            fix="Make one of them writable, or set STREAMIO_CACHE to a folder that is", path=path,
        ) from error  # fmt: skip
    return index, cached, True


def _scan(path: Path, escaped: bool, mtime_ns: int) -> ShardIndex:
    """An index made now, with columns, and with the warnings of making it as notes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        index = format_of(path).scan(path, escaped)
    index = replace(index, columns=columns_of(path, index))
    extra = {**index.extra, _MTIME: str(mtime_ns), _LAYOUT: _layout(index)}
    if caught:
        extra[_NOTES] = "\n".join(str(warning.message) for warning in caught)
    return replace(index, extra=extra)


def _notes(index: ShardIndex) -> list[str]:
    return index.extra[_NOTES].splitlines() if _NOTES in index.extra else []


def _places(path: Path, cache: str | os.PathLike[str] | None) -> tuple[Path, Path]:
    full = os.path.abspath(path)
    name = hashlib.sha256(os.fsencode(full)).hexdigest()[:32]
    return Path(full + INDEX_SUFFIX), _cache_root(cache) / "index" / (name + INDEX_SUFFIX)


def _load_fitting(place: Path, stat: os.stat_result, trusted: bool) -> ShardIndex | None:
    """The index at a place if it is of the shard as it is now. `trusted`: one without a time (packed) fits too."""
    if not os.path.isfile(place):  # Path.is_file raises for a name too long to exist
        return None
    try:
        index = ShardIndex.load(place)
    except BadIndex:
        return None
    mtime = index.extra.get(_MTIME)
    fits = index.shard_bytes == stat.st_size and (trusted if mtime is None else mtime == str(stat.st_mtime_ns))
    return index if fits else None


def _is_index(path: Path) -> bool:
    try:
        return _MTIME in ShardIndex.load(path).extra
    except BadIndex:
        return False


def _escaped_by_manifest(path: Path) -> bool | None:
    """What the manifest in the shard's folder says of its member names; None if no manifest lists the shard."""
    try:
        data = (path.parent / MANIFEST_NAME).read_bytes()
        manifest = Manifest.from_json(data, os.fspath(path.parent / MANIFEST_NAME))
    except (OSError, BadManifest):
        return None
    return manifest.escaped if any(shard.name == path.name for shard in manifest.shards) else None


def _keep(index: ShardIndex, path: Path) -> None:
    """Write and rename: of several processes that index one tar, each leaves a whole file."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        index.save(part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _layout(index: ShardIndex) -> str:
    """A hash of keys, fields and places in a shard; kept in the index, as making it reads all of that."""
    kept = index.extra.get(_LAYOUT)
    return kept or xxhash.xxh3_64_hexdigest(replace(index, columns={}, extra={}).to_bytes())


class _FieldUnion:
    """The fields of shards that are seen one after the other."""

    def __init__(self) -> None:
        self._samples: dict[str, int] = {}
        self._layouts: dict[str, set[tuple[str, tuple[int, ...]] | None]] = {}
        self._rows = 0

    def add(self, index: ShardIndex) -> None:
        self._rows += index.samples
        for name, field in index.fields.items():
            self._samples[name] = self._samples.get(name, 0) + int((field.sizes >= 0).sum())
            alike = None if field.dtype is None or field.shape is None else (field.dtype.str, field.shape)
            self._layouts.setdefault(name, set()).add(alike)

    def specs(self) -> dict[str, FieldSpec]:
        specs = {}
        for name, samples in sorted(self._samples.items()):
            layouts = self._layouts[name]
            alike = next(iter(layouts)) if len(layouts) == 1 and samples == self._rows else None
            dtype, shape = alike if alike is not None else (None, None)
            specs[name] = FieldSpec(
                stored=name, codec=codec_for(name).name, dtype=dtype, shape=shape, samples=samples
            )
        return specs


def _local(name: str, cache: str | os.PathLike[str] | None) -> Path:
    """A shard as a local file. Nothing vouches for one behind a URL but its size, which is asked each time."""
    if not is_url(name):
        return local_path(name).absolute()
    folder = _cache_root(cache) / "foreign"
    path = folder / f"{hashlib.sha256(redact(name).encode()).hexdigest()[:32]}-{file_name(name)}"
    expected = size(name)
    if not path.is_file() or path.stat().st_size != expected:
        folder.mkdir(parents=True, exist_ok=True)
        download(name, path, expected=expected)
    return path


def _cache_root(cache: str | os.PathLike[str] | None) -> Path:
    return default_cache_root() if cache is None else local_path(cache)


def _is_glob(name: str) -> bool:
    return not is_url(name) and any(c in name for c in "*?[") and not os.path.exists(name)


def _glob(pattern: str, given: str) -> list[str]:
    found = sorted(name for name in glob.glob(pattern, recursive=True) if not name.endswith(INDEX_SUFFIX))
    if not found:
        raise UsageError(
            f"no file fits the pattern '{given}'", fix=f"Looked in {os.path.dirname(os.path.abspath(pattern))}"
        )
    return found


def _display_names(names: Sequence[str]) -> list[str]:
    """File names where they differ, else as much of the paths as tells them apart."""
    short = [file_name(name) for name in names]
    if len(set(short)) == len(short):
        return short
    plain = [redact(name) for name in names]
    common = os.path.commonpath(plain) if not any(map(is_url, names)) else ""
    return [os.path.relpath(name, common) if common else name for name in plain]
