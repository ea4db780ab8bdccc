"""Samples out of a tar that can only be read from front to back.

Nothing says beforehand what is in it, so a sample is what adjacent members make of one: those with the same key,
by WebDataset's first-dot rule. Member names are keys and never paths; nothing is written anywhere.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import xxhash
from braceexpand import braceexpand
from numpy.typing import NDArray

from streamio.codecs import IMAGES, codec_for, is_image_field
from streamio.errors import CorruptShard, ShardWarning, UsageError
from streamio.shards.base import IMAGE
from streamio.shards.foreign import expand
from streamio.shards.manifest import FieldSpec
from streamio.shards.tar import LeftOut, sample_of
from streamio.shards.tarwalk import BLOCK, Member, TarWalk
from streamio.storage.files import file_name
from streamio.storage.pipes import STDIN, is_pipe, shown
from streamio.types import Alloc, Column, ListColumn, Rows, new_array

SHARD_BITS = 40
"""Of the number of a row: its place in a shard, behind the number of that shard. No shard has so many samples."""

_INFLATED = 1 << 20
_UNKNOWN = 1 << 62  # bytes of a tar whose end was not seen yet
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_AGAIN = "Read it again; if it stays so, write the shard again"


@dataclass(frozen=True, slots=True)
class StreamSample:
    """One sample. number: how many came before it in its shard. fields: bytes as stored, by field in lower case."""

    shard: str
    number: int
    key: str
    fields: dict[str, bytes]


def stream_samples(blocks: Iterator[bytes], shard: str) -> Iterator[StreamSample]:
    """The samples of a tar, or of a gzipped one, in order; at the end all of `blocks` was taken.

    Holds one sample, and of the tar one block. A sample comes when the next one begins. Raises CorruptShard,
    naming shard and sample, for a tar that is cut (also between two members: it must have its end mark), altered
    or none, and for a field that comes twice in a sample. Warns (ShardWarning) of what was left out.
    """
    walk = _StreamWalk(_inflated(blocks, shard), shard)
    left_out = LeftOut()
    fields: dict[str, bytes] = {}
    key, number = "", 0
    try:
        for member in walk:
            of, field = sample_of(member, False, left_out)
            if not of:
                continue
            if of != key and fields:
                yield StreamSample(shard, number, key, fields)
                fields, number = {}, number + 1
            key = of
            if field in fields:
                raise CorruptShard(f"{member.name!r} comes twice", fix="Write the tar again")
            fields[field] = walk.payload(member)
        _check_end(walk)
    except CorruptShard as error:
        error.where = {"shard": shard, "row": number, **({"key": key} if key else {}), **error.where}
        raise
    if fields:
        yield StreamSample(shard, number, key, fields)
    _report(shard, number + bool(fields), left_out)


class HeldSamples:
    """The samples of one batch, and a few before it, as a table that a reader reads.

    Rows are the numbers they are held under, shard << SHARD_BITS | number in the shard.
    """

    def __init__(self, fields: Sequence[str], shards: Sequence[str]) -> None:
        self.fields = {name: _spec(name) for name in fields}
        # By their names, since addresses change: a set moves, a signature runs out.
        names = [shown(shard) if is_pipe(shard) or shard == STDIN else file_name(shard) for shard in shards]
        self.fingerprint = xxhash.xxh3_64_hexdigest("\n".join(names).encode("utf-8", "surrogateescape"))
        self._names = [shown(shard) for shard in shards]
        self._samples: Mapping[int, StreamSample] = {}
        self._found = False

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.array([len(self._samples)], np.int64)

    def hold(self, samples: Mapping[int, StreamSample]) -> None:
        """Let go of what was held, and hold these, by row. Raises UsageError if no sample has a field, at first."""
        self._samples = samples
        if not self._found:
            self._check_fields()
            self._found = True

    def gather(self, rows: Rows, fields: Sequence[str], alloc: Alloc = new_array) -> dict[str, Column]:
        samples = [self._samples[row] for row in rows.tolist()]
        return {field: ListColumn([_value(sample, field) for sample in samples]) for field in fields}

    def rows(self) -> Rows:
        """All that are held."""
        return np.array(sorted(self._samples), np.int64)

    def keys(self, rows: Rows) -> list[str]:
        return [self._samples[row].key for row in rows.tolist()]

    def locate(self, row: int) -> tuple[str, int]:
        if (sample := self._samples.get(row)) is not None:
            return sample.shard, sample.number
        return self._names[row >> SHARD_BITS], row & ((1 << SHARD_BITS) - 1)

    def _check_fields(self) -> None:
        first = next(iter(self._samples.values()))
        for field in self.fields:
            if all(_value(sample, field) is None for sample in self._samples.values()):
                raise UsageError(
                    f"none of the first {len(self._samples)} samples has a field '{field}'",
                    fix=f"This one has: {', '.join(first.fields)}",
                    shard=first.shard, row=first.number, key=first.key,
                )  # fmt: skip


def stream_sources(source: str | Sequence[str]) -> tuple[str, ...]:
    """The shards that a user means. Commands are expanded as they stand; a brace of the shell's own stays."""
    patterns = [source] if isinstance(source, str) else list(source)
    shards: list[str] = []
    for pattern in patterns:
        if is_pipe(pattern):
            shards += _expanded(pattern)
        else:
            shards += [pattern] if pattern == STDIN else expand([pattern])
    if not shards:
        raise UsageError("no shards are given", fix="Give commands, addresses or paths, or a pattern of them")
    if STDIN in shards and len(shards) > 1:
        raise UsageError(f"standard input as one of {len(shards)} shards", fix="Give it alone")
    return tuple(shards)


def _expanded(command: str) -> list[str]:
    try:
        return list(braceexpand(command))
    except ValueError:
        return [command]


class _StreamWalk(TarWalk):
    """Walks a tar of which only the part from the last place asked for is at hand.

    `size` is known once the end was seen; what is checked against it is then checked again.
    """

    def __init__(self, blocks: Iterator[bytes], shard: str) -> None:
        self._blocks, self._shard = blocks, shard
        self._window, self._start = bytearray(), 0
        self.size = _UNKNOWN
        self.at = 0
        self.ended = self.only_zeros = False
        self.joined: list[int] = []

    def payload(self, member: Member) -> bytes:
        data = self._read(member.size, member.offset)
        self._advance(member.offset - BLOCK, member.size, member.name)
        return data

    def _payload(self, header: bytes) -> bytes:
        start = self.at
        data = super()._payload(header)
        self._advance(start, self._number(header, start), "an extended header")
        return data

    def _read(self, length: int, at: int) -> bytes:
        while self._start + len(self._window) < at + length and self.size == _UNKNOWN:
            self._drop_before(at)
            block = next(self._blocks, None)
            if block is None:
                self.size = self._start + len(self._window)
            else:
                self._window += block
        self._drop_before(at)
        with memoryview(self._window) as window, window[:length] as found:
            return bytes(found)

    def _drop_before(self, at: int) -> None:
        gone = min(at - self._start, len(self._window))
        del self._window[:gone]
        self._start += gone


def _inflated(blocks: Iterator[bytes], shard: str) -> Iterator[bytes]:
    """The blocks as they are, or unpacked where they begin as gzip does."""
    head = b""
    while len(head) < len(_ZSTD) and (block := next(blocks, None)) is not None:
        head += block
    if head.startswith(_ZSTD):
        raise CorruptShard("is no tar: a zstd file", fix="Unpack it on its way: pipe:zstd -dc …", shard=shard)
    return _gunzip(chain([head], blocks), shard) if head.startswith(_GZIP) else chain([head], blocks)


def _gunzip(blocks: Iterator[bytes], shard: str) -> Iterator[bytes]:
    """Unpacked blocks of up to 1 MB. Files joined with cat are one; zeros behind them are padding (gzip(1))."""
    inflate = None
    for block in blocks:
        while block:
            if inflate is None or inflate.eof:
                block = block.lstrip(b"\0") if inflate is not None else block
                inflate = zlib.decompressobj(wbits=31) if block else inflate
                continue
            try:
                yield inflate.decompress(block, _INFLATED)
            except zlib.error as error:
                raise CorruptShard(f"the gzip data is damaged: {error}", fix=_AGAIN, shard=shard) from None
            block = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
    if inflate is None or not inflate.eof:
        raise CorruptShard("the gzip data is cut", fix=_AGAIN, shard=shard)


def _check_end(walk: _StreamWalk) -> None:
    if not walk.size:
        raise CorruptShard("is no tar: nothing (0 bytes)", fix=_AGAIN)
    if not walk.ended:
        raise CorruptShard(
            f"stops at byte {walk.size:,} without the closing zero blocks of a tar; the stream is cut", fix=_AGAIN
        )


def _report(shard: str, samples: int, left_out: LeftOut) -> None:
    notes = [f"left out {left_out}"] if str(left_out) else []
    if not samples:
        notes.append("it holds 0 samples")
    if notes:
        warnings.warn(f"{shard}: {'. '.join(notes)}", ShardWarning, stacklevel=3)


def _spec(field: str) -> FieldSpec:
    codec = IMAGES[0] if field == IMAGE else codec_for(field)
    return FieldSpec(stored=field, codec=codec.name, samples=0)


def _value(sample: StreamSample, field: str) -> memoryview | None:
    data = sample.fields.get(field)
    if data is None and field == IMAGE:
        data = next((value for name, value in sample.fields.items() if is_image_field(name)), None)
    return None if data is None else memoryview(data)
