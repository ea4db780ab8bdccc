from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest

from streamio.errors import InputError, StorageError, WorkerDied
from streamio.packing import pieces
from streamio.packing.engines import run
from streamio.packing.pack import pack
from streamio.packing.report import Progress
from streamio.packing.samples import Sample
from streamio.packing.write import Job, Options
from tests.packing.reading import contents
from tests.samples import jpg, tree


def _jobs(src: Path, out: Path, n: int, **options: Any) -> list[Job]:
    out.mkdir(exist_ok=True)
    settings = Options(root=str(src), stored={}, sizes={}, **options)
    names = sorted(os.listdir(src))
    return [
        Job(
            split="all", number=i, path=f"{out}/part-{i}.tar", format="tar", options=settings,
            samples=tuple(Sample(name, (("bin", name, 1),)) for name in names[i::n]),
        )
        for i in range(n)
    ]  # fmt: skip


@pytest.fixture(autouse=True)
def any_work_is_worth_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "LEAST", 1)


@pytest.fixture
def src(tmp_path: Path) -> Path:
    return tree(tmp_path / "in", {f"{i:02d}": os.urandom(i * 100) for i in range(40)})


def test_results_come_in_the_order_of_the_jobs(tmp_path: Path, src: Path) -> None:
    counts = [0, 0, 0]

    def tick(*added: int) -> None:
        for at, value in enumerate(added):
            counts[at] += value

    done = {w: run(_jobs(src, tmp_path / f"w{w}", 9), w, tick) for w in (1, 3)}
    for results in done.values():
        assert [shard.number for shard in results] == list(range(9))
    assert [s.part.checksum for s in done[1] if s.part] == [s.part.checksum for s in done[3] if s.part]
    assert counts == [80, 80, 80]


def _children(known: Iterable[psutil.Process] = ()) -> list[psutil.Process]:
    """Processes below this one that are not known; what Python itself leaves (tracker, fork server) is."""
    return [child for child in psutil.Process().children(recursive=True) if child not in known]


def test_an_error_in_a_worker_arrives_and_ends_all(tmp_path: Path, src: Path) -> None:
    jobs, before = _jobs(src, tmp_path / "out", 8), _children()
    (src / "05").unlink()
    with pytest.raises(InputError, match="05: no such file"):
        run(jobs, 3, lambda *_: None)
    assert not _children(before)


def test_a_part_that_cannot_be_written_is_a_storage_error(tmp_path: Path, src: Path) -> None:
    jobs = _jobs(src, tmp_path / "out", 2)
    os.rmdir(tmp_path / "out")
    for workers in (1, 2):
        with pytest.raises(StorageError, match=r"part-[01]\.tar"):
            run(jobs, workers, lambda *_: None)


def test_a_worker_that_is_killed_is_named_with_its_shard(tmp_path: Path) -> None:
    src = tree(tmp_path / "in", dict.fromkeys((f"{i}.jpg" for i in range(200)), jpg(1500, 1500)))
    told: list[Progress] = []
    before = _children()

    def kill_one() -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            children = _children(before)
            if children and any(p.stage == "write" and p.done_samples for p in told):
                children[0].kill()
                return
            time.sleep(0.01)

    thread = threading.Thread(target=kill_one)
    thread.start()
    with pytest.raises(WorkerDied, match=r"SIGKILL while it wrote shard \d of 'all'.*memory.*fewer workers"):
        pack(src, tmp_path / "out", check=True, shard_samples=50, workers=2, progress=told.append)
    thread.join()
    assert os.listdir(tmp_path) == ["in"] and not _children(before)


def _script(tmp_path: Path, body: str) -> subprocess.Popen[str]:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(body))
    return subprocess.Popen(
        [sys.executable, str(path), str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_pack_may_stand_anywhere_in_a_script(tmp_path: Path, src: Path) -> None:
    """No `if __name__ == "__main__"` needed, and no torch in the workers."""
    process = _script(
        tmp_path,
        """
        import sys, threading
        from streamio.packing import pieces
        from streamio.packing.pack import pack
        pieces.LEAST = 1
        threading.Thread(target=lambda: None).start()
        print("once")
        report = pack(sys.argv[1] + "/in", sys.argv[1] + "/out", workers=3, shard_samples=5)
        print(report.shards, "torch" in sys.modules)
        """,
    )
    out, err = process.communicate(timeout=60)
    assert (out.split(), err) == (["once", "8", "False"], "")
    assert len(contents(tmp_path / "out")) == 40


def test_workers_never_import_torch(tmp_path: Path) -> None:
    code = "import sys; import streamio.packing.engines, streamio.packing.stream; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


_SLOW = """
import sys
from streamio.packing import pieces
from streamio.packing.pack import pack
pieces.LEAST = 1
pack(sys.argv[1] + "/in", sys.argv[1] + "/out", workers={workers}, check=True, shard_samples=50,
     progress=lambda p: print(p.stage, p.done_samples, flush=True))
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_leaves_nothing(tmp_path: Path, workers: int) -> None:
    tree(tmp_path / "in", dict.fromkeys((f"{i}.jpg" for i in range(200)), jpg(1500, 1500)))
    process = _script(tmp_path, _SLOW.format(workers=workers))
    assert process.stdout is not None
    while not (line := process.stdout.readline()).startswith("write") or line.endswith(" 0\n"):
        assert line
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT and err.count("Traceback") == 1  # the script's own, none of workers
    assert sorted(os.listdir(tmp_path)) == ["in", "script.py"]


def test_workers_end_with_their_pack(tmp_path: Path) -> None:
    tree(tmp_path / "in", dict.fromkeys((f"{i}.jpg" for i in range(200)), jpg(1500, 1500)))
    process = _script(tmp_path, _SLOW.format(workers=2))
    assert process.stdout is not None
    while not (line := process.stdout.readline()).startswith("write") or line.endswith(" 0\n"):
        assert line
    workers = psutil.Process(process.pid).children()
    assert len(workers) == 2
    process.kill()
    process.communicate()
    gone, alive = psutil.wait_procs(workers, timeout=5)
    assert len(gone) == 2 and not alive
