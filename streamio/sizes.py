"""Sizes in bytes and spans of time, as people write them."""

from __future__ import annotations

import re

from streamio.errors import UsageError

_UNITS = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SPANS = {"": 1, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def parse_size(size: int | str) -> int:
    """Bytes: `"256MB"` is 256,000,000, `"256MiB"` is 268,435,456, a plain number is bytes.

    Raises UsageError for anything else, and for less than one byte.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", str(size).strip())
    factor = _UNITS.get(match[2].lower()) if match else None
    bytes = 0 if match is None or factor is None else int(float(match[1]) * factor)
    if isinstance(size, bool) or bytes < 1:
        raise UsageError(f"{size!r} is no size", fix="Sizes are written like 256MB, 1.5GB, 64MiB or 1000000")
    return bytes


def parse_seconds(span: float | str) -> float:
    """Seconds: `"15m"` is 900, `"2h"` is 7,200, a plain number is seconds.

    Raises UsageError for anything else, and for no time at all.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", str(span).strip())
    factor = _SPANS.get(match[2].lower()) if match else None
    seconds = 0.0 if match is None or factor is None else float(match[1]) * factor
    if isinstance(span, bool) or seconds <= 0:
        raise UsageError(f"{span!r} is no span of time", fix="Spans are written like 30s, 15m, 1.5h or 1d")
    return seconds


def size_text(bytes: int) -> str:
    """`1,234,567` as `1.2 MB`."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if bytes >= factor:
            return f"{bytes / factor:.1f} {unit}"
    return f"{bytes} bytes"
