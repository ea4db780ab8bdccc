"""Packages that only some users need."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from streamio.errors import MissingExtra
from streamio.extras import extra


def test_a_package_is_imported_when_it_is_used() -> None:
    assert extra("json.decoder", "logs") is sys.modules["json.decoder"]


def test_a_package_that_is_not_installed_is_named_with_the_command_that_brings_it() -> None:
    with pytest.raises(MissingExtra) as caught:
        extra("no_such_package.inner", "sql")
    assert "reading a database needs the package 'no_such_package'" in str(caught.value)
    assert "pip install 'streamio[sql]'" in str(caught.value)


def test_a_package_that_is_there_and_broken_says_so_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_package.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="no_such_package") as caught:
        extra("broken_package", "sql")
    assert not isinstance(caught.value, MissingExtra)
