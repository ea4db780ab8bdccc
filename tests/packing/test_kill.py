"""A pack that is killed at a random moment. Every single step of publishing is tested in test_commit.py."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from streamio.errors import OutputExists
from streamio.packing.pack import pack
from streamio.shards.manifest import MANIFEST_NAME
from tests.packing.reading import contents, files
from tests.samples import tree

_PACK = """
import json, sys
from streamio.packing import pieces
from streamio.packing.pack import pack
pieces.LEAST = 1 << 20  # workers, and shards in pieces, for these few files too
options = json.loads(sys.argv[3])
print("go", flush=True)
pack(sys.argv[1], sys.argv[2], **options)
print("done", flush=True)
"""


def _start(src: Path, out: Path, options: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", _PACK, src, out, options], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "go\n"
    return process


def _sets(out: Path) -> list[dict[str, dict[str, bytes]]]:
    folders = [out, out / "train", out / "val"]
    return [contents(folder) for folder in folders if (folder / MANIFEST_NAME).exists()]


def _kill_often(tmp_path: Path, kills: int, fmt: str, overwrite: bool, val: float) -> None:
    old = tree(tmp_path / "old", {f"{i:03d}.bin": b"old" * i for i in range(60)})
    new = tree(tmp_path / "new", {f"{i:03d}.bin": os.urandom(60_000) for i in range(20, 220)})
    settings: dict[str, Any] = {"format": fmt, "workers": 2, "shard_samples": 40, "val": val}
    text = json.dumps({**settings, "overwrite": overwrite})
    pack(old, tmp_path / "old_set", **settings)
    pack(new, tmp_path / "new_set", **settings)
    whole = _sets(tmp_path / "old_set") + _sets(tmp_path / "new_set")

    if overwrite:
        pack(old, tmp_path / "timed", **settings)
    started = time.monotonic()
    assert _start(new, tmp_path / "timed", text).communicate()[0] == "done\n"
    seconds = time.monotonic() - started
    dice = random.Random(f"{fmt}{overwrite}{val}")
    unfinished = 0
    for n in range(kills):
        out = tmp_path / f"out{n}"
        if overwrite:
            pack(old, out, **settings)
        process = _start(new, out, text)
        time.sleep(dice.uniform(0, seconds))
        process.kill()
        process.communicate()
        left = _sets(out) if out.exists() else []
        assert all(found in whole for found in left)
        try:
            pack(new, out, **settings)
            unfinished += 1
        except OutputExists:
            assert left, "leftovers alone must not stop the next pack"
            pack(new, out, **settings, overwrite=True)
        assert files(out) == files(tmp_path / "new_set")
    assert overwrite or unfinished


@pytest.mark.parametrize(("fmt", "overwrite", "val"), [("tar", False, 0.0), ("tar", True, 0.2)])
def test_a_killed_pack_leaves_whole_sets_only(tmp_path: Path, fmt: str, overwrite: bool, val: float) -> None:
    _kill_often(tmp_path, 2, fmt, overwrite, val)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("fmt", "overwrite", "val"),
    [("tar", False, 0.0), ("lmdb", True, 0.0), ("hdf5", True, 0.2), ("tar", False, 0.2)],
)
def test_a_pack_killed_twenty_times_leaves_whole_sets_only(
    tmp_path: Path, fmt: str, overwrite: bool, val: float
) -> None:
    _kill_often(tmp_path, 20, fmt, overwrite, val)
