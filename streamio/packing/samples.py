"""What a sample to pack is, and how file names become keys and fields."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from streamio.codecs.base import BYTES, codec_for
from streamio.codecs.raster import is_image_field
from streamio.packing.report import Skipped, named, plural, shown

File: TypeAlias = tuple[str, str, int]
"""(field, path below the root of the scan, bytes on disk)."""


class Sample(NamedTuple):
    """One sample before it is read. A tuple, since there may be millions.

    files:  in the order of writing.
    values: (field, value) for what comes from folders and tables: `("cls", 3)`.
    """

    key: str
    files: tuple[File, ...]
    values: tuple[tuple[str, Any], ...] = ()

    @property
    def bytes(self) -> int:
        return self.files[0][2] if len(self.files) == 1 else sum(size for _, _, size in self.files)

    def value(self, name: str) -> Any:
        """The value of a field that does not come from a file, or None."""
        return next((value for own, value in self.values if own == name), None) if self.values else None


NO_EXTENSION = "bin"
"""The field of a file whose name has no extension."""
_COMPRESSED = frozenset({"gz", "zst", "bz2", "xz"})
_EXTENSION = re.compile(r"(?!__)[0-9A-Za-z_+-]{1,16}")
_MEDIA = frozenset({
    "npy", "npz", "wav", "flac", "mp3", "ogg", "opus", "m4a", "aac", "aiff", "mp4", "avi", "mkv", "mov", "webm",
    "m4v", "mpg", "mpeg", "nii", "dcm", "ply", "obj", "stl", "las",
})  # fmt: skip


def split_name(path: str) -> tuple[str, str]:
    """Key and field of a file: `("cat/a.b", "jpg")` for `cat/a.b.JPG`, `("x", "nii.gz")` for `x.nii.gz`.

    An extension is up to 16 ASCII letters, digits, `_`, `+` and `-`; a name without one is all key, and its
    field is `bin`.
    """
    stem, _, end = path.rpartition(".")
    extension = _field(end) if stem and stem[-1] != "/" else ""
    if not extension:
        return path, NO_EXTENSION
    if extension in _COMPRESSED:
        inner_stem, _, inner_end = stem.rpartition(".")
        inner = _field(inner_end) if inner_stem and inner_stem[-1] != "/" else ""
        if inner:
            return inner_stem, f"{inner}.{extension}"
    return stem, extension


@lru_cache(4096)
def _field(extension: str) -> str:
    return extension.lower() if _EXTENSION.fullmatch(extension) else ""


@lru_cache(4096)
def is_media(name: str) -> bool:
    """Pictures, sound, video, arrays: what a sample is about."""
    return is_image_field(name) or not _MEDIA.isdisjoint(name.split("."))


@lru_cache(4096)
def is_known(name: str) -> bool:
    return is_media(name) or codec_for(name) is not BYTES


def in_order(fields: Iterable[str]) -> list[str]:
    """Media first, then by name: the order of the fields within a sample."""
    return sorted(fields, key=lambda name: (not is_media(name), name))


@dataclass(slots=True)
class Groups:
    """Files that belong together, by key.

    bad: paths that cannot be packed, and why. A sample one of whose files is bad is not in `samples`.
    """

    samples: dict[str, tuple[File, ...]] = field(default_factory=dict)
    bad: dict[str, str] = field(default_factory=dict)

    def skipped(self) -> tuple[Skipped, ...]:
        return tuple(Skipped(shown(path), self.bad[path]) for path in sorted(self.bad, key=encoded))


def group(files: Iterable[tuple[str, File]], bad: Mapping[str, str]) -> Groups:
    """Files (each with its key) grouped by key. Empty pictures, and files that differ only in the case of their
    extension, are bad."""
    groups = Groups(bad=dict(bad))
    samples = groups.samples
    lost = {split_name(path)[0] for path in bad}
    for key, file in files:
        before = samples.get(key, ())
        twin = next((path for name, path, _ in reversed(before) if name == file[0]), None) if before else None
        if twin is not None:
            groups.bad[file[1]] = f"gives the same key and field as {shown(twin)}"
            lost.add(key)
        elif not file[2] and (trouble := empty_picture(file[0], 0)):
            groups.bad[file[1]] = trouble
            lost.add(key)
        samples[key] = (*before, file) if before else (file,)
    for key in lost:
        samples.pop(key, None)
    return groups


def empty_picture(name: str, size: int) -> str:
    """Why a file of this size cannot be packed: "" for all but pictures of zero bytes (an empty text is fine)."""
    return "zero bytes" if size == 0 and is_image_field(name) else ""


def sample(key: str, files: tuple[File, ...], values: tuple[tuple[str, Any], ...]) -> Sample:
    if len(files) > 1:
        files = tuple(sorted(files, key=lambda file: (not is_media(file[0]), file[0])))
    return Sample(key, files, values)


def encoded(name: str) -> bytes:
    """What paths and keys are sorted by."""
    return os.fsencode(name)


def in_byte_order(names: Collection[str]) -> list[str]:
    """Sorted by `encoded`; where all are ASCII the text itself has that order."""
    return sorted(names) if all(map(str.isascii, names)) else sorted(names, key=encoded)


def field_notes(samples: Sequence[Sample]) -> list[str]:
    """What looks odd about the fields of all samples, as sentences."""
    kinds: Counter[tuple[str, ...]] = Counter()
    single: Counter[str] = Counter()
    keys = {item.key for item in samples}
    twice: list[str] = []
    parts: list[str] = []
    for item in samples:
        if len(item.files) == 1:
            single[item.files[0][0]] += 1
        else:
            names = tuple(name for name, _, _ in item.files)
            kinds[names] += 1
            if sum(map(is_image_field, names)) > 1:
                twice.append(item.key)
        if "." in item.key:
            stem, _, end = item.key.rpartition(".")
            if "/" not in end and stem in keys:
                parts.append(item.files[0][1])
    kinds.update({(name,): count for name, count in single.items()})
    notes: list[str] = []
    if len(kinds) > 1:
        most = [f"{' + '.join(names)} {count:,}" for names, count in kinds.most_common(5)]
        what = "samples have different fields"
        if all(len(names) == 1 and is_image_field(names[0]) for names in kinds):
            what = "pictures are of several kinds, which are read as one field 'image'"
        notes.append(f"{what}: {', '.join(most)}{', …' if len(kinds) > 5 else ''}")
    if twice:
        count = plural(len(twice), "sample has", "samples have")
        notes.append(f"{count} more than one picture under the same name: {named(twice)}")
    if parts:
        count = plural(len(parts), "sample looks like a part", "samples look like parts")
        notes.append(f"{count} of others, since names are cut at the last dot: {named(parts)}")
    return notes
