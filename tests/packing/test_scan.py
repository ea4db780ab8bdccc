from __future__ import annotations

import os
from pathlib import Path

import pytest

from streamio.errors import UsageError
from streamio.packing.samples import split_name
from streamio.packing.scan import Scan, scan
from tests.samples import tree


@pytest.mark.parametrize(
    ("path", "key", "field"),
    [
        ("cat/a.jpg", "cat/a", "jpg"),
        ("a.JPEG", "a", "jpeg"),
        ("v1.2/a.b.c.Png", "v1.2/a.b.c", "png"),
        ("x.nii.gz", "x", "nii.gz"),
        ("x.NII.GZ", "x", "nii.gz"),
        ("my.scan.nii.zst", "my.scan", "nii.zst"),
        ("x.gz", "x", "gz"),
        ("d.ir/README", "d.ir/README", "bin"),  # no extension
        ("a.", "a.", "bin"),
        ("Dr. Who", "Dr. Who", "bin"),  # a blank is no part of an extension
        ("a.größe", "a.größe", "bin"),
        ("a.__key__", "a.__key__", "bin"),
        ("a.f_x-1", "a", "f_x-1"),
        ("a." + "e" * 17, "a." + "e" * 17, "bin"),
    ],
)
def test_names_become_keys_and_fields(path: str, key: str, field: str) -> None:
    assert split_name(path) == (key, field)


def _scan(src: Path, **options: object) -> Scan:
    return scan(str(src), **options)  # type: ignore[arg-type]


def _found(found: Scan) -> dict[str, tuple[list[str], object]]:
    return {item.key: ([name for name, _, _ in item.files], item.value("cls")) for item in found.samples}


def test_class_folders_are_read_as_imagefolder_reads_them(tmp_path: Path) -> None:
    tree(tmp_path, {"dog/2.jpg": b"1", "cat/b/1.png": b"1", "Zebra/3.jpg": b"1", "dog/.x": b""})
    found = _scan(tmp_path)
    assert found.classes == ("Zebra", "cat", "dog") and found.layout == "classes"
    assert _found(found) == {"Zebra/3": (["jpg"], 0), "cat/b/1": (["png"], 1), "dog/2": (["jpg"], 2)}
    assert found.reason == "3 class folders with 3 files: one sample per file, cls = folder"
    assert found.labelled


def test_the_classes_are_those_of_torchvision(tmp_path: Path) -> None:
    tree(tmp_path, {f"{name}/x.jpg": b"1" for name in ("b", "B", "a1", "a10", "a2", "é", "_", "Ω")})
    names = sorted(p.name for p in tmp_path.iterdir())  # what ImageFolder.find_classes does
    assert _scan(tmp_path).classes == tuple(names)


def test_files_of_one_name_in_a_class_folder_are_one_sample(tmp_path: Path) -> None:
    tree(tmp_path, {"a/1.jpg": b"1", "a/1.json": b"{}", "b/1.jpg": b"1"})
    found = _scan(tmp_path)
    assert _found(found) == {"a/1": (["jpg", "json"], 0), "b/1": (["jpg"], 1)}
    assert found.reason == "2 class folders with 3 files: 2 samples by name, cls = folder"
    assert found.notes == ("samples have different fields: jpg + json 1, jpg 1",)


def test_pictures_of_several_kinds_are_told(tmp_path: Path) -> None:
    tree(tmp_path, {"a/1.jpg": b"1", "a/2.png": b"1", "b/1.jpg": b"1"})
    (note,) = _scan(tmp_path).notes
    assert note == "pictures are of several kinds, which are read as one field 'image': jpg 2, png 1"


def test_two_pictures_under_one_name_are_told(tmp_path: Path) -> None:
    tree(tmp_path, {"a/1.jpg": b"1", "a/1.png": b"1", "b/1.jpg": b"1", "b/1.png": b"1"})
    assert _scan(tmp_path).notes == ("2 samples have more than one picture under the same name: a/1, b/1",)


def test_pack_15_an_empty_class_folder_keeps_its_number(tmp_path: Path) -> None:
    """huggingface/pytorch-image-models#957: it shifted all later class numbers."""
    tree(tmp_path, {"a/1.jpg": b"1", "c/1.jpg": b"1"})
    (tmp_path / "b").mkdir()
    found = _scan(tmp_path)
    assert _found(found)["c/1"] == (["jpg"], 2) and found.classes == ("a", "b", "c")
    assert "1 class folder holds no sample: b" in found.notes[0]


def test_pack_15_class_numbers_come_from_another_set(tmp_path: Path) -> None:
    tree(tmp_path, {"a/1.jpg": b"1", "c/1.jpg": b"1"})
    given = ("c", "b", "a")
    found = _scan(tmp_path, classes=given)
    assert found.classes == given and _found(found) == {"a/1": (["jpg"], 2), "c/1": (["jpg"], 0)}
    with pytest.raises(UsageError, match="1 folder not among the 2 classes of 'classes_from': c"):
        _scan(tmp_path, classes=("a", "b"))


def test_stems_group_files_by_their_path(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {"a.jpg": b"1", "a.json": b"{}", "a.txt": b"", "x/a.JPG": b"1", "x/b.nii.gz": b"1", "x/b.cls": b"3"},
    )
    found = _scan(tmp_path)
    assert found.layout == "stems" and found.classes is None and not found.labelled
    assert _found(found) == {
        "a": (["jpg", "json", "txt"], None), "x/a": (["jpg"], None), "x/b": (["nii.gz", "cls"], None),
    }  # fmt: skip
    assert found.reason == "6 files grouped by name: 3 samples (there are files at the top)"


@pytest.mark.parametrize(
    ("names", "layout", "why"),
    [
        (["a/1.jpg", "b/1.jpg"], "classes", ""),
        (["a/1.txt", "b/1.txt"], "classes", ""),  # known, as in a set of reviews
        (["a/1.npy"], "classes", ""),
        (["a/1.jpg", "a/2.jpg", "a/notes.xyz"], "classes", ""),  # most are known
        (["a/1.xyz", "b/1.xyz"], "stems", "most files are of unknown kinds"),
        (["a/1.jpg", "top.jpg"], "stems", "files at the top"),
        (["a/1.jpg", "b/1.jpg", "README.md", "labels.csv"], "classes", ""),  # beside the classes, as in many sets
        (["a/1.jpg", "1.txt", "2.txt"], "stems", "files at the top"),
        (["a/1.jpg", "a/1.cls"], "stems", ".cls files"),
        (["images/1.jpg", "labels/1.txt"], "stems", "parts, not classes"),
        (["1.jpg"], "stems", ""),
    ],
)
def test_the_layout_is_found_out_and_explained(tmp_path: Path, names: list[str], layout: str, why: str) -> None:
    tree(tmp_path, dict.fromkeys(names, b"1"))
    found = _scan(tmp_path)
    assert found.layout == layout and why in found.reason


def test_folders_of_splits_are_not_taken_for_classes(tmp_path: Path) -> None:
    tree(tmp_path, {"train/a/1.jpg": b"1", "val/a/1.jpg": b"1"})
    with pytest.raises(UsageError, match=r"splits train, val.*SRC/train"):
        _scan(tmp_path)
    assert _scan(tmp_path, layout="classes").classes == ("train", "val")


def test_a_single_class_is_told(tmp_path: Path) -> None:
    tree(tmp_path, {"photos/1.jpg": b"1"})
    assert _scan(tmp_path).notes == ("there is one class only, photos",)


def test_files_outside_the_class_folders_are_told(tmp_path: Path) -> None:
    tree(tmp_path, {"a/1.jpg": b"1", "b/1.jpg": b"1", "readme.txt": b"1"})
    found = _scan(tmp_path, layout="classes")
    assert found.notes[0] == "left out 1 file outside the class folders: readme.txt" and len(found.samples) == 2


def test_a_class_given_twice_is_refused(tmp_path: Path) -> None:
    tree(tmp_path, {"a/1.jpg": b"1", "a/1.cls": b"1"})
    with pytest.raises(UsageError, match=r"a/1\.cls.*stems"):
        _scan(tmp_path, layout="classes")


def test_names_that_differ_in_the_case_of_the_extension_are_bad(tmp_path: Path) -> None:
    tree(tmp_path, {"a.jpg": b"1", "a.JPG": b"2", "b.jpg": b"1"})
    found = _scan(tmp_path)
    assert list(_found(found)) == ["b"]
    assert [(bad.path, bad.reason) for bad in found.bad] == [("a.jpg", "gives the same key and field as a.JPG")]


def test_empty_pictures_are_bad_and_empty_texts_are_not(tmp_path: Path) -> None:
    tree(tmp_path, {"a.jpg": b"", "a.txt": b"1", "b.jpg": b"1", "b.txt": b""})
    found = _scan(tmp_path)
    assert list(_found(found)) == ["b"]  # no half samples
    assert [(bad.path, bad.reason) for bad in found.bad] == [("a.jpg", "zero bytes")]


def test_layouts_that_cannot_be_are_refused(tmp_path: Path) -> None:
    tree(tmp_path, {"a/1.jpg": b"1", "l.csv": b"path\na/1.jpg\n"})
    with pytest.raises(UsageError, match="a folder, which layout 'list'"):
        _scan(tmp_path, layout="list")
    with pytest.raises(UsageError, match="a list of files, which layout 'stems'"):
        _scan(tmp_path / "l.csv", layout="stems")
    with pytest.raises(UsageError, match="classes_from"):
        _scan(tmp_path, layout="stems", classes=("a",))


def test_what_the_walk_left_out_is_told(tmp_path: Path) -> None:
    tree(tmp_path, {"a/1.jpg": b"1", "a/2.txt": b"1", "a/.x": b"1", "b/1.jpg": b"1"})
    notes = _scan(tmp_path, exclude=["*.txt"]).notes
    assert notes == (
        "left out 1 hidden file or folder", "left out 1 file or folder by include and exclude patterns",
    )  # fmt: skip


def test_names_that_look_like_parts_of_a_sample_are_told(tmp_path: Path) -> None:
    tree(tmp_path, {"1.jpg": b"1", "1.seg.png": b"1", "2.jpg": b"1", "a.b/1.jpg": b"1", "a/1.jpg": b"1"})
    (note,) = (note for note in _scan(tmp_path).notes if "last dot" in note)
    assert note == "1 sample looks like a part of others, since names are cut at the last dot: 1.seg.png"


def test_class_names_of_any_bytes_have_their_own_numbers(tmp_path: Path) -> None:
    names = ["\U0001f642", os.fsdecode(b"\xff"), "é"]  # sorted by characters and by bytes they differ
    tree(tmp_path, {f"{name}/1.jpg": b"1" for name in names})
    found = _scan(tmp_path)
    assert found.classes is not None
    assert {item.key[:-2]: found.classes[item.value("cls")] for item in found.samples} == {n: n for n in names}


def test_one_folder_around_the_classes_is_told(tmp_path: Path) -> None:
    tree(tmp_path, {"photos/a/1.jpg": b"1", "photos/b/1.jpg": b"1"})
    assert f"pack {tmp_path / 'photos'}" in _scan(tmp_path).notes[0]
    assert _scan(tmp_path / "photos").classes == ("a", "b")
