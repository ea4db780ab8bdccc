"""Stores in files of one folder, which any number of processes and jobs of one machine use at once, within a limit.

    <folder>/decoded-values/CACHEDIR.TAG     marks the folder: only what a cache made is ever removed
                            lock             locked by who makes, enlarges or removes files
                            <key>.values     a store; locked (shared) by all who use it
                            …

The key says all that the values depend on. So a change of data, decoding or code is another file, and the old one
is removed when its room is needed, the one longest unused first, and never one in use. The kernel drops locks with
their processes. Room is given to files in steps, and the sum of the files' sizes never exceeds the limit.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from streamio.caching.store import Store, begin, data_start, is_store
from streamio.errors import StorageError, UsageError

_FOLDER, _LOCK, _MARKER = "decoded-values", "lock", "CACHEDIR.TAG"
_MARK = b"Signature: 8a477f597d28d172789f06886806bc55\n# Values decoded by streamio; may be deleted at any time.\n"
_NAME = re.compile(r"[0-9a-f]{32}\.values")
_STEP = 64 << 20
"""Bytes by which a file is enlarged at most: other files get what it does not take."""

_SHARE = 2


class DiskStore:
    """folder: on a local disk, made if need be. key: 32 hex digits. slots: of the store.

    limit: bytes of all files together; None: half of what is free on the disk, and held here, now.

    Raises StorageError for a folder that cannot be written to, UsageError for one with files of others, and for a
    limit that the table of the values does not fit in.
    """

    def __init__(self, folder: str | os.PathLike[str], key: str, slots: int, limit: int | None) -> None:
        self.folder = Path(os.path.abspath(folder))
        self._key, self._inner = key, self.folder / _FOLDER
        path = self._inner / f"{key}.values"
        try:
            _prepare(self._inner)
            self.limit = _default_limit(self._inner) if limit is None else limit
            with _locked(self._inner):
                fd = self._opened(path, slots)
        except OSError as error:
            raise StorageError(
                f"cannot hold a cache: {error.strerror}", fix="Give another folder", path=str(self.folder)
            ) from error
        self.store = Store(fd, slots, partial(_has_room, fd, path, self.limit))

    def _opened(self, path: Path, slots: int) -> int:
        """The file descriptor of the store, which is made if it is not there, not whole, or beyond the limit."""
        fd = _open_shared(path)
        if is_store(fd, slots) and (os.fstat(fd).st_size <= self.limit or not _is_ours_alone(fd)):
            os.utime(fd)
            return fd
        os.close(fd)
        path.unlink()
        needed = data_start(slots)
        allowed = _freed(path, self.limit, needed)
        if allowed < needed:
            raise UsageError(
                f"cache_bytes={self.limit:,} has no room for a table of {slots:,} values ({needed:,} bytes); "
                f"others that are in use hold {self.limit - allowed:,} bytes",
                fix="Give it more, or another folder", path=str(self.folder),
            )  # fmt: skip
        fd = _open_shared(path)
        try:
            begin(fd, slots)
        except BaseException:
            os.close(fd)
            path.unlink()
            raise
        return fd

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": str(self.folder), "key": self._key, "slots": self.store.slots, "limit": self.limit}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def _prepare(folder: Path) -> None:
    """Make the folder, or see that the one there is a cache's."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / _MARKER).exists():
        return
    if any(name != _LOCK for name in os.listdir(folder)):
        raise UsageError("holds files that no cache made", fix="Give another folder", path=str(folder))
    (folder / _MARKER).write_bytes(_MARK)


def _default_limit(folder: Path) -> int:
    free = os.statvfs(folder)
    return (free.f_bavail * free.f_frsize + sum(size for _, size, _ in _files(folder))) // _SHARE


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time makes, enlarges or removes files of the folder."""
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)  # in words: a child that was forked meanwhile has it open, too
        os.close(lock)


def _open_shared(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


def _is_ours_alone(fd: int) -> bool:
    """Whether no other process, or data set of this one, uses the file."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fcntl.flock(fd, fcntl.LOCK_SH)  # which an attempt to get more gave away
        return False
    return True


def _has_room(fd: int, path: Path, limit: int, end: int) -> bool:
    """Whether the file may be written up to there; it is enlarged for that, where the limit allows."""
    if end <= os.fstat(fd).st_size:
        return True
    with _locked(path.parent):
        allowed = _freed(path, limit, end)
        if allowed < end:
            return False
        os.ftruncate(fd, min(allowed, max(end, os.fstat(fd).st_size + min(_STEP, limit // 16))))
    return True


def _freed(path: Path, limit: int, wanted: int) -> int:
    """The size that a file may have: what others leave. Those that nobody uses are removed if it is too little."""
    files = sorted(_files(path.parent))
    allowed = limit - sum(size for _, size, other in files if other != path)
    for _, size, other in files:
        if allowed >= wanted:
            break
        if other != path and _removed(other):
            allowed += size
    return allowed


def _files(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """(time of last use, bytes, path) of each store."""
    for name in os.listdir(folder):
        if _NAME.fullmatch(name):
            with suppress(FileNotFoundError):
                facts = os.stat(folder / name)
                yield facts.st_mtime, facts.st_size, folder / name


def _removed(path: Path) -> bool:
    """Remove a store that nobody uses; the folder must be locked."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
