"""The benchmarks: the parts that need no peers, on small sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks import environment, metrics, order, shuffle
from benchmarks.__main__ import app


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
