"""How many rows a part of a file has, without parsing it where that can be."""

from __future__ import annotations

import numpy as np

from streamio.sources.lines import LineParser
from streamio.sources.lines.split import split_lines
from streamio.sources.logs.blocks import LineReader
from streamio.sources.logs.opened import LogFile

_BOM = 0xEF


def count_rows(file: LogFile, reader: LineReader, parser: LineParser, at: int, until: int | None) -> int:
    """Rows, broken ones too, of the lines from `at` on that begin before `until`."""
    rows = 0
    while block := reader.next(file, at, until):
        rows += 1 if block.too_long else _rows_of(block.data, parser)
        at = block.end
    return rows


def _rows_of(data: bytes, parser: LineParser) -> int:
    if parser.may_leave_out:
        return len(parser(data))
    text = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(text == 10)
    first = text[np.concatenate([[0], ends + 1])[: len(ends) + (not data.endswith(b"\n"))]] if data else text
    if ((first <= 32) | (first == _BOM)).any():  # they may be blank
        return len(split_lines(data))
    return len(first)
