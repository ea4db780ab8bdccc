"""Whole lines out of a file, some megabytes at a time."""

from __future__ import annotations

from dataclasses import dataclass

from streamio.sources.logs.opened import LogFile

BLOCK = 2 << 20
LONGEST = 128 << 20
PASSED = 1024
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Lines of a file.

    start:    offset of the first line; of what was passed over before it, if there is something.
    begin:    offset of `data`: behind zero bytes, and behind the mark of UTF-8 at the beginning of a file.
    data:     whole lines; the last one lacks its newline if the file ends there. Empty: zero bytes, or too long.
    end:      offset behind them.
    too_long: the line is longer than the most that is held in memory.
    passed:   the last bytes of what was passed over, 1 KB at most.
    """

    start: int
    begin: int
    data: bytes
    end: int
    too_long: bool = False
    passed: bytes = b""

    @property
    def zeros(self) -> int:
        """How many zero bytes were passed over."""
        return 0 if self.passed == _BOM else self.begin - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class LineReader:
    """How lines are cut.

    is_finished: what is behind the last newline is a line; else it is one that is being written.
    size:        bytes to read at once.
    longest:     bytes of a line; one that is longer comes as a block of its own, without data.
    """

    is_finished: bool
    size: int = BLOCK
    longest: int = LONGEST

    def next(self, file: LogFile, at: int, until: int | None = None) -> Block | None:
        """The lines from `at` on, which is where one begins; None where there is none (yet).

        until: only lines that begin before it. Zero bytes where a line should begin are passed over: they are a
        hole, left by a writer that went on at its old offset after the file was cut.
        """
        if until is not None and at >= until:
            return None
        begin = self._behind_zeros(file, at)
        want = self.size
        while True:
            data = file.read_at(begin, want)
            passed = bytes(min(begin - at, PASSED))
            if begin == 0 and data.startswith(_BOM):
                begin, data, passed = len(_BOM), data[len(_BOM) :], _BOM
                want = max(1, want - len(_BOM))
            cut = _cut(data, None if until is None else until - begin)
            if not cut and len(data) < want:
                if not self.is_finished or begin + len(data) == at:
                    return None
                cut = len(data)
            if cut or len(data) < want:  # without lines: there were zeros only
                return Block(start=at, begin=begin, data=data[:cut], end=begin + cut, passed=passed)
            if want >= self.longest:
                return self._too_long(file, at, begin + len(data))
            want = min(2 * want, self.longest)

    def _behind_zeros(self, file: LogFile, at: int) -> int:
        if file.read_at(at, 1) != b"\0":
            return at
        while data := file.read_at(at, self.size):
            if data[:1] != b"\0":
                break
            left = len(data.lstrip(b"\0"))
            at += len(data) - left
            if left:
                break
            at = file.behind_hole(at)
        return at

    def _too_long(self, file: LogFile, start: int, at: int) -> Block | None:
        end = self.line_end(file, at)
        if end is None:
            if not self.is_finished:
                return None
            end, _ = file.ending(0, at)
        return Block(start=start, begin=start, data=b"", end=end, too_long=True)

    def line_end(self, file: LogFile, at: int) -> int | None:
        """Offset behind the first newline at or after `at`; None if there is none."""
        while data := file.read_at(at, self.size):
            end = data.find(b"\n") + 1
            if end:
                return at + end
            at = file.behind_hole(at + len(data))
        return None

    def first_line(self, file: LogFile, begin: int) -> int:
        """Where the first line begins that does so at `begin` or after it."""
        if begin == 0:
            return 0
        end = self.line_end(file, begin - 1)
        return file.ending(0, begin)[0] if end is None else end


def _cut(data: bytes, until: int | None) -> int:
    """How much of the data are whole lines that begin before `until`, and before any zeros."""
    cut = data.rfind(b"\n") + 1
    if until is not None and until < cut:
        cut = data.find(b"\n", max(0, until - 1)) + 1
    hole = data.find(b"\n\0", 0, cut + 1) if b"\0" in data else -1  # to look for one byte is ten times as fast
    return cut if hole < 0 else hole + 1
