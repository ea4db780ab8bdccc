"""From the shards that were written to the sets that are published."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import orjson

from streamio.codecs import codec_for
from streamio.packing.commit import FOLDERS, NewSet
from streamio.packing.part import PartDone
from streamio.packing.report import Skipped, SplitReport
from streamio.packing.samples import in_order
from streamio.shards.base import ShardFormat
from streamio.shards.index import INDEX_SUFFIX
from streamio.shards.manifest import FieldSpec, Manifest, ShardEntry


def new_set(
    split: str,
    done: Sequence[PartDone],
    format: ShardFormat,
    classes: tuple[str, ...] | None,
    users: Mapping[str, str],
) -> NewSet:
    """The set of one split; shards are numbered as they come. `users`: stored name -> name of the field."""
    names = [shard_name(number, format) for number in range(len(done))]
    shards = [
        ShardEntry(
            name=name, samples=part.samples, bytes=part.bytes,
            checksum=part.checksum, index_checksum=part.index_checksum,
        )
        for name, part in zip(names, done, strict=True)
    ]  # fmt: skip
    parts = {}
    for name, part in zip(names, done, strict=True):
        parts[part.path] = name
        parts[part.path + INDEX_SUFFIX] = name + INDEX_SUFFIX
    manifest = Manifest(format=format.name, fields=_fields(done, users), shards=tuple(shards), classes=classes)
    return NewSet(folder=FOLDERS[split], parts=parts, manifest=manifest)


def shard_name(number: int, format: ShardFormat) -> str:
    return f"shard-{number:06d}{format.suffix}"


def _fields(done: Sequence[PartDone], users: Mapping[str, str]) -> dict[str, FieldSpec]:
    specs: dict[str, FieldSpec] = {}
    for stored in in_order({name for part in done for name in part.fields}):
        facts = [part.fields.get(stored) for part in done]
        looks = {None if fact is None or fact.dtype is None else (fact.dtype, fact.shape) for fact in facts}
        dtype, shape = next(iter(looks)) or (None, None) if len(looks) == 1 else (None, None)
        specs[users.get(stored, stored)] = FieldSpec(
            stored=stored, codec=codec_for(stored).name, dtype=dtype, shape=shape,
            samples=sum(fact.samples for fact in facts if fact is not None),
        )  # fmt: skip
    return specs


def split_reports(out: str, sets: Mapping[str, NewSet]) -> dict[str, SplitReport]:
    return {
        split: SplitReport(
            path=os.path.join(out, FOLDERS[split].rstrip("/")) if FOLDERS[split] else out,
            samples=new.manifest.samples, shards=len(new.manifest.shards),
            bytes=sum(shard.bytes for shard in new.manifest.shards),
        )
        for split, new in sets.items()
    }  # fmt: skip


def skipped_lines(skipped: Sequence[Skipped]) -> bytes:
    """The contents of skipped.jsonl; b"" if nothing was."""
    return b"".join(orjson.dumps({"path": item.path, "reason": item.reason}) + b"\n" for item in skipped)
