"""`streamio capture` as a process of its own: stopped, killed, and started again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import streamio
from tests.cli.conftest import Run


def lines(begin: int, end: int) -> str:
    return "".join(json.dumps({"number": number, "text": f"n{number}"}) + "\n" for number in range(begin, end))


def landed(out: Path) -> list[int]:
    return [sample["number"] for sample in streamio.open(out)]


def test_it_prints_what_it_did_and_does_nothing_twice(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(0, 50))
    out = tmp_path / "out"
    first = run("capture", tmp_path / "a.jsonl", out, "--shard-samples", 20, "--format", "hdf5")
    assert first.code == 0 and first.err == ""
    assert "rows     50 now, 50 in all" in first.out and "lag      none: all of it is there" in first.out
    assert first.out.splitlines()[-1].startswith("Captured 50 rows in 3 shards (")
    again = run("capture", tmp_path / "a.jsonl", out, "--format", "hdf5", "--json")
    figures = json.loads(again.out)
    assert (figures["rows"], figures["total_rows"], figures["total_shards"], figures["complete"]) == (
        0,
        50,
        3,
        True,
    )
    assert landed(out) == list(range(50))
    assert run("verify", out).code == 0


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (("--every", "soon"), "'soon' is no span of time"),
        (("--type", "number"), "--type number"),
        (("--on-error", "maybe"), "on_error='maybe'"),
        (("--format", "zip"), "zip"),
        (("--shard-size", "1MB", "--shard-samples", "3"), "both --shard-size and --shard-samples"),
    ],
)
def test_a_wrong_call_is_one_line_and_touches_nothing(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], found: str
) -> None:
    (tmp_path / "a.jsonl").write_text(lines(0, 5))
    ran = run("capture", tmp_path / "a.jsonl", tmp_path / "out", *arguments)
    assert ran.code == 2 and found in ran.err and len(ran.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_declared_types_and_bad_rows(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(0, 5) + '{"number": "x"}\n' + lines(5, 8))
    arguments = ("capture", tmp_path / "a.jsonl", tmp_path / "out", "--type", "number=int16")
    stopped = run(*arguments)
    assert stopped.code == 1 and "'x' is no int16" in stopped.err
    ran = run(*arguments, "--on-error", "skip")
    assert ran.code == 0 and "1 skipped" in ran.err
    assert [int(sample["number"]) for sample in streamio.open(tmp_path / "out")] == list(range(8))


def rows_in(out: Path) -> int:
    manifest = out / "streamio.json"
    return int(json.loads(manifest.read_bytes())["samples"]) if manifest.exists() else 0


@contextmanager
def written(path: Path) -> Iterator[list[int]]:
    """A log that grows and is rotated while the block runs; how many lines it has got, at last."""
    count, ends = [200], threading.Event()
    path.write_text(lines(0, 200))

    def write() -> None:
        while not ends.wait(0.01):
            with open(path, "a") as file:
                file.write(lines(count[0], count[0] + 7))
            count[0] += 7
            if count[0] % 490 < 7:
                path.rename(path.with_name(f"app.log.{count[0]}"))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield count
    finally:
        ends.set()
        writer.join()


def test_a_log_that_is_followed_lands_once_through_kills_and_a_stop(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [
        sys.executable, "-m", "streamio", "capture", f"{tmp_path}/app.log*", str(out), "--follow",
        "--every", "0.1s", "--json",
    ]  # fmt: skip
    with written(tmp_path / "app.log") as count:
        for sign in (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM):
            before = rows_in(out)
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            until = time.monotonic() + 60
            while rows_in(out) <= before:
                assert process.poll() is None and time.monotonic() < until
                time.sleep(0.02)
            process.send_signal(sign)
            said, complained = process.communicate(timeout=60)
    assert (process.returncode, complained) == (0, "")
    assert json.loads(said)["total_rows"] == len(landed(out))
    rest = streamio.capture(f"{tmp_path}/app.log*", out, follow=True, idle_timeout=1)
    numbers = landed(out)
    assert rest.lag == 0 and sorted(numbers) == list(range(count[0]))
