"""Processes of a cell: started in a group of their own, watched, and ended with all that they started.

Standard library only; Linux, for /proc.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from benchmarks.environment import ROOT, UnavailableError, last_line

SAMPLE_SECONDS = 0.05
_MOMENT = 2.0
_TICKS = os.sysconf("SC_CLK_TCK")
# The threads of OpenMP sleep while they wait: where anything else runs on the machine, spinning makes torch.stack,
# with which the peers join samples, take twenty times as long.
# Bytecode is kept, whatever the caller's environment says: pip compiles what it installs, but each process would
# compile a checkout anew, 0.2 s of it before the first batch.
_SETTINGS = {
    "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "TQDM_DISABLE": "1",
    "OMP_WAIT_POLICY": "PASSIVE", "PYTHONDONTWRITEBYTECODE": "",
}  # fmt: skip


def tree(pid: int) -> Iterator[int]:
    """A process and all that it started, those that have ended left out."""
    yield pid
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split():
                yield from tree(int(child))


def tree_cpu_seconds(pid: int) -> float:
    """User and system time of a process and all that it started, with those that it has waited for."""
    return sum(_cpu_seconds(one) for one in tree(pid))


def _cpu_seconds(pid: int) -> float:
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(map(int, after_name[11:15])) / _TICKS


def tree_bytes(pid: int) -> tuple[int, int]:
    """Memory of a process and all that it started: what nothing else could use, and the mapped part of files.

    Shared pages are divided among those that share them. Pages of files that are mapped are page cache: the
    kernel takes them back when it needs to, as it does the cache of a file that is read.
    """
    own = mapped = 0
    for one in tree(pid):
        with suppress(OSError):
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            sizes = {
                name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines[1:])
            }
            own += sizes["Pss_Anon"] + sizes["Pss_Shmem"]
            mapped += sizes["Pss_File"]
    return own, mapped


def run_cell(
    python: str, action: str, arguments: Sequence[str], timeout: float, module: str = "benchmarks.speed.cell"
) -> dict[str, Any]:
    """Run a cell and give what it found, with the most memory that it held ("memory", "mapped").

    Raises UnavailableError if it fails or takes longer than `timeout` seconds. Nothing of it lives on, then or
    after an interruption.
    """
    (found,) = run_cells([(python, action, arguments)], timeout, module)
    if isinstance(found, UnavailableError):
        raise found
    return found


def run_cells(
    cells: Sequence[tuple[str, str, Sequence[str]]], timeout: float, module: str = "benchmarks.speed.cell"
) -> list[dict[str, Any] | UnavailableError]:
    """The same for several (python, action, arguments), as many at a time as there are cores.

    Of those that fail, the errors.
    """
    found: dict[int, dict[str, Any] | UnavailableError] = {}
    ended: SimpleQueue[int] = SimpleQueue()  # a place to wait in that an interruption reaches
    with ExitStack() as stack:

        def begin(number: int) -> None:
            python, action, arguments = cells[number]
            errors = stack.enter_context(tempfile.TemporaryFile("w+"))
            process = stack.enter_context(started([python, "-m", module, action, *arguments], errors))
            timer = threading.Timer(timeout, end_group, [process])
            stack.callback(timer.cancel)
            timer.start()

            def follow() -> None:
                try:
                    found[number] = _found(process, errors, timeout)
                except Exception as error:  # what it printed is not what a cell prints
                    found[number] = UnavailableError(repr(error))
                timer.cancel()
                ended.put(number)

            threading.Thread(target=follow, daemon=True).start()

        for number in range(len(cells)):
            if number >= (os.cpu_count() or 1):
                ended.get()
            begin(number)
        while len(found) < len(cells):
            ended.get()
    return [found[number] for number in range(len(cells))]


def _found(process: subprocess.Popen[str], errors: Any, timeout: float) -> dict[str, Any] | UnavailableError:
    found = _follow(process)
    if process.wait() or "phase" in found:
        errors.seek(0)
        return UnavailableError(_reason(process, last_line(errors.read()), timeout))
    return found


def _reason(process: subprocess.Popen[str], line: str, timeout: float) -> str:
    if process.returncode == -signal.SIGKILL:
        return f"killed, for memory or after {timeout:g} s"
    return line or f"ended with {process.returncode}"


@contextmanager
def started(command: Sequence[str], errors: Any) -> Iterator[subprocess.Popen[str]]:
    """A process at the head of a group that is gone in the end."""
    process = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | _SETTINGS, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=errors, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
        _let_go(process)
    finally:
        end_group(process)
        process.wait()
        if process.stdout:
            process.stdout.close()


def _let_go(process: subprocess.Popen[str]) -> None:
    """Give helpers that outlive a process a moment: multiprocessing's removes what it named in /dev/shm."""
    deadline = time.monotonic() + _MOMENT
    while process.poll() is not None and _group_lives(process.pid) and time.monotonic() < deadline:
        time.sleep(0.02)


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def end_group(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _follow(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The last line of JSON that it prints; memory is sampled between the lines for "check" and "timed"."""
    assert process.stdout is not None
    found: dict[str, Any] = {"phase": "start"}
    sampler = _Sampler(process.pid)
    for line in process.stdout:
        if not line.startswith("{"):
            continue
        found = json.loads(line)
        if found.get("phase") == "check":
            sampler.start()
        else:
            sampler.stop()
    sampler.stop()
    return found if "phase" in found else found | {"memory": sampler.own, "mapped": sampler.mapped}


class _Sampler(threading.Thread):
    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid, self._ended = pid, threading.Event()
        self.own = self.mapped = 0

    def run(self) -> None:
        while not self._ended.is_set():
            own, mapped = tree_bytes(self._pid)
            self.own, self.mapped = max(self.own, own), max(self.mapped, mapped)
            self._ended.wait(SAMPLE_SECONDS)

    def stop(self) -> None:
        self._ended.set()
        if self.ident is not None:
            self.join()
