"""One file that is followed: what was read of it, and the handle while it is open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streamio.sources.logs.blocks import Block, LineReader
from streamio.sources.logs.identity import HEAD, TAIL, Head, Trace, beginnings, digest, tail_before
from streamio.sources.logs.opened import FileId, LogFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """A block of a file, with what it takes to say later where in the file a line ended.

    name:   of the partition.
    first:  bytes of the file, up to the end of the block.
    begins: of these, for blocks that begin behind them.
    before: the last bytes before the lines of the block.
    length: of a compressed file on the disk, if the block is the last of it.
    """

    name: str
    path: str
    id: FileId
    head: Head
    first: bytes
    begins: tuple[Head, ...]
    before: bytes
    block: Block
    length: int | None

    def cursor(self, at: int) -> dict[str, Any]:
        """Of the line that ends at this offset: JSON, from which the file is found again."""
        data = memoryview(self.block.data)[: at - self.block.begin]
        tail = bytes(data[-TAIL:]) if len(data) >= TAIL else (self.before + data)[-TAIL:]
        begins = self.begins if at >= HEAD else beginnings(self.first, at)
        trace = Trace(path=self.path, id=self.id, head=self.head, at=at, begins=begins, tail=digest(tail))
        saved = trace.to_json()
        return saved if self.length is None or at < self.block.end else {**saved, "length": self.length}


class Followed:
    """A file and how far it was read. name: of its partition. trace: of what was read when it was last looked for.

    `file` is None while it is asleep (known not to have changed) or lost (to be found).
    """

    def __init__(self, name: str, trace: Trace) -> None:
        self.name, self.path, self.id, self.head = name, trace.path, trace.id, trace.head
        self.at, self._begins, self._digest = trace.at, trace.begins, trace.tail
        self._first = self._tail = b""
        self.file: LogFile | None = None
        self.stamp: tuple[int, int] | None = None
        """When there was nothing more to read, the file was like this."""
        self.touched = 0.0
        """When something was read, or it was found."""
        self.left: float | None = None
        """Since when the patterns do not match it."""
        self.lost: float | None = None
        """Since when it is not where it was."""

    @property
    def trace(self) -> Trace:
        return Trace(path=self.path, id=self.id, head=self.head, at=self.at, begins=self._begins, tail=self._digest)

    @property
    def is_weak(self) -> bool:
        """Whether only the first line was read, which all files of a log may share, and an inode is used again."""
        return self.at <= self.head.length

    @property
    def is_dry(self) -> bool:
        """Whether all that the open file has was read."""
        return self.file is not None and self.file.stamp == self.stamp

    @property
    def is_deleted(self) -> bool:
        """Whether only the handle is left of it."""
        return self.file is not None and self.file.is_deleted

    def take(self, file: LogFile, now: float) -> None:
        """Go on in this file at `at`; it begins with what was read up to there."""
        self.close()
        self.file, self.path, self.id = file, file.path, file.id
        if not file.is_packed or self.at < HEAD:  # else it would be unpacked from its beginning again
            self._first = file.read_at(0, min(self.at, HEAD))
            self._begins = beginnings(self._first, self.at)
        self._tail = tail_before(file, self.at)
        self._digest = digest(self._tail)
        self.stamp, self.touched, self.lost = None, now, None

    def has_read(self, file: LogFile, length: int) -> bool:
        """Whether all `length` bytes of a file were read in this one, as far as its first bytes can tell."""
        if not self.head.length < length < self.at:
            return False
        if len(self._first) >= min(length, HEAD):
            return file.read_at(0, min(length, HEAD)) == self._first[:length]
        begins = [begin for begin in self._begins if begin.length <= length]
        return bool(begins) and begins[-1].is_of(file)

    def is_intact(self) -> bool:
        """Whether the open file still begins with what was read: it was not cut, and perhaps filled again."""
        file = self.file
        assert file is not None
        if file.is_packed:  # nobody cuts one and writes another into it
            return not file.was_cut
        if self.at == 0:
            return self.head.is_of(file)
        return tail_before(file, self.at) == self._tail

    def next(self, reader: LineReader, now: float, until: int | None = None) -> Portion | None:
        """The next lines; None if there are none now, or the file is no longer `is_intact`."""
        file = self.file
        assert file is not None
        stamp = file.stamp
        if stamp == self.stamp:
            return None
        block = reader.next(file, self.at, until)
        if not self.is_intact():  # asked after reading: what was read may be of the next content
            return None
        if block is None:
            self.stamp = stamp
            return None
        before = self._tail + block.passed
        is_last = file.is_packed and not file.read_at(block.end, 1) and file.is_whole
        self._advance(file, block, before)
        self.touched = now
        return Portion(
            name=self.name, path=self.path, id=self.id, head=self.head, begins=self._begins, first=self._first,
            before=before[-TAIL:], block=block, length=stamp[0] if is_last else None,
        )  # fmt: skip

    def _advance(self, file: LogFile, block: Block, before: bytes) -> None:
        if block.too_long:
            self._first, self._tail = file.read_at(0, min(block.end, HEAD)), tail_before(file, block.end)
        else:
            if self.at == len(self._first) < HEAD:
                zeros = bytes(min(block.zeros, HEAD)) or block.passed
                self._first = (self._first + zeros + block.data[:HEAD])[:HEAD]
            self._tail = (before[-TAIL:] + block.data[-TAIL:])[-TAIL:]
        self.at = block.end
        self._begins = beginnings(self._first, self.at) or self._begins
        self._digest = digest(self._tail)

    def holds(self, end: int | None) -> bool:
        """Whether the open file is still as long as it was, if that is known."""
        assert self.file is not None
        return end is None or self.file.is_packed or self.file.raw_size >= end

    def check_whole(self) -> None:
        """Raise StorageError for a compressed file that was read to its end, and is cut."""
        assert self.file is not None
        self.file.check_whole()

    def read_again(self) -> None:
        """Try again to read what is there, in another way."""
        self.stamp = None

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None
