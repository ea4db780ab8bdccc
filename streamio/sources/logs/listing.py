"""Paths and globs -> the files that there are, the oldest first; and what lies beside them under a related name."""

from __future__ import annotations

import glob
import logging
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

from streamio.errors import StorageError, UsageError
from streamio.sources.logs.names import age, log_name
from streamio.sources.logs.opened import FileId
from streamio.storage.addresses import is_url, local_path, redact

_log = logging.getLogger("streamio")


@dataclass(frozen=True, slots=True)
class Found:
    """A file. id: (device, inode). stamp: differs when it has changed."""

    path: str
    id: FileId
    stamp: tuple[int, int]

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return self.stamp[0]


def given_patterns(paths: Any) -> tuple[str, ...]:
    """Absolute patterns of what the user gave. Raises UsageError for what is none."""
    given = [paths] if isinstance(paths, str | PathLike) else paths
    if not isinstance(given, Sequence) or not given or not all(isinstance(one, str | PathLike) for one in given):
        raise UsageError(
            f"{paths!r} names no file", fix='Give a path, a glob such as "logs/*.jsonl", or a list of them'
        )
    patterns = []
    for path in map(fspath, given):
        if is_url(path):
            raise UsageError("logs are read from disks of this machine", fix="Give a path", path=redact(path))
        if not path or "\0" in path:
            raise UsageError(f"{path!r} names no file", fix="Give a path or a glob")
        patterns.append(os.path.abspath(os.path.expanduser(local_path(path))))
    return tuple(dict.fromkeys(patterns))


def list_files(patterns: Sequence[str], *, may_lack: bool = False) -> list[Found]:
    """The files, the oldest first; each once, however many names and patterns lead to it.

    may_lack: whether patterns may match nothing yet. Raises UsageError for folders and for what is no file,
    StorageError for what is not there or must not be looked at.
    """
    found: dict[FileId, Found] = {}
    lacking = []
    for pattern in patterns:
        matches = list(_matches(pattern))
        if not matches and not may_lack:
            lacking.append(pattern)
        for one in matches:
            other = found.get(one.id)
            if other is None or _rank(one) < _rank(other):
                found[one.id] = one
    if lacking:
        what = "no file matches" if any(glob.has_magic(p) for p in lacking) else "there is no file"
        fix = "Correct the path; with follow=True files may come later"
        raise StorageError(f"{what} {', '.join(lacking)}", fix=fix)
    return sorted(found.values(), key=lambda one: age(one.path))


def _matches(pattern: str) -> Iterator[Found]:
    if not glob.has_magic(pattern) or os.path.lexists(pattern):
        if os.path.isdir(pattern):
            raise UsageError(
                "is a folder", fix=f"Name its files, such as {os.path.join(pattern, '*.jsonl')!r}", path=pattern
            )
        one = look_at(pattern)
        if one is not None:
            yield one
        elif os.path.lexists(pattern) and not os.path.isfile(pattern) and os.path.exists(pattern):
            raise UsageError("is neither a file nor a link to one", path=pattern)
        return
    for path in glob.iglob(pattern, recursive=True):
        one = look_at(path)
        if one is not None:
            yield one


def look_at(path: str) -> Found | None:
    """What is there, if it is a file. Raises StorageError if it must not be looked at."""
    try:
        facts = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(f"cannot be looked at: {error.strerror}", path=path) from error
    if not stat.S_ISREG(facts.st_mode):
        return None
    return Found(path, (facts.st_dev, facts.st_ino), (facts.st_size, facts.st_mtime_ns))


def _rank(one: Found) -> tuple[bool, Any]:
    """Which of several names of a file counts: its own before a link to it."""
    return os.path.islink(one.path), age(one.path)


def relatives(path: str) -> list[Found]:
    """Files beside a path that belong to the same log, as `app.log.1` to `app.log`, and may be read; the oldest
    first."""
    folder, family = os.path.dirname(path), log_name(path).family
    try:
        names = [name for name in os.listdir(folder) if log_name(name).family == family]
    except OSError:
        return []
    paths = (os.path.join(folder, name) for name in names)
    found = (look_at(path) for path in paths if os.access(path, os.R_OK))
    return sorted((one for one in found if one is not None), key=lambda one: age(one.path))
