"""Two rows of panels, a column for each shuffle: the whole epoch, and the shards that one batch in it is from."""

from __future__ import annotations

import sys

import matplotlib.pyplot as plt
import numpy as np

_INK, _MARK = "#15507a", "#d1495b"
_TITLES = {
    "none": "none\nas stored",
    "shards": "shards\nshards in random order",
    "block": "block (default)\nmixed within 16 of 64 shards",
    "global": "global\nall samples mixed",
}


def main(file: str, picture: str) -> None:
    data = np.load(file)
    modes, shards, batch, step = data["modes"], int(data["shards"]), int(data["batch"]), int(data["step"])
    figure, grid = plt.subplots(
        2, len(modes), figsize=(11, 5.6), layout="constrained", sharey=True, height_ratios=(2, 1.25)
    )
    for column, (mode, rows) in enumerate(zip(modes, data["rows"], strict=True)):
        _epoch(grid[0, column], rows, shards, step * batch)
        grid[0, column].set_title(_TITLES[str(mode)], fontsize=10)
        _one_batch(grid[1, column], rows[step * batch : (step + 1) * batch], shards)
    grid[0, 0].set_ylabel("shard", fontsize=10)
    grid[1, 0].set_ylabel("shard", fontsize=10)
    figure.get_layout_engine().set(h_pad=0.08)
    figure.savefig(picture, dpi=110, pil_kwargs={"optimize": True})


def _epoch(axes: plt.Axes, rows: np.ndarray, shards: int, at: int) -> None:
    """Every so-many-th sample; the batch below is taken from where the red line is."""
    shown = np.arange(0, rows.size, max(1, rows.size // 12_000))
    per_shard = rows.size / shards
    axes.plot(shown, rows[shown] / per_shard, ".", markersize=0.9, markeredgewidth=0, color=_INK)
    axes.axvline(at, color=_MARK, linewidth=1.2)
    axes.set(xlim=(0, rows.size), ylim=(shards, 0), xticks=[0, rows.size], yticks=[0, shards])
    axes.set_xticklabels(["start", "end of the epoch"], fontsize=8)
    axes.get_xticklabels()[0].set_horizontalalignment("left")
    axes.get_xticklabels()[1].set_horizontalalignment("right")


def _one_batch(axes: plt.Axes, rows: np.ndarray, shards: int) -> None:
    per_shard = (1 << 20) / shards
    axes.plot(np.arange(rows.size), rows / per_shard, ".", markersize=3, color=_MARK)
    used = len(np.unique(rows // int(per_shard)))
    axes.set(xlim=(-4, rows.size + 3), xticks=[])
    axes.set_xlabel(f"one batch of {rows.size}: from {used} shard{'s' if used > 1 else ''}", fontsize=9.5)


if __name__ == "__main__":
    main(*sys.argv[1:])
