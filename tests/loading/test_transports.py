"""Every transport keeps what the suites promise."""

from __future__ import annotations

from typing import ClassVar

import pytest

from tests.loading.conformance import SAMPLES, ProcessSuite, TransportSuite
from tests.sets import make_set


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_set(tmp_path_factory.mktemp("set") / "s", SAMPLES)


class TestInline(TransportSuite):
    options: ClassVar = {"transport": "inline"}


class TestThreads(TransportSuite):
    options: ClassVar = {"transport": "thread", "num_workers": 3}


class TestAuto(TransportSuite):
    options: ClassVar = {}


class TestForked(ProcessSuite):
    options: ClassVar = {"num_workers": 2, "context": "fork"}


class TestForkedWithThreads(ProcessSuite):
    options: ClassVar = {"num_workers": 2, "context": "fork", "threads": 2}


@pytest.mark.slow  # each test starts interpreters that import torch
class TestSpawned(ProcessSuite):
    options: ClassVar = {"num_workers": 2, "context": "spawn"}


@pytest.mark.slow
class TestForkserver(ProcessSuite):
    options: ClassVar = {"num_workers": 2, "context": "forkserver"}
