"""Servers that drop, refuse, stall, and must not be told on: cases NET-02, NET-03, NET-06, NET-07."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import xxhash

from streamio.errors import StorageError
from streamio.storage import files
from streamio.storage.buckets import BucketFile
from streamio.storage.cache import ShardCache
from tests.conftest import ROOT
from tests.servers.http import Server, Vices, serve
from tests.servers.s3 import Store

NAME = "shard-000002.tar"
SILENT = 1.0  # seconds, longer than a busy machine takes to answer


def facts(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return {"bytes": len(data), "checksum": xxhash.xxh3_64_hexdigest(data)}


@pytest.mark.parametrize("ranges", [True, False])
def test_net_02_a_dropped_connection_goes_on_where_it_was(shards: Path, tmp_path: Path, ranges: bool) -> None:
    """apache/druid#11941, scrapinghub/exporters#322, PostHog/posthog#71599"""
    with serve(shards, cut=0.6, times=1, ranges=ranges) as server:
        url = files.join(server.url, NAME)
        assert files.read_bytes(url) == (shards / NAME).read_bytes()
        assert server.hits(NAME) == 2
        assert [asked[3] for asked in server.asked] == [None, "bytes=180000-"]
    with serve(shards, cut=0.6, times=1, ranges=ranges) as server:
        path = ShardCache(tmp_path).path(files.join(server.url, NAME), **facts(shards / NAME))
        assert path.read_bytes() == (shards / NAME).read_bytes()


@pytest.mark.parametrize("ranges", [True, False])
def test_net_02_a_connection_that_always_drops_is_an_error_in_time(
    shards: Path, tmp_path: Path, hurry: None, ranges: bool
) -> None:
    """apache/druid#11941"""
    with serve(shards, cut=0.6, ranges=ranges) as server:
        begin = time.monotonic()
        with pytest.raises(
            StorageError, match=rf"{NAME}.*dropped; got [\d,]+ of 300,000 bytes in 5 tries"
        ) as caught:
            ShardCache(tmp_path).path(files.join(server.url, NAME), **facts(shards / NAME))
        assert caught.value.where["shard"] == NAME
        assert time.monotonic() - begin < 60
        assert server.hits(NAME) == 5


def test_net_02_a_server_that_is_busy_is_asked_again(shards: Path, hurry: None) -> None:
    """PostHog/posthog#71599"""
    for vice in ({"status": {2: 503}}, {"status": {2: 429}}, {"reset": 2}):
        with serve(shards, times=2, **vice) as server:
            assert files.read_bytes(files.join(server.url, NAME)) == (shards / NAME).read_bytes()
            assert server.hits(2) == 3


def test_net_02_the_end_of_one_version_is_never_put_behind_the_start_of_another(tmp_path: Path) -> None:
    """PostHog/posthog#71599"""
    (tmp_path / NAME).write_bytes(b"a" * 1000)

    class Replaced(Server):
        def shows(self, name: str) -> bool:
            if self.hits(name) == 2:
                (tmp_path / NAME).write_bytes(b"b" * 1000)
            return super().shows(name)

    server = Replaced(tmp_path, Vices(cut=0.6, times=1))
    try:
        assert files.read_bytes(files.join(server.url, NAME)) == b"b" * 1000
        assert [asked[3] for asked in server.asked] == [None, "bytes=600-"]
    finally:
        server.close()


@pytest.fixture
def s3_like(shards: Path, tmp_path: Path) -> Path:
    """A folder that a plain file server can serve as the bucket `data`, with vices that a real server lacks."""
    (tmp_path / "served" / "data").mkdir(parents=True)
    (tmp_path / "served" / "data" / "set").symlink_to(shards)
    return tmp_path / "served"


@pytest.mark.parametrize("vice", [{"cut": 0.6}, {"stall": True}, {"status": {2: 503}}])
def test_net_02_and_07_hold_for_s3(
    s3_like: Path, shards: Path, tmp_path: Path, hurry: None, vice: dict[str, Any]
) -> None:
    """Exactly one layer tries again: s3fs and botocore, left alone, make up to 25 requests of each of ours."""
    url = f"s3://data/set/{NAME}"
    with serve(s3_like, times=1, **vice) as server:
        cache = ShardCache(tmp_path, storage_options=_account(server), timeout=SILENT)
        assert cache.path(url, **facts(shards / NAME)).read_bytes() == (shards / NAME).read_bytes()
        assert server.hits(2) == 2
    with serve(s3_like, **vice) as server:
        begin = time.monotonic()
        with pytest.raises(StorageError, match=rf"{NAME}: .*; got 0 of 300,000 bytes in 5 tries"):
            files.read_bytes(url, end=300_000, storage_options=_account(server), timeout=SILENT)
        assert server.hits(2) == 5 and time.monotonic() - begin < 15


def _account(server: Server) -> dict[str, str]:
    return {"key": "a", "secret": "b", "endpoint_url": server.url}


@pytest.mark.parametrize("code", [404, 403, 401, 410, 418])
def test_net_03_a_refusal_is_final(shards: Path, tmp_path: Path, code: int) -> None:
    """webdataset/webdataset#308, sqliteai/warp#35"""
    with serve(shards, status={2: code}) as server:
        begin = time.monotonic()
        with pytest.raises(StorageError, match=rf"{NAME}.*{code}"):
            ShardCache(tmp_path).path(files.join(server.url, NAME), **facts(shards / NAME))
        assert server.hits(2) == 1
        assert time.monotonic() - begin < 5


def test_net_03_a_name_that_does_not_resolve_is_an_error_in_time(tmp_path: Path) -> None:
    """webdataset/webdataset#308"""
    begin = time.monotonic()
    with pytest.raises(StorageError, match=rf"http://no-such-host\.invalid/{NAME}"):
        files.download(f"http://no-such-host.invalid/{NAME}", tmp_path / "x")
    assert time.monotonic() - begin < 60


def test_net_03_s3_refusals_are_final(bucket: tuple[Store, str], tmp_path: Path) -> None:
    """sqliteai/warp#35"""
    store, url = bucket
    begin = time.monotonic()
    with pytest.raises(files.NotFound, match=r"s3://data/set/none\.tar: 404"):
        files.download(f"{url}/none.tar", tmp_path / "x", expected=5, storage_options=store.options)
    with pytest.raises(StorageError, match=r"403") as caught:
        files.read_bytes(f"{url}/{NAME}", storage_options={**store.options, "secret": "wrong-SECRET"})
    assert "SECRET" not in str(caught.value)
    assert time.monotonic() - begin < 10


def test_net_03_an_s3_server_that_is_not_there_is_an_error_in_time(tmp_path: Path) -> None:
    """fsspec/s3fs and botocore try again by themselves; only one layer may."""
    options = {"key": "a", "secret": "b", "endpoint_url": "http://127.0.0.1:9"}
    begin = time.monotonic()
    with pytest.raises(StorageError, match=rf"s3://data/set/{NAME}: .*5 tries"):
        files.download(f"s3://data/set/{NAME}", tmp_path / "x", expected=5, storage_options=options)
    assert time.monotonic() - begin < 30


def test_net_07_a_stalled_answer_is_tried_again(shards: Path) -> None:
    """pytorch/pytorch#165832"""
    with serve(shards, stall=2, times=1) as server:
        assert files.read_bytes(files.join(server.url, NAME), timeout=SILENT) == (shards / NAME).read_bytes()
        assert server.hits(2) == 2


def test_net_07_a_server_that_always_stalls_is_an_error_that_names_the_shard(
    shards: Path, tmp_path: Path, hurry: None
) -> None:
    """pytorch/pytorch#165832"""
    with serve(shards, stall=2) as server:
        begin = time.monotonic()
        with pytest.raises(StorageError, match=rf"{NAME}.*sen[td].*got 0 of 300,000 bytes"):
            ShardCache(tmp_path, timeout=SILENT).path(files.join(server.url, NAME), **facts(shards / NAME))
        assert time.monotonic() - begin < 15
        assert server.hits(2) == 5


def test_net_07_the_default_silence_is_bounded() -> None:
    """pytorch/pytorch#165832"""
    assert files.TIMEOUT <= 60


def test_net_07_slow_is_not_silent(shards: Path) -> None:
    """A slow server that goes on sending is waited for, however long it takes."""
    with serve(shards, rate=90_000) as server:  # more than three times as long as silence may last
        assert len(files.read_bytes(files.join(server.url, NAME), timeout=SILENT)) == 300_000
        assert server.hits(2) == 1


FAIL_EVERYTHING = """
import logging, pickle, sys, traceback
from streamio.storage import transfer
transfer.TRIES, transfer.FIRST_PAUSE = 2, 0
logging.basicConfig(level=logging.DEBUG)
from pathlib import Path
from typing import Any
from streamio.storage import files
from streamio.storage.cache import ShardCache

server, endpoint, folder = sys.argv[1:]
options = {"key": "SECRET4", "secret": "SECRET5", "endpoint_url": endpoint}
addresses = [
    (f"{server}/shard-000002.tar?X-Amz-Signature=SECRET1", None),
    (f"{server.replace('//', '//user:SECRET2@')}/shard-000002.tar", None),
    (f"{server}/shard-000003.tar?sig=SECRET1", None),
    (f"{server}/shard-000004.tar?sig=SECRET1#SECRET2", None),
    ("http://user:SECRET2@127.0.0.1:9/shard-000002.tar?sig=SECRET1", None),
    ("http://user:SECRET2@no-such-host.invalid/shard-000002.tar?sig=SECRET1", None),
    ("http://user:SECRET2@127.0.0.1:port/shard-000002.tar", None),
    (f"{server}/shard-000002.tar", {"key": "SECRET4"}),
    (f"{server}/shard-000002.tar", {"headers": {"Authorization": "Bearer SECRET4"}}),
    ("s3://data/set/shard-000002.tar", {**options, "endpoint_url": "http://user:SECRET2@127.0.0.1:9"}),
    ("s3://data/set/shard-000002.tar", options),
    ("s3://data/set/shard-000002.tar", {**options, "no_such_option": "SECRET4"}),
    ("postgresql://user:SECRET3@db/shard", None),
]
failed_not = []
for url, given in addresses:
    cache = ShardCache(Path(folder), limit=10, storage_options=given, timeout=0.3)
    print(repr(cache), cache.stats())
    for act in (
        lambda: files.read_bytes(url, storage_options=given, timeout=0.3),
        lambda: files.size(url, storage_options=given, timeout=0.3),
        lambda: files.list_names(files.join(url, "below"), storage_options=given, timeout=0.3),
        lambda: files.download(url, Path(folder, "x"), storage_options=given, timeout=0.3),
        lambda: cache.path(url, bytes=5, checksum="0" * 16),
        lambda: files.local_path(url),
    ):
        try:
            act()
        except Exception as error:
            print(repr(error), error, repr(pickle.loads(pickle.dumps(error))))
            traceback.print_exc()
        else:
            failed_not.append(files.redact(url))
assert failed_not == [files.redact(addresses[3][0])], failed_not  # the size of what stalls after the headers
"""


def test_net_06_no_secret_in_any_output(shards: Path, bucket: tuple[Store, str], tmp_path: Path) -> None:
    """flyteorg/flyte-sdk#1339, jjjake/internetarchive#477, agbcloud/agbcloud-sdk#14"""
    endpoint = bucket[0].options["endpoint_url"]
    with serve(shards, status={2: 403, 3: 500}, stall=4) as server:
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-c", FAIL_EVERYTHING, server.url, endpoint, str(tmp_path)],
            cwd=ROOT, capture_output=True, text=True, timeout=100,
        )  # fmt: skip
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    names = " ".join(str(path) for path in tmp_path.rglob("*"))
    found = [line for line in (output + names).splitlines() if re.search("SECRET[1-5]", line)]
    assert found == []
    for shown in ("127.0.0.1", "shard-000002.tar?X-Amz-Signature=***", "s3://data/set/shard-000002.tar", "***@db"):
        assert shown in output
    assert "shard-000002.tar" in names


def test_net_06_cached_files_have_the_same_name_for_each_signature(shards: Path, tmp_path: Path) -> None:
    """A new signature for the same shard must not fetch it again."""
    cache = ShardCache(tmp_path)
    with serve(shards) as server:
        for signature in ("SECRET1", "SECRET2"):
            cache.path(files.join(f"{server.url}?sig={signature}", NAME), **facts(shards / NAME))
        assert server.hits(2) == 1
    assert not [path for path in tmp_path.rglob("*") if "SECRET" in str(path)]


def test_net_06_foreign_words_are_scrubbed() -> None:
    """What a storage library puts into its exceptions is not in our hands."""
    remote = BucketFile("s3://me:SECRET1@bucket/shard", {"key": "SECRET2"})
    for error in (
        OSError("SECRET1 SECRET2"),
        PermissionError("SECRET2"),
        ValueError("SECRET1"),
        KeyError("SECRET2"),
    ):
        shown = repr(remote._translated(error, 0)) + str(remote._translated(error, 0))
        assert "SECRET" not in shown and type(error).__name__ in shown
