"""Blocks of lines -> chunks of columns, with the file, line and byte of those that are broken."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from streamio.errors import DecodeError, SampleError
from streamio.sizes import size_text
from streamio.sources.base import Chunk, Cursor
from streamio.sources.lines import LineParser
from streamio.sources.logs.followed import Portion
from streamio.sources.logs.names import shown
from streamio.sources.logs.opened import opened

_log = logging.getLogger("streamio")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk(Chunk):
    """Lines of a file. portion: of one that is followed: then a cursor says what the file is, beside the offset."""

    portion: Portion | None

    def cursor(self, index: int) -> Cursor:
        offset = int(self.cursors[index])
        return offset if self.portion is None else self.portion.cursor(offset)


class ChunkMaker:
    """Parses what one reader reads. follows: whether the files are followed."""

    def __init__(self, parser: LineParser, *, follows: bool) -> None:
        self._parser, self._follows = parser, follows
        self._numbers: dict[str, tuple[int, int]] = {}
        """By partition: (offset, lines before it)."""

    def chunk(self, portion: Portion) -> Chunk | None:
        """The samples of a block; None if it has none."""
        block = portion.block
        if block.zeros:
            _note_zeros(shown(portion.path), block.start, block.zeros)
        if block.too_long:
            return self._too_long(portion)
        parsed = self._parser(block.data)
        for begin, end in parsed.holes:
            _note_zeros(shown(portion.path), block.begin + begin, end - begin)
        if parsed.others:
            _log.warning(
                "%s has further fields, which are left out: %s. Declare them with types= to have them",
                shown(portion.path), ", ".join(parsed.others),
            )  # fmt: skip
        places = block.begin + parsed.starts
        if parsed.bad:
            before = self._lines_before(portion)
            for row, error in parsed.bad.items():
                number = None if before is None else before + int(parsed.numbers[row]) + 1
                self._place(error, portion, int(places[row]), number)
                if not block.data.endswith(b"\n") and row == len(parsed) - 1:
                    error.fix = (
                        f"The file does not end with a newline: it may be cut, or still written. {error.fix}"
                    )
        self._count(portion, parsed.total)
        if not len(parsed):
            return None
        return LogChunk(
            partition=portion.name, columns=parsed.columns, cursors=block.begin + parsed.ends, places=places,
            bad=parsed.bad, portion=portion if self._follows else None,
        )  # fmt: skip

    def _too_long(self, portion: Portion) -> Chunk:
        block = portion.block
        error = DecodeError(
            f"the line is {size_text(block.end - block.start)} long, more than max_line",
            fix="Raise max_line, or leave such lines out with on_error='skip'",
        )
        before = self._lines_before(portion)
        self._place(error, portion, block.start, None if before is None else before + 1)
        self._count(portion, 1)
        return LogChunk(
            partition=portion.name, cursors=np.array([block.end]), places=np.array([block.start]), bad={0: error},
            portion=portion if self._follows else None,
        )  # fmt: skip

    def _place(self, error: SampleError, portion: Portion, byte: int, line: int | None) -> None:
        error.where = {
            "path": shown(portion.path),
            **error.where,
            **({} if line is None else {"line": line}),
            "byte": byte,
        }

    def _count(self, portion: Portion, lines: int) -> None:
        """Go on counting, where the lines before are known."""
        block = portion.block
        at, before = self._numbers.get(portion.name, (0, 0))
        if at == block.start:
            self._numbers[portion.name] = block.end, before + lines

    def _lines_before(self, portion: Portion) -> int | None:
        """Lines before a block; None if the file is no longer there to be counted."""
        at, before = self._numbers.get(portion.name, (0, 0))
        if at != portion.block.start:
            counted = _count_lines(portion, at)
            if counted is None:
                return None
            self._numbers[portion.name] = portion.block.start, before + counted
        return self._numbers.get(portion.name, (0, 0))[1]

    def forget(self, name: str) -> None:
        self._numbers.pop(name, None)


def _count_lines(portion: Portion, at: int) -> int | None:
    file = opened(portion.path)
    if file is None:
        return None
    with file:
        if file.id != portion.id:
            return None
        lines = 0
        while at < portion.block.start:
            data = file.read_at(at, min(4 << 20, portion.block.start - at))
            if not data:
                return None
            lines += data.count(b"\n")
            at += len(data)
        return lines


def _note_zeros(path: str, at: int, count: int) -> None:
    _log.warning("%s: %s of NUL at byte %s were left out: a hole in the file", path, size_text(count), f"{at:,}")
