"""What a worker process sends: frames in a pipe, which the main process reads without ever waiting in a read.

    bytes    8: length of the body   8: number of the iteration   1: kind   body

A process that dies or is stopped in the middle of a frame so holds up nobody.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from enum import IntEnum
from multiprocessing.connection import Connection
from typing import Any

_HEADER = struct.Struct("<QQB")
_PIPE_BYTES = 1 << 20
"""Of a pipe, where the system allows it: a small batch that travels in its pickle fits, and its maker goes on."""


class Kind(IntEnum):
    """READY: the worker has started. BATCH, BUNDLE: the body is a batch, a list of some. END: its share of the
    iteration is over. ERROR: the body is an exception."""

    READY = 0
    BATCH = 1
    BUNDLE = 2
    END = 3
    ERROR = 4


@dataclass(frozen=True, slots=True)
class Message:
    kind: Kind
    iteration: int
    body: bytearray


def send(pipe: Connection, kind: Kind, iteration: int, body: Any = b"") -> None:
    """Waits until all of it is in the pipe. Raises BrokenPipeError where nobody reads any more."""
    rest = memoryview(body).cast("B")
    header = memoryview(_HEADER.pack(len(rest), iteration, kind))
    while header or rest:
        sent = os.writev(pipe.fileno(), [header, rest])
        header, rest = header[sent:], rest[max(0, sent - len(header)) :]


def enlarge(pipe: Connection) -> None:
    """Make room in a pipe."""
    try:
        from fcntl import F_SETPIPE_SZ, fcntl
    except ImportError:  # not on this system
        return
    try:
        fcntl(pipe.fileno(), F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:  # one user has so and so much for all pipes
        pass


class Inbox:
    """The messages of one worker, read as far as they have come."""

    def __init__(self, pipe: Connection) -> None:
        self._fd = pipe.fileno()
        os.set_blocking(self._fd, False)
        self.received = 0
        """Bytes of whole messages."""
        self._expect_header()

    def _expect_header(self) -> None:
        self._facts: tuple[int, int] | None = None
        self._buffer, self._have = bytearray(_HEADER.size), 0

    def read(self) -> Message | None:
        """The next message; None as long as not all of it is there. Raises EOFError when the sender is gone."""
        if self._facts is None:
            if not self._filled():
                return None
            length, *facts = _HEADER.unpack(self._buffer)
            self._facts = facts[0], facts[1]
            self._buffer, self._have = bytearray(length), 0
        if not self._filled():
            return None
        message = Message(Kind(self._facts[1]), self._facts[0], self._buffer)
        self.received += _HEADER.size + len(self._buffer)
        self._expect_header()
        return message

    def _filled(self) -> bool:
        while self._have < len(self._buffer):
            try:
                count = os.readv(self._fd, [memoryview(self._buffer)[self._have :]])
            except BlockingIOError:
                return False
            if not count:
                raise EOFError
            self._have += count
        return True
