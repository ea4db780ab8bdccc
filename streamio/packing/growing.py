"""A set that grows by whole shards while it is read: each publication is one rename, and says where it came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from streamio.codecs import codec_for
from streamio.errors import OutputExists, UsageError
from streamio.packing.commit import NewSet, Output, look
from streamio.packing.part import FieldFacts, Part, Stored
from streamio.packing.report import shown
from streamio.packing.sets import shard_name
from streamio.shards.formats import format_named
from streamio.shards.index import INDEX_SUFFIX
from streamio.shards.manifest import GROWS, MANIFEST_NAME, FieldSpec, Manifest, ShardEntry

NPY_HEADER = 128
"""Bytes before the elements of an array, about."""


def grown_so_far(out: str) -> Manifest | None:
    """The manifest of the set that grows in OUT; None where there is none yet.

    Raises OutputExists for anything else that lies there.
    """
    holdings = look(out)
    manifest = holdings.sets.get(MANIFEST_NAME)
    if holdings.sets and (manifest is None or not manifest.grows):
        raise OutputExists(
            "holds a finished shard set, which does not grow; nothing was touched",
            fix="Name another folder", path=shown(out),
        )  # fmt: skip
    return manifest


def refuse_clashes(fields: Mapping[str, FieldSpec]) -> None:
    """Raise UsageError for names that cannot be fields of one shard. Case does not tell two apart."""
    seen: dict[str, str] = {}
    for name, spec in fields.items():
        if not name or name.startswith((".", "__")) or "/" in name:
            raise UsageError(f"{name!r} cannot be a field of a shard", fix="Leave it out, or give it another name")
        other = seen.setdefault(spec.stored.lower(), name)
        if other != name:
            raise UsageError(
                f"the fields '{other}' and '{name}' would both be stored as {spec.stored}",
                fix="Leave one of them out, or give it another name",
            )


class GrowingSet:
    """The set in an `Output`, and the shard of it that is being written.

    fields: by name, with dtype and shape where all values have these; it holds for shards as long as it is true.
    so_far: what `grown_so_far` found.
    """

    def __init__(
        self, output: Output, format: str, fields: Mapping[str, FieldSpec], so_far: Manifest | None
    ) -> None:
        self._output, self._format = output, format_named(format)
        self.manifest = so_far or Manifest(format=self._format.name, fields=fields, shards=(), extra={GROWS: {}})
        self._part: Part | None = None
        self.samples = self.bytes = 0
        """Of the shard that is being written."""

    @property
    def takes_arrays(self) -> bool:
        """Whether values go in as arrays, see `as_stored`."""
        return self._format.takes_arrays

    def footprint(self, fields: Mapping[str, Stored]) -> int:
        """Bytes that a sample will take."""
        sizes = [len(v) if isinstance(v, bytes) else v.nbytes + NPY_HEADER * (v.ndim > 0) for v in fields.values()]
        return self._format.footprint(sizes)

    def add(self, key: str, fields: Mapping[str, Stored], size: int) -> None:
        """Append a sample: stored name -> value from `as_stored`. size: its footprint."""
        if self._part is None:
            path = self._output.part("all", len(self.manifest.shards), self._format.suffix)
            self._part = Part(path, self._format)
        self._part.add(key, fields)
        self.samples += 1
        self.bytes += size

    def publish(self, place: Mapping[str, Any]) -> ShardEntry | None:
        """Finish the shard that is being written, and show it. place: where the writer is behind it, as JSON.

        None where there was no shard: then the place alone is written down.
        """
        done = None if self._part is None else self._part.finish()
        self._part, self.samples, self.bytes = None, 0, 0
        extra = {**self.manifest.extra, GROWS: place}
        if done is None:
            if self.manifest.shards:
                self._append(NewSet(folder="", parts={}, manifest=replace(self.manifest, extra=extra)))
            return None
        name = shard_name(len(self.manifest.shards), self._format)
        entry = ShardEntry(
            name=name, samples=done.samples, bytes=done.bytes, checksum=done.checksum,
            index_checksum=done.index_checksum,
        )  # fmt: skip
        manifest = replace(
            self.manifest, shards=(*self.manifest.shards, entry), extra=extra,
            fields={field: _grown(spec, done.fields) for field, spec in self.manifest.fields.items()},
        )  # fmt: skip
        parts = {done.path: name, done.path + INDEX_SUFFIX: name + INDEX_SUFFIX}
        self._append(NewSet(folder="", parts=parts, manifest=manifest))
        return entry

    def _append(self, new: NewSet) -> None:
        self._output.append(new)
        self.manifest = new.manifest

    def abort(self) -> None:
        """Forget the shard that is being written."""
        if self._part is not None:
            self._part.abort()
            self._part = None


def stored_as(stored: str, dtype: str | None = None, shape: tuple[int, ...] | None = None) -> FieldSpec:
    """A field of a set that has no sample yet."""
    return FieldSpec(stored=stored, codec=codec_for(stored).name, dtype=dtype, shape=shape, samples=0)


def _grown(spec: FieldSpec, facts: Mapping[str, FieldFacts]) -> FieldSpec:
    """A field with those of one shard more."""
    fact = facts.get(spec.stored)
    alike = fact is not None and (fact.dtype, fact.shape) == (spec.dtype, spec.shape)
    dtype, shape = (spec.dtype, spec.shape) if alike else (None, None)
    return replace(spec, dtype=dtype, shape=shape, samples=spec.samples + (fact.samples if fact else 0))
