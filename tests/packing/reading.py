"""Reads a packed folder without `streamio.open`: manifest, indexes and bytes."""

from __future__ import annotations

from pathlib import Path

import xxhash

from streamio.shards.columns import damaged_rows
from streamio.shards.index import INDEX_SUFFIX, ShardIndex
from streamio.shards.manifest import MANIFEST_NAME, Manifest
from streamio.shards.reader import ShardReader


def manifest(out: str | Path) -> Manifest:
    path = Path(out, MANIFEST_NAME)
    return Manifest.from_json(path.read_bytes(), str(path))


def contents(out: str | Path) -> dict[str, dict[str, bytes]]:
    """Every sample by key, its fields as stored bytes; checks sizes and checksums on the way."""
    found: dict[str, dict[str, bytes]] = {}
    for shard in manifest(out).shards:
        path = Path(out, shard.name)
        index_path = Path(f"{path}{INDEX_SUFFIX}")
        assert xxhash.xxh3_64_hexdigest(path.read_bytes()) == shard.checksum
        assert xxhash.xxh3_64_hexdigest(index_path.read_bytes()) == shard.index_checksum
        index = ShardIndex.load(index_path)
        assert (index.samples, index.shard_bytes) == (shard.samples, path.stat().st_size)
        with ShardReader(path, index) as reader:
            damaged = damaged_rows(reader)
            assert damaged is not None and not len(damaged)
            for row in range(index.samples):
                values = {name: reader.payload(row, name) for name in index.fields}
                assert index.keys[row] not in found
                found[index.keys[row]] = {name: bytes(v) for name, v in values.items() if v is not None}
    return found


def labels(out: str | Path) -> dict[str, int]:
    """The class number of each sample, from the columns of the indexes."""
    found: dict[str, int] = {}
    for shard in manifest(out).shards:
        index = ShardIndex.load(Path(out, shard.name + INDEX_SUFFIX))
        found |= {index.keys[row]: int(value) for row, value in enumerate(index.columns["cls"])}
    return found


def shard_keys(out: str | Path) -> list[list[str]]:
    """The keys of each shard, in the order of writing."""
    return [
        ShardIndex.load(Path(out, shard.name + INDEX_SUFFIX)).keys.take(range(shard.samples))  # type: ignore[arg-type]
        for shard in manifest(out).shards
    ]


def files(out: str | Path) -> dict[str, bytes]:
    """Every file below a folder, byte for byte."""
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(Path(out).rglob("*")) if p.is_file()}
