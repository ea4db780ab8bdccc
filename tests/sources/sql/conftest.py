from __future__ import annotations

from pathlib import Path

import pytest

from tests.sources.sql.databases import KINDS, Made


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    """A new database of each kind in turn."""
    return Made(request.param, tmp_path, lambda: request.getfixturevalue("postgres"))


@pytest.fixture
def sqlite(tmp_path: Path) -> Made:
    return Made("sqlite", tmp_path, NotImplemented)


@pytest.fixture
def duck(tmp_path: Path) -> Made:
    return Made("duckdb", tmp_path, NotImplemented)


@pytest.fixture
def pg(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    return Made("postgresql", tmp_path, lambda: request.getfixturevalue("postgres"))
