"""Tables of a session as Markdown, which also reads well on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.speed.goals import Goal, goals
from benchmarks.speed.results import Results, Run, bytes_per_second, share_of_limit
from benchmarks.speed.workloads import WORKLOADS

_RATES = "abcdef"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, the others to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def overview(results: Results) -> str:
    """Samples/s with workers, in brackets without; a row for each loader."""
    cells = [cell for cell in results.cells() if cell.workload in _RATES and cell.role != "bare"]
    rates = {(cell.label, cell.workload, cell.workers > 0): cell.rate for cell in cells if not cell.problem}
    labels = dict.fromkeys(cell.label for cell in cells)
    names = [name for name in _RATES if any(cell.workload == name for cell in cells)]
    head = ["samples/s, 2 workers (none)", *(f"({name}) {WORKLOADS[name].title}" for name in names)]
    rows = [
        [label, *(_both(rates.get((label, name, True)), rates.get((label, name, False))) for name in names)]
        for label in labels
    ]
    return markdown(head, [row for row in rows if any(row[1:])])


def _both(with_workers: float | None, without: float | None) -> str:
    first = "" if with_workers is None else short(with_workers)
    return f"{first} ({short(without)})".strip() if without is not None else first


def short(number: float) -> str:
    """Three digits: 1.23M, 45.6k, 789."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if number >= size:
            scaled = number / size
            return f"{scaled:.{0 if scaled >= 100 else 1 if scaled >= 10 else 2}f}{letter}"
    return f"{number:.0f}"


def goal_table(results: Results) -> str:
    rows = [[f"({goal.workload}) {goal.text}", *_goal_cells(goal)] for goal in goals(results)]
    return markdown(["goal", "measured", "wanted", ""], rows)


def _goal_cells(goal: Goal) -> tuple[str, str, str]:
    value = "not measured" if goal.value is None else f"{goal.value:.3g} {goal.unit}"
    verdict = {None: "", True: "holds", False: "MISSED"}[goal.holds]
    wanted = f"{'at most' if goal.at_most else 'at least'} {goal.target:g} {goal.unit}"
    return value, wanted, f"{verdict} ({goal.note})" if goal.note else verdict


def detail(results: Results, workload: str) -> str:
    """All figures of one workload."""
    cells = [cell for cell in results.cells() if cell.workload == workload and not cell.problem]
    head = [
        "loader", "workers", "samples/s", "MB/s", "of the limit", "CPU s per 1,000", "first batch, s",
        "above bare, s", "memory, MB", "p99 wait, ms",
    ]  # fmt: skip
    return markdown(head, [_figures(cell, results) for cell in cells])


def _figures(cell: Run, results: Results) -> list[str]:
    share = share_of_limit(cell, results.limits) if cell.role != "bare" else None
    start = results.bare_start(cell.workload, cell.workers)
    return [
        cell.label, str(cell.workers), short(cell.rate), f"{bytes_per_second(cell) / 1e6:,.0f}",
        "" if share is None else f"{share:.3f}", f"{cell.cpu:.4f}", f"{cell.first_batch:.2f}",
        "" if start is None else f"{cell.first_batch - start:.2f}", f"{cell.memory / 1e6:,.0f}",
        f"{cell.wait * 1e3:.2f}",
    ]  # fmt: skip


def limit_table(results: Results) -> str:
    rows = [[name, _limit(name, value)] for name, value in results.limits.items()]
    return markdown(["limit of the machine", "measured"], rows)


def _limit(name: str, value: float) -> str:
    return f"{value:,.0f} pictures/s" if name.startswith("decode") else f"{value / 1e9:.1f} GB/s"


def pack_table(results: Results) -> str:
    folders = list(results.packing)
    names = dict.fromkeys(name for folder in folders for name in results.packing[folder])
    rows = [[name, *(_seconds(results.packed(folder, name)) for folder in folders)] for name in names]
    return markdown(["packed by", *(f"{folder}, s" for folder in folders)], rows)


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.2f}"


def problem_lines(results: Results) -> list[str]:
    return [
        f"{run.label}, workload {run.workload}, {run.workers} workers: {run.problem}" for run in results.problems
    ]
