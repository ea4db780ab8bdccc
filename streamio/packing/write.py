"""Writes one shard: reads the files of its samples, makes pictures smaller where told, checks, and appends.

It depends on nothing but its job, so it gives the same bytes in whatever process it runs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamio.codecs import decode_image, encode_field, is_image_field, recode, stored_name
from streamio.codecs.arrays import NPY
from streamio.errors import DecodeError, InputError, UsageError, where
from streamio.image import CenterCrop
from streamio.packing.part import Part, PartDone, as_stored
from streamio.packing.report import Skipped, plural, shown
from streamio.packing.samples import Sample, empty_picture, in_order
from streamio.packing.walk import Tick
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One shard to write, with all that it takes. `number` counts within the split."""

    split: str
    number: int
    path: str
    format: str
    samples: tuple[Sample, ...]
    options: Options


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardDone:
    """What became of a job. part: None if all of its samples were left out."""

    split: str
    number: int
    part: PartDone | None
    skipped: tuple[Skipped, ...]


class Unfit(Exception):
    """A file that cannot be packed. Never leaves packing."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.bad = Skipped(shown(path), reason)


def write_shard(job: Job, tick: Tick) -> ShardDone:
    """Write the part and its index. `tick` hears of progress now and then.

    Raises InputError for a file that cannot be packed, unless such are skipped; then no part is left.
    """
    pace = _Pace(tick)
    skipped: list[Skipped] = []
    format = format_named(job.format)
    part = Part(job.path, format)
    try:
        for sample in job.samples:
            try:
                fields = load(sample, job.options)
            except Unfit as unfit:
                if not job.options.skip:
                    raise input_error([unfit.bad]) from unfit
                skipped.append(unfit.bad)
            else:
                with where(key=shown(sample.key)):
                    part.add(sample.key, {n: as_stored(n, v, format.takes_arrays) for n, v in fields.items()})
            pace.add(sample)
        pace.tell()
        if not part.samples:
            part.abort()
            return ShardDone(split=job.split, number=job.number, part=None, skipped=tuple(skipped))
        return ShardDone(split=job.split, number=job.number, part=part.finish(), skipped=tuple(skipped))
    except BaseException:
        part.abort()
        raise


def input_error(bad: list[Skipped]) -> InputError:
    """One error for all files that cannot be packed."""
    lines = "".join(f"\n  {item.path}: {item.reason}" for item in bad[:_LISTED])
    more = f"\n  … and {len(bad) - _LISTED:,} more" if len(bad) > _LISTED else ""
    return InputError(
        f"{plural(len(bad), 'file')} cannot be packed:{lines}{more}\n",
        fix="Mend them, or leave them out with --on-error skip (on_error='skip'); nothing was written",
    )


_LISTED = 100


def load(sample: Sample, options: Options) -> dict[str, Any]:
    """Stored name -> value, in the order of writing. Raises Unfit."""
    values: dict[str, Any] = {options.stored[name]: value for name, value in sample.values}
    for name, path, size in sample.files:
        data = read_file(os.path.join(options.root, path), path, size)
        if is_image_field(name):
            stored, value = _picture(name, path, data, options)
            values[stored] = value
        else:
            values[name] = data
    return values if len(values) == 1 else {name: values[name] for name in in_order(values)}


def read_file(place: str, path: str, expected: int) -> bytes:
    """All bytes of a file, whatever its size was when it was found. `path` is for messages."""
    try:
        handle = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
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

    def add(self, sample: Sample) -> None:
        self._samples += 1
        self._files += len(sample.files)
        self._bytes += sample.bytes
        if time.monotonic() - self._last > 0.1:
            self.tell()

    def tell(self) -> None:
        self._tick(self._samples, self._files, self._bytes)
        self._last = time.monotonic()
        self._samples = self._files = self._bytes = 0
