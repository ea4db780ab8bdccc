"""A pytest plugin (`-p no_skips`): a run that skipped a test has failed."""

from __future__ import annotations

from typing import Any

import pytest


def _skipped(config: pytest.Config) -> list[Any]:
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    return list(reporter.stats.get("skipped", ())) if reporter is not None else []


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.OK and _skipped(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if skipped := _skipped(config):
        terminalreporter.section("skipped tests count as failures", red=True)
        for report in skipped:
            terminalreporter.line(f"{report.nodeid}: {report.longrepr}")
