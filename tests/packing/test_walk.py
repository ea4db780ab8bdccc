from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from streamio.packing.walk import examine, walk
from tests.samples import tree


def test_finds_files_sorted_by_their_bytes(tmp_path: Path) -> None:
    tree(tmp_path, {"b/1.jpg": b"12", "a.txt": b"", "b.txt": b"123", "b/é.jpg": b"1", "Z": b"1", "b/c/d/e.x": b"1"})
    found = walk(str(tmp_path))
    assert found.files == [("Z", 1), ("a.txt", 0), ("b.txt", 3), ("b/1.jpg", 2), ("b/c/d/e.x", 1), ("b/é.jpg", 1)]
    assert found.folders == ["b"] and not found.bad and not found.notes()


def test_hidden_files_are_counted_and_left_out(tmp_path: Path) -> None:
    names = ["a/.DS_Store", "a/._1.jpg", "a/Thumbs.db", "a/desktop.ini", ".git/config", "__MACOSX/a/._1.jpg"]
    tree(tmp_path, {**dict.fromkeys(names, b"x"), "a/1.jpg": b"x"})
    found = walk(str(tmp_path))
    assert found.files == [("a/1.jpg", 1)] and found.folders == ["a"]
    assert found.notes() == ["left out 6 hidden files or folders"]


def test_links_to_files_and_folders_are_followed(tmp_path: Path) -> None:
    tree(tmp_path, {"there/x.jpg": b"12", "there/y.jpg": b"123"})
    src = tree(tmp_path / "src", {"a.jpg": b"1"})
    (src / "link.jpg").symlink_to(tmp_path / "there/x.jpg")
    (src / "folder").symlink_to(tmp_path / "there")
    found = walk(str(src))
    assert found.files == [("a.jpg", 1), ("folder/x.jpg", 2), ("folder/y.jpg", 3), ("link.jpg", 2)]


def test_a_link_to_a_folder_above_ends(tmp_path: Path) -> None:
    src = tree(tmp_path / "src", {"a/b/1.jpg": b"1"})
    (src / "a/b/again").symlink_to(src / "a")
    (src / "self").symlink_to(src / "self")
    found = walk(str(src))
    assert found.files == [("a/b/1.jpg", 1)]
    assert found.notes() == ["left out 1 link to a folder above: a/b/again"]
    assert list(found.bad) == ["self"]


def test_broken_links_are_bad_and_name_their_target(tmp_path: Path) -> None:
    (tmp_path / "gone.jpg").symlink_to("/nowhere")
    assert walk(str(tmp_path)).bad == {"gone.jpg": "link to /nowhere, which is not there"}
    assert examine(str(tmp_path / "gone.jpg")) == (0, "link to /nowhere, which is not there")


def test_special_files_are_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, {"a.jpg": b"1"})
    os.mkfifo(tmp_path / "pipe.jpg")
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    server = socket.socket(socket.AF_UNIX)
    server.bind("sock.jpg")
    server.close()
    found = walk(str(tmp_path))
    assert found.files == [("a.jpg", 1)] and not found.bad
    assert found.notes() == ["left out 2 pipes, sockets or devices: pipe.jpg, sock.jpg"]
    assert examine(str(tmp_path / "pipe.jpg"))[1] == "is a pipe, socket or device"


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        (["*.jpg"], [], ["a/1.JPG", "a/b/2.jpg"]),  # case does not count
        ([], ["*.jpg"], ["a/3.txt", "c/4.png"]),
        (["a/*"], [], ["a/1.JPG", "a/3.txt", "a/b/2.jpg"]),  # with a slash: the path; * crosses slashes
        (["*.png", "./a/*"], ["b"], ["a/1.JPG", "a/3.txt", "c/4.png"]),  # a folder's name
        ([], ["a/", "c/"], []),
        ([], ["a/b"], ["a/1.JPG", "a/3.txt", "c/4.png"]),
        (["[0-2].*"], [], ["a/1.JPG", "a/b/2.jpg"]),
    ],
)
def test_patterns(tmp_path: Path, include: list[str], exclude: list[str], expected: list[str]) -> None:
    tree(tmp_path, {"a/1.JPG": b"", "a/b/2.jpg": b"", "a/3.txt": b"", "c/4.png": b""})
    found = walk(str(tmp_path), include, exclude)
    assert [path for path, _ in found.files] == expected
    assert "by include and exclude patterns" in found.notes()[-1]


def test_excluded_folders_are_no_classes_and_their_faults_no_matter(tmp_path: Path) -> None:
    tree(tmp_path, {"a/1.jpg": b"1", "b/1.jpg": b"1"})
    (tmp_path / "b/gone.jpg").symlink_to("/nowhere")
    found = walk(str(tmp_path), exclude=["b"])
    assert found.folders == ["a"] and not found.bad


def test_examine_tells_what_a_listed_path_is(tmp_path: Path) -> None:
    tree(tmp_path, {"a.txt": b"123", "d/x": b""})
    assert examine(str(tmp_path / "a.txt")) == (3, "")
    assert examine(str(tmp_path / "b.txt")) == (0, "file not found")
    assert examine(str(tmp_path / "d")) == (0, "is a folder")
    assert examine(str(tmp_path / "a\0b")) == (0, "no file can have this name")
    assert examine(str(tmp_path / ("x" * 300)))[1] == "file name too long"


def test_progress_counts_every_file_and_byte(tmp_path: Path) -> None:
    tree(tmp_path, {f"{i % 3}/{i}.bin": bytes(i) for i in range(30)})
    seen = [0, 0]

    def tick(samples: int, files: int, size: int) -> None:
        seen[0] += files
        seen[1] += size

    walk(str(tmp_path), tick=tick)
    assert seen == [30, sum(range(30))]
