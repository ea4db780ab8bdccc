"""A sequential stream of bytes from whatever gives one: a command, standard input, a server without ranges, a file.

For what cannot be read at a place of one's choice. Everything else goes through `files`, which can.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from os import fspath
from typing import IO, Any

import xxhash

from streamio.errors import StorageError, UsageError
from streamio.storage.addresses import is_url, is_web, local_path, redact, scrub
from streamio.storage.buckets import BucketFile
from streamio.storage.files import TIMEOUT
from streamio.storage.transfer import Answer, Interrupted, NotFound, OutOfRange, Patience, Remote
from streamio.storage.web import WebFile

PIPE, STDIN = "pipe:", "-"

_BLOCK = 1 << 20
_LAST_WORDS = 4096
_END_PATIENCE = 2.0  # seconds that a command gets to end by itself once nobody reads it


def is_pipe(source: str) -> bool:
    """Whether it is a command (`pipe:zstd -dc a.tar.zst`)."""
    return source.startswith(PIPE)


def shown(source: str) -> str:
    """A source as messages may show it: without the secrets of addresses, logins, headers and assignments."""
    return _hidden(source, source) if is_pipe(source) else redact(source)


@contextmanager
def byte_stream(
    source: str, *, timeout: float = TIMEOUT, storage_options: Mapping[str, Any] | None = None
) -> Iterator[Iterator[bytes]]:
    """The bytes of a source from front to back, in blocks of up to 1 MB (8 MB from buckets).

    source: `pipe:COMMAND`, run by the shell; `-`, standard input; an http(s) address; anything fsspec reads; a
            local path.
    timeout: longest silence of a server, in seconds. Commands may be silent as long as they like.

    A dropped connection is made again a few times; where the server has no ranges, what was read is read again,
    and must be the same. Raises StorageError for that, and for a command that ends with another exit code than 0,
    with its last words; asking for the next block is what raises. Leaving the block ends the command.
    """
    if is_pipe(source):
        with _command(source) as blocks:
            yield blocks
    elif source == STDIN:
        yield _stdin()
    elif is_url(source):
        options = storage_options or {}
        remote: Remote = WebFile(source, options) if is_web(source) else BucketFile(source, options)
        with closing(_remote(remote, redact(source), Patience(timeout))) as blocks:
            yield blocks
    else:
        with _local(source) as file:
            yield _blocks(file)


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    while block := file.read(_BLOCK):
        yield block


@contextmanager
def _local(source: str) -> Iterator[IO[bytes]]:
    try:
        with open(local_path(source), "rb", buffering=0) as file:
            yield file
    except FileNotFoundError as error:
        raise NotFound("there is no such file", path=fspath(source)) from error
    except OSError as error:
        raise StorageError(error.strerror or str(error), path=fspath(source)) from error


_begun: set[str] = set()
"""Sources that can be read once and were begun in this process."""


def _stdin() -> Iterator[bytes]:
    if STDIN in _begun:
        raise UsageError(
            "standard input was read already, and gives its bytes once",
            fix="Read it for one epoch, or write it to a file",
        )
    _begun.add(STDIN)
    yield from _blocks(sys.stdin.buffer)


@contextmanager
def _command(source: str) -> Iterator[Iterator[bytes]]:
    """The output of a command, in a process group of its own, so that all of a pipeline can be ended."""
    with tempfile.TemporaryFile() as words:
        process = subprocess.Popen(
            source.removeprefix(PIPE), shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=words,
            bufsize=0, start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            yield _output(process, process.stdout, source, words)
        finally:
            process.stdout.close()
            _end(process)


def _output(process: subprocess.Popen[bytes], out: IO[bytes], source: str, words: IO[bytes]) -> Iterator[bytes]:
    yield from _blocks(out)
    code = process.wait()
    if code:
        raise StorageError(
            f"the command {_how_it_ended(code)}{_last_words(words, source)}",
            fix="Run it by itself to see why", path=shown(source),
        )  # fmt: skip


def _how_it_ended(code: int) -> str:
    return f"ended with exit code {code}" if code > 0 else f"was ended by signal {-code}"


def _last_words(words: IO[bytes], source: str) -> str:
    """The last line on its standard error, in the form `: …`; "" where there is none."""
    size = words.seek(0, os.SEEK_END)
    words.seek(max(0, size - _LAST_WORDS))
    lines = re.split(r"[\r\n]+", words.read().decode("utf-8", "replace").strip())
    if not lines[-1]:
        return ""
    return f": {_hidden(lines[-1], source)}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process group, first with a request. Whoever ended by itself has lost its number already."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_PATIENCE)


def _remote(remote: Remote, path: str, patience: Patience) -> Generator[bytes, None, None]:
    """All bytes of a remote file, over as many connections as it takes."""
    reader = _Resumed(remote, path)
    while True:
        try:
            for block in reader.attempt(patience.next_timeout()):
                patience.heard(len(block))
                yield block
                patience.heard(0)  # what the reader does with a block is no silence of the server
            return
        except Interrupted as error:
            problem = error
        if not patience.wait(problem):
            raise StorageError(
                f"{problem}; got {reader.have:,} bytes in {patience.tries} tries",
                fix="Is the server up, and the network? A server with range requests would let it go on there",
                path=path,
            )


class _Resumed:
    """A remote file whose first `have` bytes were handed over; `_sum` is their checksum."""

    def __init__(self, remote: Remote, path: str) -> None:
        self._remote, self._path = remote, path
        self.have = 0
        self._sum = xxhash.xxh3_64()
        self._tag: str | None = None

    def attempt(self, timeout: float) -> Iterator[bytes]:
        """What is still to come, in one request."""
        try:
            with self._remote.open(self.have, None, size=None, tag=self._tag, timeout=timeout) as answer:
                self._tag = answer.tag
                yield from self._fresh(answer)
        except OutOfRange:  # of a file without bytes there is no first one
            if self.have:
                raise self._changed() from None

    def _fresh(self, answer: Answer) -> Iterator[bytes]:
        again = xxhash.xxh3_64()
        skip = self.have - answer.offset
        for block in answer.blocks:
            old, fresh = block[:skip], block[skip:]
            skip -= len(old)
            again.update(old)
            if old and not skip and again.digest() != self._sum.digest():
                raise self._changed()
            if fresh:
                self.have += len(fresh)
                self._sum.update(fresh)
                yield fresh
        if skip:
            raise self._changed()

    def _changed(self) -> StorageError:
        return StorageError(
            f"the connection dropped after {self.have:,} bytes, and these are others now",
            fix="Let the file rest while it is read", path=self._path,
        )  # fmt: skip


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+://[^\s'\"|;<>]+")
_SECRET = re.compile(
    r"(?P<name>(?:^|(?<=\s))(?:-u|-H|--(?:user|header|oauth2-bearer|password|token|secret\S*))[ =]?"
    r"|\b\w*(?:KEY|TOKEN|SECRET|PASSWORD)\w*=)"
    r"(?P<value>\"[^\"]*\"|'[^']*'|\S+)",
    re.IGNORECASE,
)


def _hidden(text: str, command: str) -> str:
    """A text without its own secrets and those of a command."""
    text = _SECRET.sub(lambda found: found["name"] + "***", _URL.sub(lambda url: redact(url[0]), text))
    for url in _URL.findall(command):
        text = scrub(text, url)
    values = [found["value"].strip("'\"") for found in _SECRET.finditer(command)]
    for word in {word for value in values for word in (value, *re.split(r"[\s:]+", value)) if len(word) > 3}:
        text = text.replace(word, "***")
    return text
