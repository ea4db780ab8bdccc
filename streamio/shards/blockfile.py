"""A new file that is written from its start to its end, and its checksum."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import xxhash

_BLOCK = 1 << 20
_VECTORS = 512
"""Up to so many pieces are written as they are; joining more small ones is faster, and the system has a limit."""


class BlockFile:
    """Collects small pieces into blocks of 1 MiB, which a thread of its own writes and sums up meanwhile.

    Two blocks are in memory at most. What the thread was refused (OSError) is raised by a later call, by
    `finish` at the latest.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._thread = ThreadPoolExecutor(1, "streamio-write")  # starts with the first block
        self._writing: Future[None] | None = None
        self._state = xxhash.xxh3_64()
        self._pieces: list[bytes] = []
        self._waiting = 0
        self.size = 0
        """Bytes so far, those that wait included."""

    def add(self, pieces: Sequence[bytes], size: int) -> None:
        """Append pieces of this many bytes in all."""
        self._pieces += pieces
        self._waiting += size
        self.size += size
        if self._waiting >= _BLOCK:
            self._flush()

    def take(self, path: Path) -> None:
        """Append the contents of a file, which is gone then. The first one is not copied but renamed."""
        if self.size:
            for block in _blocks(path):
                self.add((block,), len(block))
            os.unlink(path)
            return
        os.replace(path, self._path)
        os.close(self._file)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        for block in _blocks(self._path):
            self._state.update(block)
            self.size += len(block)

    def flush(self) -> None:
        """Wait until the system has everything."""
        self._flush()
        self._wait()

    def finish(self) -> None:
        """Wait until everything is on the disk; `close` is still to be called."""
        self.flush()
        os.fsync(self._file)

    def checksum(self) -> str:
        """xxh3-64 of the file in hex, once it is finished."""
        return self._state.hexdigest()

    def close(self) -> None:
        """Give the file up. Never raises; a second time it does nothing."""
        self._thread.shutdown()
        with suppress(OSError):
            os.close(self._file)
        self._file = -1

    def _flush(self) -> None:
        block, self._pieces, self._waiting = self._pieces, [], 0
        self._wait()
        self._writing = self._thread.submit(self._write, block)

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.result()

    def _write(self, pieces: list[bytes]) -> None:
        if len(pieces) > _VECTORS:
            pieces = [b"".join(pieces)]
        for piece in pieces:
            self._state.update(piece)
        written = os.writev(self._file, pieces)
        if written < sum(map(len, pieces)):  # the system took only a part, as it may
            rest = memoryview(b"".join(pieces))[written:]
            while rest:
                rest = rest[os.write(self._file, rest) :]


def _blocks(path: Path) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            yield block
