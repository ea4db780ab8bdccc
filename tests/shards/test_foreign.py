"""Tars without a manifest, and shards by themselves."""

from __future__ import annotations

import functools
import http.server
import io
import multiprocessing
import os
import pickle
import tarfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from streamio.errors import CorruptShard, MissingShard, ShardError, ShardWarning, UsageError
from streamio.shards.foreign import index_tars, reindex
from streamio.shards.index import ShardIndex
from streamio.shards.shardset import ShardSet, open_shards
from streamio.types import ArrayColumn
from tests.samples import flip, jpg, raw_tar
from tests.shards.packed import numbered, pack_set


def tar(path: Path, first: int, count: int = 3) -> Path:
    """`count` samples with a label and a picture, as others write them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = range(first, first + count)
    return raw_tar(path, [m for i in rows for m in ((f"{i:03d}.jpg", jpg(8 + i)), (f"{i:03d}.cls", b"%d" % i))])


def labels(opened: ShardSet) -> list[int]:
    return [sample["cls"] for sample in opened]


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    """x-000.tar to x-002.tar with labels 0 to 8; gives their folder."""
    for i in range(3):
        tar(tmp_path / f"x-{i:03d}.tar", 3 * i)
    return tmp_path


@pytest.mark.parametrize(
    "pattern", ["x-{000..002}.tar", "x-*.tar", "x-00[0-2].tar", "x-{000,001,002}.tar", "*.tar"]
)
def test_patterns_are_expanded(tars: Path, pattern: str) -> None:
    opened = open_shards(f"{tars}/{pattern}")
    assert labels(opened) == list(range(9)) and opened.sizes.tolist() == [3, 3, 3]
    assert opened.columns["cls"].tolist() == list(range(9))
    assert opened.columns["jpg.width"].tolist() == list(range(8, 17))
    assert opened.classes is None and opened.format == "tar" and set(opened.fields) == {"cls", "jpg"}
    assert opened.locate(4) == ("x-001.tar", 1) and opened.find("007") == 7
    batch = opened.gather(np.array([8, 0]), ["cls"])["cls"]
    assert isinstance(batch, ArrayColumn) and batch.values.tolist() == [8, 0]


def test_a_list_keeps_its_order(tars: Path) -> None:
    opened = open_shards([tars / "x-002.tar", f"{tars}/x-{{000..001}}.tar"])
    assert labels(opened) == [6, 7, 8, 0, 1, 2, 3, 4, 5]
    assert opened.path == f"{tars}/x-002.tar … (3 shards)"
    assert labels(pickle.loads(pickle.dumps(opened))) == labels(opened)


def test_braces_and_stars_in_real_names_are_names(tmp_path: Path) -> None:
    path = tar(tmp_path / "a{1..2}[x].tar", 0)
    assert labels(open_shards(path)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("pattern", "error", "said"),
    [
        ("y-*.tar", UsageError, r"no file fits the pattern '.*/y-\*\.tar'"),
        ("x-{000..004}.tar", MissingShard, r"2 of 5 shards are not there: .*x-003\.tar, .*x-004\.tar"),
        ("x-{000..002.tar", UsageError, "is no brace pattern"),
        (["x-000.tar", "x-*.tar"], UsageError, r"given twice: .*x-000\.tar"),
        (["x-000.tar", "."], MissingShard, r"1 of 2 shards are not there"),
    ],
)
def test_patterns_that_find_nothing_are_shown(
    tars: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, error: type[Exception], said: str
) -> None:
    monkeypatch.chdir(tars)
    with pytest.raises(error, match=said):
        open_shards(pattern)


def test_one_name_in_two_folders(tmp_path: Path) -> None:
    paths = [tar(tmp_path / folder / "x.tar", first) for folder, first in (("a", 0), ("b", 3))]
    opened = open_shards(paths)
    assert labels(opened) == list(range(6)) and [opened.locate(i)[0] for i in (0, 3)] == ["a/x.tar", "b/x.tar"]


def test_fields_are_those_of_all_tars(tmp_path: Path) -> None:
    raw_tar(tmp_path / "0.tar", [("a.jpg", jpg()), ("b.jpg", jpg())])
    raw_tar(tmp_path / "1.tar", [("c.txt", b"c"), ("c.jpg", jpg(9))])
    opened = open_shards(f"{tmp_path}/*.tar")
    assert {n: (s.samples, s.codec) for n, s in opened.fields.items()} == {"jpg": (3, "jpeg"), "txt": (1, "text")}
    assert opened[2]["txt"] == b"c" and "txt" not in opened[0]
    assert opened.gather(np.array([0]), ["txt"])["txt"].values[0] is None


def test_arrays_of_one_shape_in_all_tars_are_gathered_at_once(tmp_path: Path) -> None:
    def npy(value: object) -> bytes:
        file = io.BytesIO()
        np.save(file, np.array(value, np.float32))
        return file.getvalue()

    for i in range(3):
        raw_tar(tmp_path / f"{i}.tar", [(f"{i}.npy", npy([i, i])), (f"{i}.x.npy", npy([i] * i))])
    opened = open_shards(f"{tmp_path}/*.tar")
    assert opened.fields["npy"].shape == (2,) and opened.fields["x.npy"].shape is None
    batch = opened.gather(np.array([2, 1]), ["npy"])["npy"]
    assert isinstance(batch, ArrayColumn) and batch.values.tolist() == [[2, 2], [1, 1]]
    assert [sample["x.npy"].tolist() for sample in opened] == [[], [1], [2, 2]]


# the kept index


def test_a_tar_is_walked_once(tars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_shards(tars / "x-000.tar")
    assert (tars / "x-000.tar.idx").is_file() and not list(tars.glob(".*"))
    monkeypatch.setattr("streamio.shards.foreign._scan", None)
    again = open_shards(tars / "x-000.tar")
    assert labels(again) == [0, 1, 2] and again.fingerprint == first.fingerprint


def test_a_changed_tar_is_walked_again(tars: Path) -> None:
    before = open_shards(tars / "x-000.tar")
    held = pickle.dumps(before)
    tar(tars / "x-000.tar", 7)
    os.utime(tars / "x-000.tar", ns=(1, 1))
    assert labels(open_shards(tars / "x-000.tar")) == [7, 8, 9]
    with pytest.raises(ShardError, match="packed again"):
        len(pickle.loads(held))
    with pytest.raises(ShardError, match="was written again since it was opened"):
        before[0]


@pytest.mark.parametrize("length", [250, 255])
def test_the_index_goes_to_the_cache_where_it_cannot_be_beside(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    cache = tmp_path_factory.mktemp("own")
    path = tar(tmp_path / ("x" * (length - 4) + ".tar"), 0)  # no room for the suffix in its name
    for _ in range(2):
        assert labels(open_shards(path, cache=cache)) == [0, 1, 2]
        monkeypatch.setattr("streamio.shards.foreign._scan", None)
    assert len(list((cache / "index").iterdir())) == 1


def test_a_file_of_another_tool_beside_a_tar_is_left_alone(tars: Path) -> None:
    (tars / "x-000.tar.idx").write_bytes(b"v1.2 5\n0 3 4")
    assert labels(open_shards(tars / "x-000.tar")) == [0, 1, 2]
    assert (tars / "x-000.tar.idx").read_bytes() == b"v1.2 5\n0 3 4"


def _open(pattern: str) -> list[int]:
    return labels(open_shards(pattern))


def test_several_processes_index_at_once(tars: Path) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert pool.map(_open, [f"{tars}/x-*.tar"] * 8, chunksize=1) == [list(range(9))] * 8
    assert sorted(p.name for p in tars.iterdir() if not p.name.endswith(".tar")) == [
        f"x-{i:03d}.tar.idx" for i in range(3)
    ]


def test_tar_11_a_foreign_tar_without_its_end_is_read_with_a_warning_every_time(tars: Path) -> None:
    """onekey-sec/unblob#156; mafintosh/tar-stream#82: a tar that was cut between two members was accepted."""
    with tarfile.open(tars / "x-000.tar") as whole:
        third = whole.getmembers()[4].offset
    os.truncate(tars / "x-000.tar", third)
    for _ in range(2):
        with pytest.warns(ShardWarning, match=r"x-000\.tar"):
            opened = open_shards(tars / "x-000.tar")
        assert labels(opened) == [0, 1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(pickle.loads(pickle.dumps(opened))) == 2


def test_index_tars_makes_what_is_not_there(tars: Path) -> None:
    open_shards(tars / "x-001.tar")
    seen: list[str] = []
    done = index_tars(
        [tars / "x-{000..001}.tar", f"{tars}/x-002.tar"], on_done=lambda shard: seen.append(shard.path)
    )
    assert [(shard.made, shard.samples) for shard in done] == [(True, 3), (False, 3), (True, 3)]
    assert seen == [str(tars / f"x-{i:03d}.tar") for i in range(3)]
    assert all(ShardIndex.load(shard.kept).samples == 3 for shard in done)


# shards of our own


def test_a_shard_of_a_set_opens_by_itself(tmp_path: Path, fmt: str) -> None:
    folder = pack_set(tmp_path / "o", [{**s, "__key__": f"a.b/{s['cls']}.c"} for s in numbered(15)], fmt)
    before = sorted(folder.iterdir())
    for _ in range(2):
        opened = open_shards(next(folder.glob("shard-000001.*[!x]")))
        assert (
            len(opened) == 5 and opened[2]["__key__"] == "a.b/12.c" and opened[2]["x.npy"].tolist() == [12, 12, 12]
        )
        assert sorted(folder.iterdir()) == before
        for index in folder.glob("*.idx"):
            index.unlink()
        before = sorted(folder.iterdir())


def test_reindex_makes_the_very_indexes_that_were_lost(tmp_path: Path, fmt: str) -> None:
    samples = [
        {**s, "__key__": f"a.b/{s['cls']}.c%", "jpg": jpg(8 + s["cls"]), **({"score": 0.5} if s["cls"] % 3 else {})}
        for s in numbered(25)
    ]
    folder = pack_set(tmp_path / "o", samples, fmt)
    indexes = sorted(folder.glob("*.idx"))
    before = {path: path.read_bytes() for path in indexes}
    indexes[0].unlink()
    indexes[2].write_bytes(before[indexes[2]][:100])
    done = reindex(folder)
    assert [shard.made for shard in done] == [True, False, True]
    assert {path: path.read_bytes() for path in indexes} == before
    assert [s["__key__"] for s in open_shards(folder)] == [s["__key__"] for s in samples]


def test_reindex_refuses_shards_that_are_damaged_or_gone(tmp_path: Path, fmt: str) -> None:
    folder = pack_set(tmp_path / "o", numbered(25), fmt)
    shards = sorted(set(folder.glob("shard*")) - set(folder.glob("*.idx")))
    Path(f"{shards[1]}.idx").unlink()
    flip(shards[1], shards[1].stat().st_size // 2)
    with pytest.raises(CorruptShard, match=rf"{shards[1].name}: its bytes are not those that were packed"):
        reindex(folder)
    shards[2].unlink()
    with pytest.raises(MissingShard, match=shards[2].name):
        reindex(folder)


# over the network


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A web server for `tmp_path`."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_set_behind_a_url_reads_as_on_disk(tmp_path: Path, url: str, fmt: str) -> None:
    pack_set(tmp_path / "o", numbered(25), fmt)
    for source in (f"{url}/o", f"{url}/o/streamio.json?sig=SECRET"):
        opened = open_shards(source, cache=tmp_path / "cache")
        assert opened.stats().opens == 0 and len(opened) == 25
        assert labels(opened) == list(range(25)) and opened.columns["cls"].tolist() == list(range(25))
        assert labels(pickle.loads(pickle.dumps(opened))) == list(range(25))
        assert "SECRET" not in repr(opened) + opened.path
    (tmp_path / "o" / "streamio.json").rename(tmp_path / "gone.json")
    with pytest.raises(Exception, match=r"o/streamio\.json\?sig=\*\*\*") as caught:
        open_shards(f"{url}/o?sig=SECRET")
    assert "SECRET" not in str(caught.value)


def test_foreign_tars_behind_a_url(tmp_path: Path, tars: Path, url: str) -> None:
    opened = open_shards(f"{url}/x-{{000..002}}.tar", cache=tmp_path / "cache")
    assert labels(opened) == list(range(9)) and opened.locate(4) == ("x-001.tar", 1)
    tar(tars / "x-000.tar", 5, 4)
    assert labels(open_shards(f"{url}/x-000.tar", cache=tmp_path / "cache")) == [5, 6, 7, 8]
