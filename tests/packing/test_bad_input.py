from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamio.errors import InputError, UsageError
from streamio.packing.pack import pack
from tests.conftest import FORMATS
from tests.packing.reading import contents, manifest
from tests.samples import jpg, tree


def _pack(src: Path, out: Path, **options: Any) -> Any:
    return pack(src, out, **{"workers": 1, **options})


_AS_USER = """
import json, os, sys
from streamio.errors import StreamioError
from streamio.packing.pack import pack
os.setegid(65534); os.seteuid(65534)
try:
    print(json.dumps(pack(sys.argv[1], sys.argv[2], on_error=sys.argv[3], workers=1).to_dict()))
except StreamioError as error:
    print(type(error).__name__, error)
"""


def _as_ordinary_user(*arguments: object) -> str:
    run = subprocess.run(
        [sys.executable, "-c", _AS_USER, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    return run.stdout


@pytest.fixture
def open_tmp() -> Iterator[Path]:
    """A folder that every user may reach and write to. Not one of pytest's: another pytest would lock it."""
    folder = Path(tempfile.mkdtemp(prefix="streamio-test-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def test_pack_08_links_to_nowhere_and_unreadable_files_are_named(open_tmp: Path) -> None:
    """E3SM-Project/zstash#261: a link whose target had gone was lost without a word."""
    src = tree(open_tmp / "in", {"a.jpg": jpg(), "secret.jpg": jpg(), "b.jpg": jpg()})
    (src / "gone.jpg").symlink_to("/nowhere")
    (src / "secret.jpg").chmod(0)
    text = _as_ordinary_user(src, open_tmp / "out", "raise")
    assert text.startswith("InputError 2 files cannot be packed")
    assert "gone.jpg: link to /nowhere" in text and "secret.jpg: no permission" in text
    assert not (open_tmp / "out").exists()
    report = json.loads(_as_ordinary_user(src, open_tmp / "out", "skip"))
    assert report["samples"] == 2 and [item["path"] for item in report["skipped"]] == ["gone.jpg", "secret.jpg"]
    assert sorted(contents(open_tmp / "out")) == ["a", "b"]
    lines = (open_tmp / "out/skipped.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == report["skipped"]


def test_no_permission_to_write_is_said_before_any_work(open_tmp: Path) -> None:
    src = tree(open_tmp / "in", {"a.jpg": jpg()})
    (open_tmp / "locked").mkdir(mode=0o555)
    for out in (open_tmp / "locked", open_tmp / "locked/new"):
        text = _as_ordinary_user(src, out, "raise")
        assert text.startswith("UsageError") and "no permission to write" in text


def test_pack_09_a_pipe_is_left_out_and_named(tmp_path: Path) -> None:
    """magic-wormhole/magic-wormhole#363: a named pipe was opened like a file, and the tool hung for good."""
    src = tree(tmp_path / "in", {"a.jpg": jpg()})
    os.mkfifo(src / "pipe.jpg")
    report = _pack(src, tmp_path / "out")
    assert report.notes == ("left out 1 pipe, socket or device: pipe.jpg",) and list(
        contents(tmp_path / "out")
    ) == ["a"]


@pytest.mark.skipif(not os.path.exists("/proc/version"), reason="needs /proc")
def test_pack_10_what_was_read_is_what_is_stored(tmp_path: Path, fmt: str) -> None:
    """google/fuzzbench#2117: a size at stat time that was not the size at read time misaligned later members."""
    src = tree(tmp_path / "in", {"b.txt": b"ok"})
    (src / "a.txt").symlink_to("/proc/version")
    _pack(src, tmp_path / "out", format=fmt)
    assert contents(tmp_path / "out") == {"a": {"txt": Path("/proc/version").read_bytes()}, "b": {"txt": b"ok"}}
    if fmt == "tar":
        subprocess.run(["tar", "tf", tmp_path / "out/shard-000000.tar"], check=True, capture_output=True)


def test_pack_10_a_file_that_keeps_changing_harms_no_other(tmp_path: Path) -> None:
    """composefs/tar-rs#352: the same, with a file that is written to meanwhile."""
    src = tree(tmp_path / "in", {f"{i}.txt": b"ok" * 50 for i in range(50)})
    stop = threading.Event()

    def keep_changing() -> None:
        with open(src / "7.txt", "rb+") as file:
            while not stop.is_set():
                file.truncate(0)
                file.seek(0)
                file.write(b"x" * 100_000)
                file.flush()

    writer = threading.Thread(target=keep_changing)
    writer.start()
    try:
        for n in range(10):
            _pack(src, tmp_path / f"out{n}")
            found = contents(tmp_path / f"out{n}")
            assert set(found.pop("7")["txt"]) <= set(b"x\0")
            assert len(found) == 49 and all(fields == {"txt": b"ok" * 50} for fields in found.values())
            subprocess.run(["tar", "tf", tmp_path / f"out{n}/shard-000000.tar"], check=True, capture_output=True)
    finally:
        stop.set()
        writer.join()


@pytest.mark.parametrize("locale", [{"LANG": "C.UTF-8"}, {"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}])
def test_pack_11_names_that_are_not_utf8(tmp_path: Path, locale: dict[str, str]) -> None:
    """mxmlnkn/ratarmount#32: UnicodeEncodeError while printing or writing the index."""
    src = os.fsencode(tmp_path / "in")
    os.mkdir(src)
    for name in (b"caf\xe9.jpg", b"\xcf\xf0.jpg"):
        with open(src + b"/" + name, "wb") as file:
            file.write(name)
    os.symlink("/nowhere", src + b"/gone\xff.jpg")
    code = (
        "import json, sys; from streamio.packing.pack import pack\n"
        "from streamio.packing import pieces; pieces.LEAST = 1\n"
        "for fmt in sys.argv[3:]:\n"
        "    report = pack(sys.argv[1], f'{sys.argv[2]}/{fmt}', format=fmt, on_error='skip', workers=2,"
        " shard_samples=1)\n"
        "    print(json.dumps(report.to_dict()))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, src, tmp_path, *FORMATS], env={**os.environ, **locale}, capture_output=True
    )
    assert run.returncode == 0, run.stderr
    for fmt, report in zip(FORMATS, run.stdout.splitlines(), strict=True):
        assert json.loads(report)["skipped"][0]["path"] == "gone\\xff.jpg"
        found = contents(tmp_path / fmt)
        assert {os.fsencode(key): fields["jpg"] for key, fields in found.items()} == {
            b"caf\xe9": b"caf\xe9.jpg", b"\xcf\xf0": b"\xcf\xf0.jpg",
        }  # fmt: skip
        json.loads((tmp_path / fmt / "streamio.json").read_bytes().decode("utf-8"))
        assert "gone" in (tmp_path / fmt / "skipped.jsonl").read_bytes().decode("utf-8")


def test_pack_11_classes_that_are_not_utf8(tmp_path: Path) -> None:
    for name in (b"caf\xe9", b"b"):
        path = os.fsencode(tmp_path) + b"/in/" + name
        os.makedirs(path)
        with open(path + b"/1.jpg", "wb") as file:
            file.write(b"1")
    _pack(tmp_path / "in", tmp_path / "out")
    classes = manifest(tmp_path / "out").classes
    assert classes is not None and [os.fsencode(name) for name in classes] == [b"b", b"caf\xe9"]
    _pack(tmp_path / "in", tmp_path / "again", classes_from=tmp_path / "out")


def test_all_that_the_scan_can_see_is_reported_together(tmp_path: Path) -> None:
    src = tree(tmp_path / "in", {"a.jpg": jpg(), "empty.jpg": b"", "x.jpg": b"1", "x.JPG": b"2"})
    (src / "gone.jpg").symlink_to("/nowhere")
    with pytest.raises(InputError) as caught:
        _pack(src, tmp_path / "out")
    for name in ("empty.jpg", "gone.jpg", "x.jpg"):
        assert name in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "zip"}, "unknown format 'zip'"),
        ({"layout": "magic"}, "layout='magic'.*auto, classes, stems, list"),
        ({"store": "jpg"}, "store='jpg'"),
        ({"on_error": "ignore"}, "on_error='ignore'"),
        ({"shard_size": "1MB", "shard_samples": 5}, "both --shard-size and --shard-samples"),
        ({"shard_size": "big"}, "'big' is no size.*256MB"),
        ({"shard_samples": 0}, "shard_samples=0.*1 or more"),
        ({"shard_samples": 1.5}, "shard_samples=1.5"),
        ({"val": 1}, "val=1"),
        ({"val": -0.1}, "val=-0.1"),
        ({"val": "x"}, "val='x'"),
        ({"workers": 0}, "workers=0"),
        ({"seed": "x"}, "seed='x'"),
        ({"quality": 101}, "quality=101.*from 1 to 100"),
        ({"resize_short": 0}, "resize_short=0"),
        ({"max_side": True}, "max_side=True"),
        ({"store": "raw", "quality": 90}, "neither max_side nor quality"),
        ({"include": [""]}, "'' is no pattern"),
        ({"labels": "nowhere.csv"}, "nowhere.csv: there is no such file"),
        ({"classes_from": "nowhere"}, "nowhere: is no packed set"),
        ({"include": ["*.png"]}, "no files to pack.*by include and exclude"),
        ({"exclude": "*.txt", "resize_short": 5}, "no files to pack"),
        ({"resize_short": 5}, "options for pictures"),
        ({"val": 0.5}, "one sample cannot be split"),
    ],
)  # fmt: skip
def test_wrong_calls_are_refused_before_any_work(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    src = tree(tmp_path / "in", {"a.txt": b"1"})
    with pytest.raises(UsageError, match=message):
        _pack(src, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_sources_that_cannot_be_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.tar").write_bytes(b"")
    for src, message in (
        ("none", "no such file or folder"),
        ("empty", "no files to pack"),
        ("x.tar", "read as they are"),
    ):
        with pytest.raises(UsageError, match=message):
            _pack(tmp_path / src, tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["empty", "x.tar"]


def test_outputs_in_the_input_are_refused_also_through_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    src = tree(tmp_path / "in", {"a.txt": b"1"})
    (tmp_path / "link").symlink_to(src)
    monkeypatch.chdir(src)
    for out, what in (
        ("out", "lies inside"),
        (src, "is the input"),
        (tmp_path, "holds"),
        (tmp_path / "link/o", "lies"),
    ):
        for start in (src, Path(".")):
            with pytest.raises(UsageError, match=what):
                _pack(start, Path(out))
    _pack(src, tmp_path / "in2")  # only the name begins alike
    assert sorted(os.listdir(src)) == ["a.txt"]


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import resource, sys\n"
        "from streamio.errors import StreamioError\n"
        "from streamio.packing.pack import pack\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try: pack(sys.argv[1], sys.argv[2], workers=1)\n"
        "except StreamioError as error: print(type(error).__name__, error)\n"
    )
    src = tree(tmp_path / "in", {f"{i}.bin": os.urandom(50_000) for i in range(8)})
    run = subprocess.run([sys.executable, "-c", code, src, tmp_path / "out"], capture_output=True, text=True)
    assert run.stdout.startswith("StorageError"), run.stdout + run.stderr
    assert os.listdir(tmp_path) == ["in"]
