"""Where the samples of an epoch, and of one batch, come from under each of streamio's shuffles."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.environment import ensure
from benchmarks.shuffle import BATCH, MODES, epoch_rows

SHARDS, SAMPLES = 64, 1 << 20
STEP = 1500
"""The batch that is shown by itself."""


def report(folder: Path, picture: Path) -> None:
    """Draw it, with the plan's own rows."""
    environment = ensure(folder, "plots", ("matplotlib",))
    sizes = np.full(SHARDS, SAMPLES // SHARDS, np.int64)
    modes = [mode for mode, _ in reversed(MODES)]
    file = folder.resolve() / "work" / "modes.npz"
    file.parent.mkdir(exist_ok=True)
    rows = np.stack([epoch_rows(sizes, mode) for mode in modes])
    np.savez(file, rows=rows, modes=np.array(modes), shards=SHARDS, batch=BATCH, step=STEP)
    environment.run("benchmarks.plots.modes", str(file), str(picture.resolve()))
    print(f"Drawn in {picture}")
