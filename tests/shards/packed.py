"""A packed set without the packer: a format's writer, the columns and a manifest, in the plainest way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from streamio.codecs import codec_for, stored_name
from streamio.packing.part import as_stored
from streamio.shards.columns import ColumnBuilder
from streamio.shards.formats import format_named
from streamio.shards.index import INDEX_SUFFIX, ShardIndex
from streamio.shards.manifest import MANIFEST_NAME, FieldSpec, Manifest, ShardEntry, file_checksum
from streamio.shards.shardset import ShardSet
from streamio.types import ArrayColumn

Sample = Mapping[str, Any]


def numbered(n: int) -> list[dict[str, Any]]:
    """n samples that each hold their own number in four ways; odd rows have a text as well."""
    return [
        {
            "__key__": f"k/{i:05d}", "cls": i, "x": np.full(3, i, np.float32), "raw": b"r" * (i % 7) + b"%d" % i,
            **({"txt": f"text {i}"} if i % 2 else {}),
        }
        for i in range(n)
    ]  # fmt: skip


def pack_set(
    folder: Path,
    samples: Sequence[Sample],
    fmt: str = "tar",
    shard_samples: int = 10,
    classes: tuple[str, ...] | None = None,
) -> Path:
    """Write the samples as a set; gives its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    entries, indexes = [], []
    names: dict[str, str] = {}
    for start in range(0, len(samples), shard_samples):
        path = folder / f"shard-{len(entries):06d}{format_named(fmt).suffix}"
        index = _write_shard(path, samples[start : start + shard_samples], fmt, names)
        kept = path.with_name(path.name + INDEX_SUFFIX)
        index.save(kept)
        indexes.append(index)
        entries.append(
            ShardEntry(
                name=path.name, samples=index.samples, bytes=index.shard_bytes,
                checksum=file_checksum(path), index_checksum=file_checksum(kept),
            )
        )  # fmt: skip
    fields = {field: _spec(stored, indexes) for field, stored in names.items()}
    manifest = Manifest(format=fmt, fields=fields, shards=tuple(entries), classes=classes)
    (folder / MANIFEST_NAME).write_bytes(manifest.to_json())
    return folder


def _write_shard(path: Path, samples: Sequence[Sample], fmt: str, names: dict[str, str]) -> ShardIndex:
    form = format_named(fmt)
    writer, columns = form.create(path), ColumnBuilder()
    for sample in samples:
        row: dict[str, Any] = {}
        for field, value in sample.items():
            if field != "__key__":
                stored = names.setdefault(field, stored_name(field, value))
                row[stored] = as_stored(stored, value, form.takes_arrays)
        writer.write(sample["__key__"], row)
        columns.add(row)
    return replace(writer.close(), columns=columns.finish())


def _spec(stored: str, indexes: Sequence[ShardIndex]) -> FieldSpec:
    found = [index.fields[stored] for index in indexes if stored in index.fields]
    layouts = {(field.dtype, field.shape) for field in found}
    alike = len(layouts) == 1 and len(found) == len(indexes) and found[0].is_array
    return FieldSpec(
        stored=stored, codec=codec_for(stored).name, samples=int(sum((field.sizes >= 0).sum() for field in found)),
        dtype=found[0].dtype.str if alike and found[0].dtype is not None else None,
        shape=found[0].shape if alike else None,
    )  # fmt: skip


def labels_of(opened: ShardSet, wanted: np.ndarray) -> list[int]:
    """The labels of these rows, read five times. Here, so that spawned processes need no torch for it."""
    out: list[int] = []
    for _ in range(5):
        got = opened.gather(wanted, ["x", "cls", "raw"])
        x, cls = got["x"], got["cls"]
        assert isinstance(x, ArrayColumn) and isinstance(cls, ArrayColumn)
        assert (x.values[:, 0] == cls.values).all()
        assert all(bytes(v).endswith(b"%d" % c) for v, c in zip(got["raw"].values, cls.values, strict=True))  # type: ignore[arg-type]
        out = cls.values.tolist()
    return out
