"""`streamio info`: what a set holds, or one of its samples."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import typer

import streamio
from streamio.cli import options as opt
from streamio.cli.console import result, result_json, table
from streamio.codecs.base import codec_named
from streamio.packing.report import named, shown
from streamio.shards.manifest import FieldSpec
from streamio.shards.shardset import ShardSet
from streamio.sizes import size_text


def info(
    source: Annotated[
        str,
        typer.Argument(metavar="SET", show_default=False, help="A packed set, a tar, or 'a-{000..041}.tar'."),
    ],
    sample: Annotated[
        str | None,
        typer.Option(metavar="KEY|ROW", help="Show one sample, by its key or its number.", show_default=False),
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Show what a set holds: samples, shards, fields and classes; or one sample.

    [bold]Examples[/]

    [cyan]streamio info out/[/]

    [cyan]streamio info out/ --sample 0[/]

    [cyan]streamio info out/ --sample n01440764/photo_17[/]
    """
    opened = streamio.open(source)
    facts = _set_facts(opened) if sample is None else _sample_facts(opened, sample)
    if as_json:
        result_json(facts)
    elif sample is None:
        _show_set(facts)
    else:
        _show_sample(facts)


def _set_facts(opened: ShardSet) -> dict[str, Any]:
    return {
        "path": shown(str(opened.path)),
        "format": opened.format,
        "samples": len(opened),
        "shards": len(opened.sizes),
        "classes": None if opened.classes is None else list(map(shown, opened.classes)),
        "per_class": _per_class(opened),
        "fields": {name: _field_facts(spec) for name, spec in opened.fields.items()},
    }


def _per_class(opened: ShardSet) -> list[int] | None:
    if opened.classes is None or "cls" not in opened.columns:
        return None
    labels = np.asarray(opened.columns["cls"], np.int64)
    return [int(n) for n in np.bincount(labels[labels >= 0], minlength=len(opened.classes))]


def _field_facts(spec: FieldSpec) -> dict[str, Any]:
    shape = None if spec.shape is None else list(spec.shape)
    return {"codec": spec.codec, "samples": spec.samples, "dtype": spec.dtype, "shape": shape}


def _show_set(facts: dict[str, Any]) -> None:
    rows = [
        ("set", facts["path"]),
        ("format", facts["format"]),
        ("samples", f"{facts['samples']:,}"),
        ("shards", f"{facts['shards']:,}"),
    ]
    if facts["classes"] is not None:
        rows.append(("classes", f"{len(facts['classes']):,}: {named(facts['classes'], most=10)}"))
    if facts["per_class"]:
        least, most = min(facts["per_class"]), max(facts["per_class"])
        rows.append(("per class", f"{least:,} samples" if least == most else f"{least:,} to {most:,} samples"))
    table(rows)
    result("\nfields")
    table(
        (
            f"  {name}",
            _kind(field),
            _how_many(field["samples"], facts["samples"]),
        )
        for name, field in facts["fields"].items()
    )


def _how_many(samples: int, of: int) -> str:
    return "in all" if samples == of else f"in {samples:,}"


def _kind(field: dict[str, Any]) -> str:
    if field["dtype"] is None:
        return str(field["codec"])
    shape = " x ".join(map(str, field["shape"])) or "scalar"
    return f"{np.dtype(field['dtype'])} array, {shape}"


def _sample_facts(opened: ShardSet, wanted: str) -> dict[str, Any]:
    """`wanted` is a key if there is such a one, else a row."""
    try:
        row = opened.find(wanted)
    except KeyError as unknown:
        try:
            row = range(len(opened))[int(wanted)]
        except (ValueError, IndexError):
            fix = f"Give a key, or a row from 0 to {len(opened) - 1:,}"
            raise streamio.UsageError(shown(unknown.args[0]), fix=fix) from None
    values = opened[row]
    fields = {name: _value_facts(value, opened.fields[name]) for name, value in values.items() if name != "__key__"}
    return {"key": shown(values["__key__"]), "row": row, "fields": fields}


def _value_facts(value: Any, spec: FieldSpec) -> dict[str, Any]:
    if not isinstance(value, bytes):
        return {"bytes": np.asarray(value).nbytes, "value": _preview(value)}
    codec = codec_named(spec.codec)
    seen = codec.peek(value)
    if {"width", "height"} <= set(seen):
        return {"bytes": len(value), "value": f"{spec.codec}, {seen['width']} x {seen['height']} pixels"}
    try:
        return {"bytes": len(value), "value": _preview(codec.decode(value))}
    except streamio.StreamioError as error:
        return {"bytes": len(value), "value": f"cannot be read: {error.found}"}


MOST_CHARACTERS = 300


def _preview(value: Any) -> str:
    if isinstance(value, np.ndarray):
        shape = " x ".join(map(str, value.shape)) or "scalar"
        value = np.array2string(value, threshold=8, edgeitems=3).replace("\n", " ")
        text = f"array {shape}: {value}"
    elif isinstance(value, bytes):
        text = " ".join(f"{byte:02x}" for byte in value[:32]) + (" …" if len(value) > 32 else "")
    else:
        text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} …"


def _show_sample(facts: dict[str, Any]) -> None:
    table([("key", facts["key"]), ("row", f"{facts['row']:,}")])
    result()
    table((name, size_text(field["bytes"]), field["value"]) for name, field in facts["fields"].items())
