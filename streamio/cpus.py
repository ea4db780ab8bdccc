"""How many CPUs this process may really use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from math import ceil
from pathlib import Path


def usable_cpus() -> int:
    """CPUs of its affinity and of the quota of its cgroup, which is rounded up; at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_quota(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"))
    return max(1, allowed if quota is None else min(allowed, ceil(quota)))


def cgroup_quota(root: Path, own: Path) -> float | None:
    """CPUs that the cgroup of a process and all those above it leave to it; None where there is no limit.

    root: where cgroups are mounted. own: the file that says which is that of the process.

    https://docs.kernel.org/admin-guide/cgroup-v2.html (`cpu.max`), and for version 1
    https://docs.kernel.org/scheduler/sched-bwc.html (`cpu.cfs_quota_us`).
    """
    return min((quota for folder in _folders(root, own) for quota in _quotas(folder)), default=None)


def _folders(root: Path, own: Path) -> Iterator[Path]:
    """Of the process's cgroup and of those above it. A container often sees nothing but its own, as the root."""
    yield from (root, root / "cpu")
    lines: list[str] = []
    with suppress(OSError):
        lines = own.read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "cpu" in controllers.split(","):
            folder = root / ("cpu" if controllers else "")
            for name in path.strip("/").split("/"):
                folder /= name
                yield folder


def _quotas(folder: Path) -> Iterator[float]:
    with suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text().split()
        if quota != "max":
            yield int(quota) / int(period)
    with suppress(OSError, ValueError):
        microseconds = int((folder / "cpu.cfs_quota_us").read_text())
        if microseconds >= 0:
            yield microseconds / int((folder / "cpu.cfs_period_us").read_text())
