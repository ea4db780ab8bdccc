"""What the real servers share: a process on a port of its own that can be stopped, killed and started again.

A server keeps its address and its data from `start` to `start`, and dies with the process that made it.
Ports lie below those that the kernel gives to connections: a client that dials a port where nobody listens could
otherwise be given that very port, and talk to itself.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Self

HOST = "127.0.0.1"
USER = "streamio"
PASSWORD = "do-not-print-me"
"""What every server that knows accounts asks for; tests look for it in errors, states and logs."""

_launchers: dict[int, ThreadPoolExecutor] = {}


def launch(
    command: list[str], sign: int = signal.SIGKILL, user: str = "-", **options: Any
) -> subprocess.Popen[bytes]:
    """A process that is sent `sign` when this one ends, however that happens. options: of Popen.

    The kernel watches the thread that started it. So all are started by one thread that lives as long as we do: a
    test may start a server in a thread of its own.
    """
    if os.getpid() not in _launchers:
        _launchers[os.getpid()] = ThreadPoolExecutor(1, "servers")
    tied = [sys.executable, "-I", "-S", str(_TIED), str(os.getpid()), str(int(sign)), user, *command]
    return _launchers[os.getpid()].submit(subprocess.Popen, tied, **options).result()


_TIED = Path(__file__).with_name("tied.py")
_PATIENCE = 30.0


def free_port() -> int:
    """A port where nobody listens, outside of the range of connections."""
    for _ in range(1000):
        port = random.SystemRandom().randrange(15_000, 30_000)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port between 15000 and 30000")


def program(name: str, wheel: str) -> str:
    """The path of a program beside this Python, or on the PATH."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert found, f"pip install {wheel}"
    return found


class ServerProcess:
    """One server. `folder`: empty, its data and its log. A context manager: started, and stopped at the end.

    A subclass says how it is started (`command`), when it is up (`answers`) and how it is asked to end (`ask`).
    """

    name: ClassVar[str]
    ask: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._names = itertools.count()
        self._has_run = False

    @property
    def address(self) -> str:
        """`host:port`, the same for as long as this object lives."""
        return f"{HOST}:{self.port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        """Start it and wait until it answers; nothing happens when it runs."""
        for attempt in range(3):  # another process may take the port before this one does
            if self.running or self._up():
                return self
            self.kill()
            if attempt == 0 and not self._has_run:
                self.port = free_port()
        raise RuntimeError(f"{self.name} did not start: {self.log()[-2000:]}")

    def stop(self) -> None:
        """Ask it to end and wait for it; nothing happens when it does not run."""
        if self._process is None:
            return
        if self.running:
            self._process.send_signal(self.ask)
        try:
            self._process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, as a machine that loses its power."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """Stop it for good."""
        self.stop()

    def log(self) -> str:
        """What the server wrote about itself, of all its starts."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def fresh(self, kind: str) -> str:
        """A name that nobody else uses on this server."""
        return f"{kind}_{os.getpid()}_{next(self._names)}"

    def command(self) -> list[str]:
        raise NotImplementedError

    def answers(self) -> bool:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.folder), "LC_ALL": "C"}

    def options(self) -> dict[str, Any]:
        """Further arguments of `launch`."""
        return {}

    def _up(self) -> bool:
        with open(self.folder / "log", "ab") as log:
            self._process = launch(
                self.command(), **self.options(), cwd=self.folder, env=self.environment(),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        give_up = time.monotonic() + _PATIENCE
        while self._process.poll() is None and time.monotonic() < give_up:
            if self.answers():
                self._has_run = True
                return True
            time.sleep(0.02)
        return False

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()
