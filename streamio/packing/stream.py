"""Writes samples that a program makes: shards roll over while the samples come."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from streamio.codecs import stored_name
from streamio.errors import UsageError, where
from streamio.packing.commit import Output, check_output, output_folder
from streamio.packing.part import Part, PartDone, Stored, as_stored
from streamio.packing.report import Meter, PackReport, Progress, large_note, plural, shown
from streamio.packing.request import shard_limits
from streamio.packing.samples import in_order
from streamio.packing.sets import new_set, split_reports
from streamio.shards.base import ShardFormat
from streamio.shards.formats import format_named

_NPY_HEADER = 128


def write(
    samples: Iterable[Mapping[str, Any]],
    out: str | os.PathLike[str],
    *,
    format: str = "tar",
    shard_size: int | str | None = None,
    shard_samples: int | None = None,
    classes: Sequence[str] | None = None,
    overwrite: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> PackReport:
    """Write samples to shards, in their order, in bounded memory.

    samples: mappings of field to value: arrays, tensors, bytes, text, numbers, dicts and lists. `__key__`
             names a sample (without it: its number, in 8 digits), other names with two leading underscores
             are left out. A field may be missing from some samples, but is of one kind in all that have it.
             Keys must differ; within a shard that is checked.
    classes: names of the classes that the field `cls` counts.
    format, shard_size, shard_samples, overwrite, progress: as for `pack`.

    Arrays of one dtype and shape are stored so that a batch of them is gathered at once. Raises UsageError,
    with sample and field, for values that cannot be stored. After any exception, those of `samples`
    included, OUT is as it was.
    """
    started = time.monotonic()
    limits = shard_limits(shard_size, shard_samples)
    kind = format_named(format)
    folder = output_folder(out)
    names = None if classes is None else tuple(classes)
    check_output(folder, overwrite=overwrite)
    meter = Meter(progress, "write")
    with Output(folder, overwrite=overwrite) as output:
        stream = _Stream(output, kind, limits, names, meter)
        stream.take(samples)
        if not stream.done:
            raise UsageError("there are no samples to write", path=shown(folder))
        users = {stored: name for name, stored in stream.names.items()}
        made = new_set("all", stream.done, kind, names, users)
        meter.finish("commit")
        output.publish([made], b"")
    report = split_reports(folder, {"all": made})
    return PackReport(
        out=folder, format=kind.name, layout="samples",
        layout_reason=f"{plural(made.manifest.samples, 'sample')} from a program",
        splits=report, fields=tuple(in_order(made.manifest.fields)), samples=made.manifest.samples, classes=names,
        shards=len(made.parts) // 2, bytes=report["all"].bytes, notes=tuple(stream.notes()),
        seconds=time.monotonic() - started,
    )  # fmt: skip


class _Stream:
    """The shards so far, and the one that is being written."""

    def __init__(
        self,
        output: Output,
        format: ShardFormat,
        limits: tuple[int | None, int | None],
        classes: tuple[str, ...] | None,
        meter: Meter,
    ) -> None:
        self._output = output
        self._format = format
        self._limit, self._most = limits
        self._classes = classes
        self._meter = meter
        self._part: Part | None = None
        self._bytes = 0
        self._large: list[tuple[str, int]] = []
        self.done: list[PartDone] = []
        self.names: dict[str, str] = {}

    def take(self, samples: Iterable[Mapping[str, Any]]) -> None:
        try:
            for number, sample in enumerate(samples):
                if not isinstance(sample, Mapping):
                    raise UsageError(f"sample {number} is no mapping but of type {type(sample).__name__}",
                                     fix='Samples look like {"__key__": "a", "jpg": …, "cls": 3}')  # fmt: skip
                key = sample.get("__key__", f"{number:08d}")
                with where(key=shown(str(key))):
                    self._add(key, self._fields(sample))
            self._roll()
        except BaseException:
            if self._part is not None:
                self._part.abort()
            raise

    def notes(self) -> list[str]:
        return large_note(self._large, self._limit or 0)

    def _fields(self, sample: Mapping[str, Any]) -> dict[str, Stored]:
        """Stored name -> value as the format wants it."""
        values: dict[str, Any] = {}
        for name, value in sample.items():
            if not isinstance(name, str):
                raise UsageError(
                    f"{name!r} cannot be a field", fix="Fields are named by text, like file extensions"
                )
            if name.startswith("__"):
                continue
            stored = stored_name(name, value)
            before = self.names.get(name)
            if before is None:
                self._first(name, stored)
            elif before != stored:
                raise UsageError(
                    f"this value of type {type(value).__name__} would be stored as {stored}, earlier ones as "
                    f"{before}",
                    fix="Give all samples the same kind of value in a field", field=name,
                )  # fmt: skip
            values[stored] = value
        fields = {name: as_stored(name, values[name], self._format.takes_arrays) for name in in_order(values)}
        if self._classes is not None and int(values.get("cls", 0)) >= len(self._classes):
            raise UsageError(f"cls {values['cls']}, but there are {len(self._classes)} classes, counted from 0")
        return fields

    def _first(self, name: str, stored: str) -> None:
        """A field is seen for the first time. Case does not tell two apart, since for WebDataset it does not."""
        if not name or name.startswith("."):
            raise UsageError(
                f"{name!r} cannot be a field", fix="Fields are named like extensions: 'jpg', 'seg.png'"
            )
        for other, taken in self.names.items():
            if taken.lower() == stored.lower():
                raise UsageError(f"the fields '{other}' and '{name}' would both be stored as {stored}",
                                 fix="Rename one of them")  # fmt: skip
        self.names[name] = stored

    def _add(self, key: Any, fields: dict[str, Stored]) -> None:
        own = [len(v) if isinstance(v, bytes) else v.nbytes + _NPY_HEADER * (v.ndim > 0) for v in fields.values()]
        size = self._format.footprint(own)
        if self._part is not None and (
            self._part.samples == self._most or (self._limit is not None and self._bytes + size > self._limit)
        ):
            self._roll()
        if self._part is None:
            self._part = Part(self._output.part("all", len(self.done), self._format.suffix), self._format)
            self._bytes = 0
        self._part.add(key, fields)
        self._bytes += size
        if self._limit is not None and size > self._limit:
            self._large.append((key, size))
        self._meter.add(1, 0, sum(own))

    def _roll(self) -> None:
        """Finish the shard that is being written."""
        if self._part is not None:
            self.done.append(self._part.finish())
            self._part = None
