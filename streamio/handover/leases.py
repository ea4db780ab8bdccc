"""The user's side of segments: opens them, and tells their maker which slots nobody views any more."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from streamio.errors import WorkerDied, WorkerError
from streamio.handover.segment import FREE, HANDED, HELD, RETIRED, STATES, Address, Bytes

_maps: dict[bytes, tuple[int, mmap.mmap]] = {}
"""Segments by their tokens: who made it, and our map of it, which is costly to make: its pages come one by one."""

_held: dict[int, _Lease] = {}
_waiting: list[_Lease] = []
"""Leases of slots in use here, and of those that only children of ours may still view."""

_forks: list[_Fork | None] = []
"""Forks that are under way."""


def view(address: Address) -> Bytes:
    """The memory of a slot that was handed over; it is given back when the last view of it is gone.

    Raises WorkerDied where its maker is no more.
    """
    pid, _, token, _, number, start, length = address
    _settle()
    _, shared = _maps.get(token) or _open(address)
    if shared[STATES + number] != HANDED:
        raise WorkerError(f"a batch of process {pid} (slot {number}) was unpickled a second time")
    shared[STATES + number] = HELD
    memory = np.frombuffer(shared, np.uint8, length, start)
    lease = _Lease(memory, _returned)
    lease.pid, lease.map, lease.number, lease.forks = os.getpid(), shared, number, []
    _held[id(lease)] = lease
    return memory


class _Lease(weakref.ref[Any]):
    """forks: children of this process that were made meanwhile, and so view the slot as well."""

    __slots__ = ("forks", "map", "number", "pid")
    pid: int
    map: mmap.mmap
    number: int
    forks: list[_Fork]

    def settled(self) -> bool:
        """Give the slot back if no child may view it."""
        if not all(fork.is_over() for fork in self.forks):
            return False
        self.map[STATES + self.number] = FREE
        return True


def _returned(
    lease: _Lease,
    held: dict[int, _Lease] = _held,
    waiting: list[_Lease] = _waiting,
    forks: list[_Fork | None] = _forks,
    getpid: Callable[[], int] = os.getpid,
) -> None:
    """Called in any thread, and as the interpreter ends, when the names of this module may be gone."""
    held.pop(id(lease), None)
    lease.forks += [fork for fork in forks if fork is not None]
    if lease.pid == getpid() and not lease.settled():
        waiting.append(lease)


def _settle() -> None:
    for lease in _waiting[:]:
        if lease.settled():
            _waiting.remove(lease)


def _open(address: Address) -> tuple[int, mmap.mmap]:
    pid, fd, token, length, *_ = address
    forget_retired()
    try:
        own = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
    except OSError as error:
        if not _lives(pid):
            raise WorkerDied(f"worker process {pid} ended before its batch was taken") from error
        raise WorkerError(
            f"the memory of worker process {pid} cannot be opened: {error}",
            fix="Processes of one user must see each other in /proc; else use threads instead of processes",
        ) from error
    try:
        shared = mmap.mmap(own, length)
    finally:
        os.close(own)
    if shared[: len(token)] != token:
        raise WorkerDied(f"worker process {pid} ended before its batch was taken; its number is another's now")
    return _maps.setdefault(token, (pid, shared))


def forget_retired() -> None:
    """Let go of segments that get no more batches, as far as no array views them."""
    for token, (pid, shared) in list(_maps.items()):
        if shared[RETIRED] or not _lives(pid):
            _maps.pop(token, None)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


class _Fork:
    """A child made by fork, as long as it lives: it has the other end of a pipe, and so have its own children."""

    def __init__(self) -> None:
        self._ours, self._theirs = -1, -1
        self._known = True
        try:
            self._ours, self._theirs = os.pipe()
            os.set_blocking(self._ours, False)
        except OSError:  # no file descriptor left: nobody will know when it ended
            self._known = False

    def in_parent(self) -> None:
        self._theirs = _closed(self._theirs)

    def in_child(self) -> None:
        self._ours = _closed(self._ours)

    def is_over(self) -> bool:
        if self._known and self._ours >= 0:
            try:
                os.read(self._ours, 1)
            except BlockingIOError:
                return False
            self._ours = _closed(self._ours)
        return self._known


def _closed(fd: int) -> int:
    if fd >= 0:
        os.close(fd)
    return -1


def _before_fork() -> None:
    _settle()
    _forks.append(_Fork() if _held else None)


def _after_in_parent() -> None:
    fork = _forks.pop()
    if fork is not None:
        fork.in_parent()
        for lease in list(_held.values()):
            lease.forks.append(fork)


def _after_in_child() -> None:
    fork = _forks.pop()
    if fork is not None:
        fork.in_child()
    _held.clear()
    _waiting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
