"""Runs the cells: data made first, then round after round over all loaders of a workload, so that a slow minute of
the machine falls on all of them."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.environment import Environment, UnavailableError, ensure
from benchmarks.speed import limits, packing, source
from benchmarks.speed.facts import machine
from benchmarks.speed.job import Job
from benchmarks.speed.peers import BASE, PACKAGES, VARIANTS, Variant
from benchmarks.speed.processes import run_cell, run_cells
from benchmarks.speed.results import Results, Run
from benchmarks.speed.workloads import WORKLOADS

_CELL_TIMEOUT, _WRITE_TIMEOUT = 180, 1800
_BEGAN = time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is run.

    rounds:  times that each cell runs.
    seconds: that a cell is timed, at least.
    peers:   scripts in loaders/; () for all.
    """

    env: Path
    work: Path
    quick: bool
    rounds: int
    seconds: float
    workloads: str
    peers: tuple[str, ...] = ()

    @property
    def data(self) -> Path:
        return self.work / ("quick" if self.quick else "full")

    @property
    def file(self) -> Path:
        return self.data / "results.json"


class Session:
    """One run of the benchmark. What does not work is noted once, and the rest goes on."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.results = _others(options)
        self.results.facts = machine() | {"options": _plain(options)}
        self._pythons: dict[str, str | UnavailableError] = {}
        self._failed: set[tuple[str, str, str, int]] = set()
        self._unwritten: dict[Path, UnavailableError] = {}

    def run(self) -> Results:
        """Everything, saved after each cell. Ends early, with what there is so far, on Ctrl-C."""
        fresh_folder(self.options.data, self.options.quick)
        try:
            for workload in self.options.workloads:
                _say(f"{workload}: {WORKLOADS[workload].title}")
                source.make(self.options.data / "source", workload, self.options.quick)
                self._pack() if workload == "g" else self._rounds(workload)
        except KeyboardInterrupt:
            _say("interrupted: what was measured so far is kept")
        self.results.save(self.options.file)
        return self.results

    def _limits(self, workload: str) -> None:
        if self.options.quick and "page cache" in self.results.limits and workload not in "ab":
            return  # all that there is was measured a moment ago
        found = limits.measure(self.options.data / "source", workload, min(1.0, self.options.seconds))
        for name, value in found.items():
            self.results.limits[name] = max(value, self.results.limits.get(name, 0))

    def _rounds(self, workload: str) -> None:
        cells = [
            (variant, workers)
            for variant in VARIANTS
            if not self.options.peers or variant.peer in self.options.peers
            for workers in variant.runs(workload, self.options.quick)
        ]
        self._convert(workload, [variant for variant, _ in cells])
        for _ in range(self.options.rounds):
            self._limits(workload)
            for variant, workers in cells:
                self._cell(workload, variant, workers)
        if not self.options.quick:
            shutil.rmtree(self.options.data / "packed", ignore_errors=True)

    def _cell(self, workload: str, variant: Variant, workers: int) -> None:
        key = (workload, variant.peer, variant.name, workers)
        if key in self._failed:
            return
        about = {
            "workload": workload, "peer": variant.peer, "variant": variant.name, "label": variant.label,
            "role": variant.role, "torch": variant.torch, "workers": workers,
        }  # fmt: skip
        try:
            found = self._measured(workload, variant, workers)
        except UnavailableError as why:
            found = {"problem": str(why)}
        run = Run(**about, **found)  # type: ignore[arg-type]
        if run.problem:
            self._failed.add(key)
        self.results.runs.append(run)
        self.results.save(self.options.file)
        _say(f"   {variant.label}, {workers} workers: {run.problem or f'{run.rate:,.0f}/s'}")

    def _convert(self, workload: str, variants: Sequence[Variant]) -> None:
        """Have each peer's writer make its data, as many at a time as there are cores: nothing is timed here."""
        jobs: dict[Path, Job] = {}
        for variant in variants:
            job = self._job(workload, variant)
            if variant.store and not job.packed.exists() and job.packed not in jobs:
                with suppress(UnavailableError):  # is told of in the place of its cells
                    self._python(variant.writer)
                    jobs[job.packed] = _as(job, peer=variant.writer)
        for folder in jobs:
            packing.remove(folder)
        cells = [(self._python(job.peer), "write", job.arguments()) for job in jobs.values()]
        for folder, found in zip(jobs, run_cells(cells, _WRITE_TIMEOUT), strict=True):
            if isinstance(found, UnavailableError):
                self._unwritten[folder] = found

    def _measured(self, workload: str, variant: Variant, workers: int) -> dict[str, object]:
        job = self._job(workload, variant, workers)
        if job.packed in self._unwritten:
            raise self._unwritten[job.packed]
        arguments = _as(job, started=time.monotonic()).arguments()
        return run_cell(self._python(variant.peer), "run", arguments, _CELL_TIMEOUT)

    def _job(self, workload: str, variant: Variant, workers: int = 0) -> Job:
        return Job(
            peer=variant.peer, workload=workload, variant=variant.name, workers=workers,
            samples=WORKLOADS[workload].count(self.options.quick), data=str(self.options.data.resolve()),
            store=f"{variant.store}-{workload}", seconds=self.options.seconds, started=0,
        )  # fmt: skip

    def _python(self, peer: str) -> str:
        """The interpreter of a peer's environment; raises UnavailableError, each time, where there is none."""
        if peer not in self._pythons:
            self._pythons[peer] = self._installed(peer)
        python = self._pythons[peer]
        if isinstance(python, UnavailableError):
            raise python
        return python

    def _installed(self, peer: str) -> str | UnavailableError:
        if peer not in PACKAGES:
            return sys.executable
        try:
            base: Environment = ensure(self.options.env, *BASE)
            return str(ensure(self.options.env, peer, PACKAGES[peer], base).python)
        except UnavailableError as why:
            return why

    def _pack(self) -> None:
        packers = packing.QUICK_PACKERS if self.options.quick else packing.PACKERS
        chosen = [one for one in packers if not self.options.peers or one in self.options.peers]
        for _ in range(self.options.rounds):
            for folder in packing.FOLDERS:
                packing.read_all(self.options.data / "source" / folder)
                for name, out, command in self._packers(folder, chosen):
                    self._pack_once(folder, name, out, command)

    def _packers(self, folder: str, peers: list[str]) -> Iterator[tuple[str, Path, list[str]]]:
        data = self.options.data.resolve()
        out = data / "packed" / f"pack-{folder}"
        for name, command in packing.commands(data / "source" / folder, out).items():
            yield name, out, command
        for peer in peers:
            try:
                yield f"{peer}'s writer", out, packing.peer_command(self._python(peer), peer, data, folder, out)
            except UnavailableError as why:
                _say(f"   {peer}'s writer: {why}")

    def _pack_once(self, folder: str, name: str, out: Path, command: list[str]) -> None:
        try:
            seconds = packing.seconds_of(command, out)
        except UnavailableError as why:
            _say(f"   {folder}, {name}: {why}")
            return
        self.results.packing.setdefault(folder, {}).setdefault(name, []).append(seconds)
        self.results.save(self.options.file)
        _say(f"   {folder}, {name}: {seconds:.2f} s")


def _others(options: Options) -> Results:
    """What an earlier run measured of cells that this one leaves out, so that a page can come of several runs."""
    if not options.file.exists():
        return Results()
    found = Results.load(options.file)
    found.runs = [
        run
        for run in found.runs
        if run.workload not in options.workloads or (options.peers and run.peer not in options.peers)
    ]
    found.limits = {name: value for name, value in found.limits.items() if len(options.workloads) < len(WORKLOADS)}
    if "g" in options.workloads:
        found.packing = {}
    return found


def fresh_folder(data: Path, quick: bool) -> None:
    """Keep the data of an earlier run, unless it was made for other numbers of samples."""
    counts = " ".join(f"{name}={about.count(quick)}" for name, about in WORKLOADS.items())
    stamp = data / "counts"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != counts:
        for part in ("source", "packed"):
            shutil.rmtree(data / part, ignore_errors=True)
        data.mkdir(parents=True, exist_ok=True)
        stamp.write_text(counts, encoding="utf-8")


def _as(job: Job, **changes: object) -> Job:
    return Job(**asdict(job) | changes)


def _plain(options: Options) -> dict[str, object]:
    return {
        "quick": options.quick, "rounds": options.rounds, "seconds": options.seconds,
        "workloads": options.workloads, "peers": list(options.peers),
    }  # fmt: skip


def _say(line: str) -> None:
    print(f"{time.monotonic() - _BEGAN:6.0f} s  {line}", file=sys.stderr, flush=True)
