"""How many workers and how many batches ahead, from what this machine and this data set are."""

from __future__ import annotations

import os
from pathlib import Path

from streamio.errors import UsageError

PREFETCH_BYTES = 512 << 20
"""Memory that batches made ahead may take, over all workers of one loader."""

_MAX_WORKERS = 16
_MIN_AHEAD, _MAX_AHEAD = 2, 16


def usable_cpus() -> int:
    """CPUs that this process may really use: its affinity and its cgroup's quota, rounded up, at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota(Path("/sys/fs/cgroup"))
    return max(1, allowed if quota is None else min(allowed, -int(-quota // 1)))


def _cgroup_quota(root: Path) -> float | None:
    """CPUs of the cgroup's quota (v2 `cpu.max`, else v1), or None where there is no limit."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        microseconds = int((root / "cpu" / "cpu.cfs_quota_us").read_text())
        return None if microseconds < 0 else microseconds / int((root / "cpu" / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None


def worker_count(num_workers: int | str) -> int:
    """The number of worker processes. "auto": the usable CPUs shared by the ranks on this node, at most 16.

    The ranks on the node are read from LOCAL_WORLD_SIZE (torchrun sets it). Raises UsageError.
    """
    if num_workers == "auto":
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
        return max(1, min(_MAX_WORKERS, usable_cpus() // max(1, ranks)))
    if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 0:
        raise UsageError(f"num_workers={num_workers!r}", fix="Give a number of at least 0, or 'auto'")
    return num_workers


def batches_ahead(batch_bytes: int, workers: int, budget: int = PREFETCH_BYTES) -> int:
    """Batches that each worker makes ahead: 2 to 16, as many as the budget holds."""
    return max(_MIN_AHEAD, min(_MAX_AHEAD, budget // max(1, batch_bytes * workers)))
