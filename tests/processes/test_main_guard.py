"""A script without `if __name__ == "__main__":` gets one message, and starts no storm of processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from streamio.mainguard import _is_guarded
from tests import warm
from tests.sets import make_set

ROOT = Path(__file__).resolve().parents[2]
LOADERS = {
    "StreamLoader": "streamio.StreamLoader(ds, num_workers=2, context=method)",
    "DataLoader": "DataLoader(ds, batch_size=None, num_workers=2, multiprocessing_context=method)",
}
SCRIPT = """
import sys, time
import streamio
from torch.utils.data import DataLoader

path, method = sys.argv[1:3]
ds = streamio.ShardDataset(path, 4)
print("imported", time.time(), flush=True)
def main():
    print("trained", sum(len(batch["cls"]) for batch in {loader}))
{start}
"""


def run(tmp_path: Path, method: str, loader: str, start: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a script, of which no process is left."""
    script, path = tmp_path / "train.py", make_set(tmp_path / "s", 20)
    script.write_text(SCRIPT.format(loader=LOADERS[loader], start=start))
    process = warm.start([script, path, method], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    out, err = process.communicate(timeout=110)  # also waits for its children, which hold the pipes
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return process.wait(), out, err
        time.sleep(0.05)
    raise AssertionError("processes are left behind")


def assert_one_message(err: str) -> None:
    assert err.count("outside of 'if __name__ ==") == 1, err
    assert "bootstrapping" not in err and err.count("Traceback") == 1, err
    assert 'if __name__ == "__main__":\n        main()' in err


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("loader", LOADERS)
def test_without_a_guard_one_message_comes_before_any_worker_starts(
    tmp_path: Path, method: str, loader: str
) -> None:
    code, out, err = run(tmp_path, method, loader, "main()")
    ended = time.time()
    assert code == 1
    assert_one_message(err)
    assert "train.py, line 11" in err
    assert out.count("imported") == 1, "no worker imported the script"
    assert ended - float(out.split()[1]) < 20


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_guard_that_is_none_ends_with_one_message_too(tmp_path: Path, method: str) -> None:
    """Whether a condition is a guard, only the workers can tell: here all of them come to start workers."""
    code, out, err = run(tmp_path, method, "StreamLoader", "if __name__ != 'imported': main()")
    assert code == 1
    assert_one_message(err)
    assert 2 <= out.count("imported") <= 3 and "trained" not in out


def test_with_a_guard_it_trains(tmp_path: Path) -> None:
    code, out, err = run(tmp_path, "spawn", "StreamLoader", "if __name__ == '__main__':\n    main()")
    assert (code, err) == (0, "") and "trained 20" in out


def test_fork_needs_no_guard(tmp_path: Path) -> None:
    code, out, err = run(tmp_path, "fork", "StreamLoader", "main()")
    assert (code, err) == (0, "") and "trained 20" in out


def test_a_script_from_standard_input_is_told_to_be_a_file(tmp_path: Path) -> None:
    code = SCRIPT.format(loader=LOADERS["StreamLoader"], start="main()")
    done = subprocess.run(
        [sys.executable, "-", make_set(tmp_path / "s", 20), "spawn"], input=code, cwd=ROOT, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 1 and "UsageError: the script comes from standard input" in done.stderr


@pytest.mark.parametrize(
    ("source", "guarded"),
    [
        ("go()", False),
        ("for x in y:\n    go()", False),
        ("for batch in go():\n    pass\nif __name__ == '__main__': pass", False),
        ("with x:\n    try:\n        go()\n    finally:\n        pass", False),
        ("if x:\n    go()", False),  # nothing in it asks which process it is
        ("log = getLogger(__name__)\ngo()", False),
        ("log = getLogger(__name__)\nif x:\n    go()", True),  # it cannot be told
        ("if __name__ == '__main__':\n    go()", True),
        ("if __name__ != '__main__':\n    raise SystemExit\ngo()", True),
        ("if x:\n    for y in z:\n        go(__name__)", True),
        ("__name__ == '__main__' and go()", True),
        ("try:\n    __name__\nexcept NameError:\n    go()", True),
        ("import multiprocessing as m\nif m.current_process().name == 'MainProcess':\n    go()", True),
        ("import multiprocessing as m\nif m.parent_process() is None:\n    go()", False),  # so it is in workers
        ("go() if", True),  # no Python that could be read
    ],
)
def test_a_guard_is_a_condition_that_asks_which_process_this_is(tmp_path: Path, source: str, guarded: bool) -> None:
    (tmp_path / "script.py").write_text(source)
    line = next(n for n, text in enumerate(source.splitlines(), 1) if "go(" in text)
    assert _is_guarded(str(tmp_path / "script.py"), line) is guarded
