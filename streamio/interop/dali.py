"""NVIDIA DALI: our batches for its `external_source`, and its index files for the tars of its own reader.

DALI itself is not imported: both sides are plain arrays and files.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from streamio.errors import BadManifest, OutputExists, UsageError
from streamio.shards.foreign import IndexedShard
from streamio.shards.index import MISSING, ShardIndex
from streamio.shards.manifest import MANIFEST_NAME, Manifest
from streamio.shards.tar import escape
from streamio.shards.writing import encoded, storage_errors
from streamio.storage.files import is_url

_SPACE = re.compile(rb"\s")


class DaliSource:
    """The batches of a loader as DALI's `fn.external_source` wants them; each iteration is the next epoch.

        ds = streamio.ShardDataset("out/train", 64, fields=("jpg", "cls"), shuffle=True, decode={"jpg": False})
        source = streamio.DaliSource(streamio.StreamLoader(ds))
        jpegs, labels = fn.external_source(source=source, num_outputs=2, batch=True, cycle="raise")

    batches: a `StreamLoader` or a data set of streamio. The pipeline's batch size must be at least its batch_size.
    fields:  what the pipeline gets, in this order: names of a batch that is a dict, places in a tuple. None: all
             of a tuple.

    Bytes (`decode={"jpg": False}`) become uint8 arrays (n,), one for each sample; tensors become arrays whose first
    axis is the batch, so labels are scalars. DALI takes some batches ahead, so the loader's `state_dict` is ahead
    of the loop: count its steps, and save `dataset.state_at(steps)`. With cycle="raise" an epoch ends with
    StopIteration, and `pipeline.reset()` begins the next. Raises UsageError, at the first batch, for what DALI has
    no type for.
    """

    def __init__(self, batches: Iterable[Any], fields: Sequence[str | int] | None = None) -> None:
        if isinstance(fields, str | int):
            raise UsageError(f"DaliSource(fields={fields!r})", fix=f"Give a sequence: fields=({fields!r},)")
        self._batches, self._fields = batches, None if fields is None else tuple(fields)

    def __len__(self) -> int:
        """Batches of the next epoch."""
        return len(self._batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for batch in self._batches:
            yield tuple(_for_dali(name, value) for name, value in self._chosen(batch))

    def _chosen(self, batch: Any) -> list[tuple[Any, Any]]:
        named = batch if isinstance(batch, Mapping) else dict(enumerate(batch))
        if self._fields is None:
            if isinstance(batch, Mapping):
                raise UsageError(
                    f"the batches are dicts, of {', '.join(batch)}",
                    fix="Say what DALI gets, in which order: DaliSource(loader, fields=('jpg', 'cls'))",
                )
            return list(named.items())
        gone = [name for name in self._fields if name not in named]
        if gone:
            raise UsageError(
                f"DaliSource(fields={self._fields!r}): a batch has no {', '.join(map(repr, gone))}",
                fix=f"It has {', '.join(map(str, named))}",
            )
        return [(name, named[name]) for name in self._fields]


def _for_dali(name: Any, value: Any) -> Any:
    """One field of a batch: an array (B, …), or a list of B arrays."""
    return [_array(name, one) for one in value] if isinstance(value, list | tuple) else _array(name, value)


def _array(name: Any, value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, bytes | bytearray | memoryview):
        return np.frombuffer(value, np.uint8)
    try:
        array = np.asarray(value)  # tensors share their memory
    except Exception:
        array = np.array(None)
    if array.dtype.kind not in "biuf":
        raise UsageError(
            f"field {name!r} of a batch holds {type(value).__name__}, for which DALI has no type",
            fix="Name the fields that it gets with fields=, and let others be numbers, or bytes (decode=False)",
        )
    return array


def write_dali_index(shard: IndexedShard) -> Path:
    """Write the index of a tar that `fn.readers.webdataset` wants, beside the tar: `a.idx` for `a.tar`.

    It is what DALI's own `wds2idx` makes, version 1.2, except that fields are in lower case and that the members of
    a sample may lie apart. A DALI index that is there is replaced. Raises UsageError for what is no tar on this
    machine, for one without samples, and for a file of that name that is something else.
    """
    tar = Path(shard.path)
    if is_url(shard.path):
        raise UsageError(f"{shard.path} is behind a URL", fix="DALI's index lies beside its tar: download it first")
    if tar.suffix.lower() != ".tar":
        raise UsageError(
            "DALI reads tars only", fix="Feed it other formats with streamio.DaliSource", path=shard.path
        )
    if not shard.samples:
        raise UsageError("holds no samples, and DALI refuses an empty index", fix="Leave it out", path=shard.path)
    path = tar.with_suffix(".idx")
    with storage_errors(path):
        if path.exists() and not _is_dali_index(path):
            raise OutputExists("is there, and is no index of DALI's", fix="Move it away", path=path)
        part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
        try:
            with open(part, "wb") as file:
                file.writelines(dali_lines(ShardIndex.load(shard.kept), _is_escaped(tar), tar.name))
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
    return path


def dali_lines(index: ShardIndex, escaped: bool, shard: str) -> Iterator[bytes]:
    """The lines of a DALI index.

        v1.2 2
        jpg 512 9321 n01/7.jpg cls 10752 1 n01/7.cls
        jpg 11776 4400 n01/8.jpg cls 17408 1 n01/8.cls

    The number of samples; then for each its members: field, offset, size, name. A space parts one from the next, so
    none may be in a field (UsageError), and in a name, which DALI only shows, it is written %20.
    """
    fields = {name: encoded(name) for name in index.fields}
    bad = [name for name, raw in fields.items() if len(raw.split()) != 1]
    if bad:
        raise UsageError(
            f"the field {bad[0]!r} has a space in its name, which DALI's index cannot hold",
            fix="Pack the set again with another name", shard=shard,
        )  # fmt: skip
    places = [
        (raw, index.fields[name].offsets.tolist(), index.fields[name].sizes.tolist())
        for name, raw in fields.items()
    ]
    yield b"v1.2 %d\n" % index.samples
    for row in range(index.samples):
        key = encoded(index.keys[row])
        stem = _SPACE.sub(lambda found: b"%%%02X" % found[0][0], escape(key) if escaped else key)
        members = sorted((offsets[row], raw, sizes[row]) for raw, offsets, sizes in places if sizes[row] != MISSING)
        yield b" ".join(b"%b %d %d %b.%b" % (raw, at, size, stem, raw) for at, raw, size in members) + b"\n"


def _is_dali_index(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(3) == b"v1."


def _is_escaped(tar: Path) -> bool:
    """Whether the keys are percent-encoded in member names: by the manifest that lists the tar, if there is one."""
    manifest = tar.parent / MANIFEST_NAME
    try:
        return tar.name in _escaped_shards(manifest, os.stat(manifest).st_mtime_ns)
    except (OSError, BadManifest):
        return False


@lru_cache(1)
def _escaped_shards(path: Path, _mtime_ns: int) -> frozenset[str]:
    manifest = Manifest.from_json(path.read_bytes(), os.fspath(path))
    return frozenset(shard.name for shard in manifest.shards if manifest.escaped)
