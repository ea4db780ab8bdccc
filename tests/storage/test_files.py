"""Reading, listing and writing at every kind of address."""

from __future__ import annotations

import http.server
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import fsspec
import pytest

from streamio.errors import StorageError, UsageError
from streamio.storage import buckets, files
from tests.conftest import ROOT
from tests.servers.http import serve
from tests.servers.s3 import Store

NAMES = [*(f"shard-{n:06d}.tar" for n in range(6)), "streamio.json"]


@pytest.fixture(params=["local", "file", "http", "http without ranges", "s3", "memory"])
def place(request: pytest.FixtureRequest, shards: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """The address of the folder of shards, at each kind of place in turn."""
    kind = request.param
    if kind.startswith("http"):
        with serve(shards, ranges=kind == "http") as server:
            yield server.url
    elif kind == "s3":
        store, url = request.getfixturevalue("bucket")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", store.options["key"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", store.options["secret"])
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.options["endpoint_url"])
        yield url
    elif kind == "memory":
        memory = fsspec.filesystem("memory")
        for name in NAMES:
            memory.pipe_file(f"/set/{name}", (shards / name).read_bytes())
        yield "memory://set"
        memory.rm("/set", recursive=True)
    else:
        yield str(shards) if kind == "local" else shards.as_uri()


def test_every_place_gives_the_same(place: str, shards: Path, tmp_path: Path) -> None:
    shard = files.join(place, NAMES[1])
    data = (shards / NAMES[1]).read_bytes()
    assert files.list_names(place) == NAMES
    assert files.size(shard) == len(data)
    assert files.exists(shard) and not files.exists(files.join(place, "none.tar"))
    for start, end in ((0, None), (0, 0), (0, 10), (1000, 250_000), (len(data) - 1, None)):
        assert files.read_bytes(shard, start=start, end=end) == data[start:end]
    assert files.download(shard, tmp_path / "x", expected=len(data)) == len(data)
    assert (tmp_path / "x").read_bytes() == data
    assert os.listdir(tmp_path) == ["x"]


def test_every_place_says_what_is_missing_or_short(place: str, tmp_path: Path) -> None:
    for act in (files.read_bytes, files.size, lambda url: files.download(url, tmp_path / "x")):
        with pytest.raises(files.NotFound, match=r"none\.tar") as caught:
            act(files.join(place, "none.tar"))
        assert isinstance(caught.value, StorageError)
    shard = files.join(place, NAMES[0])
    with pytest.raises(StorageError, match=r"got 10 of 20 bytes"):
        files.read_bytes(shard, start=299_990, end=300_010)
    with pytest.raises(StorageError, match=r"expected|got"):
        files.download(shard, tmp_path / "x", expected=300_001)
    assert os.listdir(tmp_path) == []


def test_options_reach_the_storage(bucket: tuple[Store, str], shards: Path) -> None:
    store, url = bucket
    shard = files.join(url, NAMES[0])
    assert files.read_bytes(shard, end=5, storage_options=store.options) == (shards / NAMES[0]).read_bytes()[:5]
    with serve(shards) as server:
        shard = files.join(server.url, NAMES[0])
        files.read_bytes(shard, storage_options={"headers": {"X-Reader": "me"}})
        assert server.asked[0][1] == "me"
        with pytest.raises(UsageError, match="no such storage option for http: key"):
            files.read_bytes(shard, storage_options={"key": "SECRET"})


def test_options_of_the_user_win_over_ours() -> None:
    options = {"config_kwargs": {"read_timeout": 7}, "key": "a", "secret": "b"}
    settings = buckets._system("s3://bucket/x", options, 3.0).config_kwargs
    assert settings["read_timeout"] == 7 and settings["connect_timeout"] == 3.0


def test_a_large_file_comes_in_parallel_blocks(
    bucket: tuple[Store, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, url = bucket
    monkeypatch.setattr(buckets, "_BLOCK", 70_000)
    monkeypatch.setattr(buckets, "_LANES", 2)
    shard = files.join(url, NAMES[2])
    count = files.download(shard, tmp_path / "x", storage_options=store.options)
    assert count == 300_000 and (tmp_path / "x").read_bytes() == files.read_bytes(
        shard, storage_options=store.options
    )
    with pytest.raises(StorageError, match="got 299,500 of 400,000 bytes"):
        files.read_bytes(shard, start=500, end=400_500, storage_options=store.options)


def test_an_empty_file_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with serve(tmp_path) as server:
        url = files.join(server.url, "empty")
        assert files.size(url) == 0 and files.exists(url) and files.read_bytes(url) == b""
        assert files.download(url, tmp_path / "copy", expected=0) == 0


def test_compressed_answers_are_unpacked(shards: Path, hurry: None) -> None:
    with serve(shards, encoding="gzip") as server:
        url = files.join(server.url, NAMES[0])
        assert files.read_bytes(url) == (shards / NAMES[0]).read_bytes()
    with serve(shards, encoding="gzip", cut=0.5, times=1, ranges=False) as server:
        url = files.join(server.url, NAMES[0])
        assert files.read_bytes(url) == (shards / NAMES[0]).read_bytes()
    with serve(shards, encoding="br") as server:
        with pytest.raises(StorageError, match=r"compressed \(br\).*Turn compression off"):
            files.read_bytes(files.join(server.url, NAMES[0]))


def test_login_goes_to_the_host_it_is_for(shards: Path) -> None:
    seen: list[str | None] = []

    class Redirect(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            if self.path != "/end":
                self.send_response(302)
                self.send_header("Location", f"http://localhost:{self.server.server_port}/end")  # type: ignore[attr-defined]
            else:
                self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Redirect) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        files.read_bytes(f"http://me:p%40ss@127.0.0.1:{server.server_port}/start")
        server.shutdown()
    assert seen == ["Basic bWU6cEBzcw==", None]


def test_written_files_appear_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "x.json"
    files.write_atomic(target, b"old")
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~_umask()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match=r"No space left on device\. Free some space"):
        files.write_atomic(target, b"new")
    assert target.read_bytes() == b"old" and os.listdir(tmp_path) == ["x.json"]


def test_local_faults_are_storage_errors(tmp_path: Path) -> None:
    with pytest.raises(files.NotFound, match=r"none: No such file"):
        files.read_bytes(tmp_path / "none")
    with pytest.raises(StorageError, match=r"Is a directory"):
        files.read_bytes(tmp_path)
    with pytest.raises(StorageError, match=r"No such file"):
        files.write_atomic(tmp_path / "none" / "x", b"")
    with pytest.raises(StorageError):
        files.list_names(tmp_path / "none")


def test_an_unknown_kind_of_address_is_named() -> None:
    with pytest.raises(UsageError, match=r"no storage is known for ss3:// addresses\. Known: .*s3"):
        files.read_bytes("ss3://bucket/a")


def test_a_missing_extra_names_the_command_that_brings_it() -> None:
    code = """
import sys
for hidden in ("s3fs", "gcsfs", "adlfs", "aiohttp"):
    sys.modules[hidden] = None
from streamio.errors import MissingExtra
from streamio.storage import files
for url in ("s3://b/x", "gs://b/x", "az://b/x", "abfs://c@a.dfs.core.windows.net/x"):
    try:
        files.read_bytes(url)
    except MissingExtra as error:
        print(error)
"""
    out = _run(code)
    assert "reading s3:// addresses needs the package 's3fs'" in out and "pip install 'streamio[s3]'" in out
    assert "'gcsfs'" in out and "streamio[gcs]" in out
    assert out.count("'adlfs'") == 2 and "streamio[azure]" in out


def test_http_needs_no_extra(shards: Path) -> None:
    with serve(shards) as server:
        code = f"""
import sys
sys.modules["aiohttp"] = None
from streamio.storage import files
print(len(files.read_bytes("{server.url}/{NAMES[0]}")))
"""
        assert _run(code).strip() == "300000"


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
