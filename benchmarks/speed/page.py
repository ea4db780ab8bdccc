"""docs/benchmarks.md and its picture, from the results of a session."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.environment import ensure
from benchmarks.speed import tables
from benchmarks.speed.results import Results, best
from benchmarks.speed.workloads import WORKLOADS

_METHOD = """\
- Every figure comes from a fresh process, and is the median of {rounds} of them, run round after round over all
  loaders. The same data for all, converted by each peer's own writer; files are in the page cache.
- A process first runs an epoch in which every sample is checked: each came once, whole, and with its own number.
  Then come whole epochs for at least {seconds:g} seconds, workers living on between them where the loader can.
- All shuffle, in their own way, but those marked. Pictures: the same decoder (simplejpeg), crop and resize for all;
  "own decoder" or "Pillow" is what the peer does by itself. FFCV takes no decoder but its own.
- With 2 workers. "auto" chooses for itself. FFCV's and SPDL's workers are threads; "none" is one thread there.
- MB/s counts samples as the loop gets them. The limit: for pictures the rate at which as many cores only decode
  and crop what is in memory, for the others a copy of 256 MB in warm memory.
- CPU: user and system time of all processes. Memory: the most that all processes held together, shared pages once,
  without mapped files, which are page cache. The first batch is counted from the start of Python; "bare" is a
  loader that reads nothing. (Grain needs torch
  for the common crop alone.)
- OMP_WAIT_POLICY=PASSIVE for all, which spares the peers' torch.stack the noise of other work on the machine."""


def show(results: Results) -> str:
    """What the terminal gets: the table, the limits, the goals."""
    parts = [tables.overview(results), tables.limit_table(results)]
    if results.packing:
        parts.append(tables.pack_table(results))
    parts.append(tables.goal_table(results))
    problems = tables.problem_lines(results)
    if problems:
        parts.append("Not run, or not right:\n" + "\n".join(f"- {line}" for line in problems))
    return "\n\n".join(parts)


def write_page(results: Results, page: Path) -> None:
    facts, options = results.facts, results.facts["options"]
    command = f"python -m benchmarks{' --quick' if options['quick'] else ''}"
    versions = sorted({run.version for run in results.runs if run.version})
    parts = [
        f"# Benchmarks\nWritten by `{command}`; drawn again, without measuring, by `python -m benchmarks report`.",
        f"![Samples per second of each loader in six workloads]({page.stem}.png)",
        tables.overview(results),
        f"## Goals\n{tables.goal_table(results)}",
        "## The machine\n"
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory']}, {facts['system']}; load {facts['load']} as it "
        f"began. Python {facts['python']}, torch {facts['torch']}, numpy {facts['numpy']}; {', '.join(versions)}. "
        f"{facts['date']}.\n\n{tables.limit_table(results)}",
        f"## Method\n{_METHOD.format(rounds=options['rounds'], seconds=options['seconds'])}",
        *(_section(results, name) for name in WORKLOADS if name != "g"),
    ]
    if results.packing:
        parts.append(f"## (g) {WORKLOADS['g'].title}\n{tables.pack_table(results)}")
    problems = tables.problem_lines(results)
    if problems:
        parts.append("## Not run, or not right\n" + "\n".join(f"- {line}" for line in problems))
    page.write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")


def _section(results: Results, name: str) -> str:
    about, options = WORKLOADS[name], results.facts["options"]
    if not any(run.workload == name for run in results.runs):
        return ""
    count = about.count(options["quick"])
    return (
        f"## ({name}) {about.title}\n{count:,} samples, batches of {about.batch}.\n\n{tables.detail(results, name)}"
    )


def draw(results: Results, env: Path, work: Path, picture: Path) -> None:
    """Raises UnavailableError where there is no matplotlib."""
    environment = ensure(env, "plots", ("matplotlib",))
    file = work.resolve() / "plot.json"
    file.write_text(json.dumps(panels(results)), encoding="utf-8")
    environment.run("benchmarks.plots.speed", str(file), str(picture.resolve()))


def panels(results: Results) -> list[dict[str, object]]:
    """For each workload its title and (loader, role, best samples/s of its workers), the fastest first."""
    cells = [cell for cell in results.cells() if not cell.problem and cell.role != "bare"]
    drawn: list[dict[str, object]] = []
    for name in "abcdef":
        labels = dict.fromkeys(cell.label for cell in cells if cell.workload == name)
        tops = [best(cells, lambda c, n=name, k=label: c.workload == n and c.label == k) for label in labels]  # type: ignore[misc]
        bars = sorted(((top.label, top.role, top.rate) for top in tops if top), key=lambda bar: -bar[2])
        if bars:
            drawn.append({"title": f"({name}) {WORKLOADS[name].title}", "bars": bars})
    return drawn
