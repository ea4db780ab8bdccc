"""The benchmark of sources: what it checks, and what it writes."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.sources import cell, data, page
from benchmarks.sources.job import COLUMNS, Job, problem, row
from benchmarks.sources.session import CONTENDERS
from benchmarks.speed.results import Results, Run

ROWS = 2000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("rows")
    data.write_files(made, ROWS)
    return made


def _job(folder: Path, kind: str, script: str, variant: str) -> Job:
    return Job(
        kind=kind, script=script, variant=variant, workers=0, rows=ROWS, data=str(folder), seconds=0.001,
        started=time.monotonic(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "script", "variant"),
    [("jsonl", "streamio", "log"), ("jsonl", "by_hand", "json"), ("sqlite", "by_hand", "dict")],
)
def test_a_cell_reads_every_row_once(folder: Path, kind: str, script: str, variant: str) -> None:
    found = cell.run(_job(folder, kind, script, variant))
    assert found["problem"] == ""
    assert found["rate"] > 0 and found["batches"] == -(-ROWS // 256) and found["version"]


def test_a_row_that_is_lacking_or_has_the_values_of_another_is_found(folder: Path) -> None:
    rows = [row(number) for number in range(10)]
    batch = {name: [one[name] for one in rows] for name in COLUMNS}
    assert problem(batch) == "" and cell.check([batch], 10) == ""
    assert "text" in problem(batch | {"text": batch["text"][::-1]})
    assert "too seldom" in cell.check([batch], 11)
    assert "too often" in cell.check([batch, batch], 10)
    loop_of_others = replace(_job(folder, "jsonl", "by_hand", "json"), rows=ROWS + 1)
    assert "1 samples come too seldom" in cell.run(loop_of_others)["problem"]


def _results() -> Results:
    def run(kind: str, script: str, variant: str, rate: float, workers: int = 0) -> Run:
        role = "ours" if script == "streamio" else "peer"
        return Run(
            workload=kind, peer=script, variant=variant, label=f"{script} {variant}", role=role, torch=True,  # type: ignore[arg-type]
            workers=workers, rate=rate, version="x 1",
        )  # fmt: skip

    facts = {"rows": 10, "rounds": 1, "cpu": "c", "cores": 2, "load": 0, "python": "3", "date": "today"}
    runs = [run("jsonl", "streamio", "log", 900), run("jsonl", "by_hand", "json", 290)]
    runs += [run("sqlite", "streamio", "keyed", 9), run("sqlite", "by_hand", "dict", 3)]
    runs += [run("sqlite", "streamio", "keyed", 6, workers=2), run("sqlite", "by_hand", "dict", 1, workers=1)]
    return Results(runs=runs, facts=facts)


def test_the_tables_go_between_the_marks_and_nothing_else_changes(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text(f"before\n{page.BEGIN}\nstale\n{page.END}\nbehind\n")
    page.write(_results(), file)
    page.write(_results(), file)
    text = file.read_text()
    assert text.startswith(f"before\n{page.BEGIN}\n| JSON lines") and text.endswith(f"{page.END}\nbehind\n")
    assert "stale" not in text and text.count("| JSON lines |") == 1
    assert "| 3.1 times | not measured | at least 3 times | holds" in text
    assert "| 3.0 times | 6.0 times | at least 5 times | with workers only" in text
    assert "PostgreSQL: psycopg's cursor on the server | not measured | not measured" in text
    file.write_text("no marks")
    with pytest.raises(ValueError, match="lacks the lines"):
        page.write(_results(), file)


def test_every_goal_names_somebody_who_takes_part() -> None:
    there = {(one.kind, one.script, one.variant) for one in CONTENDERS if 0 in one.workers}
    assert all((kind, script, v) in there for kind, script, variants, _, _ in page.GOALS for v in variants)
    assert {one.kind for one in CONTENDERS if one.is_ours} == {one.kind for one in CONTENDERS}


def test_the_page_has_the_marks() -> None:
    text = (Path(__file__).parent.parent / "docs" / "sources.md").read_text(encoding="utf-8")
    assert text.index(page.BEGIN) < text.index(page.END)
