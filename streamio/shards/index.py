"""Where everything of one shard lies: keys, fields, columns. It only holds, saves and maps.

The file is in the safetensors layout (https://huggingface.co/docs/safetensors, "Format"): 8 bytes
little-endian header length, a JSON header, then raw little-endian arrays. Any safetensors library reads it;
`docs/format.md` lists the arrays. Walking a shard to make an index lives with the format (`scan`).
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamio.errors import BadIndex, CorruptShard, StorageError
from streamio.storage.maps import map_file
from streamio.types import Rows

INDEX_SUFFIX = ".idx"
INDEX_VERSION = "1"
MISSING = -1
"""The size of a field in a row that has no such field."""

_DTYPES: dict[str, np.dtype[Any]] = {
    "I64": np.dtype("<i8"),
    "F64": np.dtype("<f8"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_ALIGN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldIndex:
    """Where one field lies in the file, for every row of the shard.

    offsets: int64 (n,), first byte of the stored payload in the shard file.
    sizes:   int64 (n,), its bytes; `MISSING` where the row has no such field.
    dtype, shape: set when every row has the field and all are arrays of this one dtype (little-endian) and
             shape in C order, so that they can be gathered at once; the elements start `skip` bytes into
             the payload (after the header of an npy file; 0 in HDF5).
    """

    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] | None = None
    skip: int = 0

    @property
    def is_array(self) -> bool:
        return self.dtype is not None

    @property
    def item_bytes(self) -> int:
        """Bytes of the elements of one row; only for arrays."""
        assert self.dtype is not None and self.shape is not None
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The keys of a shard, as one blob: key i is `blob[offsets[i]:offsets[i + 1]]`.

    Bytes are UTF-8, except where a file name was not: those bytes are kept (os.fsencode), and `[i]` gives
    them back as surrogate escapes (PEP 383).
    """

    offsets: NDArray[np.int64]
    blob: NDArray[np.uint8]

    @classmethod
    def of(cls, keys: list[str]) -> Keys:
        return cls.of_bytes([key.encode("utf-8", "surrogateescape") for key in keys])

    @classmethod
    def of_bytes(cls, encoded: list[bytes]) -> Keys:
        offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(key) for key in encoded], out=offsets[1:])
        return cls(offsets=offsets, blob=np.frombuffer(b"".join(encoded), np.uint8))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> str:
        raw = self.blob[self.offsets[row] : self.offsets[row + 1]]
        return raw.tobytes().decode("utf-8", "surrogateescape")

    def take(self, rows: Rows) -> list[str]:
        starts, ends = self.offsets[rows].tolist(), self.offsets[np.asarray(rows) + 1].tolist()
        blob = self.blob.data
        return [str(blob[a:b], "utf-8", "surrogateescape") for a, b in zip(starts, ends, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardIndex:
    """One shard's table of contents.

    shard_bytes: size of the shard file that this index belongs to.
    fields:  by stored name (the file extension, `jpg`, `x.npy`).
    columns: by column name (`cls`, `jpg.width`); int64, float64 or bool, shape (n,).
    extra:   small strings kept with it (for foreign tars: mtime and checksum of what was scanned).
    """

    shard_bytes: int
    keys: Keys
    fields: Mapping[str, FieldIndex]
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        return len(self.keys)

    def check(self, shard: str, file_bytes: int) -> None:
        """Raise unless a file of this size can be the shard that this index describes.

        Run before any offset is used: a memory map read past the end of its file kills the process.
        """
        if file_bytes != self.shard_bytes:
            state = "cut" if file_bytes < self.shard_bytes else "longer than it was"
            raise CorruptShard(
                f"expected {self.shard_bytes:,} bytes, found {file_bytes:,}; the shard is {state}",
                fix="Run 'streamio verify', then copy the shard again or pack it again",
                shard=shard,
            )
        for name, index in self.fields.items():
            here = index.sizes != MISSING
            ends = index.offsets + index.sizes
            bad = here & ((index.offsets < 0) | (index.sizes < 0) | (ends > file_bytes))
            if index.is_array:
                bad |= (index.sizes != index.item_bytes + index.skip) | (index.skip < 0)
            if bad.any():
                row = int(np.argmax(bad))
                raise BadIndex(
                    f"the index says bytes {index.offsets[row]:,} to {ends[row]:,} of a file of {file_bytes:,}",
                    fix="The index does not belong to this shard; delete it and run 'streamio index'",
                    shard=shard, row=row, field=name,
                )  # fmt: skip

    def to_bytes(self) -> bytes:
        """The file's bytes; the same for the same contents on every platform."""
        arrays: dict[str, NDArray[Any]] = {"key.offsets": self.keys.offsets, "key.blob": self.keys.blob}
        about: dict[str, Any] = {"shard_bytes": self.shard_bytes, "fields": {}, "extra": dict(self.extra)}
        for name in sorted(self.fields):
            index = self.fields[name]
            arrays[f"offsets.{name}"], arrays[f"sizes.{name}"] = index.offsets, index.sizes
            facts: dict[str, Any] = {}
            if index.dtype is not None and index.shape is not None:
                facts = {"dtype": index.dtype.str, "shape": list(index.shape), "skip": index.skip}
            about["fields"][name] = facts
        for name in sorted(self.columns):
            arrays[f"column.{name}"] = self.columns[name]
        return _pack(arrays, {"streamio.index": INDEX_VERSION, "streamio": json.dumps(about, sort_keys=True)})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file (not atomic; `packing.commit` and the foreign-index cache rename)."""
        Path(path).write_bytes(self.to_bytes())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ShardIndex:
        """Map the file; arrays stay views of the map, so memory does not grow with the samples.

        Raises BadIndex (with the path) for a file that is cut, or no index, or of another version, and
        StorageError where no more files can be opened.
        """
        try:
            raw = map_file(path)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise StorageError(
                    f"cannot be read: {error.strerror}", fix="Raise the limit (ulimit -n), or open fewer sets",
                    path=os.fspath(path),
                ) from error  # fmt: skip
            raise BadIndex(f"cannot be read: {error}", fix=_REBUILD, path=os.fspath(path)) from error
        return cls.from_buffer(raw, os.fspath(path))

    @classmethod
    def from_buffer(cls, raw: NDArray[np.uint8], path: str) -> ShardIndex:
        """As `load`, from bytes already in memory; `path` is only for messages."""
        try:
            arrays, meta = _unpack(raw)
            if meta.get("streamio.index") != INDEX_VERSION:
                raise ValueError(f"index version {meta.get('streamio.index')}, this reads {INDEX_VERSION}")
            about = json.loads(meta["streamio"])
            keys = Keys(offsets=arrays["key.offsets"], blob=arrays["key.blob"])
            fields = {
                name: FieldIndex(
                    offsets=arrays[f"offsets.{name}"],
                    sizes=arrays[f"sizes.{name}"],
                    dtype=np.dtype(facts["dtype"]) if facts else None,
                    shape=tuple(facts["shape"]) if facts else None,
                    skip=facts.get("skip", 0),
                )
                for name, facts in about["fields"].items()
            }
            columns = {n[len("column.") :]: a for n, a in arrays.items() if n.startswith("column.")}
            alike = [array for i in fields.values() for array in (i.offsets, i.sizes)] + list(columns.values())
            if any(array.shape != (len(keys),) for array in alike):
                raise ValueError("arrays of different lengths")
        except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
            raise BadIndex(f"is no index that this version reads: {error}", fix=_REBUILD, path=path) from error
        return cls(
            shard_bytes=int(about["shard_bytes"]),
            keys=keys,
            fields=fields,
            columns=columns,
            extra=about["extra"],
        )


_REBUILD = "Delete it and run 'streamio index'"


def _pack(arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, str]) -> bytes:
    header: dict[str, Any] = {"__metadata__": dict(meta)}
    parts: list[bytes] = []
    at = 0
    # Wide elements first, so that every array is aligned without gaps (the layout allows none).
    for name, array in sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize):
        data = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
        header[name] = {
            "dtype": _NAMES[array.dtype.newbyteorder("<")],
            "shape": list(array.shape),
            "data_offsets": [at, at + len(data)],
        }
        parts.append(data)
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % _ALIGN)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def _unpack(raw: NDArray[np.uint8]) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    size = int.from_bytes(raw[:8].tobytes(), "little")
    if raw.size < 8 or size > raw.size - 8:
        raise ValueError(f"{raw.size:,} bytes, too short for its header")
    header = json.loads(raw[8 : 8 + size].tobytes())
    body = raw[8 + size :]
    arrays: dict[str, NDArray[Any]] = {}
    for name, facts in header.items():
        if name == "__metadata__":
            continue
        start, end = facts["data_offsets"]
        if not 0 <= start <= end <= body.size:
            raise ValueError(f"{raw.size:,} bytes, too short for its array {name}")
        arrays[name] = body[start:end].view(_DTYPES[facts["dtype"]]).reshape(facts["shape"])
    return arrays, header["__metadata__"]
