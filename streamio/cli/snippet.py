"""The three lines of Python that read what was just packed."""

from __future__ import annotations

import re

import streamio
from streamio.codecs import is_image_field
from streamio.packing.report import PackReport
from streamio.shards.pictures import with_one_picture


def reading_lines(report: PackReport) -> list[str]:
    """import, data set, loop: for exactly this set, with its path and its fields."""
    split = report.splits.get("train") or next(iter(report.splits.values()))
    table = with_one_picture(streamio.open(split.path))
    fields = tuple(sorted(table.fields, key="cls".__eq__))  # the label last, as loops unpack it
    arguments = [repr(split.path), str(min(64, split.samples))]
    loop = "for batch in streamio.StreamLoader(ds): ..."
    alike = all(table.fields[name].samples == split.samples for name in fields)
    if alike and "cls" in fields and 2 <= len(fields) <= 4:
        arguments.append(f"fields={fields!r}")
        loop = f"for {', '.join(map(_variable, fields))} in streamio.StreamLoader(ds): ..."
    arguments.append("shuffle=True")
    if not alike:  # a missing picture has no place in an array; raw bytes come in lists, with None
        arguments.append("decode=False")
    elif any(is_image_field(table.fields[name].stored) for name in fields):
        arguments.append("decode=streamio.image.RandomResizedCrop(224)")
    return ["import streamio", f"ds = streamio.ShardDataset({', '.join(arguments)})", loop]


def _variable(field: str) -> str:
    """A field's name as a Python name: `seg.png` as `seg_png`."""
    return re.sub(r"\W|^(?=\d)", "_", field)
