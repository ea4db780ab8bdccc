"""What was measured as tables: for the terminal, and between two marks of docs/sources.md."""

from __future__ import annotations

from pathlib import Path

from benchmarks.sources.session import KINDS
from benchmarks.speed.results import Results, Run, best
from benchmarks.speed.tables import markdown, problem_lines, short

BEGIN, END = "<!-- python -m benchmarks sources -->", "<!-- end -->"

GOALS = (
    ("jsonl", "by_hand", ("json",), "a loop with `json.loads`", 3.0),
    ("jsonl", "huggingface", ("samples", "torch"), "HF datasets, streaming, through a DataLoader", 5.0),
    ("jsonl", "huggingface", ("iter",), "HF datasets, streaming, its own `.iter(256)`", 0.0),
    ("postgres", "by_hand", ("tuple", "dict"), "psycopg's cursor on the server", 5.0),
    ("sqlite", "by_hand", ("dict",), "sqlite3", 5.0),
)
"""(kind, script of the peer, its variants, its name, how many times as fast): the best of each."""

_METHOD = """\
{rows:,} rows of a number to know them by, two whole numbers, a float, a bool and about 60 characters of text, in
batches of 256: four files of JSON lines, a table in PostgreSQL 18 on the same machine, one in SQLite. HF datasets
reads a tenth of the lines where it goes sample by sample, and a hundredth where those are tensors. Each figure is
the median of {rounds} runs, in turn over all that are compared, each of which first checks that every row came once
with all its values, and then reads whole epochs. With workers, a cursor has one process and we have up to two. CPU
is that of all its processes, without that of the database; memory the most that they held together. {cpu},
{cores} cores, load {load} as it began; Python {python}; {versions}. {date}."""


def tables(results: Results) -> str:
    """A table for each kind, and the goals."""
    cells = results.cells()
    head = ["rows/s", "workers", "rows/s", "CPU s per 1,000,000", "memory, MB", "first batch, s"]
    parts = []
    for kind, title in KINDS.items():
        rows = [_figures(cell) for cell in cells if cell.workload == kind and not cell.problem]
        if rows:
            parts.append(markdown([title, *head[1:]], rows))
    return "\n\n".join([*parts, _goals(results)])


def _figures(cell: Run) -> list[str]:
    return [
        cell.label, str(cell.workers), short(cell.rate), f"{cell.cpu * 1000:.2f}", f"{cell.memory / 1e6:,.0f}",
        f"{cell.first_batch:.2f}",
    ]  # fmt: skip


def _goals(results: Results) -> str:
    rows = [
        [f"{KINDS[kind]}: {name}", *_goal(results, kind, script, variants, times)]
        for kind, script, variants, name, times in GOALS
    ]
    return markdown(["as fast as the other", "without workers", "with workers", "wanted", ""], rows)


def _goal(results: Results, kind: str, script: str, variants: tuple[str, ...], times: float) -> list[str]:
    cells = [cell for cell in results.cells() if cell.workload == kind]
    ratios = [_ratio([c for c in cells if bool(c.workers) == worked], script, variants) for worked in (False, True)]
    shown = ["not measured" if ratio is None else f"{ratio:.1f} times" for ratio in ratios]
    held = [ratio >= times for ratio in ratios if ratio is not None]
    verdict = "holds" if all(held) else "with workers only" if held[-1] else "MISSED"
    return [*shown, f"at least {times:g} times" if times else "", verdict if times and held else ""]


def _ratio(cells: list[Run], script: str, variants: tuple[str, ...]) -> float | None:
    """The best of ours to the best of the other's."""
    ours = best(cells, lambda cell: cell.role == "ours")
    peer = best(cells, lambda cell: cell.peer == script and cell.variant in variants)
    return None if ours is None or peer is None else ours.rate / peer.rate


def show(results: Results) -> str:
    """What the terminal gets."""
    problems = "".join(f"\n- {line}" for line in problem_lines(results))
    return tables(results) + (f"\n\nNot run, or not right:{problems}" if problems else "")


def write(results: Results, page: Path) -> None:
    """Put the tables in the place of what stands between the marks. Raises ValueError where there are none."""
    versions = ", ".join(sorted({run.version for run in results.runs if run.version}))
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} lacks the lines {BEGIN} and {END}")
    text = f"{tables(results)}\n\n{_METHOD.format(**results.facts, versions=versions)}"
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")
