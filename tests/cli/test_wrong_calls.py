"""Wrong calls end with one clear line and exit code 2, never with a traceback, and touch nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import streamio
from streamio.cli import app
from tests.cli.conftest import Ran, Run, ordinary_user
from tests.samples import jpg, listing, tree


def assert_one_line(ran: Ran, code: int, *words: str) -> None:
    assert ran.code == code, ran.text
    assert ran.out == ""
    assert "Traceback" not in ran.err
    assert ran.err.count("\n") == 1, ran.err
    for word in words:
        assert word in ran.err


def test_missing_source(run: Run, tmp_path: Path) -> None:
    assert_one_line(run("pack", tmp_path / "gone", tmp_path / "out"), 2, "streamio pack: ", "gone")


def test_empty_folder(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert_one_line(run("pack", tmp_path / "empty", tmp_path / "out"), 2, "streamio pack: ", "empty")
    assert not (tmp_path / "out").exists()


def test_cli_01_an_output_that_holds_something_is_left_alone(run: Run, photos: Path, tmp_path: Path) -> None:
    """webdataset/webdataset#30, mosaicml/streaming#646, rom1504/img2dataset#6: the first run was written over."""
    out = tmp_path / "out"
    out.mkdir()  # empty is fine
    assert run("pack", photos, out, "--workers", 1).code == 0
    before = listing(out)
    assert_one_line(run("pack", photos, out), 2, "overwrite", "out")
    assert listing(out) == before

    other = tree(tmp_path / "other", {"thesis.txt": b"years of work"})
    assert_one_line(run("pack", photos, other), 2, "thesis.txt", "other")
    assert sorted(listing(other)) == ["thesis.txt"]


def test_cli_01_overwrite_leaves_no_old_shard_behind(run: Run, photos: Path, tmp_path: Path) -> None:
    out, fresh = tmp_path / "out", tmp_path / "fresh"
    assert run("pack", photos, out, "--shard-samples", 1, "--workers", 1).code == 0
    assert run("pack", photos, out, "--overwrite", "--workers", 1).code == 0
    assert run("pack", photos, fresh, "--workers", 1).code == 0
    assert sorted(listing(out)) == sorted(listing(fresh))


def test_cli_04_an_output_inside_the_source_is_refused(
    run: Run, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """composefs/tar-rs#350, ouch-org/ouch#287: the output was packed into itself until the disk was full."""
    monkeypatch.chdir(photos)
    before = listing(photos)
    assert_one_line(run("pack", ".", "./out"), 2, "out")
    assert_one_line(run("pack", ".", "./out", "--overwrite"), 2, "out")
    assert_one_line(run("pack", ".", "."), 2)
    assert listing(photos) == before
    assert not (photos / "out").exists()


def test_cli_04_an_output_inside_the_source_is_found_through_a_link(run: Run, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(photos / "cat")
    assert_one_line(run("pack", photos, tmp_path / "link" / "out"), 2)


def test_unknown_format(run: Run, photos: Path, tmp_path: Path) -> None:
    assert_one_line(run("pack", photos, tmp_path / "out", "--format", "zip"), 2, "zip", "tar", "lmdb", "hdf5")


def test_no_permission_to_write(run: Run, open_folder: Path) -> None:
    photos = tree(open_folder / "photos", {"a/1.jpg": jpg()})
    closed = open_folder / "closed"
    closed.mkdir(mode=0o555)
    run("pack", photos, open_folder / "warm", "--workers", 1)  # loads all modules, as long as that is allowed
    with ordinary_user():
        ran = run("pack", photos, closed / "out", "--workers", 1)
    assert_one_line(ran, 2, "permission", "out")


def test_no_permission_to_read_the_source(run: Run, open_folder: Path) -> None:
    photos = tree(open_folder / "photos", {"a/1.jpg": jpg()})
    run("pack", photos, open_folder / "warm", "--workers", 1)
    photos.chmod(0o000)
    with ordinary_user():
        ran = run("pack", photos, open_folder / "out", "--workers", 1)
    photos.chmod(0o755)
    assert ran.code in (1, 2)
    assert "Traceback" not in ran.err
    assert "permission" in ran.err
    assert not (open_folder / "out").exists()


@pytest.mark.parametrize("size", ["12 parsecs", "0", "-5MB", "MB", "1e9"])
def test_bad_size(run: Run, photos: Path, tmp_path: Path, size: str) -> None:
    assert_one_line(run("pack", photos, tmp_path / "out", "--shard-size", size), 2, size)


def test_both_sizes(run: Run, photos: Path, tmp_path: Path) -> None:
    ran = run("pack", photos, tmp_path / "out", "--shard-size", "1MB", "--shard-samples", 10)
    assert_one_line(ran, 2, "shard", "size", "samples")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--shardsize", "1MB"],
        ["--seed", "one"],
        ["--val", "half"],
        ["--val", "1.5"],
        ["--shard-samples", "0"],
        ["--workers", "-1"],
        ["--layout", "spiral"],
        ["--on-error", "ignore"],
        ["--store", "zip"],
        ["--quality", "101"],
        ["--resize-short", "0"],
        ["--labels", "gone.csv"],
        ["--classes-from", "gone"],
        ["a third argument"],
    ],
    ids=" ".join,
)
def test_bad_options(run: Run, photos: Path, tmp_path: Path, arguments: list[str]) -> None:
    ran = run("pack", photos, tmp_path / "out", *arguments)
    assert_one_line(ran, 2, "streamio pack: ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [(["pack"], "streamio pack: "), (["pack", "src"], "streamio pack: "), (["pakc"], "streamio: "),
     (["--no-such"], "streamio: "), (["verify"], "streamio verify: ")],
)  # fmt: skip
def test_calls_that_do_not_parse_point_to_help(run: Run, arguments: list[str], name: str) -> None:
    assert_one_line(run(*arguments), 2, name, f"See '{name[:-2]} --help'")


@pytest.mark.parametrize("command", ["info", "verify", "bench", "index"])
def test_a_set_that_is_not_there(run: Run, tmp_path: Path, command: str) -> None:
    ran = run(command, tmp_path / "gone")
    assert_one_line(ran, ran.code, f"streamio {command}: ", "gone")
    assert ran.code in (1, 2)


def _failing(error: BaseException) -> object:
    def pack(*_: object, **__: object) -> None:
        raise error

    return pack


def test_a_fault_of_ours_shows_no_traceback_but_how_to_get_one(
    run: Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamio, "pack", _failing(RuntimeError("bad\nluck")))
    assert_one_line(run("pack", photos, tmp_path / "o"), 1, "RuntimeError", "report", "STREAMIO_DEBUG=1")
    assert "Traceback" in run("--debug", "pack", photos, tmp_path / "o").err
    monkeypatch.setenv("STREAMIO_DEBUG", "1")
    assert "Traceback" in run("pack", photos, tmp_path / "o").err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (streamio.UsageError("x"), 2),
        (streamio.OutputExists("x"), 2),
        (streamio.InputError("x"), 1),
        (streamio.StorageError("x"), 1),
        (OSError(28, "No space left on device", "out/shard"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_every_kind_of_error_has_its_exit_code(
    run: Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    monkeypatch.setattr(streamio, "pack", _failing(error))
    assert_one_line(run("pack", photos, tmp_path / "o"), code, "streamio pack: ")


def test_ctrl_c_ends_with_130_and_leaves_nothing(tmp_path: Path) -> None:
    photos = tree(tmp_path / "many", {f"c/{i}.txt": bytes(2000) for i in range(30_000)})
    out = tmp_path / "out"
    command = [sys.executable, "-m", "streamio", "pack", str(photos), str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    try:
        _wait_for(lambda: out.exists())
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes of the command
        stdout, stderr = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130, stderr
    assert stderr.decode().count("\n") == 1
    assert "interrupted" in stderr.decode()
    assert stdout == b""
    assert not out.exists()


def _wait_for(condition: object, seconds: float = 30) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not begin"
        time.sleep(0.01)


def test_both_clicks_are_understood() -> None:
    assert issubclass(app._ParserError, app._ClickError)
    assert {app._ParserError.__name__, app._ClickError.__name__} == {"UsageError", "ClickException"}
