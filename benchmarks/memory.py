"""Memory of this process."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")


def resident_bytes() -> int:
    """What it holds now (elsewhere than on Linux: the most it has held)."""
    return _field("VmRSS:")


def peak_bytes() -> int:
    """The most it has held.

    From /proc and not from getrusage, whose figure a process inherits from the one that started it.
    """
    return _field("VmHWM:")


def _field(name: str) -> int:
    if not _STATUS.exists():
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
    line = next(line for line in _STATUS.read_text(encoding="ascii").splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024
