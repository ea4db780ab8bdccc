"""What a shard set says of itself: `streamio.json`. Written last, so a set exists only when it is whole."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import xxhash

from streamio.errors import BadManifest

MANIFEST_NAME = "streamio.json"
FORMAT_VERSION = 1
GROWS = "grows"
"""In `extra` of a set that grows by whole shards: where its writer is. See `streamio.capture`."""


@dataclass(frozen=True, kw_only=True)
class FieldSpec:
    """One field of a shard set.

    stored: its name in the shards, a file extension; differs from the field's name where that has none
            (`x` is stored as `x.npy`, so that other tools know what it is).
    codec:  name of the codec that decodes it (`streamio.codecs`).
    dtype, shape: set when all values in all shards are arrays of this one dtype (numpy's short form, `<f4`)
            and shape, so that a batch is gathered at once.
    samples: how many samples have it.
    """

    stored: str
    codec: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    samples: int


@dataclass(frozen=True, kw_only=True)
class ShardEntry:
    """One shard: file name inside the set, samples, size in bytes, xxh3-64 of the shard and of its index (hex)."""

    name: str
    samples: int
    bytes: int
    checksum: str
    index_checksum: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The contents of `streamio.json`.

    format:  tar, lmdb or hdf5.
    fields:  by field name.
    classes: names of the classes that `cls` counts, or None.
    escaped: keys are percent-encoded in the shards' member names (True for what streamio wrote).
    """

    format: str
    fields: Mapping[str, FieldSpec]
    shards: tuple[ShardEntry, ...]
    classes: tuple[str, ...] | None = None
    escaped: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def samples(self) -> int:
        return sum(shard.samples for shard in self.shards)

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that change when any byte of any shard, the classes or the fields change.

        Of a set that grows, with any shard; so the first shards of it have one of their own.
        """
        if not self.grows:
            return xxhash.xxh3_64_hexdigest(self.to_json())
        shards = [self.format, *(_facts(shard) for shard in self.shards)]
        return xxhash.xxh3_64_hexdigest(json.dumps(shards).encode())

    @property
    def grows(self) -> bool:
        """Whether shards may come to those that are there, which stay as they are."""
        return GROWS in self.extra

    def first(self, shards: int) -> Manifest:
        """That of the first so many shards of a set that grows: as it was once, but for the counts of fields."""
        return replace(self, shards=self.shards[:shards])

    def to_json(self) -> bytes:
        """UTF-8 JSON, indented, one line per shard; the same bytes for the same contents."""
        head = {
            "streamio": FORMAT_VERSION,
            "format": self.format,
            "samples": self.samples,
            "bytes": sum(shard.bytes for shard in self.shards),
            "classes": None if self.classes is None else list(self.classes),
            "escaped": self.escaped,
            "fields": {name: _facts(spec) for name, spec in sorted(self.fields.items())},
            "extra": dict(self.extra),
        }
        text = json.dumps(head, indent=2, ensure_ascii=True, sort_keys=False)[:-2]
        lines = ",\n    ".join(json.dumps(_facts(shard)) for shard in self.shards)
        return f'{text},\n  "shards": [\n    {lines}\n  ]\n}}\n'.encode()

    @classmethod
    def from_json(cls, data: bytes, path: str) -> Manifest:
        """Read a manifest; `path` is only for messages.

        Raises BadManifest for JSON that is cut, values of a wrong kind, a format version that this release
        does not know, and shard names that lead out of the set.
        """
        try:
            raw = json.loads(data)
            version = raw["streamio"]
        except (ValueError, KeyError, TypeError) as error:
            raise BadManifest(f"is no streamio manifest, or it is cut: {error}", fix=_AGAIN, path=path) from error
        if version != FORMAT_VERSION:
            raise BadManifest(
                f"format version {version}; this release reads {FORMAT_VERSION}",
                fix="Install a newer streamio: pip install -U streamio", path=path,
            )  # fmt: skip
        try:
            manifest = cls(
                format=str(raw["format"]),
                classes=None if raw["classes"] is None else tuple(raw["classes"]),
                escaped=bool(raw["escaped"]),
                fields={name: _spec(facts) for name, facts in raw["fields"].items()},
                shards=tuple(ShardEntry(**facts) for facts in raw["shards"]),
                extra=raw["extra"],
            )
            if manifest.samples != raw["samples"]:
                raise ValueError(f"{raw['samples']} samples, but its shards hold {manifest.samples}")
        except (ValueError, KeyError, TypeError) as error:
            raise BadManifest(f"a value is missing or wrong: {error!r}", fix=_AGAIN, path=path) from error
        for shard in manifest.shards:
            if "/" in shard.name or "\\" in shard.name or shard.name in ("", ".", ".."):
                raise BadManifest(f"shard name {shard.name!r} leads out of the set", fix=_AGAIN, path=path)
        return manifest


_AGAIN = "Copy the set again or pack it again"


def _facts(item: FieldSpec | ShardEntry) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in vars(item).items()}


def _spec(facts: dict[str, Any]) -> FieldSpec:
    shape = facts["shape"]
    return FieldSpec(**{**facts, "shape": None if shape is None else tuple(shape)})


def file_checksum(path: str | os.PathLike[str]) -> str:
    """xxh3-64 of a file, in hex, read in pieces."""
    state = xxhash.xxh3_64()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            state.update(piece)
    return state.hexdigest()
