"""The command line, run in this process where that is enough, and small folders to pack."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from streamio.cli import main
from tests.samples import jpg, tree


class Ran(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("pack", src, out)` in this process."""
    monkeypatch.delenv("STREAMIO_DEBUG", raising=False)

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        code = main([os.fspath(a) if isinstance(a, Path) else str(a) for a in arguments])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


def spawn(*arguments: object, env: dict[str, str] | None = None, shell: str = "", timeout: float = 60) -> Ran:
    """The same in a process of its own; `shell` goes behind the command (`2>&1 | cat`)."""
    command = [sys.executable, "-m", "streamio", *map(str, arguments)]
    environment = {**os.environ, **(env or {})}
    if shell:
        command = ["bash", "-o", "pipefail", "-c", f'"$@" {shell}', "bash", *command]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=timeout, stdin=subprocess.DEVNULL)
    return Ran(done.returncode, done.stdout.decode(errors="surrogateescape"), done.stderr.decode())


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of three pictures each."""
    return tree(tmp_path / "photos", {f"{c}/{i}.jpg": jpg(8 + i, 8) for c in ("cat", "dog") for i in range(3)})


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Whatever runs inside may not do what only root may. The process stays: its modules may lie in /root."""
    if os.geteuid() != 0:
        yield
        return
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user may enter and write to; pytest's own belong to who runs it."""
    folder = Path(tempfile.mkdtemp(prefix="streamio-test-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)
