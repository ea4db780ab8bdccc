"""What every peer's script is given, and what it hands back.

It gets the set-up on its command line, and writes for each order `<label>.npy`, the rows in the order in which
training would see them, and a line of JSON on stdout: {"label", "note", "file"}.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Setup:
    """shards files of shard_samples rows each, numbered through; a batch has `batch` samples; one process."""

    shards: int
    shard_samples: int
    batch: int
    seed: int
    work: Path

    @property
    def samples(self) -> int:
        return self.shards * self.shard_samples


def arguments() -> Setup:
    parser = argparse.ArgumentParser()
    for name in ("shards", "shard_samples", "batch", "seed"):
        parser.add_argument(name, type=int)
    parser.add_argument("work", type=Path)
    return Setup(**vars(parser.parse_args()))


def record(
    setup: Setup, package: str, label: str, note: str, order: Callable[[], Iterable[int] | NDArray[np.int64]]
) -> None:
    """Call `order`, write what it gives, and say so. package: as pip names it, for its version."""
    given = order()
    rows = given.astype(np.int64) if isinstance(given, np.ndarray) else np.fromiter(given, np.int64)
    file = setup.work / f"{re.sub(r'[^a-z0-9]+', '-', label.lower()).strip('-')}.npy"
    np.save(file, rows)
    note = f"{note} ({package} {version(package)})"
    print(json.dumps({"label": label, "note": note, "file": str(file)}), flush=True)
