"""How much memory a process takes, as the kernel says it; nothing where there is no /proc."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """Of one process, in bytes.

    rss: all that it has in memory, also what it shares with others. pss: of shared memory only its part, divided by
    those who share it; so these may be added up. uss: what it has for itself, which would be free if it ended.
    """

    pid: int
    rss: int
    pss: int
    uss: int


def memory_of(pids: Sequence[int]) -> tuple[ProcessMemory, ...]:
    """Of those that live and that we may look at. Takes about a millisecond for each GB that a process maps."""
    found = (_memory(pid) for pid in pids)
    return tuple(memory for memory in found if memory is not None)


def _memory(pid: int) -> ProcessMemory | None:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii", errors="replace")
    except OSError:  # it has ended, is not ours, or this system has none
        return None
    sizes: dict[str, int] = {}
    for line in text.splitlines()[1:]:
        name, _, rest = line.partition(":")
        if rest.endswith(" kB"):
            sizes[name] = int(rest[:-3]) << 10
    if "Pss" not in sizes:  # a process that is ending
        return None
    private = sizes.get("Private_Clean", 0) + sizes.get("Private_Dirty", 0) + sizes.get("Private_Hugetlb", 0)
    return ProcessMemory(pid=pid, rss=sizes.get("Rss", 0), pss=sizes["Pss"], uss=private)
