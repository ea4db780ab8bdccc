"""LogFile: one open file, plain or compressed, read by offsets of its unpacked content."""

from __future__ import annotations

import errno
import os
import stat
from typing import Self, TypeAlias

from streamio.errors import StorageError
from streamio.sources.logs.unpacking import MAGIC_BYTES, Unpacker, may_become_packed, packing

FileId: TypeAlias = tuple[int, int]
"""(device, inode): no two files have it that exist at the same time. A handle keeps its file in existence."""


class LogFile:
    """An open file. It stays the same one if it is renamed, and goes on to be readable if it is deleted.

    Raises StorageError for a file that cannot be opened, FileNotFoundError for one that is not there.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _unreadable(path, error) from error
        try:
            facts = os.fstat(self._file)
            if not stat.S_ISREG(facts.st_mode):
                raise StorageError("is no file", path=path)
            self.id: FileId = (facts.st_dev, facts.st_ino)
            head = self._pread(0, MAGIC_BYTES)
            kind = packing(head)
            self._unpacker = Unpacker(self._file, kind, path) if kind else None
            self.is_known = kind is not None or not may_become_packed(head)
            """Whether it was long enough to see if it is compressed."""
        except BaseException:
            self.close()
            raise

    @property
    def is_packed(self) -> bool:
        return self._unpacker is not None

    @property
    def raw_size(self) -> int:
        """Bytes on the disk, now."""
        return os.fstat(self._file).st_size

    @property
    def is_deleted(self) -> bool:
        """Whether no name leads to it any more."""
        return os.fstat(self._file).st_nlink == 0

    @property
    def is_whole(self) -> bool:
        """Whether a compressed file ends where a member does, as far as it was read; else True."""
        return self._unpacker is None or self._unpacker.is_whole

    @property
    def was_cut(self) -> bool:
        """Whether a compressed file is shorter now than what was read of it."""
        return self._unpacker is not None and self.raw_size < self._unpacker.raw

    def read_at(self, offset: int, size: int) -> bytes:
        """`size` bytes of the content from `offset` on; fewer at its end."""
        if self._unpacker is not None:
            return self._unpacker.read_at(offset, size)
        return self._pread(offset, size)

    def _pread(self, offset: int, size: int) -> bytes:
        try:
            data = os.pread(self._file, size, offset)
            while data and len(data) < size:
                more = os.pread(self._file, size - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise _unreadable(self.path, error) from error
        return data

    def behind_hole(self, offset: int) -> int:
        """Where data comes at `offset` or after it, if it lies in a hole of a sparse file; else `offset`."""
        if self._unpacker is not None or not hasattr(os, "SEEK_DATA"):
            return offset
        try:
            return os.lseek(self._file, offset, os.SEEK_DATA)
        except OSError as error:  # ENXIO: nothing but a hole up to the end; others: not known here
            return max(offset, self.raw_size) if error.errno == errno.ENXIO else offset

    @property
    def stamp(self) -> tuple[int, int]:
        """Differs when the file has changed."""
        facts = os.fstat(self._file)
        return facts.st_size, facts.st_mtime_ns

    def ending(self, size: int, begin: int = 0) -> tuple[int, bytes]:
        """(length of the content as far as it is there, its last `size` bytes). begin: is known to be inside.

        A compressed file is read for it.
        """
        if self._unpacker is None:
            return self.ending_on_disk(size)
        at, window = max(0, begin - size), max(1 << 20, 2 * size)
        while len(data := self._unpacker.read_at(at, window)) == window:
            at += window - size
        return at + len(data), data[max(0, len(data) - size) :]

    def check_whole(self) -> None:
        """Raise StorageError for a compressed file that was read to its end, and ends in the middle."""
        if self._unpacker is not None and not self._unpacker.is_whole:
            raise self._unpacker.cut()

    def read_raw(self, offset: int, size: int) -> bytes:
        """Bytes as they are on the disk."""
        return self._pread(offset, size)

    def ending_on_disk(self, size: int) -> tuple[int, bytes]:
        """(bytes on the disk, the last `size` of them)."""
        length = self.raw_size
        return length, self._pread(max(0, length - size), min(size, length))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def _unreadable(path: str, error: OSError) -> StorageError:
    return StorageError(f"cannot be read: {error.strerror}", path=path)


def opened(path: str) -> LogFile | None:
    """The file; None if it has just gone."""
    try:
        return LogFile(path)
    except FileNotFoundError:
        return None
