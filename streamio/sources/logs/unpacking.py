"""Compressed files read from any byte on, as if they were plain: gzip, zstd, bz2, xz. The content says which."""

from __future__ import annotations

import bz2
import lzma
import os
import zlib
from collections.abc import Callable
from typing import Any, Protocol

from streamio.errors import StorageError
from streamio.extras import extra

_MAGIC = {
    "gzip": (b"\x1f\x8b\x08",),
    "zstd": (b"\x28\xb5\x2f\xfd", *(bytes([0x50 + i]) + b"\x2a\x4d\x18" for i in range(16))),
    "bz2": tuple(b"BZh%d" % level + mark for level in range(1, 10) for mark in (b"1AY&SY", b"\x17rE8P\x90")),
    "xz": (b"\xfd7zXZ\x00",),
}
MAGIC_BYTES = 10
_RAW = 1 << 18
_MOST = 1 << 20
_ZSTD_PIECE = 2048  # which unpack to 64 MB at the very most, if all of them are repetitions


def packing(head: bytes) -> str | None:
    """The kind of compression that a file begins with, of its first 10 bytes; None: plain."""
    return next((kind for kind, marks in _MAGIC.items() if head.startswith(marks)), None)


def may_become_packed(head: bytes) -> bool:
    """Whether these are the first bytes of a compressed file of which more is to come."""
    return any(len(head) < len(mark) and mark.startswith(head) for marks in _MAGIC.values() for mark in marks)


class _Member(Protocol):
    """One member (gzip), frame (zstd) or stream (bz2, xz) of a file; a file may have several."""

    ended: bool
    is_full: bool
    """Whether it has more to give before it is fed again."""
    left: bytes
    """What it was fed and did not use; what is behind it once it has ended."""

    def feed(self, data: bytes) -> bytes: ...


class _Gzip:
    def __init__(self) -> None:
        self._inner = zlib.decompressobj(31)
        self.ended, self.is_full, self.left = False, False, b""

    def feed(self, data: bytes) -> bytes:
        out = self._inner.decompress(data, _MOST)
        self.ended = self._inner.eof
        self.is_full = len(out) == _MOST and not self.ended
        self.left = self._inner.unused_data if self.ended else self._inner.unconsumed_tail
        return out


class _Block:
    """bz2 and xz keep what they were fed themselves."""

    def __init__(self, inner: bz2.BZ2Decompressor | lzma.LZMADecompressor) -> None:
        self._inner = inner
        self.ended, self.is_full, self.left = False, False, b""

    def feed(self, data: bytes) -> bytes:
        out = self._inner.decompress(data, _MOST)
        self.ended = self._inner.eof
        self.is_full = not self.ended and not self._inner.needs_input
        self.left = self._inner.unused_data if self.ended else b""
        return out


class _Zstd:
    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.ended, self.is_full, self.left = False, False, b""

    def feed(self, data: bytes) -> bytes:
        out: bytes = self._inner.decompress(data[:_ZSTD_PIECE])
        self.ended = self._inner.eof
        self.left = (self._inner.unused_data if self.ended else b"") + data[_ZSTD_PIECE:]
        return out


def _zstd() -> Callable[[], _Member]:
    unpacker = extra("zstandard", "logs").ZstdDecompressor()
    return lambda: _Zstd(unpacker.decompressobj())


_MEMBERS: dict[str, Callable[[], Callable[[], _Member]]] = {
    "gzip": lambda: _Gzip,
    "zstd": _zstd,
    "bz2": lambda: lambda: _Block(bz2.BZ2Decompressor()),
    "xz": lambda: lambda: _Block(lzma.LZMADecompressor(lzma.FORMAT_XZ)),
}


class Unpacker:
    """What a compressed file holds, by offset. It goes forward; for bytes before the last ones it begins anew.

    The file may grow meanwhile: what was there and made no whole member is gone on with.
    """

    def __init__(self, file: int, kind: str, path: str) -> None:
        self._file, self.kind, self.path = file, kind, path
        self._new_member = _MEMBERS[kind]()
        self._rewind()

    def _rewind(self) -> None:
        self._member: _Member | None = None
        self._members = 0
        self._raw, self._pending = 0, b""
        self._begin, self._buffer = 0, bytearray()

    def read_at(self, offset: int, size: int) -> bytes:
        """`size` bytes from `offset` of the unpacked content on; fewer where it has no more for now.

        Raises StorageError, with the offset in the file, for what is no longer of its kind.
        """
        if offset < self._begin:
            self._rewind()
        self._drop_until(offset)
        while self._begin + len(self._buffer) < offset + size:
            out = self._more()
            if out is None:
                break
            self._buffer += out
            self._drop_until(offset)
        return bytes(self._buffer[:size]) if self._begin == offset else b""

    def _drop_until(self, offset: int) -> None:
        drop = min(offset - self._begin, len(self._buffer))
        if drop:
            del self._buffer[:drop]
            self._begin += drop

    @property
    def is_whole(self) -> bool:
        """Whether the last member that was begun has ended, as far as the file was read."""
        return self._member is None and not self._pending

    @property
    def raw(self) -> int:
        """Bytes of the file that were used."""
        return self._raw - len(self._pending)

    def _more(self) -> bytes | None:
        """The next bytes, perhaps none; None where the file has no more."""
        member = self._member
        if not self._pending and not (member and member.is_full) and not self._fill():
            return None
        if member is None:
            member = self._begin_member()
            if member is None:
                return None
        data, self._pending = self._pending, b""
        try:
            out = member.feed(data)
        except MemoryError:
            raise
        except Exception as error:  # each library has its own
            raise self._damaged(f"is no {self.kind} any longer ({error})") from error
        self._pending = member.left
        if member.ended:
            self._member, self._members = None, self._members + 1
        return out

    def _begin_member(self) -> _Member | None:
        """A new one, if its first bytes are there. What fills up a tape behind the last one is passed over."""
        while True:
            if self._members:
                self._pending = self._pending.lstrip(b"\0")
            if len(self._pending) >= MAGIC_BYTES or not self._fill():
                break
        if packing(self._pending) == self.kind:
            self._member = self._new_member()
        elif self._pending and not may_become_packed(self._pending):
            raise self._damaged(f"has something else behind its {self.kind} data")
        return self._member

    def _fill(self) -> bool:
        more = os.pread(self._file, _RAW, self._raw)
        self._raw += len(more)
        self._pending += more
        return bool(more)

    def _damaged(self, what: str) -> StorageError:
        unpacked = self._begin + len(self._buffer)
        return StorageError(
            f"the file {what} at about byte {self.raw:,} of {os.fstat(self._file).st_size:,} "
            f"({unpacked:,} bytes unpacked)", fix="Make it again, or leave it out", path=self.path,
        )  # fmt: skip

    def cut(self) -> StorageError:
        """The error for a file that ends in the middle."""
        return self._damaged(f"is cut: its {self.kind} data ends in the middle,")
