"""A store in shared memory: without a name, so nothing stays behind, and the same for a data set's copies in
workers.

It is a memfd (where there is none, a file without a name), which a forked worker has and a spawned one is given.
Where ranks run beside each other (LOCAL_WORLD_SIZE, which torchrun sets), `ranks` lets them use one store.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from functools import partial
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

from streamio.caching.ranks import meet
from streamio.caching.store import Store, begin, data_start, is_store
from streamio.errors import UsageError

_SHARE = 2
"""Of the memory that is available a cache takes no more than this part: 1/2."""


class MemoryStore:
    """slots, limit: of the store, the limit in bytes. key: ranks with the same one use one store; None: one each.

    A copy of a data set for a worker has the same store, any other copy a new one.
    """

    def __init__(self, slots: int, limit: int, key: str | None) -> None:
        if limit < data_start(slots):
            raise UsageError(
                f"cache_bytes={limit:,} has no room for a table of {slots:,} values",
                fix=f"Give it {2 * data_start(slots):,} bytes, and the size of the values",
            )
        self._limit, self._key = limit, key
        fd = None
        if key is not None and int(os.environ.get("LOCAL_WORLD_SIZE") or 1) > 1:
            name = f"{key}-{slots}"
            fd, listening = meet(name, partial(_made, slots, f"streamio-{name}"), lambda fd: is_store(fd, slots))
            if listening is not None:
                weakref.finalize(self, listening.close)
        self._use(_made(slots, "streamio-values") if fd is None else fd, slots)

    def _use(self, fd: int, slots: int) -> None:
        self.store = Store(fd, slots, partial(_is_within, self._limit))

    def __getstate__(self) -> dict[str, Any]:
        handed = DupFd(self.store.fd) if get_spawning_popen() is not None else None
        return {"limit": self._limit, "key": self._key, "slots": self.store.slots, "fd": handed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["fd"] is None:
            self.__init__(state["slots"], state["limit"], state["key"])  # type: ignore[misc]
            return
        self._limit, self._key = state["limit"], state["key"]
        self._use(state["fd"].detach(), state["slots"])


def available_memory() -> int:
    """Bytes that this process, or its cgroup, may still take."""
    free = [_cgroup_free(Path("/sys/fs/cgroup"))]
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free.append(int(lines["MemAvailable"].split()[0]) * 1024)
    except (OSError, KeyError, ValueError):
        free.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    return min(bytes for bytes in free if bytes is not None)


def default_limit() -> int:
    """Half of the memory that is available."""
    return available_memory() // _SHARE


def _cgroup_free(root: Path) -> int | None:
    """What the limit of the cgroup leaves (v2, else v1), or None where there is none."""
    for limit, used in (("memory.max", "memory.current"),
                        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):  # fmt: skip
        try:
            return max(0, int((root / limit).read_text()) - int((root / used).read_text()))
        except (OSError, ValueError):
            continue
    return None


def _is_within(limit: int, end: int) -> bool:
    return end <= limit


def _made(slots: int, name: str) -> int:
    """The file descriptor of a new store."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(name)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        begin(fd, slots)
    except BaseException:
        os.close(fd)
        raise
    return fd
