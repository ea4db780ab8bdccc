"""What README and docs show is run as it stands there, and what they point to is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.samples import jpg, tree

ROOT = Path(__file__).resolve().parent.parent
_RUN = ("pack", "train", "batches", "caching", "stalls", "device", "troubleshooting")
PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in _RUN)]

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _blocks(page: Path) -> list[tuple[str, str]]:
    """(language, code) of the fenced blocks of a page."""
    return [(match[1], match[2]) for match in _BLOCK.finditer(page.read_text(encoding="utf-8"))]


def _run_sh(code: str) -> str:
    scripts = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-eu"], input=code, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_on_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tree("photos", {f"{c}/{i}.jpg": jpg(48 - i % 3, 36) for c in ("cat", "dog") for i in range(40)})
    if page.name != "README.md":  # which packs it itself
        _run_sh("streamio pack photos/ out/ --val 0.1 --quiet")
    blocks = [(language, code) for language, code in _blocks(page) if language in ("python", "sh")]
    assert blocks
    for language, code in blocks:
        if language == "sh":
            assert _run_sh(code)
        else:
            exec(compile(code, page.name, "exec"), {"__name__": "__page__"})


def test_the_picture_and_every_link_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        text = page.read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            assert link.startswith("https://") or (page.parent / link).exists(), f"{page.name}: {link}"


def test_every_promise_on_the_page_of_the_order_names_a_test_that_is_there() -> None:
    promises = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "order.md").read_text(encoding="utf-8"))
    assert len(promises) > 20
    for file, name in promises:
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{name}"


def test_readme_begins_with_three_sentences() -> None:
    first = (ROOT / "README.md").read_text(encoding="utf-8").split("\n\n")[1].replace("\n", " ")
    assert len(re.findall(r"\.(?: |$)", first)) == 3


def test_every_option_of_pack_is_on_its_page() -> None:
    help_page = _run_sh("COLUMNS=160 NO_COLOR=1 streamio pack --help")
    text = (ROOT / "docs" / "pack.md").read_text(encoding="utf-8")
    options = set(re.findall(r"--[a-z][a-z-]+", help_page)) - {"--help"}
    assert sorted(option for option in options if f"`{option}" not in text) == []
