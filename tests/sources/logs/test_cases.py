"""Faults that people met with other readers of logs; see the ids."""

from __future__ import annotations

import gzip
import json
import logging
import os
import resource
from pathlib import Path

import pytest

from streamio import LogDataset, StreamLoader
from streamio.errors import SampleError
from tests.sources.logs.writing import Run, lines, same_inode, write


@pytest.mark.parametrize("paths", ["app.log", "app.log*"])
def test_log_04_rename_rotation_loses_neither_the_rest_of_the_old_file_nor_the_new_one(
    tmp_path: Path, paths: str
) -> None:
    log, pattern = tmp_path / "app.log", str(tmp_path / paths)
    write(log, range(10))
    before = Run(pattern, 5, follow=True)
    got = before.take(5)
    with log.open("ab", buffering=0) as writer:
        log.rename(tmp_path / "app.log.1")
        write(log, range(10, 20))
        writer.write(lines(range(20, 25)))
        after = Run(pattern, 5, follow=True, state=before.state())
        got += after.take(20)
        assert got == [*range(10), *range(20, 25), *range(10, 20)], "the old file comes before the new one"
        writer.write(lines(range(25, 30)))
        assert after.take(5) == list(range(25, 30)), "the old one is still watched"
    assert after.rest() == []


@pytest.mark.parametrize("follow", [True, False])
def test_log_06_a_new_file_with_the_inode_of_a_deleted_one_is_read_from_its_start(
    tmp_path: Path, follow: bool
) -> None:
    log = tmp_path / "app.log"
    write(log, range(10))
    run = Run(str(log), 5, follow=follow)
    run.take(10)
    run.rest()
    state, inode = run.state(), log.stat().st_ino
    del run
    log.unlink()
    if not same_inode(log, lines(range(100, 130)), inode):
        write(log, range(100, 130))  # this file system gives each file another one
    assert Run(str(log), 5, follow=follow, state=state).rest() == list(range(100, 130))


def rotated(folder: Path) -> list[int]:
    """Four files of one log; the numbers in the order in which they were written."""
    for name, begin in (("app.log.10.gz", 0), ("app.log.2.gz", 100)):
        (folder / name).write_bytes(gzip.compress(lines(range(begin, begin + 100))))
    write(folder / "app.log.1", range(200, 300))
    write(folder / "app.log", range(300, 400))
    return list(range(400))


def rotate(folder: Path) -> None:
    """As logrotate does: all move up by one, and what has become number 2 is compressed."""
    (folder / "app.log.10.gz").rename(folder / "app.log.11.gz")
    (folder / "app.log.2.gz").rename(folder / "app.log.3.gz")
    (folder / "app.log.1").rename(folder / "app.log.2")
    (folder / "app.log.2.gz").write_bytes(gzip.compress((folder / "app.log.2").read_bytes()))
    (folder / "app.log.2").unlink()
    (folder / "app.log").rename(folder / "app.log.1")
    write(folder / "app.log", range(400, 450))


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("taken", [30, 150, 250, 350])
def test_log_07_a_file_that_was_compressed_meanwhile_goes_on_where_it_was(
    tmp_path: Path, follow: bool, taken: int
) -> None:
    order = rotated(tmp_path)
    pattern = str(tmp_path / "app.log*")
    before = Run(pattern, 10, follow=follow)
    assert before.take(taken) == order[:taken], "10 before 2 before 1 before the live file"
    state = before.state()
    rotate(tmp_path)
    rest = Run(pattern, 10, follow=follow, state=state).rest()
    assert rest == order[taken:] + (list(range(400, 450)) if follow else [])


def test_log_07_live_readers_notice_the_compressed_file_too(tmp_path: Path) -> None:
    order = rotated(tmp_path)
    run = Run(str(tmp_path / "app.log*"), 10, follow=True)
    run.take(250)
    rotate(tmp_path)
    run.rest()
    assert run.got == [*order, *range(400, 450)]


def test_log_09_a_hole_of_zeros_is_passed_over_in_bounded_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "app.log"
    with log.open("wb") as file:
        file.truncate(200 << 20)
        file.seek(0, os.SEEK_END)
        file.write(b'{"i":1}\n{"i":2}\n')
    for follow in (False, True):
        options = {"types": {"i": "int64"}}
        Run(str(log), 4, follow=follow, **options).rest()  # whatever is loaded once
        caplog.clear()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with caplog.at_level(logging.WARNING):
            assert Run(str(log), 4, follow=follow, **options).rest() == [1, 2]
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000
        assert "209.7 MB of NUL at byte 0" in caplog.text


def test_log_10_a_field_that_is_null_first_and_fields_that_come_later(tmp_path: Path) -> None:
    log = tmp_path / "a.jsonl"
    log.write_text('{"a":null}\n' * 5000 + '{"a":"x"}\n{"b":1}\n{"a":"y","b":2,"c":[1]}\n')
    declared = LogDataset(str(log), 64, types={"a": "str"})
    for dataset in (LogDataset(str(log), 64, fields=("a",)), declared):
        values = []
        for batch in StreamLoader(dataset, num_workers=0):
            values += batch["a"] if isinstance(batch, dict) else batch[0]
        assert values == [None] * 5000 + ["x", None, "y"]


BROKEN = (
    b'{"i":1}\n{"i":2}\n{"i":3{"i":4}\n{"i":4}\n{"i":5,"s":"\xff"}\n{"i":6,"s":"'
    + b"x" * 30_000_000
    + b'"}\n\n{"i":8}\n'
)


@pytest.mark.parametrize("follow", [False, True])
def test_log_11_a_broken_line_takes_no_other_with_it_and_is_told_with_its_place(
    tmp_path: Path, follow: bool
) -> None:
    log, report = tmp_path / "a.jsonl", tmp_path / "report"
    log.write_bytes(BROKEN)
    options = {"follow": follow, "types": {"i": "int64"}}
    skipping = Run(str(log), 1, on_error="skip", error_report=str(report), **options)
    assert skipping.rest() == [1, 2, 4, 6, 8]
    told = [json.loads(line) for line in report.read_text().splitlines()]
    assert [(one["line"], one["byte"]) for one in told] == [(3, 16), (5, 38)]
    assert all(one["shard"].startswith(str(log)) for one in told)

    run = Run(str(log), 1, **options)
    with pytest.raises(SampleError, match=r"a\.jsonl, line 3, byte 16: no JSON"):
        run.rest()
