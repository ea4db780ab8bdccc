from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamio.errors import UsageError
from streamio.packing.scan import Scan, scan
from tests.samples import tree

COMPOSED, DECOMPOSED = "\u00e9", "e\u0301"


def _labelled(src: Path, text: str, **options: Any) -> Scan:
    table = src.parent / "labels.csv"
    table.write_text(text, "utf-8")
    return scan(str(src), labels=str(table), **options)


def _values(found: Scan) -> dict[str, dict[str, Any]]:
    return {item.key: dict(item.values) for item in found.samples}


def test_pack_12_an_exact_name_wins_over_one_that_looks_the_same(tmp_path: Path) -> None:
    """llmsresearch/paperbanana#240: names composed in another way did not match their labels."""
    src = tree(tmp_path / "src", {f"{COMPOSED}.jpg": b"A", f"{DECOMPOSED}.jpg": b"B"})
    found = _labelled(src, f"path,label\n{COMPOSED}.jpg,7\n")
    assert _values(found) == {COMPOSED: {"cls": 7}, DECOMPOSED: {}}
    assert found.notes == ("1 sample has no label in labels.csv: e\\u0301.jpg",)


@pytest.mark.parametrize(("name", "label"), [(COMPOSED, DECOMPOSED), (DECOMPOSED, COMPOSED)])
def test_pack_12_a_name_composed_in_another_way_matches_with_a_note(tmp_path: Path, name: str, label: str) -> None:
    """uewepuep/FPVTracksideCore#75: files from a Mac."""
    src = tree(tmp_path / "src", {f"{name}.jpg": b"A", "b.jpg": b"B"})
    found = _labelled(src, f"path,label\n{label}.jpg,7\nb.jpg,1\n")
    assert _values(found) == {name: {"cls": 7}, "b": {"cls": 1}}
    assert "composed in another way" in found.notes[0]


def test_pack_12_two_rows_may_name_two_compositions(tmp_path: Path) -> None:
    src = tree(tmp_path / "src", {f"{COMPOSED}.jpg": b"A", f"{DECOMPOSED}.jpg": b"B"})
    found = _labelled(src, f"path,label\n{DECOMPOSED}.jpg,7\n{COMPOSED}.jpg,8\n")
    assert _values(found) == {COMPOSED: {"cls": 8}, DECOMPOSED: {"cls": 7}} and not found.notes


def test_rows_name_a_file_or_a_key_and_give_further_fields(tmp_path: Path) -> None:
    src = tree(tmp_path / "src", {"x/a.jpg": b"1", "x/a.json": b"{}", "x/b.jpg": b"1", "x/b.json": b"{}"})
    found = _labelled(src, "file,label,weight\n./x/a.jpg,cat,0.5\nx/b,dog,1\n")
    assert found.classes == ("cat", "dog") and found.layout == "stems"
    assert _values(found) == {"x/a": {"cls": 0, "weight": 0.5}, "x/b": {"cls": 1, "weight": 1.0}}
    assert found.reason == "4 files grouped by name: 2 samples, labels from labels.csv"


def test_rows_without_a_file_and_files_without_a_row_are_told(tmp_path: Path) -> None:
    src = tree(tmp_path / "src", {"a.jpg": b"1", "b.jpg": b"1", "c.jpg": b"1"})
    found = _labelled(src, "path,label\na.jpg,1\nz.jpg,2\n")
    assert found.notes == (
        "labels.csv has 1 row for files that are not packed: z.jpg",
        "2 samples have no label in labels.csv: b.jpg, c.jpg",
    )  # fmt: skip


def test_rows_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    src = tree(tmp_path / "src", {"a.jpg": b"1"})
    with pytest.raises(UsageError, match=r"labels.csv: lines 2 and 3 say different things about a"):
        _labelled(src, "path,label\na.jpg,1\na,2\n")
    assert _values(_labelled(src, "path,label\na.jpg,1\na,1\n")) == {"a": {"cls": 1}}


def test_a_table_inside_the_folder_is_no_sample(tmp_path: Path) -> None:
    src = tree(tmp_path / "src", {"a.jpg": b"1", "labels.csv": b"path,label\na.jpg,3\n"})
    assert _values(scan(str(src), labels=str(src / "labels.csv"))) == {"a": {"cls": 3}}


def test_folders_and_a_table_cannot_both_give_the_classes(tmp_path: Path) -> None:
    src = tree(tmp_path / "src", {"c/a.jpg": b"1", "c/a.cls": b"1"})
    with pytest.raises(UsageError, match="both give the classes"):
        _labelled(src, "path,label\nc/a.jpg,1\n", layout="classes")
    with pytest.raises(UsageError, match=r"c/a\.cls give the field 'cls'"):
        _labelled(src, "path,label\nc/a.jpg,1\n")


def test_given_classes_number_the_labels(tmp_path: Path) -> None:
    src = tree(tmp_path / "src", {"a.jpg": b"1", "b.jpg": b"1"})
    found = _labelled(src, "path,label\na.jpg,x\nb.jpg,y\n", classes=("y", "q", "x"))
    assert _values(found) == {"a": {"cls": 2}, "b": {"cls": 0}} and found.classes == ("y", "q", "x")
    with pytest.raises(UsageError, match="1 label not among the 2 classes of 'classes_from': y"):
        _labelled(src, "path,label\na.jpg,x\nb.jpg,y\n", classes=("x", "q"))
    with pytest.raises(UsageError, match="line 3: label 2, but 'classes_from' has 2 classes"):
        _labelled(src, "path,label\na.jpg,1\nb.jpg,2\n", classes=("x", "q"))
    with pytest.raises(UsageError, match="no labels"):
        _labelled(src, "path,weight\na.jpg,1\n", classes=("x",))
