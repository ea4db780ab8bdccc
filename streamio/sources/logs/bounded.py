"""LogSource: the lines that some files have when an epoch begins, in byte ranges that are dealt to the workers."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from streamio.errors import StorageError
from streamio.sources.base import Chunk, Cursor, Partition, Source
from streamio.sources.fields import FieldType
from streamio.sources.lines import LineParser
from streamio.sources.logs.blocks import LineReader
from streamio.sources.logs.chunks import ChunkMaker
from streamio.sources.logs.counting import count_rows
from streamio.sources.logs.followed import Followed
from streamio.sources.logs.identity import TAIL, Head, Trace, digest
from streamio.sources.logs.listing import Found, list_files, look_at, relatives
from streamio.sources.logs.names import is_packed_twin, shown
from streamio.sources.logs.opened import FileId, LogFile, opened
from streamio.sources.logs.ranges import cut, range_bytes

_log = logging.getLogger("streamio")
_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A file as it was when the epoch began, and the part of it that one partition is.

    size, tail: bytes on the disk, and a hash of the last ones.
    begin, end: of the content; end is None for a compressed file, which is read to its end.
    """

    path: str
    id: FileId
    head: Head
    size: int
    tail: str
    begin: int = 0
    end: int | None = None

    def to_facts(self) -> dict[str, Any]:
        return {
            "path": self.path, "file": list(self.id), "head": [self.head.length, self.head.key], "size": self.size,
            "tail": self.tail, "begin": self.begin, "end": self.end,
        }  # fmt: skip

    @classmethod
    def of(cls, partition: Partition) -> Planned:
        facts = partition.facts
        (device, inode), (length, key) = facts["file"], facts["head"]
        return cls(
            path=facts["path"], id=(device, inode), head=Head(length, key), size=facts["size"], tail=facts["tail"],
            begin=facts["begin"], end=facts["end"],
        )  # fmt: skip

    def is_in(self, file: LogFile) -> bool:
        """Whether a file begins with all that was planned to be read."""
        if not self.head.is_of(file):
            return False
        was_packed, length = self.end is None, min(TAIL, self.size)
        if was_packed:
            return file.raw_size >= self.size and digest(file.read_raw(self.size - length, length)) == self.tail
        data = file.read_at(self.size - length, length)  # a file that was compressed meanwhile is unpacked
        return len(data) == length and digest(data) == self.tail


@dataclass(frozen=True, kw_only=True)
class LogSource(Source):
    """Reads files up to where they end when an epoch begins.

    patterns:    absolute.
    parser:      with its fields known.
    data:        the fingerprint.
    max_line:    bytes of the longest line that is read.
    split_bytes: about how long ranges of large files are; None: by the size of all.
    """

    patterns: tuple[str, ...]
    parser: LineParser
    data: str
    max_line: int
    split_bytes: int | None = None

    @property
    def fields(self) -> Mapping[str, FieldType]:
        assert self.parser.fields is not None
        return self.parser.fields

    @property
    def fingerprint(self) -> str:
        return self.data

    def _reader(self, *, is_finished: bool = True) -> LineReader:
        return LineReader(is_finished=is_finished, longest=self.max_line)

    def partitions(self) -> Sequence[Partition]:
        """Ranges of the files, the oldest first. Raises StorageError for files that cannot be read."""
        plans = self._plans()
        target = self.split_bytes or range_bytes([plan.size for plan in plans if plan.end is not None])
        return [partition for plan in plans for partition in _ranges(plan, target)]

    def _plans(self) -> list[Planned]:
        for _ in range(_TRIES):
            try:
                return [
                    plan for one in without_twins(list_files(self.patterns)) if (plan := _plan(one)) is not None
                ]
            except FileNotFoundError:  # renamed meanwhile
                pass
        raise StorageError(f"the files of {', '.join(self.patterns)} are renamed all the time", fix="Try again")

    def found_again(self, partitions: Sequence[Partition], cursors: Mapping[str, Cursor]) -> Sequence[Partition]:
        """The same, at their new paths. Raises StorageError where a file has gone."""
        found: dict[tuple[FileId, int, str], str] = {}
        for partition in partitions:
            plan = Planned.of(partition)
            key = (plan.id, plan.size, plan.tail)
            if key not in found:
                with self._open(plan) as file:
                    found[key] = file.path
        return [
            replace(one, facts={**one.facts, "path": found[plan.id, plan.size, plan.tail]})
            for one in partitions
            for plan in [Planned.of(one)]
        ]

    def read_partition(self, partition: Partition, cursor: Cursor) -> Iterator[Chunk]:
        plan, maker = Planned.of(partition), ChunkMaker(self.parser, follows=False)
        file = self._open(plan)
        at = self._reader().first_line(file, plan.begin) if cursor is None else int(cursor)
        trace = Trace(path=file.path, id=file.id, head=plan.head, at=at, begins=(), tail="")
        one = Followed(partition.name, trace)
        one.take(file, 0.0)
        reader = self._reader(is_finished=False)  # what is cut ends with half a line
        try:
            while plan.end is None or one.at < plan.end:
                portion = one.next(reader, time.monotonic(), plan.end)
                if portion is not None:
                    chunk = maker.chunk(portion)
                    if chunk is not None:
                        yield chunk
                elif one.is_intact() and one.holds(plan.end):
                    if reader.is_finished:
                        return
                    one.check_whole()
                    one.read_again()
                    reader = self._reader()
                else:  # it was cut, or written anew; its content may be elsewhere
                    one.take(self._open(plan), 0.0)
                    reader = self._reader(is_finished=False)
        finally:
            one.close()

    def count(self, partition: Partition, cursor: Cursor) -> int:
        plan, reader = Planned.of(partition), self._reader()
        with self._open(plan) as file:
            at = reader.first_line(file, plan.begin) if cursor is None else int(cursor)
            return count_rows(file, reader, self.parser, at, plan.end)

    def _open(self, plan: Planned) -> LogFile:
        """The file, wherever it is now. Raises StorageError if it is nowhere."""
        seen = set()
        for one in self._candidates(plan):
            if one.id in seen:
                continue
            seen.add(one.id)
            file = opened(one.path)
            if file is not None:
                if plan.is_in(file):
                    return file
                file.close()
        raise StorageError(
            "is no longer there as it was when the epoch began: it was deleted, cut or changed",
            fix="Begin a new epoch (set_epoch), which reads what is there now", path=plan.path,
        )  # fmt: skip

    def _candidates(self, plan: Planned) -> Iterator[Found]:
        """Where the file may be: where it was, under another name, in another file."""
        here = look_at(plan.path)
        if here is not None:
            yield here
        others = [*relatives(plan.path), *list_files(self.patterns, may_lack=True)]
        yield from sorted(others, key=lambda one: one.id != plan.id)


def _plan(found: Found) -> Planned | None:
    """A whole file; None for an empty one. Raises FileNotFoundError if it is not there any more."""
    with LogFile(found.path) as file:
        if file.id != found.id:
            raise FileNotFoundError(found.path)
        size, tail = file.ending_on_disk(TAIL)
        if not size:
            return None
        head = Head.first_line(file, is_complete=True)
        if head is None:  # compressed, of nothing
            file.check_whole()
            return None
        end = None if file.is_packed else size
        return Planned(path=found.path, id=file.id, head=head, size=size, tail=digest(tail), end=end)


def _ranges(plan: Planned, target: int) -> Iterator[Partition]:
    parts = [(0, None)] if plan.end is None else cut(plan.end, target)
    for begin, end in parts:
        name = shown(plan.path) if len(parts) == 1 else f"{shown(plan.path)}[{begin}:{end}]"
        yield Partition(name, replace(plan, begin=begin, end=end).to_facts())


def without_twins(files: Sequence[Found]) -> list[Found]:
    """Without `app.log.1.gz` beside `app.log.1`, if it holds the same, or a part: it is being made."""
    return [one for one in files if not any(_is_twin(one, other) for other in files)]


def _is_twin(one: Found, other: Found) -> bool:
    if not is_packed_twin(one.path, other.path):
        return False
    with LogFile(one.path) as packed, LogFile(other.path) as plain:
        head = Head.first_line(packed, is_complete=True)
        if head is not None and not head.is_of(plain):
            return False
        length, ending = packed.ending(TAIL)
        if ending != plain.read_at(length - len(ending), len(ending)):
            return False
    _log.warning("%s is left out: %s beside it holds the same", one.path, other.path)
    return True
