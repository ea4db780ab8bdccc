"""Which file is it: told by its content, so that it is found again when it was renamed, copied or compressed.

A new file may have the inode of a deleted one, and a rotated one may have another. So a file is known by its first
line, and by the bytes before the place up to which it was read.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import xxhash

from streamio.errors import UsageError
from streamio.sources.logs.opened import FileId, LogFile

HEAD = 4096
"""A first line that is longer counts up to here."""
TAIL = 1024
"""So many bytes before the cursor are compared."""
_BEGINNINGS = (256, 1024, HEAD)


@dataclass(frozen=True, slots=True)
class Head:
    """The first bytes of a file. Those of its first line say, alike everywhere, who reads it."""

    length: int
    key: str

    @classmethod
    def of_bytes(cls, data: bytes) -> Head:
        return cls(len(data), digest(data))

    @classmethod
    def first_line(cls, file: LogFile, *, is_complete: bool = False) -> Head | None:
        """None while the first line is being written. is_complete: what there is of it is all."""
        data = file.read_at(0, HEAD) if file.is_known or is_complete else b""
        end = data.find(b"\n") + 1 or (len(data) if len(data) == HEAD or is_complete else 0)
        return cls.of_bytes(data[:end]) if end else None

    def is_of(self, file: LogFile) -> bool:
        data = file.read_at(0, self.length)
        return len(data) == self.length and digest(data) == self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A file up to a place in it.

    path, id: where it was.
    head:     its first line.
    at:       bytes of it.
    begins:   some of its first bytes, see `beginnings`.
    tail:     a hash of the last `TAIL` of these.
    """

    path: str
    id: FileId
    head: Head
    at: int
    begins: tuple[Head, ...]
    tail: str

    def is_of(self, file: LogFile) -> bool:
        """Whether a file begins with the same bytes."""
        if not (self.begins or (self.head,))[-1].is_of(file):
            return False
        tail = tail_before(file, self.at)
        return len(tail) == min(self.at, TAIL) and digest(tail) == self.tail

    def to_json(self) -> dict[str, Any]:
        """JSON values, with the time."""
        return {
            "path": self.path, "file": list(self.id), "head": [self.head.length, self.head.key], "at": self.at,
            "begins": [[begin.length, begin.key] for begin in self.begins], "tail": self.tail,
            "time": int(time.time()),
        }  # fmt: skip

    @classmethod
    def from_json(cls, saved: Any) -> Trace:
        """Raises UsageError for what `to_json` did not give."""
        try:
            if not isinstance(saved, Mapping):
                raise TypeError(saved)
            device, inode = saved["file"]
            begins = tuple(Head(int(length), str(key)) for length, key in saved["begins"])
            head, key = saved["head"]
            return cls(
                path=str(saved["path"]), id=(int(device), int(inode)), head=Head(int(head), str(key)),
                at=int(saved["at"]), begins=begins, tail=str(saved["tail"]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"the cursor of a file is none: {error!r}", fix="Give what loader.state_dict() returned"
            ) from error


def beginnings(first: bytes, at: int) -> tuple[Head, ...]:
    """Several lengths of the first bytes of a file of which so much was read; () if they are not known.

    A copy that was made before the last lines were written is known by one of them.
    """
    return tuple(Head.of_bytes(first[:length]) for length in _BEGINNINGS if length <= min(at, len(first)))


def digest(data: bytes | memoryview) -> str:
    return xxhash.xxh3_64_hexdigest(data)


def tail_before(file: LogFile, at: int) -> bytes:
    """The last bytes before a place."""
    begin = max(0, at - TAIL)
    return file.read_at(begin, at - begin)
