"""`streamio pack` from the outside: what it prints, what it leaves, how it ends."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import streamio
from streamio.packing import pieces
from tests.cli.conftest import Run, ordinary_user, spawn
from tests.samples import jpg, png, tree

BROKEN = jpg()[:100]


def keys(path: Path) -> list[str]:
    opened = streamio.open(path)
    return [opened[row]["__key__"] for row in range(len(opened))]


def test_the_result_says_what_there_is_and_how_to_read_it(run: Run, photos: Path, tmp_path: Path) -> None:
    ran = run("pack", photos, tmp_path / "out", "--workers", 1)
    assert ran.code == 0, ran.text
    for text in ("classes", "2: cat, dog", "samples", "6", "shards", "1", "size", "time", "cls = folder"):
        assert text in ran.out
    assert ran.out.splitlines()[-1].startswith("Packed 6 samples into 1 shard (")
    assert "streamio.ShardDataset(" in ran.out


def _lines_of_python(out: str) -> str:
    after = out.partition("Read it with\n")[2]
    lines = [line.strip() for line in after.splitlines() if line.startswith("    ")]
    assert len(lines) == 3, out
    return "\n".join(lines)


@pytest.mark.parametrize("options", [[], ["--val", "0.4"], ["--resize-short", "8", "--store", "raw"]], ids=str)
def test_the_three_lines_of_python_read_exactly_this_set(
    run: Run, tmp_path: Path, fmt: str, options: list[str]
) -> None:
    photos = tree(tmp_path / "photos", {f"{c}/{i}.jpg": jpg() for c in ("cat", "dog") for i in range(4)})
    ran = run("pack", photos, tmp_path / "it's out", "--format", fmt, "--workers", 1, *options)
    assert ran.code == 0, ran.text
    code = _lines_of_python(ran.out).replace("StreamLoader(ds)", "StreamLoader(ds, num_workers=0)")
    assert code.endswith(": ...")
    found = _execute(code.replace(": ...", ": n += len(cls)"), n=0)
    assert found["n"] == (5 if "--val" in options else 8)


def _execute(code: str, **names: object) -> dict[str, object]:
    exec(compile(code, "printed", "exec"), names)
    return names


@pytest.mark.parametrize(
    "files",
    [
        {"a/1.jpg": jpg(), "a/2.png": png(), "b/3.jpg": jpg(16, 16)},
        {"1.txt": b"one", "2.txt": b"two", "1.json": b"{}"},
        {"1.jpg": jpg(), "1.seg.png": png(), "1.json": b"[1]", "1.txt": b"x", "1.npy2": b"y"},  # many fields
        {"noext": b"1", "deep/er/noext": b"2"},
    ],
    ids=["mixed", "text", "many", "bytes"],
)
def test_the_three_lines_of_python_read_odd_sets_too(run: Run, tmp_path: Path, files: dict[str, bytes]) -> None:
    ran = run("pack", tree(tmp_path / "src", files), tmp_path / "out", "--workers", 1)
    assert ran.code == 0, ran.text
    code = _lines_of_python(ran.out).replace("StreamLoader(ds)", "StreamLoader(ds, num_workers=0)")
    found = _execute(code.replace(": ...", ": n += 1"), n=0)
    assert found["n"] == 1


def test_json_is_one_object_alone_on_stdout(run: Run, photos: Path, tmp_path: Path) -> None:
    ran = run("pack", photos, tmp_path / "out", "--json", "--val", "0.4", "--workers", 1)
    facts = json.loads(ran.out)
    assert ran.out.count("\n") == 1
    assert (facts["samples"], facts["classes"], facts["format"]) == (6, ["cat", "dog"], "tar")
    assert set(facts["splits"]) == {"train", "val"}


def test_quiet_prints_nothing(run: Run, photos: Path, tmp_path: Path) -> None:
    assert run("pack", photos, tmp_path / "out", "-q", "--workers", 1) == (0, "", "")


def test_a_dry_run_says_what_it_would_do_and_does_nothing(run: Run, photos: Path, tmp_path: Path) -> None:
    ran = run("pack", photos, tmp_path / "out", "--dry-run")
    assert ran.code == 0
    assert ran.out.splitlines()[-1].startswith("Would pack 6 samples")
    assert not (tmp_path / "out").exists()


def test_options_reach_the_packer(run: Run, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran = run(
        "pack", photos, out, "-f", "lmdb", "--include", "*.jpg", "--exclude", "dog/*", "--exclude", "*/2.*",
        "--no-shuffle", "--shard-samples", 1, "--layout", "stems", "--workers", 1,
    )  # fmt: skip
    assert ran.code == 0, ran.text
    assert keys(out) == ["cat/0", "cat/1"]
    assert sorted(p.name for p in out.glob("*.lmdb")) == ["shard-000000.lmdb", "shard-000001.lmdb"]


def test_cli_07_broken_files_fail_the_run_or_are_named(run: Run, tmp_path: Path) -> None:
    """modelscope/ms-swift#10095, sandyresearch/parcae#12: samples failed and the exit code was 0."""
    files = {f"c/{i}.jpg": jpg() for i in range(8)} | {"c/cut.jpg": BROKEN, "c/text.jpg": b"not a picture"}
    src, out = tree(tmp_path / "src", files), tmp_path / "out"
    ran = run("pack", src, out, "--check", "--workers", 1)
    assert ran.code == 1
    assert "cut.jpg" in ran.err or "text.jpg" in ran.err  # the first that is met ends the run
    assert "--on-error skip" in ran.err
    assert not out.exists()

    ran = run("pack", src, out, "--check", "--on-error", "skip", "--workers", 1)
    assert ran.code == 0
    assert "2 skipped" in ran.err
    assert "cut.jpg" in ran.err
    assert "text.jpg" in ran.err
    assert len(streamio.open(out)) == 8
    assert len((out / "skipped.jsonl").read_text().splitlines()) == 2

    ran = run("pack", src, out, "--check", "--on-error", "skip", "--json", "--quiet", "--overwrite", "--workers", 1)
    assert sorted(item["path"] for item in json.loads(ran.out)["skipped"]) == ["c/cut.jpg", "c/text.jpg"]
    assert "cut.jpg" in ran.err  # --quiet still names what was left out


def test_many_skipped_files_are_cut_short(run: Run, tmp_path: Path) -> None:
    files = {f"c/{i:02}.jpg": b"" for i in range(25)} | {"c/good.jpg": jpg()}
    ran = run("pack", tree(tmp_path / "src", files), tmp_path / "out", "--on-error", "skip", "--workers", 1)
    assert ran.code == 0, ran.text
    assert "25 skipped" in ran.err
    assert f"and 5 more, see {tmp_path / 'out'}/skipped.jsonl" in ran.err
    assert ran.err.count("zero bytes") == 20


def test_pack_08_files_that_cannot_be_read_are_named(run: Run, open_folder: Path) -> None:
    """E3SM-Project/zstash#261: a link whose target had gone was lost without a word."""
    src, out = tree(open_folder / "src", {"a.jpg": jpg(), "secret.jpg": jpg()}), open_folder / "out"
    run("pack", src, open_folder / "warm", "--workers", 1)
    (src / "gone.jpg").symlink_to("/nowhere")
    (src / "secret.jpg").chmod(0o000)
    with ordinary_user():
        ran = run("pack", src, out, "--workers", 1)
        assert ran.code == 1
        assert "gone.jpg" in ran.err
        assert "secret.jpg" in ran.err
        assert not (out / "streamio.json").exists()
        ran = run("pack", src, out, "--workers", 1, "--on-error", "skip")
        assert ran.code == 0, ran.text
        assert "2 skipped" in ran.err
        assert "gone.jpg" in ran.err
        assert "secret.jpg" in ran.err
        assert keys(out) == ["a"]


def test_pack_09_a_named_pipe_is_named_and_not_opened(tmp_path: Path) -> None:
    """magic-wormhole/magic-wormhole#363, duplicati/duplicati#876: it was opened like a file, and hung for good."""
    src = tree(tmp_path / "src", {"a.jpg": jpg()})
    os.mkfifo(src / "pipe.jpg")
    ran = spawn("pack", src, tmp_path / "out", timeout=30)
    assert "pipe.jpg" in ran.err
    assert ran.code == 0
    assert keys(tmp_path / "out") == ["a"]


def test_pack_10_sizes_that_stat_does_not_know(run: Run, tmp_path: Path) -> None:
    """google/fuzzbench#2117, composefs/tar-rs#352: a size that changed after stat misaligned every later member."""
    src, out = tree(tmp_path / "src", {"b.txt": b"ok"}), tmp_path / "out"
    (src / "a.txt").symlink_to("/proc/version")
    ran = run("pack", src, out, "--workers", 1)
    if ran.code:
        assert "a.txt" in ran.err
        return
    opened = streamio.open(out)
    assert opened[opened.find("a")]["txt"] == Path("/proc/version").read_bytes()
    assert opened[opened.find("b")]["txt"] == b"ok"
    assert subprocess.run(["tar", "tf", out / "shard-000000.tar"], capture_output=True).returncode == 0


@pytest.mark.parametrize("env", [{"LANG": "C.UTF-8"}, {"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}], ids=str)
def test_pack_11_names_that_are_not_utf_8(tmp_path: Path, env: dict[str, str]) -> None:
    """mxmlnkn/ratarmount#32, devsnd/tarindexer#9: printing them raised UnicodeEncodeError."""
    src = os.fsencode(tmp_path / "src")
    os.mkdir(src)
    for name in (b"caf\xe9.jpg", b"\xcf\xf0.jpg", b"broken\xe9.jpg"):
        with open(os.path.join(src, name), "wb") as file:
            file.write(b"" if name.startswith(b"broken") else jpg())
    ran = spawn("pack", tmp_path / "src", tmp_path / "out", "--on-error", "skip", env=env)
    assert "Traceback" not in ran.text
    assert ran.code == 0, ran.text
    assert r"broken\xe9.jpg" in ran.err
    json.loads((tmp_path / "out" / "streamio.json").read_bytes().decode("utf-8"))
    assert sorted(map(os.fsencode, keys(tmp_path / "out"))) == [b"caf\xe9", b"\xcf\xf0"]
    shown = spawn("info", tmp_path / "out", "--sample", 0, env=env)
    assert shown.code == 0
    assert r"\x" in shown.out


def test_names_cannot_write_to_the_terminal(run: Run, tmp_path: Path) -> None:
    src = tree(tmp_path / "src", {"\x1b[31mred\r\n.jpg": b"", "a.jpg": jpg()})
    ran = run("pack", src, tmp_path / "out", "--on-error", "skip", "--workers", 1)
    assert "\x1b" not in ran.text
    assert "\r" not in ran.text
    assert r"\x1b[31mred\r\n.jpg" in ran.err


def test_pack_12_names_that_only_look_the_same(run: Run, tmp_path: Path) -> None:
    """llmsresearch/paperbanana#240, uewepuep/FPVTracksideCore#75: composed and decomposed names did not match."""
    src = tree(tmp_path / "src", {"\u00e9.jpg": jpg(colour=1), "e\u0301.jpg": jpg(colour=2)})
    labels = tmp_path / "l.csv"
    labels.write_text("path,label\n\u00e9.jpg,7\n", encoding="utf-8")
    ran = run("pack", src, tmp_path / "out", "--labels", labels, "--workers", 1)
    assert ran.code == 0, ran.text
    opened = streamio.open(tmp_path / "out")
    assert len(opened) == 2
    assert opened[opened.find("\u00e9")]["cls"] == 7
    assert "cls" not in opened[opened.find("e\u0301")]
    assert "note: 1 sample has no label" in ran.err


def test_pack_15_a_class_without_pictures_keeps_its_number(run: Run, tmp_path: Path) -> None:
    """huggingface/pytorch-image-models#957: an empty class folder shifted all later class numbers."""
    train = tree(tmp_path / "train", {f"{c}/1.jpg": jpg() for c in "abc"})
    val = tree(tmp_path / "val", {f"{c}/1.jpg": jpg() for c in "ac"})
    assert run("pack", train, tmp_path / "ot", "--workers", 1).code == 0
    assert run("pack", val, tmp_path / "ov", "--classes-from", tmp_path / "ot", "--workers", 1).code == 0
    opened = streamio.open(tmp_path / "ov")
    assert opened[opened.find("c/1")]["cls"] == 2
    (val / "b").mkdir()
    ran = run("pack", val, tmp_path / "ow", "--workers", 1)
    opened = streamio.open(tmp_path / "ow")
    assert opened[opened.find("c/1")]["cls"] == 2
    assert "note: 1 class folder holds no sample: b" in ran.err


def test_pack_17_a_sample_larger_than_a_shard(run: Run, tmp_path: Path, fmt: str) -> None:
    """libffcv/ffcv#135: one sample larger than the page size stopped the writer."""
    sizes = {"1": 1000, "2": 1000, "3": 5_000_000, "4": 1000, "5": 1000}
    src = tree(tmp_path / "src", {f"{name}.bin": bytes(size) for name, size in sizes.items()})
    ran = run("pack", src, tmp_path / "out", "-f", fmt, "--shard-size", "1MB", "--workers", 1)
    assert ran.code == 0, ran.text
    assert len(streamio.open(tmp_path / "out")) == 5
    assert "note: " in ran.err
    shards = [p for p in (tmp_path / "out").glob("shard-*") if p.suffix != ".idx"]
    assert sum(p.stat().st_size > 1_200_000 for p in shards) == 1


@pytest.mark.parametrize("files", [1, 3])
def test_pack_18_fewer_samples_than_workers(tmp_path: Path, files: int) -> None:
    """libffcv/ffcv#1, datajuicer/data-juicer#536: an index error, or a hang."""
    src = tree(tmp_path / "src", {f"{i}.jpg": jpg() for i in range(files)})
    ran = spawn("pack", src, tmp_path / "out", "--workers", 8, timeout=60)
    assert ran.code == 0, ran.text
    opened = streamio.open(tmp_path / "out")
    assert len(opened) == files
    assert min(opened.sizes) > 0


def _digest(folder: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        total.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def test_cli_09_the_same_input_gives_the_same_bytes(
    run: Run, open_folder: Path, fmt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning-AI/litData#758, #245: the result depended on the number of workers, and chunks vanished."""
    monkeypatch.setattr(pieces, "LEAST", 1)
    src = tree(open_folder / "src", {f"{i % 5}/{i}.jpg": jpg(8 + i % 9, 8) for i in range(200)})
    options = ("-f", fmt, "--shard-size", "20KB", "--quiet")
    for name, workers in (("one", 1), ("seven", 7)):
        if name == "seven":  # an hour later
            for path in src.rglob("*.jpg"):
                os.utime(path, (path.stat().st_atime, path.stat().st_mtime + 3600))
        assert run("pack", src, open_folder / name, *options, "--workers", workers).code == 0
    with ordinary_user():
        assert run("pack", src, open_folder / "other", *options, "--workers", 1).code == 0
    assert len({_digest(open_folder / name) for name in ("one", "seven", "other")}) == 1


def test_a_reader_that_goes_away_is_no_fault(photos: Path, tmp_path: Path) -> None:
    ran = spawn("pack", photos, tmp_path / "out", shell="| true")
    assert "Traceback" not in ran.err
    assert "Exception" not in ran.err


def test_ascii_terminals_get_escapes(tmp_path: Path) -> None:
    src = tree(tmp_path / "src", {"schön/1.jpg": jpg()})
    ran = spawn("pack", src, tmp_path / "out", env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert ran.code == 0, ran.text
    assert r"sch\xf6n" in ran.out


def test_the_installed_script_is_there() -> None:
    script = Path(sys.executable).with_name("streamio")
    done = subprocess.run([script, "--version"], capture_output=True, text=True)
    assert done.stdout == f"streamio {streamio.__version__}\n"


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "1>&- 2>&-"])
def test_closed_outputs_change_nothing(photos: Path, tmp_path: Path, closed: str) -> None:
    ran = spawn("pack", photos, tmp_path / "out", shell=closed)
    assert ran.code == 0 and len(streamio.open(tmp_path / "out")) == 6


def test_the_lines_to_read_with_name_the_label_last(run: Run, photos: Path, tmp_path: Path) -> None:
    assert "fields=('jpg', 'cls')" in run("pack", photos, tmp_path / "out").out
