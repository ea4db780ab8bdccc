"""A sequential stream gives all bytes or an error; and nothing of a secret."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec
import pytest

from streamio.errors import StorageError
from streamio.storage import transfer
from streamio.storage.pipes import byte_stream, shown
from tests.servers.http import Server, serve

DATA = bytes(range(256)) * 12_000  # three blocks


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "FIRST_PAUSE", 0.001)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a b.bin"
    path.write_bytes(DATA)
    return path


@contextmanager
def served(file: Path, **vices: object) -> Iterator[tuple[Server, str]]:
    with serve(file.parent, **vices) as server:
        yield server, f"{server.url}/{file.name}"


def read(source: str, **settings: float) -> bytes:
    with byte_stream(source, **settings) as blocks:  # type: ignore[arg-type]
        return b"".join(blocks)


def test_every_kind_of_source_gives_the_bytes(file: Path) -> None:
    fsspec.filesystem("memory").pipe_file("/pipes/a.bin", DATA)
    with served(file, ranges=False) as (_, url):
        for source in (str(file), file.as_uri(), f"pipe:cat '{file}'", url, "memory://pipes/a.bin"):
            assert read(source) == DATA, source


def test_a_pipeline_of_the_shell_is_a_command(file: Path) -> None:
    assert read(f"pipe:gzip -c '{file}' | zcat | head -c 1000") == DATA[:1000]


def test_standard_input_is_read_once() -> None:
    script = (
        "from streamio.storage.pipes import byte_stream\n"
        "for _ in range(2):\n"
        "    with byte_stream('-') as blocks: print(len(b''.join(blocks)))"
    )
    done = subprocess.run([sys.executable, "-c", script], input=DATA, capture_output=True)
    assert done.stdout.split() == [str(len(DATA)).encode()]
    assert b"standard input was read already" in done.stderr


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("false", "the command ended with exit code 1"),
        ("echo one >&2; echo it broke >&2; exit 7", "exit code 7: it broke"),
        ("head -c 100 /dev/zero; kill -9 $$", "was ended by signal 9"),
        ("no-such-program-anywhere", "exit code 127"),
    ],
)
def test_a_command_that_fails_says_how(command: str, words: str) -> None:
    with pytest.raises(StorageError, match=words):
        read(f"pipe:{command}")


def test_a_talkative_command_does_not_block() -> None:
    assert read("pipe:yes why | head -n 200000 >&2; echo done") == b"done\n"


def test_leaving_early_ends_the_whole_pipeline(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    began = time.monotonic()
    with byte_stream(f"pipe:(echo $BASHPID > /dev/null; sh -c 'echo $$ > {pid}; exec sleep 60') | cat") as blocks:
        while not pid.exists() or not pid.read_text():
            time.sleep(0.01)
        assert iter(blocks)
    assert time.monotonic() - began < 10
    _wait_for_the_end_of(int(pid.read_text()))


def _wait_for_the_end_of(pid: int) -> None:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
            os.kill(pid, 0)
        except (ProcessLookupError, FileNotFoundError):
            return
        time.sleep(0.02)
    raise AssertionError(f"process {pid} lives")


@pytest.mark.parametrize("ranges", [False, True])
def test_a_dropped_connection_goes_on_where_it_was(file: Path, ranges: bool) -> None:
    with served(file, ranges=ranges, cut=0.6, times=2) as (server, url):
        assert read(url) == DATA
        assert server.hits() == {file.name: 3}


def test_a_server_that_always_drops_is_given_up(file: Path) -> None:
    with served(file, ranges=False, cut=0.3) as (server, url):
        with pytest.raises(StorageError, match=r"the connection dropped; got .* bytes in 5 tries"):
            read(url)
        assert server.hits(file.name) == transfer.TRIES


def test_other_bytes_after_a_drop_are_an_error(file: Path) -> None:
    with served(file, ranges=False, cut=0.6, times=1) as (_, url), byte_stream(url) as blocks:
        first = next(blocks)
        file.write_bytes(DATA[::-1])
        with pytest.raises(StorageError, match="these are others now"):
            for _ in blocks:
                pass
        assert DATA.startswith(first)


def test_a_shorter_file_after_a_drop_is_an_error(file: Path) -> None:
    with served(file, ranges=False, cut=0.9, times=1) as (_, url), byte_stream(url) as blocks:
        next(blocks)
        file.write_bytes(DATA[:1000])
        with pytest.raises(StorageError, match="these are others now"):
            for _ in blocks:
                pass


def test_a_silent_server_is_given_up(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "SILENCE", 0.5)
    with served(file, ranges=False, stall=True) as (_, url):
        with pytest.raises(StorageError, match="stopped sending in the middle"):
            read(url, timeout=0.2)


@pytest.mark.parametrize("source", ["{folder}/none.tar", "{url}/none.tar", "memory://pipes/none.tar"])
def test_what_is_not_there_is_named(source: str, file: Path) -> None:
    with served(file) as (server, _):
        with pytest.raises(StorageError, match=r"none\.tar"):
            read(source.format(folder=file.parent, url=server.url))


def test_no_secret_is_shown(tmp_path: Path) -> None:
    secrets = ("pa55word", "s1gnature", "b3arer", "envs3cret", "log1nname")
    command = (
        "pipe:AWS_SECRET_ACCESS_KEY=envs3cret curl -s -u log1nname:pa55word -H 'Authorization: b3arer' "
        "'https://log1nname:pa55word@host/a.tar?sig=s1gnature' >/dev/null; "
        "echo failed for https://log1nname:pa55word@host/a.tar?sig=s1gnature with b3arer >&2; exit 22"
    )
    with pytest.raises(StorageError) as error:
        read(command.replace("curl", ": curl"))
    for text in (str(error.value), shown(command)):
        assert not [secret for secret in secrets if secret in text], text
        assert "https://***@host/a.tar?sig=***" in text and "curl" in text
