"""How well an order is mixed: streamio's and its peers', for one set, by the same two numbers and a panel each.

The set is the hard case: sorted by class, 1,024 classes in 1,024 shards of 1,024 samples, one class a shard. All
read it in one process; in a DataLoader, too, a batch comes from one worker.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.environment import UnavailableError, ensure
from benchmarks.metrics import check_permutation, effective_size
from streamio.order.plan import Plan
from streamio.order.shuffle import Shuffle

SHARDS, SHARD_SAMPLES, BATCH, BATCHES = 1024, 1024, 256, 16
SEED = 0

PEERS = {
    "ideal": ("torch", "numpy"),
    "mosaicml": ("torch", "mosaicml-streaming"),
    "huggingface": ("datasets",),
    "webdataset": ("webdataset",),
    "litdata": ("torch", "litdata"),
}
"""Script in peers/ -> what pip installs for it."""

MODES: tuple[tuple[Shuffle, str], ...] = (
    ("global", "all samples mixed"),
    ("block", "the default: blocks of 2^18 samples"),
    ("shards", "shards shuffled, not what is in them"),
    ("none", "as stored"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One order.

    rows:           the whole epoch.
    batch, batches: what a batch of 256, and 16 batches in a row, are worth in samples.
    problem:        why it is no permutation of all rows, or "".
    """

    label: str
    note: str
    rows: NDArray[np.int64]
    batch: float
    batches: float
    problem: str

    @property
    def title(self) -> str:
        return f"{self.label}: {self.batch:,.0f} of {BATCH}"


def report(folder: Path, picture: Path, peers: tuple[str, ...]) -> None:
    """Run everything, draw the picture, print the table. A peer that does not run here is named in the end."""
    results, missing = list(streamio_orders()), []
    for peer in peers:
        try:
            results += peer_orders(folder, peer)
        except UnavailableError as why:
            missing.append(f"{peer}: {why}")
    try:
        draw(folder, results, picture)
    except UnavailableError as why:
        missing.append(f"the picture: {why}")
    print(table(results))
    for line in missing:
        print(f"Not run here: {line}", file=sys.stderr)


def streamio_orders() -> Iterator[Result]:
    sizes = np.full(SHARDS, SHARD_SAMPLES, np.int64)
    for mode, note in MODES:
        yield measured(f"streamio {mode}", note, epoch_rows(sizes, mode))


def epoch_rows(sizes: NDArray[np.int64], mode: Shuffle) -> NDArray[np.int64]:
    """All rows of an epoch, as one process gets them."""
    plan = Plan(sizes=sizes, batch_size=BATCH, shuffle=mode, seed=SEED)
    return np.concatenate([batch.rows for batch in plan.batches(range(plan.steps), 0)])


def peer_orders(folder: Path, peer: str) -> list[Result]:
    """Every order of one peer, run in its own environment. Raises UnavailableError."""
    environment = ensure(folder, peer, PEERS[peer])
    print(f"Running {peer}", file=sys.stderr, flush=True)
    numbers = [str(number) for number in (SHARDS, SHARD_SAMPLES, BATCH, SEED)]
    printed = environment.run(f"benchmarks.peers.{peer}", *numbers, str(_work(folder)))
    orders = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return [measured(order["label"], order["note"], np.load(order["file"])) for order in orders]


def measured(label: str, note: str, rows: NDArray[np.int64]) -> Result:
    origins = rows // SHARD_SAMPLES
    return Result(
        label=label,
        note=note,
        rows=rows,
        batch=effective_size(origins, BATCH),
        batches=effective_size(origins, BATCH * BATCHES),
        problem=check_permutation(rows, SHARDS * SHARD_SAMPLES),
    )


def table(results: list[Result]) -> str:
    lines = [
        f"| order | a batch of {BATCH} is worth | {BATCHES} batches ({BATCH * BATCHES:,}) are worth | what it is |",
        "| --- | ---: | ---: | --- |",
    ]
    for result in results:
        note = f"{result.note}; {result.problem}" if result.problem else result.note
        lines.append(f"| {result.label} | {result.batch:,.0f} | {result.batches:,.0f} | {note} |")
    return "\n".join(lines)


def draw(folder: Path, results: list[Result], picture: Path) -> None:
    """The panels: what 16 batches hold, in the order in which it comes. Raises UnavailableError.

    They are from the middle of the epoch: buffers that begin nearly empty mix the first batches worse.
    """
    environment = ensure(folder, "plots", ("matplotlib",))
    file = _work(folder) / "panels.npz"
    middle = SHARDS * SHARD_SAMPLES // 2 + BATCH
    shown = np.stack([result.rows[middle : middle + BATCH * BATCHES] for result in results])
    np.savez(
        file, rows=shown, samples=SHARDS * SHARD_SAMPLES, titles=np.array([result.title for result in results])
    )
    environment.run("benchmarks.plots.panels", str(file), str(picture.resolve()))
    print(f"Drawn in {picture}\n")


def _work(folder: Path) -> Path:
    work = folder.resolve() / "work"
    work.mkdir(parents=True, exist_ok=True)
    return work
