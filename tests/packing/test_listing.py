from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from streamio.errors import UsageError
from streamio.packing.scan import Scan, scan
from tests.samples import tree


@pytest.fixture
def src(tmp_path: Path) -> Path:
    return tree(tmp_path, {"p/a.jpg": b"1", "p/b.JPG": b"12", "c.png": b"123"})


def _csv(src: Path, text: str | bytes, name: str = "list.csv") -> Scan:
    (src / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return scan(str(src / name))


def _jsonl(src: Path, *rows: dict[str, Any]) -> Scan:
    return _csv(src, "".join(json.dumps(row) + "\n" for row in rows), "list.jsonl")


def _values(found: Scan) -> dict[str, dict[str, Any]]:
    return {item.key: dict(item.values) for item in found.samples}


def test_text_labels_become_sorted_classes(src: Path) -> None:
    found = _csv(src, "path,label\np/b.JPG,dog\nc.png,cat\np/a.jpg,dog\n")
    assert found.classes == ("cat", "dog") and found.labelled
    assert _values(found) == {"p/b": {"cls": 1}, "c": {"cls": 0}, "p/a": {"cls": 1}}  # in the order of the list
    assert found.samples[0].files == (("jpg", "p/b.JPG", 2),)
    assert found.reason == "3 rows in list.csv: paths in column 'path', labels in 'label' (2 classes)"


def test_whole_numbers_stay_as_labels(src: Path) -> None:
    found = _csv(src, "path,cls\np/b.JPG,10\nc.png,-1\n")
    assert found.classes is None and _values(found) == {"p/b": {"cls": 10}, "c": {"cls": -1}}
    assert "labels in 'cls' (numbers)" in found.reason


def test_further_columns_become_fields(src: Path) -> None:
    text = 'path,label,count,weight,caption,zip\np/a.jpg,1,3,0.5,"a, cat",007\nc.png,2,,2,,123\n'
    assert _values(_csv(src, text)) == {
        "p/a": {"cls": 1, "count": 3, "weight": 0.5, "caption": "a, cat", "zip": "007"},
        "c": {"cls": 2, "weight": 2.0, "caption": "", "zip": "123"},
    }


def test_jsonl_holds_any_json(src: Path) -> None:
    found = _jsonl(
        src,
        {"file_name": "p/a.jpg", "target": "x", "box": [1, 2], "w": 1, "ok": True},
        {"file_name": "c.png", "target": None, "box": {"a": 1}, "w": 0.5},
    )
    assert _values(found) == {
        "p/a": {"cls": 0, "box": [1, 2], "w": 1.0, "ok": True}, "c": {"box": {"a": 1}, "w": 0.5},
    }  # fmt: skip
    assert found.notes[0] == "1 sample has no label: c.png"


@pytest.mark.parametrize("value", [0.5, [1, 0, 1], True])
def test_labels_that_are_no_classes_stay_a_field_of_their_own(src: Path, value: object) -> None:
    found = _jsonl(src, {"path": "p/a.jpg", "label": value})
    assert _values(found) == {"p/a": {"label": value}} and not found.labelled


@pytest.mark.parametrize("column", ["path", "FILE", "filename", "file_name", "Image"])
def test_the_path_column_is_known_by_its_name(src: Path, column: str) -> None:
    assert list(_values(_csv(src, f"other,{column}\nx,p/a.jpg\n"))) == ["p/a"]


def test_or_by_the_files_it_names(src: Path) -> None:
    found = _csv(src, "id,photo\n1,p/a.jpg\n")
    assert list(_values(found)) == ["p/a"] and "column 'photo'" in found.reason
    with pytest.raises(UsageError, match=r"no column holds paths.*id, photo"):
        _csv(src, "id,photo\n1,nowhere.jpg\n")


def test_paths_may_be_absolute_or_lead_up_but_keys_do_not(src: Path, tmp_path: Path) -> None:
    lists = tmp_path / "lists"
    lists.mkdir()
    found = _csv(lists, f"path\n../p/a.jpg\n./../c.png\n{src}/p/b.JPG\n")
    keys = [item.key for item in found.samples]
    assert keys == ["p/a", "c", f"{str(src)[1:]}/p/b"]
    assert all(os.path.exists(os.path.join(found.root, item.files[0][1])) for item in found.samples)


def test_a_key_that_comes_twice_is_refused_with_both_lines(src: Path) -> None:
    with pytest.raises(UsageError, match=r"lines 2 and 4 .* 'p/a': p/a.jpg and ./p/a.jpg"):
        _csv(src, "path\np/a.jpg\nc.png\n./p/a.jpg\n")


def test_missing_files_are_all_listed_as_bad(src: Path) -> None:
    found = _csv(src, "path\np/a.jpg\ngone.jpg\np\n")
    assert [(bad.path, bad.reason) for bad in found.bad] == [("gone.jpg", "file not found"), ("p", "is a folder")]
    assert [item.key for item in found.samples] == ["p/a"]


def test_patterns_choose_rows(src: Path) -> None:
    (src / "list.csv").write_text("path\np/a.jpg\np/b.JPG\nc.png\n")
    found = scan(str(src / "list.csv"), include=["*.jpg"], exclude=["p/a*"])
    assert [item.key for item in found.samples] == ["p/b"]
    assert found.notes == ("left out 2 rows by include and exclude patterns",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no rows"),
        ("path,label\n", "no rows"),
        ("path,label\np/a.jpg\n", "line 2 has 1 values, the first line 2 columns"),
        ("p/a.jpg,3\nc.png,4\n", "the first line holds values.*path,label"),
        ("path,path\na,b\n", "'path' comes twice"),
        ("path,x/y\np/a.jpg,1\n", "'x/y' cannot be a field"),
        ("path,\np/a.jpg,1\n", "column 2 has no name"),
        ("path,__x\np/a.jpg,1\n", "two leading underscores"),
        ("path,jpg\np/a.jpg,1\n", "line 2: both a column and the file p/a.jpg give the field 'jpg'"),
        ("path,label,cls\np/a.jpg,1,2\n", "'label' and 'cls' both give"),
        ("path\n\"a\n", "unexpected end of data"),
        ('path,x\np/a.jpg,"1"2\n', "line 2"),
    ],
)  # fmt: skip
def test_bad_tables_are_refused_with_the_place(src: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"(?s)list.csv.*{message}"):
        _csv(src, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"path": "p/a.jpg"}\n{"path"\n', "line 2 is no JSON"),
        ('["p/a.jpg"]\n', "line 1 is no JSON object but a list"),
        ('{"path": 3}\n', "line 1: 3 in column 'path' is no path"),
        ('{"path": "\\ud800.jpg"}\n', "is no path"),
        (
            '{"path": "p/a.jpg", "x": 1}\n\n{"path": "c.png", "x": "y"}\n',
            "line 3: column 'x' holds str, before it int",
        ),
        ('{"path": "p/a.jpg", "label": 1}\n{"path": "c.png", "label": "y"}\n', "line 2: 'y' .* mixes"),
    ],
)
def test_bad_jsonl_is_refused_with_the_line(src: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _csv(src, text, "list.jsonl")


def test_a_byte_order_mark_and_windows_line_ends_are_fine(src: Path) -> None:
    assert _values(_csv(src, b"\xef\xbb\xbfpath,label\r\np/a.jpg,1\r\n")) == {"p/a": {"cls": 1}}


@pytest.mark.parametrize("mark", [";", "\t"])
def test_values_may_be_separated_as_spreadsheets_do(src: Path, mark: str) -> None:
    found = _csv(src, f'path{mark}label{mark}x\np/a.jpg{mark}cat{mark}"1,5{mark}2"\n')
    assert _values(found) == {"p/a": {"cls": 0, "x": f"1,5{mark}2"}}


def test_blanks_around_a_label_make_no_other_class(src: Path) -> None:
    found = _csv(src, "path, label\np/a.jpg, cat\np/b.JPG,cat \nc.png,dog\n")
    assert found.classes == ("cat", "dog")


def test_a_column_that_names_files_is_told(src: Path) -> None:
    found = _csv(src, "path,mask\np/a.jpg,c.png\n")
    assert _values(found)["p/a"] == {"mask": "c.png"}
    assert "column 'mask' names files, as c.png" in " ".join(found.notes)


def test_utf16_is_named(src: Path) -> None:
    with pytest.raises(UsageError, match="no UTF-8 text"):
        _csv(src, "path,label\np/a.jpg,cat\n".encode("utf-16"))


def test_lines_are_counted_over_quoted_line_ends(src: Path) -> None:
    with pytest.raises(UsageError, match="line 4 has 1 values"):
        _csv(src, 'path,x\np/a.jpg,"one\ntwo"\nc.png\n')


def test_pack_11_lists_may_name_files_that_are_not_utf8(tmp_path: Path) -> None:
    """mxmlnkn/ratarmount#32: UnicodeEncodeError on such names."""
    Path(os.fsdecode(bytes(tmp_path) + b"/caf\xe9.jpg")).write_bytes(b"1")
    found = _csv(tmp_path, b"path,label\ncaf\xe9.jpg,1\n")
    assert os.fsencode(found.samples[0].key) == b"caf\xe9" and not found.bad
