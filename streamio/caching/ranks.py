"""Ranks of one machine meet, so that one store serves all of them: with a shuffle each rank comes to see all
samples, and stores of their own would hold the set as often as there are ranks.

They have the same parent (the launcher). Who comes first makes the memory and listens at an abstract socket, a name
that goes with the process that has it, whatever happens to that. The others connect, by which the kernel tells them
the number of that process; nobody needs to answer. They open the memory through /proc, as batches are handed over.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
import time
from collections.abc import Callable
from typing import NamedTuple

_log = logging.getLogger("streamio")

_TRIES, _PAUSE = 100, 0.02
_RANKS = 4096


class Meeting(NamedTuple):
    """fd: of the memory. listening: to be kept by who made it, as long as others may come."""

    fd: int
    listening: socket.socket | None


def meet(name: str, make: Callable[[], int], is_right: Callable[[int], bool]) -> Meeting:
    """The memory of this name of the ranks that have our parent; of our own if they cannot be met.

    name: of whatever they must agree on. make: gives a new memfd, called `streamio-<name>`.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return Meeting(make(), None)
    address = f"\0streamio-{os.getuid()}-{os.getppid()}-{name}"
    for _ in range(_TRIES):
        theirs = _as_first(address, make) or _of_listener(address, name, is_right)
        if theirs is not None:
            return theirs
        time.sleep(_PAUSE)
    _log.warning("the memory for cached values of another rank cannot be opened: this one has its own")
    return Meeting(make(), None)


def _as_first(address: str, make: Callable[[], int]) -> Meeting | None:
    """The memory made here, unless another process has the name already."""
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(address)
    except OSError as error:
        listening.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    fd = make()
    listening.listen(_RANKS)  # from here on others find us, and so the memory
    return Meeting(fd, listening)


def _of_listener(address: str, name: str, is_right: Callable[[int], bool]) -> Meeting | None:
    """The memory of the process that listens; None if it is about to, or has ended."""
    try:
        with socket.socket(socket.AF_UNIX) as calling:
            calling.setblocking(False)
            calling.connect(address)
            facts = calling.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, uid, _ = struct.unpack("3i", facts)
        if uid != os.getuid():
            return None
        for number in os.listdir(f"/proc/{pid}/fd"):
            link = f"/proc/{pid}/fd/{number}"
            if os.readlink(link).startswith(f"/memfd:streamio-{name} "):
                fd = os.open(link, os.O_RDWR | os.O_CLOEXEC)
                if is_right(fd):
                    return Meeting(fd, None)
                os.close(fd)
    except OSError:
        pass
    return None
