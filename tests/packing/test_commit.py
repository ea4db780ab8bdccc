from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamio.errors import OutputExists, StorageError, UsageError
from streamio.packing.commit import PARTIAL, Output, look
from streamio.packing.pack import pack
from streamio.shards.manifest import MANIFEST_NAME
from tests.packing.reading import contents, files
from tests.samples import listing, tree


class _Killed(BaseException):
    """Stands for SIGKILL: from then on nothing that changes the disk works any more."""


@contextlib.contextmanager
def _killed_at(call: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Let `call` changes of the disk pass, and no more. Gives the counter."""
    count = [0]

    def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **options: Any) -> Any:
            count[0] += 1
            if count[0] > call:
                raise _Killed
            return function(*args, **options)

        return wrapper

    with monkeypatch.context() as patch:
        for name in ("rename", "unlink", "rmdir", "mkdir", "fsync"):
            patch.setattr(os, name, guarded(getattr(os, name)))
        with contextlib.suppress(_Killed):
            yield count


def _sets(out: Path) -> list[dict[str, dict[str, bytes]]]:
    """Everything that can be read in OUT, checked against its checksums."""
    folders = [out, out / "train", out / "val"]
    return [contents(folder) for folder in folders if (folder / MANIFEST_NAME).exists()]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (None, {}),
        (None, {"val": 0.3}),
        ({}, {}),
        ({"val": 0.3}, {}),
        ({}, {"val": 0.3}),
        ({"val": 0.3}, {"val": 0.5}),
    ],
)
def test_a_pack_killed_at_any_step_leaves_whole_sets_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: dict[str, Any] | None, new: dict[str, Any]
) -> None:
    first = tree(tmp_path / "first", {f"{i}.txt": b"old" for i in range(6)})
    second = tree(tmp_path / "second", {f"{i}.txt": b"new" for i in range(2, 9)})
    options: dict[str, Any] = {"workers": 1, "shard_samples": 3}
    whole = []
    for src, split in ((first, old), (second, new)):
        if split is not None:
            pack(src, tmp_path / "whole", overwrite=True, **options, **split)
            whole += _sets(tmp_path / "whole")
    step, reached, resumed = 0, True, 0
    while reached:
        out = tmp_path / f"out{step}"
        if old is not None:
            pack(first, out, **options, **old)
        with _killed_at(step, monkeypatch) as count:
            pack(second, out, overwrite=old is not None, **options, **new)
        reached = count[0] > step
        # What can be read is whole: the old set, or the new one, or (between two manifests) the new val.
        left = _sets(out)
        assert all(found in whole for found in left)
        try:
            pack(second, out, **options, **new)
            resumed += 1
        except OutputExists:
            assert left, "leftovers alone must not stop the next pack"
            pack(second, out, overwrite=True, **options, **new)
        assert files(out) == files(tmp_path / "whole"), step
        step += 1
    assert step > 20 and resumed > 5


def test_cli_01_a_finished_set_is_not_touched(tmp_path: Path) -> None:
    """webdataset/webdataset#30: a second run wrote over the first one's shards."""
    src, other = tree(tmp_path / "a", {"1.txt": b"1"}), tree(tmp_path / "b", {"2.txt": b"2"})
    out = tmp_path / "out"
    pack(src, out, shard_samples=1, workers=1)
    before = listing(out)
    with pytest.raises(OutputExists, match=r"finished shard set of 1 sample; nothing was touched.*--overwrite"):
        pack(other, out, workers=1)
    with pytest.raises(OutputExists):
        pack(other, out, workers=1, dry_run=True)
    assert listing(out) == before
    pack(other, out, overwrite=True, workers=1)
    pack(other, tmp_path / "fresh", workers=1)
    assert files(out) == files(tmp_path / "fresh")


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("foreign", ["notes.txt", "train/x.jpg", "deep/er/x"])
def test_cli_01_foreign_files_are_never_touched(tmp_path: Path, overwrite: bool, foreign: str) -> None:
    src = tree(tmp_path / "a", {"1.txt": b"1"})
    out = tree(tmp_path / "out", {foreign: b"mine"})
    before = listing(out)
    with pytest.raises(OutputExists, match=r"1 file that no shard set names: (notes.txt|train/x.jpg|deep/)"):
        pack(src, out, overwrite=overwrite, workers=1)
    assert listing(out) == before and sorted(os.listdir(out)) == [foreign.split("/")[0]]


def test_a_foreign_file_beside_a_set_stops_overwriting_too(tmp_path: Path) -> None:
    src, out = tree(tmp_path / "a", {"1.txt": b"1"}), tmp_path / "out"
    pack(src, out, workers=1)
    (out / "mine.txt").write_text("x")
    before = listing(out)
    with pytest.raises(OutputExists, match=r"mine\.txt"):
        pack(src, out, overwrite=True, workers=1)
    assert listing(out) == before


def test_what_readers_leave_beside_a_set_does_not_stop_overwriting(tmp_path: Path) -> None:
    src, out = tree(tmp_path / "a", {"1.txt": b"1"}), tmp_path / "out"
    pack(src, out, format="lmdb", workers=1)
    (out / "shard-000000.lmdb-lock").write_text("")
    pack(src, out, overwrite=True, workers=1)
    assert sorted(os.listdir(out)) == ["shard-000000.tar", "shard-000000.tar.idx", MANIFEST_NAME]


def test_cli_01_an_empty_folder_is_fine_and_a_missing_one_is_made(tmp_path: Path) -> None:
    src = tree(tmp_path / "a", {"1.txt": b"1"})
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "empty", tmp_path / "new/er"):
        pack(src, out, workers=1)
        assert list(contents(out)) == ["1"]


def test_a_broken_manifest_is_left_to_the_user(tmp_path: Path) -> None:
    src = tree(tmp_path / "a", {"1.txt": b"1"})
    out = tree(tmp_path / "out", {MANIFEST_NAME: b'{"streamio": 1'})
    with pytest.raises(OutputExists, match="cannot be read"):
        pack(src, out, overwrite=True, workers=1)
    assert os.listdir(out) == [MANIFEST_NAME]


def test_outputs_that_cannot_be_are_refused(tmp_path: Path) -> None:
    src = tree(tmp_path / "a", {"1.txt": b"1"})
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(OutputExists, match="is a file"):
        pack(src, file)
    with pytest.raises(UsageError, match="is not a folder"):
        pack(src, file / "out")
    with pytest.raises(UsageError, match="no name"):
        pack(src, "")


def test_a_second_pack_into_the_same_folder_is_refused(tmp_path: Path) -> None:
    src, out = tree(tmp_path / "a", {"1.txt": b"1"}), tmp_path / "out"
    with Output(str(out), overwrite=False) as output:
        with pytest.raises(OutputExists, match="another pack is writing"):
            pack(src, out, workers=1)
        assert os.path.exists(output.part("all", 0, "")[: -len("part-all-000000")])
    assert not out.exists()
    pack(src, out, workers=1)


def test_the_lock_lives_as_long_as_a_worker_does(tmp_path: Path) -> None:
    src, out = tree(tmp_path / "a", {"1.txt": b"1"}), tmp_path / "out"
    output = Output(str(out), overwrite=False).__enter__()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(output.lock,))
    os.close(output.lock)  # as if the pack had been killed
    with pytest.raises(OutputExists, match="another pack is writing"):
        pack(src, out, workers=1)
    child.communicate(b"\n")
    pack(src, out, workers=1)
    assert sorted(os.listdir(out)) == ["shard-000000.tar", "shard-000000.tar.idx", MANIFEST_NAME]


def test_an_error_leaves_nothing_that_was_not_there(tmp_path: Path) -> None:
    for out in (tmp_path / "new/er", tmp_path / "empty"):
        if out.name == "empty":
            out.mkdir()
        with pytest.raises(KeyboardInterrupt):
            _interrupted(out)
    assert os.listdir(tmp_path) == ["empty"] and not os.listdir(tmp_path / "empty")


def _interrupted(out: Path) -> None:
    with Output(str(out), overwrite=False) as output:
        Path(output.part("all", 0, ".tar")).write_text("x")
        raise KeyboardInterrupt


def test_leftovers_of_a_pack_that_only_wrote_parts_hide_nothing(tmp_path: Path) -> None:
    out = tree(tmp_path / "out", {f"{PARTIAL}/part-all-000000.tar": b"x", f"{PARTIAL}/lock": b""})
    assert look(str(out)).ours == [] == look(str(out)).foreign
    pack(tree(tmp_path / "a", {"1.txt": b"1"}), out, workers=1)
    assert list(contents(out)) == ["1"] and PARTIAL not in os.listdir(out)


def test_a_full_disk_is_named_and_leaves_no_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    src, out = tree(tmp_path / "in", {f"{n}.txt": b"1" for n in range(4)}), tmp_path / "out"
    failing = calls = 0
    said: list[str] = []

    def fsync(_: int) -> None:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    while calls >= failing:  # at the first time that something is made safe, at the second, …
        failing, calls = failing + 1, 0
        try:
            pack(src, out, val=0.5, workers=1)
        except StorageError as error:
            said.append(str(error))
        assert len(_sets(out)) == 2 or not out.exists()  # two: only names were still to be made safe
        shutil.rmtree(out, ignore_errors=True)
    assert len(said) == failing - 1 > 10
    assert all(text.startswith(f"{out}") and "No space left on device" in text for text in said)
