"""Writes one shard: reads the files of its samples, makes pictures smaller where told, checks, and appends.

It depends on nothing but its job, so it gives the same bytes in whatever process it runs.
"""

from __future__ import annotations

import marshal
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamio.codecs import decode_image, encode_field, is_image_field, recode, stored_name
from streamio.codecs.arrays import NPY
from streamio.errors import DecodeError, InputError, StreamioError, UsageError
from streamio.image import CenterCrop
from streamio.packing.part import Part, PartDone, Piece, Stored, as_stored
from streamio.packing.report import Skipped, plural, shown
from streamio.packing.samples import Sample, empty_picture, in_order
from streamio.packing.walk import Tick
from streamio.shards.base import Row
from streamio.shards.formats import format_named


class Example(NamedTuple):
    """The first picture of a field: all others must have its size."""

    path: str
    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is done to every sample on its way.

    root:   what the paths of the samples are relative to.
    stored: stored names of the fields that do not come from files.
    resize_short, max_side, quality: see `recode`; with `raw`, resize_short is the side of the squares.
    raw:    fields of pictures that are stored decoded -> the field of their pixels; `sizes` then says which
            size those of each such field have.
    check:  every picture is decoded, to see whether it can be.
    skip:   samples that cannot be packed are left out and listed; otherwise the first one stops the run.
    """

    root: str
    stored: Mapping[str, str]
    resize_short: int | None = None
    max_side: int | None = None
    quality: int | None = None
    raw: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, Example]
    check: bool = False
    skip: bool = False

    @property
    def recodes(self) -> bool:
        return (self.resize_short, self.max_side, self.quality) != (None, None, None)

    @property
    def decodes(self) -> bool:
        """Are pictures decoded on their way?"""
        return bool(self.raw) or self.recodes or self.check


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One shard to write, or a piece of one, with all that it takes. `number` counts within the split."""

    split: str
    number: int
    path: str
    format: str
    samples: tuple[Sample, ...]
    options: Options
    is_piece: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        facts = (self.split, self.number, self.path, self.format, self.options, self.is_piece)
        return _job, (*facts, marshal.dumps([tuple(sample) for sample in self.samples]))


def _job(split: str, number: int, path: str, format: str, options: Options, is_piece: bool, samples: bytes) -> Job:
    """What `Job` pickles: millions of plain tuples, for which marshal takes a third of the time."""
    return Job(
        split=split, number=number, path=path, format=format, options=options, is_piece=is_piece,
        samples=tuple(map(Sample._make, marshal.loads(samples))),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardDone:
    """What became of a job. part: None if all of its samples were left out."""

    split: str
    number: int
    part: PartDone | None
    skipped: tuple[Skipped, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceDone:
    """What became of a job that is a piece of a shard."""

    piece: Piece
    skipped: tuple[Skipped, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A shard to put together from its pieces."""

    split: str
    number: int
    path: str
    format: str
    pieces: tuple[PieceDone, ...]


class Unfit(Exception):
    """A file that cannot be packed. Never leaves packing."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.bad = Skipped(shown(path), reason)


def write_shard(job: Job, tick: Tick) -> ShardDone:
    """Write the part and its index. `tick` hears of progress now and then.

    Raises InputError for a file that cannot be packed, unless such are skipped; then no part is left.
    """
    with _part(job) as part:
        skipped = _fill(part, job, tick)
        return _finished(part, job, skipped)


def perform(task: Job | Join, tick: Tick) -> ShardDone | PieceDone:
    """Do what a task says."""
    if isinstance(task, Join):
        return join_pieces(task)
    return write_piece(task, tick) if task.is_piece else write_shard(task, tick)


def write_piece(job: Job, tick: Tick) -> PieceDone:
    """As `write_shard`, where the samples are only some of a shard."""
    with _part(job) as part:
        skipped = _fill(part, job, tick)
        return PieceDone(piece=part.cut(), skipped=skipped)


def join_pieces(join: Join) -> ShardDone:
    """The shard that its pieces make; their files are gone then."""
    with _part(join) as part:
        for done in join.pieces:
            part.take(done.piece)
        return _finished(part, join, tuple(item for done in join.pieces for item in done.skipped))


@contextmanager
def _part(job: Job | Join) -> Iterator[Part]:
    """Nothing is left of it if it fails."""
    part = Part(job.path, format_named(job.format))
    try:
        yield part
    except BaseException:
        part.abort()
        raise


def _finished(part: Part, job: Job | Join, skipped: tuple[Skipped, ...]) -> ShardDone:
    if not part.samples:
        part.abort()
    done = part.finish() if part.samples else None
    return ShardDone(split=job.split, number=job.number, part=done, skipped=skipped)


def _fill(part: Part, job: Job, tick: Tick) -> tuple[Skipped, ...]:
    """Write all samples; gives what was left out."""
    pace = _Pace(tick)
    skipped: list[Skipped] = []
    loader = _Loader(job.options, format_named(job.format).takes_arrays)
    for samples in batches(job):
        rows: list[Row] = []
        for sample in samples:
            try:
                rows.append((sample.key, loader.load(sample)))
            except Unfit as unfit:
                if not job.options.skip:
                    raise input_error([unfit.bad]) from unfit
                skipped.append(unfit.bad)
            except InputError:
                raise
            except StreamioError as error:
                error.where.setdefault("key", shown(sample.key))
                raise
        part.add_all(rows)
        pace.add(samples)
    pace.tell()
    return tuple(skipped)


def batches(job: Job) -> Iterator[Sequence[Sample]]:
    """Runs of samples that are in memory together: about 1 MiB of tiny files, a picture alone if it is decoded."""
    ends = np.cumsum([sample.bytes + _SAMPLE for sample in job.samples])
    numbers = np.arange(len(ends)) if job.options.raw else ends // _BATCH
    cuts = (np.flatnonzero(np.diff(numbers)) + 1).tolist()
    for start, end in pairwise([0, *cuts, len(job.samples)]):
        yield job.samples[start:end]


_BATCH, _SAMPLE = 1 << 20, 1 << 10


def input_error(bad: list[Skipped]) -> InputError:
    """One error for all files that cannot be packed."""
    lines = "".join(f"\n  {item.path}: {item.reason}" for item in bad[:_LISTED])
    more = f"\n  … and {len(bad) - _LISTED:,} more" if len(bad) > _LISTED else ""
    return InputError(
        f"{plural(len(bad), 'file')} cannot be packed:{lines}{more}\n",
        fix="Mend them, or leave them out with --on-error skip (on_error='skip'); nothing was written",
    )


_LISTED = 100


class _Loader:
    """Reads samples: stored name -> value as the format stores it, in the order of writing."""

    def __init__(self, options: Options, takes_arrays: bool) -> None:
        self._options = options
        self._folder = os.path.join(options.root, "")
        self._decodes = options.decodes
        self._takes_arrays = takes_arrays
        self._orders: dict[tuple[str, ...], list[str]] = {}
        self._encoded: dict[tuple[str, Any], Stored] = {}

    def load(self, sample: Sample) -> dict[str, Stored]:
        """Raises Unfit, and UsageError for a value that its field cannot hold."""
        values: dict[str, Stored] = {}
        for name, value in sample.values:
            stored = self._options.stored[name]
            values[stored] = self._value(stored, value)
        for name, path, size in sample.files:
            data = read_file(path if path[0] == "/" else self._folder + path, path, size)
            if (self._decodes or not data) and is_image_field(name):
                stored, picture = _picture(name, path, data, self._options)
                values[stored] = as_stored(stored, picture, self._takes_arrays)
            elif self._takes_arrays:
                values[name] = as_stored(name, data, True)
            else:
                values[name] = data
        if len(values) == 1:
            return values
        names = tuple(values)
        if names not in self._orders:
            self._orders[names] = in_order(names)
        return {name: values[name] for name in self._orders[names]}

    def _value(self, stored: str, value: Any) -> Stored:
        """As stored; that of a class is kept, since many samples have it."""
        if type(value) is not int:
            return as_stored(stored, value, self._takes_arrays)
        found = self._encoded.get((stored, value))
        if found is None:
            found = as_stored(stored, value, self._takes_arrays)
            if len(self._encoded) < _VALUES_KEPT:
                self._encoded[stored, value] = found
        return found


_VALUES_KEPT = 4096
_READ = os.O_RDONLY | os.O_CLOEXEC


def read_file(place: str, path: str, expected: int) -> bytes:
    """All bytes of a file, whatever its size was when it was found. `path` is for messages."""
    try:
        handle = os.open(place, _READ)
        try:
            data = os.read(handle, expected + 1)
            if len(data) == expected and data:
                return data
            blocks = [data]
            while block := os.read(handle, 1 << 20):
                blocks.append(block)
            return b"".join(blocks)
        finally:
            os.close(handle)
    except OSError as error:
        raise Unfit(path, (error.strerror or str(error)).lower()) from error


def _picture(name: str, path: str, data: bytes, options: Options) -> tuple[str, Any]:
    """Stored name and value of a picture."""
    if trouble := empty_picture(name, len(data)):
        raise Unfit(path, trouble)
    try:
        if options.raw:
            return raw_name(options.raw[name]), _raw(options.raw[name], path, data, options)
        if options.recodes:
            data = recode(
                data, resize_short=options.resize_short, max_side=options.max_side, quality=options.quality
            )  # fmt: skip
        if options.check:
            decode_image(data)
    except DecodeError as error:
        raise Unfit(path, error.found) from error
    return name, data


def raw_name(name: str) -> str:
    """The stored name of a field of pixels."""
    return f"{name}.{NPY.extensions[0]}"


def _raw(name: str, path: str, data: bytes, options: Options) -> NDArray[np.uint8]:
    side = options.resize_short
    if side is not None:
        return decode_image(data, CenterCrop(side, resize=side))
    pixels = decode_image(data)
    height, width = pixels.shape[:2]
    example = options.sizes[name]
    if (width, height) != (example.width, example.height):
        raise InputError(
            f"store='raw' needs pictures of one size, but {shown(example.path)} is {example.width} x "
            f"{example.height} and {shown(path)} is {width} x {height}",
            fix="Give --resize-short 256 (resize_short=256), say, which also cuts them to a square",
        )
    return pixels


def column_name(field: str, value: Any) -> str:
    """The stored name of a column of a table; one that its extension would misname gets a better one.

    The column `id` holds text: stored as `id.txt`, since `id` is known as a whole number.
    """
    stored = stored_name(field, value)
    try:
        encode_field(stored, value)
    except UsageError:
        return field + stored_name("_", value)[1:]
    return stored


class _Pace:
    """Passes progress on ten times a second at most."""

    def __init__(self, tick: Tick) -> None:
        self._tick = tick
        self._last = time.monotonic()
        self._samples = self._files = self._bytes = 0

    def add(self, samples: Sequence[Sample]) -> None:
        self._samples += len(samples)
        self._files += sum(len(sample.files) for sample in samples)
        self._bytes += sum(sample.bytes for sample in samples)
        if time.monotonic() - self._last > 0.1:
            self.tell()

    def tell(self) -> None:
        self._tick(self._samples, self._files, self._bytes)
        self._last = time.monotonic()
        self._samples = self._files = self._bytes = 0
