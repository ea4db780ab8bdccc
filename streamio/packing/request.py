"""What a call of `pack` asks for, refused before any work if it cannot be done."""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from streamio.cpus import usable_cpus
from streamio.errors import BadManifest, UsageError
from streamio.packing.commit import check_output, output_folder
from streamio.packing.listing import LISTS, is_list
from streamio.packing.report import shown
from streamio.packing.scan import LAYOUTS
from streamio.shards.base import ShardFormat
from streamio.shards.formats import format_named
from streamio.shards.manifest import MANIFEST_NAME, Manifest
from streamio.sizes import parse_size

DEFAULT_SHARD_SIZE = 256 * 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The arguments of `pack`, checked. Exactly one of shard_size and shard_samples is not None."""

    src: str
    out: str
    format: ShardFormat
    layout: str
    shard_size: int | None
    shard_samples: int | None
    shuffle: bool | None
    seed: int
    workers: int
    val: float
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    labels: str | None
    classes: tuple[str, ...] | None
    overwrite: bool
    resize_short: int | None
    max_side: int | None
    quality: int | None
    raw: bool
    check: bool
    skip: bool


def shard_limits(shard_size: int | str | None, shard_samples: int | None) -> tuple[int | None, int | None]:
    """Bytes or samples of a shard; 256 MB if neither is given."""
    if shard_size is not None and shard_samples is not None:
        raise UsageError("both --shard-size and --shard-samples are given", fix="Give one of them")
    if shard_samples is not None:
        return None, _whole("shard_samples", shard_samples, 1)
    return DEFAULT_SHARD_SIZE if shard_size is None else parse_size(shard_size), None


def checked(
    *,
    src: Any,
    out: Any,
    format: str,
    layout: str,
    shard_size: int | str | None,
    shard_samples: int | None,
    shuffle: bool | None,
    seed: int,
    workers: int | None,
    val: float,
    include: Sequence[str],
    exclude: Sequence[str],
    labels: Any,
    classes_from: Any,
    overwrite: bool,
    resize_short: int | None,
    max_side: int | None,
    quality: int | None,
    store: str,
    check: bool,
    on_error: str,
) -> Request:
    """Raise UsageError for whatever can be known to be wrong before a file is looked at."""
    size, samples = shard_limits(shard_size, shard_samples)
    _one_of("layout", layout, LAYOUTS)
    _one_of("store", store, ("bytes", "raw"))
    _one_of("on_error", on_error, ("raise", "skip"))
    if not isinstance(val, int | float) or not 0 <= val < 1:
        raise UsageError(f"val={val!r} is no share", fix="Give 0.1 for a tenth; at least 0 and less than 1")
    if store == "raw" and (max_side, quality) != (None, None):
        raise UsageError(
            "store='raw' goes with neither max_side nor quality", fix="Use resize_short to set the size"
        )
    request = Request(
        src=_source(src),
        out=output_folder(out),
        format=format_named(format),
        layout=layout,
        shard_size=size,
        shard_samples=samples,
        shuffle=shuffle,
        seed=_whole("seed", seed),
        workers=usable_cpus() if workers is None else _whole("workers", workers, 1),
        val=val,
        include=_patterns(include),
        exclude=_patterns(exclude),
        labels=_table(labels),
        classes=_classes(classes_from),
        overwrite=overwrite,
        resize_short=None if resize_short is None else _whole("resize_short", resize_short, 1),
        max_side=None if max_side is None else _whole("max_side", max_side, 1),
        quality=None if quality is None else _whole("quality", quality, 1, 100),
        raw=store == "raw",
        check=check,
        skip=on_error == "skip",
    )
    _apart(request.src, request.out)
    check_output(request.out, overwrite=overwrite)
    return request


def _source(src: Any) -> str:
    path = os.fsdecode(src)
    if not os.path.lexists(path):
        raise UsageError(
            "there is no such file or folder", fix="Name the folder (or list) to pack", path=shown(path)
        )
    if os.path.isdir(path):
        if not os.access(path, os.R_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            raise UsageError("no permission to read this folder", path=shown(path))
    elif not is_list(path):
        raise UsageError(
            "is neither a folder nor a .csv or .jsonl list",
            fix="Tars are read as they are, without packing: streamio.open(path)" if path.endswith(".tar") else "",
            path=shown(path),
        )
    return path


def _apart(src: str, out: str) -> None:
    """Refuse an output that would be packed into itself, or that holds its own input."""
    if not os.path.isdir(src):
        return
    a, b = os.path.realpath(src), os.path.realpath(out)
    if os.path.commonpath([a, b]) in (a, b):
        what = "is the input itself" if a == b else "lies inside" if b.startswith(a) else "holds the input"
        raise UsageError(f"the output {what}: '{shown(src)}'", fix="Name a folder beside it", path=shown(out))


def _table(labels: Any) -> str | None:
    if labels is None:
        return None
    path = os.fsdecode(labels)
    if not is_list(path):
        found = "there is no such file" if not os.path.isfile(path) else "is no table"
        raise UsageError(found, fix=f"'labels' takes a {' or '.join(LISTS)} file", path=shown(path))
    return path


def _classes(classes_from: Any) -> tuple[str, ...] | None:
    """The class names of a packed set; of the training part of a split one."""
    if classes_from is None:
        return None
    folder = os.fsdecode(classes_from)
    for path in (os.path.join(folder, inner, MANIFEST_NAME) for inner in ("", "train")):
        if os.path.isfile(path):
            with open(path, "rb") as file:
                try:
                    classes = Manifest.from_json(file.read(), shown(path)).classes
                except BadManifest as error:
                    raise UsageError(f"'classes_from': {error}") from error
            if classes is None:
                raise UsageError("this set has no class names to take over", path=shown(folder))
            return classes
    raise UsageError("is no packed set", fix="'classes_from' takes the folder of one", path=shown(folder))


def _patterns(patterns: Sequence[str]) -> tuple[str, ...]:
    found = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    for pattern in found:
        if not isinstance(pattern, str) or not pattern.strip("/"):
            raise UsageError(f"{pattern!r} is no pattern", fix="Patterns are written like '*.jpg' or 'cat/*'")
    return found


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{name}={value!r} is not known", fix=f"Use one of: {', '.join(allowed)}")


def _whole(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """A whole number within bounds."""
    try:
        number = operator.index(value)
        good = not isinstance(value, bool)
    except TypeError:
        number, good = 0, False
    if not good or (least is not None and number < least) or (most is not None and number > most):
        bounds = "" if least is None else f" of {least} or more" if most is None else f" from {least} to {most}"
        raise UsageError(f"{name}={value!r}", fix=f"Give a whole number{bounds}")
    return number
