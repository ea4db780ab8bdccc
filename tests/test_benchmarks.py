"""The benchmarks: the parts that need no peers, on small sets."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks import environment, metrics, order, shuffle
from benchmarks.__main__ import app
from benchmarks.speed import cell, goals, page, processes, rounds, source, tables
from benchmarks.speed.job import Job, Loop
from benchmarks.speed.packing import commands, seconds_of
from benchmarks.speed.peers import PACKAGES, VARIANTS
from benchmarks.speed.results import Results, Run, median
from benchmarks.speed.workloads import WORKLOADS


def _random_origins(shards: int, each: int) -> np.ndarray:
    return np.random.default_rng(0).permutation(np.repeat(np.arange(shards), each))


def test_a_batch_from_one_shard_is_worth_one_sample() -> None:
    stored = np.repeat(np.arange(64), 256)
    assert metrics.effective_size(stored, 64) == pytest.approx(1)


def test_a_window_over_four_shards_is_worth_four_samples() -> None:
    stored = np.repeat(np.arange(64), 256)
    assert metrics.effective_size(stored, 1024) == pytest.approx(4, rel=0.07)


@pytest.mark.parametrize("window", [16, 64, 256])
def test_a_batch_drawn_at_random_is_worth_its_size(window: int) -> None:
    assert metrics.effective_size(_random_origins(64, 1024), window) == pytest.approx(window, rel=0.05)


def test_a_batch_that_strays_less_than_chance_is_worth_more_than_its_size() -> None:
    assert metrics.effective_size(np.tile(np.arange(64), 256), 64) == float("inf")


def test_the_size_of_the_shards_is_allowed_for() -> None:
    shards = np.repeat(np.arange(8), [10, 10, 10, 10, 2000, 4000, 8000, 16000])
    origins = np.random.default_rng(1).permutation(shards)
    assert metrics.effective_size(origins, 32) == pytest.approx(32, rel=0.1)


@pytest.mark.parametrize("window", [0, 65])
def test_a_window_that_does_not_fit_is_refused(window: int) -> None:
    with pytest.raises(ValueError, match=f"window={window} of 64"):
        metrics.effective_size(np.zeros(64, np.int64), window)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([2, 0, 1], ""),
        ([2, 0, 2], "1 rows never come, 1 more than once"),
        ([2, 0], "1 rows never come, 0 more than once"),
        ([2, 0, 3], "rows 0 to 3 of 3"),
    ],
)
def test_an_order_that_is_no_permutation_is_said_to_be_none(rows: list[int], problem: str) -> None:
    assert metrics.check_permutation(np.array(rows, np.int64), 3) == problem


def test_the_plan_of_a_small_set_has_a_figure_for_each_goal() -> None:
    for measured in (order.plan_figures, order.resume_figures, order.sample_figures):
        values = measured(10_000, 10, "block")
        assert values and all(value >= 0 for value in values.values())


def test_a_goal_that_is_missed_makes_the_command_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = [order.Figure("a", 2.0, 1, "s"), order.Figure("b", 2.0, 3, "s"), order.Figure("c", 2.0, None, "s")]
    assert [figure.met for figure in figures] == [False, True, True]
    monkeypatch.setattr(order, "measure", lambda *_: iter(figures))
    assert CliRunner().invoke(app, ["order"]).exit_code == 1
    monkeypatch.setattr(order, "measure", lambda *_: iter(figures[1:]))
    assert CliRunner().invoke(app, ["order"]).exit_code == 0


def test_figures_come_from_a_process_of_their_own() -> None:
    values = order._fresh("plan", 10_000, 10, "global")
    assert set(values) == {"seconds", "bytes"}


def test_streamios_own_orders_are_whole_and_ranked_as_they_should_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffle, "SHARDS", 64)
    results = {result.label: result for result in shuffle.streamio_orders()}
    assert all(result.problem == "" for result in results.values())
    assert results["streamio global"].batch > 200
    assert results["streamio none"].batch == pytest.approx(1)
    assert "| streamio none | 1 |" in shuffle.table(list(results.values()))


def test_what_is_not_to_be_had_is_said_in_one_line(tmp_path: Path) -> None:
    broken = environment.Environment(tmp_path / "python")
    broken.python.write_text("#!/bin/sh\necho 'Traceback'  >&2\necho 'ImportError: no peer' >&2\nexit 1\n")
    broken.python.chmod(0o755)
    with pytest.raises(environment.UnavailableError, match=r"^ImportError: no peer$"):
        broken.run("benchmarks.peers.nobody")


def test_a_peer_that_does_not_run_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def unavailable(*_: object) -> environment.Environment:
        raise environment.UnavailableError("does not install: no such wheel")

    monkeypatch.setattr(shuffle, "SHARDS", 16)
    monkeypatch.setattr(shuffle, "ensure", unavailable)
    shuffle.report(tmp_path, tmp_path / "none.png", ("mosaicml",))
    printed = capsys.readouterr()
    assert "streamio block" in printed.out
    assert "Not run here: mosaicml: does not install: no such wheel" in printed.err
    assert "Not run here: the picture" in printed.err


def _job(folder: Path, **changes: object) -> Job:
    values: dict[str, Any] = {
        "peer": "streamio", "workload": "d", "variant": "tar/inline", "workers": 0, "samples": 1000,
        "data": str(folder), "store": "streamio-tar-d", "seconds": 0.01, "started": time.monotonic(),
    }  # fmt: skip
    return Job(**values | changes)


def _run(**changes: object) -> Run:
    values: dict[str, Any] = {
        "workload": "d", "peer": "streamio", "variant": "tar/auto", "label": "streamio tar, auto", "role": "ours",
        "torch": False, "workers": 2, "rate": 300.0, "cpu": 1.0, "first_batch": 2.0, "memory": 10, "wait": 0.1,
    }  # fmt: skip
    return Run(**values | changes)


def test_a_job_survives_the_command_line(tmp_path: Path) -> None:
    job = _job(tmp_path)
    assert Job.of(job.arguments()) == job


def test_every_variant_has_a_script_and_runs_where_its_quick_run_does() -> None:
    scripts = {path.stem for path in Path(cell.__file__).with_name("loaders").glob("*.py")}
    assert set(PACKAGES) <= scripts
    for variant in VARIANTS:
        assert variant.peer in scripts and (not variant.writer or variant.writer in scripts)
        for workload in WORKLOADS:
            if variant.runs(workload, quick=True):
                assert set(variant.runs(workload, True)) <= set(variant.runs(workload, False)), variant


def test_no_two_variants_share_a_cell() -> None:
    keys = [(v.peer, v.name, name, n) for v in VARIANTS for name in WORKLOADS for n in v.runs(name, quick=False)]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("numbers", "problem"),
    [
        ([2, 0, 1], ""),
        ([2, 0, 2], "1 samples come too seldom, 1 too often"),
        ([2, 0], "1 samples come too seldom, 0 too often"),
        ([2, 0, 3], "numbers 0 to 3 of 3 samples"),
    ],
)
def test_samples_that_do_not_come_once_are_a_problem(numbers: list[int], problem: str) -> None:
    assert cell.count_problem(np.array(numbers, np.int64), 3, 1) == problem


def test_a_loader_is_found_out_that_mixes_up_numbers_or_types(tmp_path: Path) -> None:
    job = _job(tmp_path, samples=4)
    data, numbers = np.zeros((4, 768), np.uint8), np.arange(4)
    source._stamp(data, numbers)
    assert cell.check(job, Loop(list), [(data, numbers)]) == ""
    assert "number of another" in cell.check(job, Loop(list), [(data, numbers[::-1])])
    assert "int64 (768,), not uint8" in cell.check(job, Loop(list), [(data.astype(np.int64), numbers)])


@pytest.mark.parametrize("workload", ["d", pytest.param("f", marks=pytest.mark.slow)])
def test_streamio_is_written_checked_and_timed_in_processes_of_their_own(tmp_path: Path, workload: str) -> None:
    small = {name: replace(about, quick=1000) for name, about in WORKLOADS.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "WORKLOADS", small)
        source.make(tmp_path / "source", workload, quick=True)
    job = _job(tmp_path, workload=workload, store=f"streamio-tar-{workload}")
    processes.run_cell(sys.executable, "write", job.arguments(), 60)
    found = processes.run_cell(sys.executable, "run", job.arguments(), 60)
    assert found["problem"] == ""
    assert found["rate"] > 0 and found["memory"] > 10e6 and found["first_batch"] > 0 and found["batches"] > 0


def test_cells_keep_bytecode_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    code = "import sys; print(sys.dont_write_bytecode)"
    with processes.started([sys.executable, "-c", code], subprocess.DEVNULL) as process:
        assert process.stdout is not None and process.stdout.read() == "False\n"


def test_a_cell_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {tmp_path}/child\nwait\n")
    fake.chmod(0o755)
    began = time.monotonic()
    with pytest.raises(environment.UnavailableError, match="after 1 s"):
        processes.run_cell(str(fake), "run", [], 1)
    assert time.monotonic() - began < 10
    child = int((tmp_path / "child").read_text())
    while _runs(child):  # it was told to end; a busy machine takes a moment to do it
        assert time.monotonic() - began < 30
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_time_and_memory_of_this_process_are_found() -> None:
    assert processes.tree_cpu_seconds(os.getpid()) > 0
    own, mapped = processes.tree_bytes(os.getpid())
    assert own > 1e6 and mapped > 0


def test_pictures_compress_like_photographs_and_are_the_same_again() -> None:
    pixels = source.picture_pixels(3)
    assert pixels.shape == (375, 500, 3) and pixels.dtype == np.uint8
    assert np.array_equal(pixels, source.picture_pixels(3)) and not np.array_equal(pixels, source.picture_pixels(4))


def test_the_common_crop_stays_inside_the_picture() -> None:
    from benchmarks.speed.picture import random_box

    rng = random.Random(0)
    for _ in range(200):
        left, top, width, height = random_box(500, 375, rng)
        assert 0 <= left <= left + width <= 500 and 0 <= top <= top + height <= 375


def test_a_cell_is_the_median_of_its_good_runs() -> None:
    runs = [_run(rate=rate) for rate in (1.0, 9.0, 5.0)]
    assert median([*runs, _run(problem="died")]).rate == 5
    assert median([_run(problem="died")]).problem == "died"


def _session() -> Results:
    ffcv = {"peer": "ffcv", "role": "peer", "variant": "own", "label": "FFCV"}
    web = {"peer": "webdataset", "role": "peer", "variant": "plain", "label": "WebDataset", "torch": True}
    runs = [
        _run(),
        _run(**ffcv, rate=100.0, cpu=2.0),
        _run(**web, rate=1.0, memory=5),
        _run(workload="f", problem="died"),
    ]
    packing = {"tiny": {"tar cf": [1.0], "streamio pack, 1 worker": [0.5, 2.0, 0.8]}}
    facts = {
        "options": {"quick": True, "rounds": 1, "seconds": 1.0},
        "cpu": "a",
        "cores": 2,
        "memory": "b",
        "load": 0,
    }
    more = {"system": "Linux", "python": "3", "torch": "2", "numpy": "2", "date": "today"}
    return Results(runs=runs, limits={"memcpy, 256 MB": 1e6}, packing=packing, facts=facts | more)


def test_goals_are_ratios_of_the_best_cells_and_say_whether_they_hold() -> None:
    found = {(goal.workload, goal.text): goal for goal in goals.goals(_session())}
    assert found["d", "FFCV"].value == pytest.approx(3) and found["d", "FFCV"].holds
    assert found["d", "WebDataset on the same tar"].value == pytest.approx(300)
    assert found["d", "memory: the lowest peer's, by ours"].holds is False
    assert found["d", "CPU seconds: the lowest peer's, by ours"].value == pytest.approx(1)
    assert found["g", "`tar cf`, tiny files, 1 worker"].value == pytest.approx(1.25)
    assert found["a", "the best peer"].holds is None


def test_a_start_is_compared_with_the_bare_one_of_its_workload() -> None:
    bare = {"peer": "bare", "variant": "bare", "label": "nothing read", "role": "bare"}
    runs = [
        _run(first_batch=2.0),
        _run(**bare, first_batch=1.75),
        _run(**bare, workload="a", first_batch=1.0),
    ]
    found = [goal for goal in goals.goals(Results(runs=runs)) if goal.text == "first batch after the bare cost"]
    assert [(goal.workload, goal.value, goal.holds) for goal in found] == [("d", 0.25, True)]


def test_a_start_without_a_bare_one_of_its_workload_is_compared_with_that_of_another() -> None:
    bare = {"peer": "bare", "variant": "bare", "label": "nothing read", "role": "bare", "workload": "a"}
    runs = [_run(first_batch=2.0), _run(**bare, first_batch=1.5), _run(**bare, workers=0, first_batch=1.0)]
    assert Results(runs=runs).bare_start("d", 2) == 1.5
    assert Results(runs=runs).bare_start("d", 8) is None
    found = [goal for goal in goals.goals(Results(runs=runs)) if goal.text == "first batch after the bare cost"]
    assert [(goal.workload, goal.value) for goal in found] == [("d", 0.5)]


def test_without_ffcv_its_rate_is_scaled_and_marked() -> None:
    hand = _run(peer="slices", role="hand", variant="memmap", label="memmap", rate=100.0)
    goal = next(
        goal for goal in goals.goals(Results(runs=[_run(), hand])) if (goal.workload, goal.text) == ("d", "FFCV")
    )
    assert goal.value == pytest.approx(300 / (100 * 2.23 / 2.1)) and "scaled" in goal.note


def test_the_page_is_drawn_again_from_what_was_saved(tmp_path: Path) -> None:
    _session().save(tmp_path / "results.json")
    results = Results.load(tmp_path / "results.json")
    page.write_page(results, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert (
        "| streamio tar, auto | 300 |" in text
        and "died" in text
        and "| (d) FFCV | 3 x | at least 1.5 x | holds |" in text
    )
    assert page.panels(results)[0]["bars"][0] == ("streamio tar, auto", "ours", 300)  # type: ignore[index]


@pytest.mark.parametrize(
    ("number", "text"), [(1_234_567, "1.23M"), (45_600, "45.6k"), (789.4, "789"), (123_400, "123k")]
)
def test_rates_have_three_digits(number: float, text: str) -> None:
    assert tables.short(number) == text


def test_packing_is_timed_and_leaves_nothing(tmp_path: Path) -> None:
    folder, out = tmp_path / "folder" / "class", tmp_path / "packed" / "out"
    folder.mkdir(parents=True)
    (folder / "1.bin").write_bytes(b"x")
    assert 0 < seconds_of(commands(tmp_path / "folder", out)["tar cf"], out) < 10
    assert not list(out.parent.iterdir())
    with pytest.raises(environment.UnavailableError):
        seconds_of(["false"], out)


def test_a_cell_that_does_not_run_is_noted_once_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def measured(self: rounds.Session, workload: str, variant: Any, workers: int) -> dict[str, object]:
        if variant.peer == "huggingface":
            raise environment.UnavailableError("does not install")
        return {"rate": 1.0}

    monkeypatch.setattr(rounds.Session, "_measured", measured)
    monkeypatch.setattr(rounds.Session, "_convert", lambda *_: None)
    monkeypatch.setattr(rounds.limits, "measure", lambda *_: {})
    monkeypatch.setattr(rounds.source, "make", lambda *_: None)
    options = rounds.Options(env=tmp_path, work=tmp_path, quick=True, rounds=2, seconds=1, workloads="d")
    results = rounds.Session(options).run()
    assert [run.peer for run in results.problems] == ["huggingface"]
    assert len([run for run in results.runs if run.peer == "ffcv"]) == 2
    assert Results.load(options.file).runs == results.runs


def test_what_a_writer_cannot_make_is_told_of_at_its_cells_and_the_others_are_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small = {name: replace(about, quick=100) for name, about in WORKLOADS.items()}
    monkeypatch.setattr(source, "WORKLOADS", small)
    monkeypatch.setattr(rounds, "WORKLOADS", small)
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no room >&2\nexit 1\n")
    broken.chmod(0o755)
    pythons = {"streamio": sys.executable, "litdata": str(broken)}
    monkeypatch.setattr(rounds.Session, "_python", lambda _, peer: pythons[peer])
    options = rounds.Options(env=tmp_path, work=tmp_path, quick=True, rounds=1, seconds=1, workloads="d")
    chosen = [one for one in VARIANTS if one.peer in pythons and one.runs("d", quick=True)]
    chosen += [one for one in VARIANTS if one.peer == "litdata"]
    session = rounds.Session(options)
    source.make(options.data / "source", "d", quick=True)
    session._convert("d", chosen)
    made = {path.name for path in (options.data / "packed").iterdir()}
    assert made == {"streamio-tar-d"}
    with pytest.raises(environment.UnavailableError, match="no room"):
        session._measured("d", chosen[-1], 2)


def test_an_environment_is_added_to_and_not_made_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commands_run: list[list[str]] = []
    monkeypatch.setattr(environment, "_command", commands_run.append)
    (tmp_path / "peer").mkdir()
    environment.ensure(tmp_path, "peer", ("a",))
    environment.ensure(tmp_path, "peer", ("a", "b"))
    environment.ensure(tmp_path, "peer", ("b",))
    assert [command[-1] for command in commands_run] == [str(tmp_path / "peer"), "a", "b"]


def test_data_for_other_numbers_of_samples_is_made_anew(tmp_path: Path) -> None:
    data = tmp_path / "quick"
    rounds.fresh_folder(data, True)
    (data / "source").mkdir()
    rounds.fresh_folder(data, True)
    assert (data / "source").exists()
    rounds.fresh_folder(data, False)
    assert not (data / "source").exists()


def test_a_page_can_come_of_several_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(rounds.Session, "_measured", lambda *_: {"rate": 1.0})
    monkeypatch.setattr(rounds.Session, "_convert", lambda *_: None)
    monkeypatch.setattr(rounds.limits, "measure", lambda *_: {})
    monkeypatch.setattr(rounds.source, "make", lambda *_: None)
    for workload in "dhd":
        options = rounds.Options(env=tmp_path, work=tmp_path, quick=True, rounds=1, seconds=1, workloads=workload)
        results = rounds.Session(options).run()
    cells = [run.cell for run in results.runs]
    assert {cell[0] for cell in cells} == {"d", "h"} and len(cells) == len(set(cells))


def test_the_command_for_caches_has_a_line_for_each_way() -> None:
    result = CliRunner().invoke(app, ["cache", "--samples", "12"])
    assert result.exit_code == 0, result.output
    rows = [line.split("|")[2:8] for line in result.output.splitlines()[2:]]
    assert len(rows) == 10
    for kind, cache, first, later, held, size in (map(str.strip, row) for row in rows):
        assert float(first) > 0 and float(later) >= 0 and int(size) > 0
        assert (int(held) > 0) == (cache != "none") and (cache == "none" or kind == "500 x 375, JPEG")
