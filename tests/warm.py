"""Processes that need no two seconds to import torch: forks of one that has, and that did nothing else.

`start` and `run` stand for subprocess with `python SCRIPT …` or `python -c CODE …`: a process with a `__main__`, an
environment, a folder and a group of its own, which ends as an interpreter does. All that it finds done is imports;
a test of these starts an interpreter of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
STREAMIO = "import numpy, torch.distributed, torch.utils.data; from streamio import *"
"""What most scripts import."""


class Process:
    """One that was started; as subprocess has it. stdout, stderr: the pipes that it writes to, or None."""

    def __init__(self, pid: int, end: socket.socket, stdout: IO[str] | None, stderr: IO[str] | None) -> None:
        self.pid, self.stdout, self.stderr, self._end = pid, stdout, stderr, end
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._end], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            self.returncode = int(self._end.recv(100))
            self._end.close()
        return self.returncode

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """(stdout, stderr) when it has ended, and all who have these open. Raises subprocess.TimeoutExpired."""
        said = ["", ""]

        def read(number: int, file: IO[str]) -> None:
            with file:
                said[number] = file.read()

        files = ((number, file) for number, file in enumerate((self.stdout, self.stderr)) if file)
        threads = [threading.Thread(target=read, args=each, daemon=True) for each in files]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout)
            if thread.is_alive():
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        self.wait(timeout)
        return said[0], said[1]

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def start(
    command: Sequence[object],
    *,
    imports: str = STREAMIO,
    env: Mapping[str, str] | None = None,
    cwd: str | Path = ROOT,
    group: int = 0,
    stdout: int | None = None,
    stderr: int | None = None,
) -> Process:
    """Start [SCRIPT, ...] or ["-c", CODE, ...].

    imports: statements that were run before. env: all of it (default: that of the tests). group: the process group,
    or 0 for one of its own. stdout, stderr: file descriptors; a pipe where there is none.
    """
    end, told = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    files: list[IO[str] | None] = []
    fds = [told.fileno()]
    for given in (stdout, stderr):
        read, write = os.pipe() if given is None else (None, given)
        files.append(None if read is None else os.fdopen(read))
        fds.append(write)
    request = [[*map(str, command)], dict(env or os.environ), str(cwd), group]
    socket.send_fds(_starter(imports), [json.dumps(request).encode()], fds)
    told.close()
    for file, fd in zip(files, fds[1:], strict=True):
        if file:
            os.close(fd)
    return Process(int(end.recv(100)), end, *files)


def run(command: Sequence[object], timeout: float = 60, **options: Any) -> subprocess.CompletedProcess[str]:
    """Start it and wait for its end."""
    process = start(command, **options)
    try:
        out, err = process.communicate(timeout)
    except BaseException:
        process.kill()
        raise
    return subprocess.CompletedProcess([*command], process.wait(), out, err)


@cache
def _starter(imports: str) -> socket.socket:
    """The way to a process with these imports. It ends when the tests do."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, __file__, str(its.fileno()), imports]
    process = subprocess.Popen(command, pass_fds=[its.fileno()], cwd=ROOT, start_new_session=True)
    its.close()
    atexit.register(process.wait, 10)
    atexit.register(ours.close)  # before it
    return ours


def _serve(requests: socket.socket) -> list[str]:
    """Fork for every request until there are no more. Returns in each child, with its command."""
    running: dict[int, tuple[int, socket.socket]] = {}  # by file descriptor of the process
    while True:
        for ready in select.select([requests, *running], [], [])[0]:
            if ready is not requests:
                pid, told = running.pop(ready)
                os.close(ready)
                with contextlib.suppress(BrokenPipeError), told:
                    told.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
                continue
            request, fds, _, _ = socket.recv_fds(requests, 1 << 20, 3)
            if not request:
                os._exit(0)
            told = socket.socket(fileno=fds[0])
            command, environment, folder, group = json.loads(request)
            pid = os.fork()
            if not pid:
                for other, (_, end) in running.items():
                    os.close(other)
                    end.close()
                requests.close()
                told.close()
                os.setpgid(0, group)
                os.chdir(folder)
                os.environ.clear()
                os.environ.update(environment)
                _redirect(*fds[1:])
                return command  # type: ignore[no-any-return]
            for fd in fds[1:]:
                os.close(fd)
            with contextlib.suppress(OSError):  # the child does it too; whoever comes first
                os.setpgid(pid, group or pid)
            running[os.pidfd_open(pid)] = pid, told
            told.send(str(pid).encode())


def _redirect(out: int, err: int) -> None:
    for fd, standard in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
        os.dup2(fd, standard)
        os.close(fd)


def _main() -> None:
    requests, imports, sys.path[0] = socket.socket(fileno=int(sys.argv[1])), sys.argv[2], str(ROOT)
    exec(imports, {})
    gc.collect()
    gc.freeze()
    sys.argv = _serve(requests)
    random.seed()
    sys.modules["numpy"].random.seed()  # no test may find the numbers of another
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main = types.ModuleType("__main__")
    if sys.argv[0] == "-c":
        code, file, sys.path[0] = sys.argv.pop(1), "<string>", ""
    else:
        code, file = Path(sys.argv[0]).read_text(), sys.argv[0]
        main.__file__, sys.path[0] = file, str(Path(file).parent)
    sys.modules["__main__"] = main
    exec(compile(code, file, "exec"), vars(main))


if __name__ == "__main__":
    _main()
