"""The source that docs/sources.md shows, over a real server, keeps the contract."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamio import SampleError, SourceDataset, StreamLoader
from tests.servers.http import serve
from tests.sources.conformance import Given, SourceContract

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sources.md"
SIZES = (20, 14, 0, 1, 25)


def shown() -> list[str]:
    """The code under "A source of your own"."""
    section = PAGE.read_text(encoding="utf-8").split("## A source of your own")[1]
    return re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def defined(code: str, **names: Any) -> dict[str, Any]:
    """What the code of the page defines, so that workers find it: they unpickle by the name of this module."""
    names["__name__"] = __name__
    exec(compile(code, PAGE.name, "exec"), names)
    return names


CsvFiles = defined(shown()[0])["CsvFiles"]


@pytest.fixture
def urls(tmp_path: Path) -> Iterator[list[str]]:
    """Files with an id and a text, 60 rows in all."""
    folder = tmp_path / "served"
    folder.mkdir()
    number = 0
    for i, size in enumerate(SIZES):
        lines = [f'{n},"text {n}, with a comma"\n' for n in range(number, number + size)]
        (folder / f"{i}.csv").write_text("id,text\n" + "".join(lines))
        number += size
    with serve(folder) as server:
        yield [f"{server.url}/{i}.csv" for i in range(len(SIZES))]


class TestCsvFiles(SourceContract):
    @pytest.fixture
    def given(self, urls: list[str]) -> Given:
        return Given(CsvFiles(urls, id=int, text=str), "id", list(range(sum(SIZES))))


def test_the_page_shows_how_to_read_it(urls: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    defined(shown()[1], CsvFiles=CsvFiles, urls=urls)
    assert "['text 0, with a comma', 'text 1, with a comma']" in capsys.readouterr().out


def test_a_value_that_does_not_fit_is_a_bad_row_with_its_place(urls: list[str], tmp_path: Path) -> None:
    (tmp_path / "served" / "1.csv").write_text("id,text\n1,a\ntwo,b\n3,c\n")
    source = CsvFiles(urls[1:2], id=int, text=str)
    with pytest.raises(SampleError, match=r"1\.csv.*2.*id.*'two'"):
        list(StreamLoader(SourceDataset(source, 4), num_workers=0))
    (batch,) = StreamLoader(SourceDataset(source, 4, on_error="skip"), num_workers=0)
    assert batch["id"].tolist() == [1, 3]


def test_it_takes_about_30_lines() -> None:
    code = [line for line in shown()[0].splitlines() if line.strip() and not line.startswith(("import", "from"))]
    assert len(code) <= 35
