"""Bars of samples/s: a panel for each workload, the fastest loader on top; a logarithmic scale where they are far
apart."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt

_COLOURS = {"ours": "#d1495b", "peer": "#15507a", "hand": "#8fa3ad"}
_COLUMNS, _FAR_APART = 2, 20


def main(file: str, picture: str) -> None:
    panels = json.loads(Path(file).read_text(encoding="utf-8"))
    lines = -(-len(panels) // _COLUMNS)
    tallest = max(len(panel["bars"]) for panel in panels)
    figure, grid = plt.subplots(
        lines, _COLUMNS, figsize=(12, lines * (0.21 * tallest + 0.8)), layout="constrained", squeeze=False
    )
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, panel in zip(grid.flat, panels, strict=False):
        _bars(axes, panel)
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in _COLOURS.values()]
    figure.legend(
        handles, ["streamio", "peers", "written by hand"], loc="outside upper center", ncols=3, frameon=False
    )
    figure.savefig(picture, dpi=100, pil_kwargs={"optimize": True})


def _bars(axes: plt.Axes, panel: dict) -> None:
    labels, roles, rates = zip(*panel["bars"], strict=True)
    places = range(len(labels))
    axes.barh(places, rates, color=[_COLOURS[role] for role in roles], height=0.75)
    axes.set_yticks(places, labels, fontsize=8)
    if max(rates) > _FAR_APART * min(rates):
        axes.set(xscale="log", xlim=(min(rates) / 2, max(rates) * 4))
    else:
        axes.set(xlim=(0, max(rates) * 1.2))
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="x", labelsize=8)
    for place, rate in zip(places, rates, strict=True):
        axes.annotate(f"{rate:,.0f}", (rate, place), (3, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_title(panel["title"], fontsize=10, loc="left")
    axes.set_xlabel("samples/s", fontsize=8)


if __name__ == "__main__":
    main(*sys.argv[1:])
