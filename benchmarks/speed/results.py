"""What was measured: one `Run` for each process, kept as JSON so that tables can be drawn without measuring."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.speed.peers import Role
from benchmarks.speed.workloads import WORKLOADS


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One process that ran one cell.

    rate:        samples/s.
    cpu:         seconds of user and system time, of all processes, for 1,000 samples.
    first_batch: seconds from the start of the process to its first batch.
    memory:      bytes, the most of all processes together, without mapped files; `mapped`: the part of those.
    wait:        seconds, 99th percentile of the wait for a batch.
    problem:     why there is no figure, or "".
    """

    workload: str
    peer: str
    variant: str
    label: str
    role: Role
    torch: bool
    workers: int
    rate: float = 0
    cpu: float = 0
    first_batch: float = 0
    memory: int = 0
    mapped: int = 0
    wait: float = 0
    batches: int = 0
    version: str = ""
    problem: str = ""

    @property
    def cell(self) -> tuple[str, str, str, int]:
        return self.workload, self.peer, self.variant, self.workers


@dataclass(slots=True)
class Results:
    """All of one session.

    limits:  of the machine, by name (`benchmarks.speed.limits`).
    packing: seconds by (folder, how), of all runs.
    facts:   machine, versions, options, for the page.
    """

    runs: list[Run] = field(default_factory=list)
    limits: dict[str, float] = field(default_factory=dict)
    packing: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        os.replace(unfinished, path)

    @classmethod
    def load(cls, path: Path) -> Results:
        values = json.loads(path.read_text(encoding="utf-8"))
        return cls(**values | {"runs": [Run(**run) for run in values["runs"]]})

    def cells(self) -> list[Run]:
        """A run for each cell, of medians; one that failed where none succeeded."""
        groups: dict[tuple[str, str, str, int], list[Run]] = {}
        for run in self.runs:
            groups.setdefault(run.cell, []).append(run)
        return [median(group) for group in groups.values()]

    @property
    def problems(self) -> list[Run]:
        return [run for run in self.runs if run.problem]

    def bare_start(self, workload: str, workers: int) -> float | None:
        """The first batch of a loader that reads nothing: in this workload, or else in the first that has one."""
        bare = [
            cell for cell in self.cells() if cell.role == "bare" and cell.workers == workers and not cell.problem
        ]
        own = [cell for cell in bare if cell.workload == workload]
        return (own or bare)[0].first_batch if bare else None

    def packed(self, folder: str, how: str) -> float | None:
        """Median seconds."""
        seconds = self.packing.get(folder, {}).get(how)
        return statistics.median(seconds) if seconds else None


_FIGURES = ("rate", "cpu", "first_batch", "memory", "mapped", "wait")


def median(runs: list[Run]) -> Run:
    good = [run for run in runs if not run.problem]
    if not good:
        return runs[-1]
    figures = {name: statistics.median(getattr(run, name) for run in good) for name in _FIGURES}
    return Run(**asdict(good[-1]) | figures)


def best(cells: Iterable[Run], keep: Callable[[Run], bool], figure: str = "rate") -> Run | None:
    """The fastest of those that `keep` keeps, or the one with the lowest of another figure."""
    kept = [cell for cell in cells if not cell.problem and keep(cell)]
    if figure == "rate":
        return max(kept, key=lambda cell: cell.rate, default=None)
    return min(kept, key=lambda cell: getattr(cell, figure), default=None)


def bytes_per_second(cell: Run) -> float:
    """Of samples as the loop gets them."""
    return cell.rate * WORKLOADS[cell.workload].sample_bytes


def share_of_limit(cell: Run, limits: dict[str, float]) -> float | None:
    """Pictures: of decoding alone on as many cores; the others: of a copy in warm memory."""
    if WORKLOADS[cell.workload].kind == "jpeg":
        limit = limits.get(f"decode {cell.workload}, {'all cores' if cell.workers else '1 core'}")
        return cell.rate / limit if limit else None
    copy = limits.get("memcpy, 256 MB")
    return bytes_per_second(cell) / copy if copy else None
