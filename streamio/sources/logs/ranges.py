"""Where large files are cut. Integers only.

A range holds the lines that begin in it; so it begins behind the first newline at or after the byte before it, and
reads the line that crosses its end.

    bytes     0         10        20        30
    file      ab\\ncdefghijklmnop\\nqrstu\\nvwxyz\\n      ranges [0, 11) [11, 22) [22, 33)
    lines     0..2      3..16          17..22  23..28       the second has one line, the third one too
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

SMALLEST = 16 << 20
MOST = 256
"""Ranges of about this number, all files together: the state names those that are left."""


def range_bytes(sizes: Sequence[int]) -> int:
    """How long ranges are to be, for files of these sizes."""
    return max(SMALLEST, -(-sum(sizes) // MOST))


def cut(size: int, target: int) -> list[tuple[int, int]]:
    """(begin, end) of the ranges of one file: in order, without gaps, of equal length to a byte, about `target`."""
    parts = max(1, round(size / target))
    edges = [size * part // parts for part in range(parts + 1)]
    return list(pairwise(edges))
