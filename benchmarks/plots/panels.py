"""Where the samples of some batches in a row come from: one panel for each order."""

from __future__ import annotations

import sys

import matplotlib.pyplot as plt
import numpy as np

_COLUMNS = 4


def main(file: str, picture: str) -> None:
    data = np.load(file)
    rows, titles, samples = data["rows"], data["titles"], int(data["samples"])
    lines = -(-len(rows) // _COLUMNS)
    size = (3.0 * _COLUMNS, 2.3 * lines + 0.5)
    figure, grid = plt.subplots(lines, _COLUMNS, figsize=size, layout="constrained", squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, order, title in zip(grid.flat, rows, titles, strict=False):
        axes.set_axis_on()
        axes.plot(order, ",", color="#15507a", alpha=0.8)
        axes.set(xlim=(0, order.size), ylim=(samples, 0), xticks=[], yticks=[])
        axes.set_title(str(title), fontsize=9.5)
    figure.supxlabel("position in the epoch: 16 batches of 256 from its middle", fontsize=10)
    figure.supylabel(f"where the sample is stored: first (top) to last of {samples:,}", fontsize=10)
    figure.savefig(picture, dpi=110, pil_kwargs={"optimize": True})


if __name__ == "__main__":
    main(*sys.argv[1:])
