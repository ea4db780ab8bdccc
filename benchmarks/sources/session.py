"""Runs the cells, round after round over all contenders of a kind, so that a slow minute falls on all of them."""

from __future__ import annotations

import json
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.environment import UnavailableError, ensure
from benchmarks.sources import data
from benchmarks.sources.job import Job
from benchmarks.speed.facts import machine
from benchmarks.speed.peers import BASE, PACKAGES
from benchmarks.speed.processes import run_cell
from benchmarks.speed.results import Results, Run

_TIMEOUT = 600
KINDS = {"jsonl": "JSON lines", "postgres": "PostgreSQL", "sqlite": "SQLite"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One way of reading one kind. script, variant: see `Job`. share: of slow ones, so many times fewer rows."""

    kind: str
    script: str
    variant: str
    label: str
    workers: tuple[int, ...]
    share: int = 1

    @property
    def is_ours(self) -> bool:
        return self.script == "streamio"


def _ours(kind: str, variant: str, label: str, workers: tuple[int, ...] = (0, 2)) -> Contender:
    return Contender(kind=kind, script="streamio", variant=variant, label=f"streamio, {label}", workers=workers)


def _peer(
    kind: str, script: str, variant: str, label: str, workers: tuple[int, ...] = (0, 1), share: int = 1
) -> Contender:
    return Contender(kind=kind, script=script, variant=variant, label=label, workers=workers, share=share)


CONTENDERS = (
    _ours("jsonl", "log", "`LogDataset`"),
    _peer("jsonl", "by_hand", "json", "`json.loads` of each line, DataLoader", (0, 2)),
    _peer("jsonl", "huggingface", "samples", "HF datasets, streaming, DataLoader", (0, 2), share=10),
    _peer("jsonl", "huggingface", "torch", "the same, `with_format(\"torch\")`", (0, 2), share=100),
    _peer("jsonl", "huggingface", "iter", "HF datasets, streaming, `.iter(256)`, no DataLoader", (0,)),
    _ours("postgres", "keyed", "`SqlDataset`, key"),
    _ours("postgres", "shuffled", "`SqlDataset`, key, shuffled"),
    _ours("postgres", "cursor", "`SqlDataset`, cursor", (0, 1)),
    _peer("postgres", "by_hand", "tuple", "psycopg, cursor on the server, named tuples", (0,)),
    _peer("postgres", "by_hand", "dict", "psycopg, cursor on the server, dicts"),
    _ours("sqlite", "keyed", "`SqlDataset`, key"),
    _ours("sqlite", "shuffled", "`SqlDataset`, key, shuffled"),
    _ours("sqlite", "cursor", "`SqlDataset`, cursor", (0, 1)),
    _peer("sqlite", "by_hand", "dict", "sqlite3, dicts"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is run. env: the peers' environments. rows: of each kind. rounds, seconds: as for `speed`."""

    env: Path
    work: Path
    rows: int
    rounds: int
    seconds: float
    kinds: tuple[str, ...]

    @property
    def file(self) -> Path:
        return self.work / "results.json"


class Session:
    """One run. What does not work is noted once, and the rest goes on."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.results = Results(facts=machine() | {"rows": options.rows, "rounds": options.rounds})
        self._failed: set[tuple[str, str, str, int]] = set()
        self._pythons: dict[str, str | UnavailableError] = {}

    def run(self) -> Results:
        """Everything, saved after each cell. Ends early, with what there is so far, on Ctrl-C."""
        for share in {contender.share for contender in CONTENDERS}:
            data.write_files(self._folder(share), self.options.rows // share)
        try:
            for kind in self.options.kinds:
                with data.postgres(self._folder(1), self.options.rows) if kind == "postgres" else nullcontext():
                    self._rounds(kind)
        except KeyboardInterrupt:
            _say("interrupted: what was measured so far is kept")
        return self.results

    def _folder(self, share: int) -> Path:
        """Where rows are."""
        return self.options.work.resolve() / f"{self.options.rows // share}"

    def _rounds(self, kind: str) -> None:
        for _ in range(self.options.rounds):
            for contender in CONTENDERS:
                for workers in contender.workers if contender.kind == kind else ():
                    self._cell(contender, workers)

    def _cell(self, contender: Contender, workers: int) -> None:
        key = (contender.kind, contender.script, contender.variant, workers)
        if key in self._failed:
            return
        job = Job(
            kind=contender.kind, script=contender.script, variant=contender.variant, workers=workers,
            rows=self.options.rows // contender.share, data=str(self._folder(contender.share)),
            seconds=self.options.seconds, started=time.monotonic(),
        )  # fmt: skip
        try:
            python = self._python(contender.script)
            found = run_cell(python, "run", [json.dumps(asdict(job))], _TIMEOUT, module="benchmarks.sources.cell")
        except UnavailableError as why:
            found = {"problem": str(why)}
        run = Run(
            workload=contender.kind, peer=contender.script, variant=contender.variant, label=contender.label,
            role="ours" if contender.is_ours else "peer", torch=True, workers=workers, **found,
        )  # fmt: skip
        if run.problem:
            self._failed.add(key)
        self.results.runs.append(run)
        self.results.save(self.options.file)
        _say(f"{contender.kind}, {run.label}, {workers} workers: {run.problem or f'{run.rate:,.0f} rows/s'}")

    def _python(self, script: str) -> str:
        """The interpreter of a peer's environment. Raises UnavailableError, each time, where there is none."""
        if script not in PACKAGES:
            return sys.executable
        if script not in self._pythons:
            try:
                base = ensure(self.options.env, *BASE)
                self._pythons[script] = str(ensure(self.options.env, script, PACKAGES[script], base).python)
            except UnavailableError as why:
                self._pythons[script] = why
        python = self._pythons[script]
        if isinstance(python, UnavailableError):
            raise python
        return python


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
