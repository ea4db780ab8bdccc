"""Which files are read, and what is refused before anything is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamio.errors import StorageError, UsageError
from streamio.sources.logs.listing import given_patterns, list_files, relatives
from tests.sources.logs.writing import Run, append, write


def names(*patterns: object, may_lack: bool = False) -> list[str]:
    return [os.path.basename(one.path) for one in list_files(given_patterns(list(patterns)), may_lack=may_lack)]


def test_a_file_is_listed_once_under_its_own_name(tmp_path: Path) -> None:
    for name in ("a.log", "b.log.1", "b.log"):
        write(tmp_path / name, range(3))
    (tmp_path / "current.log").symlink_to(tmp_path / "a.log")
    os.link(tmp_path / "b.log", tmp_path / "c.log")
    (tmp_path / "folder.log").mkdir()
    found = names(tmp_path / "*.log*", tmp_path / "b.log", str(tmp_path / "**" / "a.log"))
    assert found == ["a.log", "b.log.1", "b.log"]
    assert [os.path.basename(one.path) for one in relatives(str(tmp_path / "b.log.7"))] == ["b.log.1", "b.log"]


def test_a_name_with_brackets_is_a_name_if_there_is_such_a_file(tmp_path: Path) -> None:
    write(tmp_path / "a[1].log", range(3))
    write(tmp_path / "a1.log", range(3))
    assert names(tmp_path / "a[1].log") == ["a[1].log"]
    (tmp_path / "a[1].log").unlink()
    assert names(tmp_path / "a[1].log") == ["a1.log"]


def test_what_cannot_be_read_is_refused_when_the_data_set_is_made(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", range(3))
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    for paths, kind, match in (
        (tmp_path, UsageError, r"is a folder\. Name its files, such as '.*\*\.jsonl'"),
        (tmp_path / "no.jsonl", StorageError, r"there is no file .*no\.jsonl\. Correct the path; with follow=True"),
        (tmp_path / "*.log", StorageError, r"no file matches .*\*\.log"),
        ([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], StorageError, r"there is no file .*b\.jsonl"),
        (tmp_path / "pipe.jsonl", UsageError, "is neither a file nor a link to one"),
        (tmp_path / "dangling", StorageError, "there is no file"),
        (tmp_path / "empty.jsonl", UsageError, r"the files are empty\. Declare them: types="),
        ("https://user:secret@host/a.jsonl", UsageError, r"https://\*\*\*@host/a\.jsonl: logs are read from disks"),
        ([], UsageError, "names no file"),
        (7, UsageError, "7 names no file"),
        ("", UsageError, "'' names no file"),
    ):
        with pytest.raises(kind, match=match):
            Run(paths)
    assert Run(tmp_path / "*.jsonl").rest() == [0, 1, 2], "a glob passes over what is no file"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"follow": "yes"}, "follow='yes'"),
        ({"follow": True, "poll": 0}, "poll=0"),
        ({"follow": True, "linger": -1}, "linger=-1"),
        ({"follow": True, "split": 100}, "split=100 with follow=True"),
        ({"max_line": "big"}, "'big' is no size"),
        ({"split": 0}, "0 is no size"),
        ({"parse": "yaml"}, "parse='yaml'"),
    ],
)
def test_options_that_cannot_work_are_refused(tmp_path: Path, options: dict[str, object], match: str) -> None:
    write(tmp_path / "a.jsonl", range(3))
    with pytest.raises(UsageError, match=match):
        Run(tmp_path / "a.jsonl", **options)


def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    write(tmp_path / "a.jsonl", range(3))
    (tmp_path / "a.jsonl").chmod(0)
    code = (
        "import os, sys, streamio\n"
        "from streamio.sources.logs.opened import LogFile\n"
        "if os.geteuid() == 0: os.setgid(65534), os.setuid(65534)\n"  # root may read anything
        "try: LogFile(sys.argv[1])\n"
        "except streamio.StorageError as error: print(error)\n"
    )
    for parent in tmp_path.parents:  # pytest keeps them to itself
        if parent.stat().st_uid == os.getuid() and str(parent).startswith("/tmp/pytest-of"):
            parent.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.jsonl")], capture_output=True, text=True, check=False
    )
    assert "a.jsonl: cannot be read: Permission denied" in done.stdout, done.stderr


def test_files_may_come_later_when_they_are_followed(tmp_path: Path) -> None:
    run = Run(
        [tmp_path / "later.jsonl", tmp_path / "*.log"], 1, follow=True, types={"i": "int64"}, idle_timeout=0.2
    )
    assert run.rest() == []
    write(tmp_path / "later.jsonl", range(3))
    write(tmp_path / "x.log", range(10, 12))
    assert sorted(run.rest()) == [0, 1, 2, 10, 11]
    append(tmp_path / "x.log", [12])
    assert run.rest() == [12]


def test_a_name_that_is_no_utf8_is_read_and_shown(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.jsonl")
    write(tmp_path / name, range(5))
    for follow in (False, True):
        run = Run(tmp_path / "*.jsonl", 2, follow=follow)
        assert run.take(2) == [0, 1]
        assert Run(tmp_path / "*.jsonl", 2, follow=follow, state=run.state()).rest() == [2, 3, 4]
    (cursor,) = run.state()["cursors"]
    assert "caf\\xe9.jsonl" in cursor
