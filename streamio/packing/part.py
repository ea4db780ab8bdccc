"""One shard on its way: the format's writer, its columns, and the index that goes beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from streamio.codecs import as_array, codec_for, encode_field
from streamio.codecs.arrays import NpyCodec
from streamio.codecs.text import NumberCodec
from streamio.errors import DecodeError
from streamio.shards.base import PieceWriter, Row, ShardFormat
from streamio.shards.columns import ColumnBuilder
from streamio.shards.index import INDEX_SUFFIX, MISSING
from streamio.shards.manifest import file_checksum

Stored = bytes | NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldFacts:
    """One stored field of one shard: how many rows have it, and what all its arrays look like."""

    samples: int
    dtype: str | None
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartDone:
    """A part that is finished: sizes, xxh3-64 of the shard and of its index (hex), fields by stored name."""

    path: str
    samples: int
    bytes: int
    checksum: str
    index_checksum: str
    fields: Mapping[str, FieldFacts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some of the samples of a shard, written to a file of their own. place: what the format knows of them."""

    path: str
    samples: int
    columns: ColumnBuilder
    place: Any


class Part:
    """Collects one shard. Calls: `add_all` any number of times, then `finish`, or `cut` if it is only a piece; or
    `take` for each piece, then `finish`; or `abort`, at any time."""

    def __init__(self, path: str, format: ShardFormat) -> None:
        self._path = path
        self._writer = format.create(Path(path))
        self._columns = ColumnBuilder()
        self.samples = 0

    def cut(self) -> Piece:
        """End the file as a piece. Only of formats that have pieces."""
        place = cast(PieceWriter, self._writer).cut()
        return Piece(path=self._path, samples=self.samples, columns=self._columns, place=place)

    def take(self, piece: Piece) -> None:
        """Append a piece, whose file is gone then."""
        cast(PieceWriter, self._writer).append(Path(piece.path), piece.place)
        self._columns.extend(piece.columns)
        self.samples += piece.samples

    def add_all(self, rows: Sequence[Row]) -> None:
        """Append samples, whose values are from `as_stored` and in the order of writing."""
        self._writer.write_all(rows)
        self._columns.add_all([fields for _, fields in rows])
        self.samples += len(rows)

    def add(self, key: str, fields: Mapping[str, Stored]) -> None:
        """Append one sample."""
        self.add_all([(key, fields)])

    def finish(self) -> PartDone:
        index = dataclasses.replace(self._writer.close(), columns=self._columns.finish())
        index.save(self._path + INDEX_SUFFIX)
        fields = {
            name: FieldFacts(
                samples=int(np.count_nonzero(at.sizes != MISSING)),
                dtype=None if at.dtype is None else at.dtype.str,
                shape=at.shape,
            )
            for name, at in index.fields.items()
        }
        return PartDone(
            path=self._path, samples=index.samples, bytes=index.shard_bytes, fields=fields,
            checksum=self._writer.checksum(), index_checksum=file_checksum(self._path + INDEX_SUFFIX),
        )  # fmt: skip

    def abort(self) -> None:
        self._writer.abort()


def as_stored(name: str, value: Any, takes_arrays: bool) -> Stored:
    """A value as the format wants it: arrays and numbers as arrays if it takes them, else as bytes.

    Bytes are kept as they are. Raises UsageError, naming the field, for what the field cannot hold.
    """
    codec = codec_for(name)
    if takes_arrays and isinstance(codec, NpyCodec):
        return _array(codec, value)
    if type(value) is bytes:
        return value
    data = encode_field(name, value)
    if takes_arrays and isinstance(codec, NumberCodec):
        number = np.asarray(codec.decode(data))
        return number if number.dtype in (np.int64, np.float64, np.bool_) else data  # no array holds 2**70
    return data


def _array(codec: NpyCodec, value: Any) -> Stored:
    """An array, also from the bytes of an npy file; bytes that are none are kept as the other formats do."""
    if not isinstance(value, bytes):
        return as_array(value)
    try:
        return as_array(codec.decode(value))
    except DecodeError:
        return value
