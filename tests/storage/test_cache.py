"""The shard cache: one download per machine, whole files only, and nothing removed that is needed or foreign."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from streamio.errors import CorruptShard, StorageError, UsageError
from streamio.storage import files
from streamio.storage.cache import CacheStats, ShardCache, _lock, _unlock, default_cache_root
from tests.conftest import ROOT
from tests.samples import listing
from tests.servers.http import Server, Vices, serve
from tests.storage.conftest import SHARD

NAMES = [f"shard-{n:06d}.tar" for n in range(6)]
fork: Any = multiprocessing.get_context("fork")


@pytest.fixture
def facts(shards: Path) -> dict[str, dict[str, Any]]:
    return {name: _facts((shards / name).read_bytes()) for name in NAMES}


def _facts(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "checksum": xxhash.xxh3_64_hexdigest(data)}


def cached(root: Path) -> list[str]:
    """Shards in the cache, whole or not, without the hashes."""
    names = sorted(os.listdir(root / "shard-cache"))
    return [name[33:] for name in names if name != "CACHEDIR.TAG" and not name.endswith(".lock")]


def together(count: int, work: Any) -> list[Any]:
    """Run `work(n)` in so many forked processes at once; their results in order."""
    answers = fork.Queue()

    def child(n: int) -> None:
        try:
            answers.put((n, work(n)))
        except BaseException as error:
            answers.put((n, error))

    children = [fork.Process(target=child, args=(n,)) for n in range(count)]
    for process in children:
        process.start()
    results = sorted([answers.get(timeout=60) for _ in children], key=lambda pair: pair[0])
    for process in children:
        process.join(10)
    for _, result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for _, result in results]


def test_the_root_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STREAMIO_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    monkeypatch.setenv("HOME", "/c")
    assert default_cache_root() == Path("/a") == ShardCache().root
    monkeypatch.setenv("STREAMIO_CACHE", "")
    assert default_cache_root() == Path("/b/streamio")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_root() == Path("/c/.cache/streamio")
    assert ShardCache(tmp_path).root == tmp_path


def test_a_shard_is_fetched_once(shards: Path, tmp_path: Path, facts: dict[str, dict[str, Any]]) -> None:
    cache = ShardCache(tmp_path)
    assert cache.stats() == CacheStats(hits=0, misses=0, downloaded=0, evictions=0, held=0)
    with serve(shards) as server:
        for _ in range(3):
            path = cache.path(files.join(server.url, NAMES[0]), **facts[NAMES[0]])
            assert path.read_bytes() == (shards / NAMES[0]).read_bytes()
        with cache.open(files.join(server.url, NAMES[1]), **facts[NAMES[1]]) as file:
            assert file.read() == (shards / NAMES[1]).read_bytes()
        assert server.hits() == {NAMES[0]: 1, NAMES[1]: 1}
    assert cache.stats() == CacheStats(hits=2, misses=2, downloaded=2 * SHARD, evictions=0, held=2 * SHARD)
    assert path.name.endswith(NAMES[0])


def test_many_processes_that_ask_at_once_cause_one_download(
    shards: Path, tmp_path: Path, facts: dict[str, dict[str, Any]]
) -> None:
    with serve(shards, rate=3e6) as server:
        url = files.join(server.url, NAMES[0])
        cache = ShardCache(tmp_path)
        paths = together(8, lambda _: cache.path(url, **facts[NAMES[0]]))
        assert server.hits() == {NAMES[0]: 1}
    assert len(set(paths)) == 1 and paths[0].read_bytes() == (shards / NAMES[0]).read_bytes()


def test_local_shards_are_handed_through(shards: Path, tmp_path: Path) -> None:
    cache = ShardCache(tmp_path / "cache", limit=1)
    path = shards / NAMES[0]
    for url in (path, str(path), path.as_uri()):
        assert cache.path(url, bytes=0, checksum="") == path
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("times", [1, None])
def test_altered_bytes_are_fetched_again_once(
    tmp_path: Path, facts: dict[str, dict[str, Any]], shards: Path, times: int | None
) -> None:
    """`times`: how often the server has the wrong bytes."""
    folder = tmp_path / "served"
    folder.mkdir()
    good = (shards / NAMES[0]).read_bytes()
    (folder / NAMES[0]).write_bytes(good[:-1] + b"?")
    cache = ShardCache(tmp_path / "cache")

    class Mended(Server):
        def shows(self, name: str) -> bool:
            if times is not None and self.hits(name) > times:
                (folder / NAMES[0]).write_bytes(good)
            return super().shows(name)

    server = Mended(folder, Vices())
    try:
        url = files.join(server.url + "?sig=SECRET", NAMES[0])
        if times is None:
            with pytest.raises(CorruptShard, match=r"shard-000000\.tar.*checksum is [0-9a-f]{16}") as caught:
                cache.path(url, **facts[NAMES[0]])
            assert facts[NAMES[0]]["checksum"] in str(caught.value) and "SECRET" not in str(caught.value)
            assert cached(tmp_path / "cache") == []
        else:
            assert cache.path(url, **facts[NAMES[0]]).read_bytes() == good
        assert server.hits(NAMES[0]) == 2
    finally:
        server.close()


def test_another_size_is_refused_without_a_download(
    shards: Path, tmp_path: Path, facts: dict[str, dict[str, Any]]
) -> None:
    wrong = {**facts[NAMES[0]], "bytes": 10}
    with serve(shards) as server:
        with pytest.raises(StorageError, match=r"shard-000000\.tar.* has 300,000 bytes, expected 10"):
            ShardCache(tmp_path).path(files.join(server.url, NAMES[0]), **wrong)
    assert cached(tmp_path) == []


def test_the_least_recently_used_go_first(shards: Path, tmp_path: Path, facts: dict[str, dict[str, Any]]) -> None:
    cache = ShardCache(tmp_path, limit=3 * SHARD)
    with serve(shards) as server:
        for n in (0, 1, 2, 0, 3, 4):
            cache.path(files.join(server.url, NAMES[n]), **facts[NAMES[n]])
            time.sleep(0.01)
        assert sorted(cached(tmp_path)) == [NAMES[0], NAMES[3], NAMES[4]]
        assert cache.stats().evictions == 2
        assert not [name for name in os.listdir(tmp_path / "shard-cache") if NAMES[1] in name]


def test_a_shard_larger_than_the_limit_is_fetched_all_the_same(
    shards: Path, tmp_path: Path, facts: dict[str, dict[str, Any]]
) -> None:
    cache = ShardCache(tmp_path, limit=1)
    with serve(shards) as server:
        for name in NAMES:
            assert cache.path(files.join(server.url, name), **facts[name]).exists()
    assert cached(tmp_path) == [NAMES[-1]]


def test_what_is_held_or_open_is_never_lost(shards: Path, tmp_path: Path, facts: dict[str, dict[str, Any]]) -> None:
    cache = ShardCache(tmp_path, limit=1)
    with serve(shards) as server:
        url = {name: files.join(server.url, name) for name in NAMES}
        opened = cache.open(url[NAMES[0]], **facts[NAMES[0]])
        mapped = np.memmap(cache.path(url[NAMES[0]], **facts[NAMES[0]]), mode="r")
        with cache.hold(url[NAMES[1]], **facts[NAMES[1]]) as held:
            for _ in together(3, lambda n: cache.path(url[NAMES[2 + n]], **facts[NAMES[2 + n]])):
                pass
            assert held.exists() and NAMES[0] not in cached(tmp_path)
        with opened:
            assert opened.read() == mapped.tobytes() == (shards / NAMES[0]).read_bytes()
        cache.path(url[NAMES[5]], **facts[NAMES[5]])
        assert cached(tmp_path) == [NAMES[5]]


def test_a_child_that_outlives_a_hold_does_not_prolong_it(
    shards: Path, tmp_path: Path, facts: dict[str, dict[str, Any]]
) -> None:
    """A forked child inherits the lock's descriptor; the shard must be removable while it lives."""
    cache = ShardCache(tmp_path, limit=1)
    with serve(shards) as server:
        with cache.hold(files.join(server.url, NAMES[0]), **facts[NAMES[0]]):
            child = fork.Process(target=time.sleep, args=(30,))
            child.start()
        cache.path(files.join(server.url, NAMES[1]), **facts[NAMES[1]])
        child.kill()
        child.join()
    assert cached(tmp_path) == [NAMES[1]]


def test_who_waited_for_a_lock_that_was_removed_locks_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = _lock(path, fcntl.LOCK_EX)
    got: list[int] = []
    waiter = threading.Thread(target=lambda: got.append(_lock(path, fcntl.LOCK_EX)))
    waiter.start()
    time.sleep(0.1)
    path.unlink()
    _unlock(first)
    waiter.join(10)
    assert os.path.samestat(os.fstat(got[0]), path.stat())
    with pytest.raises(BlockingIOError):
        _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    _unlock(got[0])


def test_a_cache_travels_as_its_settings(tmp_path: Path) -> None:
    cache = ShardCache(tmp_path, limit=5, storage_options={"secret": "SECRET"}, timeout=3)
    copy = pickle.loads(pickle.dumps(cache))
    assert (copy.root, copy.limit, copy.timeout, copy._options) == (tmp_path, 5, 3, {"secret": "SECRET"})
    assert "SECRET" not in repr(cache)
    assert len(pickle.dumps(cache)) < 500


def test_no_handle_is_left_open(shards: Path, tmp_path: Path, facts: dict[str, dict[str, Any]]) -> None:
    cache = ShardCache(tmp_path, limit=SHARD)
    with serve(shards, status={1: 404}) as server:
        cache.path(files.join(server.url, NAMES[0]), **facts[NAMES[0]])
        before = _files_open(tmp_path)
        for name in (NAMES[0], NAMES[1], NAMES[2]):
            try:
                cache.path(files.join(server.url, name), **facts[name])
            except StorageError:
                pass
        assert _files_open(tmp_path) == before == 0


def _files_open(folder: Path) -> int:
    links = (os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd"))
    return sum(os.readlink(link).startswith(str(folder)) for link in links if os.path.lexists(link))


def test_an_unusable_folder_is_named(tmp_path: Path, facts: dict[str, dict[str, Any]]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"file: cannot hold a cache.*STREAMIO_CACHE"):
        ShardCache(tmp_path / "file").path("http://127.0.0.1:9/x", bytes=1, checksum="0")


def _use_all(server: str, root: Path, facts: dict[str, dict[str, Any]], seed: int, most: Any) -> int:
    """Read all shards in an order of one's own, slowly, twice; gives the number of right ones."""
    cache, right = ShardCache(root, limit=SHARD * 3 // 2), 0
    for n in np.random.default_rng(seed).permutation(12) % 6:
        with cache.open(files.join(server, NAMES[n]), **facts[NAMES[n]]) as file:
            with most.get_lock():
                most.value = max(most.value, cache.stats().held)
            time.sleep(0.02)
            right += _facts(file.read()) == facts[NAMES[n]]
    return right


def test_cache_02_eviction_never_takes_what_another_worker_uses(
    shards: Path, tmp_path: Path, facts: dict[str, dict[str, Any]]
) -> None:
    """Lightning-AI/litData#846, #136, #566"""
    most = fork.Value("q", 0)
    with serve(shards) as server:
        right = together(3, lambda n: _use_all(server.url, tmp_path, facts, n, most))
    assert right == [12, 12, 12]
    assert most.value <= SHARD * 3 // 2 + 3 * SHARD


@pytest.mark.slow
def test_cache_02_soak(shards: Path, tmp_path: Path, facts: dict[str, dict[str, Any]]) -> None:
    """Twenty rounds of eight workers, with a limit below one shard."""
    with serve(shards) as server:
        for seed in range(20):
            most = fork.Value("q", 0)
            right = together(8, lambda n, s=seed, m=most: _use_all(server.url, tmp_path, facts, 100 * s + n, m))
            assert right == [12] * 8 and most.value <= SHARD * 3 // 2 + 8 * SHARD


FETCH = """
import sys
from streamio.storage.cache import ShardCache
url, root, size, checksum = sys.argv[1:]
ShardCache(root).path(url, bytes=int(size), checksum=checksum)
"""


def test_cache_03_a_killed_download_is_gone_on_with(
    shards: Path, tmp_path: Path, facts: dict[str, dict[str, Any]]
) -> None:
    """webdataset/webdataset#84, #503; CanReader/FastNN#15"""
    with serve(shards, rate=150_000) as server:
        url = files.join(server.url, NAMES[1])
        command = [sys.executable, "-c", FETCH, url, str(tmp_path), *map(str, facts[NAMES[1]].values())]
        for round in range(4):
            process = subprocess.Popen(command, cwd=ROOT)
            _until(lambda n=round: server.hits(1) > n and _partial(tmp_path) > 20_000 * (n + 1))
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert cached(tmp_path) == [NAMES[1] + ".part"]
        server.vices.rate = None
        path = ShardCache(tmp_path).path(url, **facts[NAMES[1]])
        assert path.read_bytes() == (shards / NAMES[1]).read_bytes()
        starts = [int(asked[3][6:-1]) for asked in server.asked if asked[3]]
        assert len(starts) == 4 and starts == sorted(starts) and starts[0] > 0
    assert cached(tmp_path) == [NAMES[1]]


def _partial(root: Path) -> int:
    return sum(path.stat().st_size for path in (root / "shard-cache").glob("*.part"))


def _until(ready: Any) -> None:
    end = time.monotonic() + 30
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_cache_03_a_part_of_something_else_does_no_harm(
    shards: Path, tmp_path: Path, facts: dict[str, dict[str, Any]]
) -> None:
    """webdataset/webdataset#503: what lies there is taken for the beginning, until the checksum says otherwise."""
    with serve(shards) as server:
        url = files.join(server.url, NAMES[0])
        cache = ShardCache(tmp_path)
        path = cache.path(url, **facts[NAMES[0]])
        for junk in (b"junk" * 1000, b"j" * SHARD, b"junk" * SHARD):
            path.rename(path.with_name(path.name + ".part"))
            path.with_name(path.name + ".part").write_bytes(junk)
            assert cache.path(url, **facts[NAMES[0]]).read_bytes() == (shards / NAMES[0]).read_bytes()
    assert cached(tmp_path) == [NAMES[0]]


def test_cache_03_parts_that_nobody_asks_for_again_count_and_go(
    shards: Path, tmp_path: Path, facts: dict[str, dict[str, Any]], hurry: None
) -> None:
    """CanReader/FastNN#15: they piled up."""
    with serve(shards, cut=0.5, ranges=False) as server:
        cache = ShardCache(tmp_path, limit=2 * SHARD)
        for name in NAMES[:2]:
            with pytest.raises(StorageError):
                cache.path(files.join(server.url, name), **facts[name])
        assert cache.stats().held == SHARD
        server.vices.cut = None
        cache.path(files.join(server.url, NAMES[2]), **facts[NAMES[2]])
        cache.path(files.join(server.url, NAMES[3]), **facts[NAMES[3]])
        assert sorted(cached(tmp_path)) == [NAMES[2], NAMES[3]]
        assert cache.stats().held == 2 * SHARD


def test_cache_04_only_what_the_cache_made_is_removed(
    shards: Path, tmp_path: Path, facts: dict[str, dict[str, Any]]
) -> None:
    """mosaicml/streaming#988: the only copy of a local set was deleted."""
    local = tmp_path / "set"
    local.mkdir()
    for name in [*NAMES, "streamio.json"]:
        (local / name).write_bytes((shards / name).read_bytes())
    cache = ShardCache(tmp_path, limit=1000)  # the folder above the set
    (tmp_path / "notes.txt").touch()
    cache._prepared()
    (tmp_path / "shard-cache" / "foreign.tar").touch()
    before = listing(tmp_path)
    with serve(shards) as server:
        for _ in range(2):
            for name in NAMES:
                cache.path(local / name, **facts[name])
                cache.path(files.join(server.url, name), **facts[name])
    after = listing(tmp_path)
    assert {name: after.get(name) for name in before} == before


@pytest.mark.parametrize("where", [".", "shard-cache"])
def test_cache_04_a_folder_that_holds_a_set_is_refused(tmp_path: Path, where: str) -> None:
    """mosaicml/streaming#988"""
    (tmp_path / where).mkdir(exist_ok=True)
    (tmp_path / where / "streamio.json").write_text("{}")
    with pytest.raises(UsageError, match=r"holds a shard set.*Give another folder"):
        ShardCache(tmp_path).path("http://127.0.0.1:9/x", bytes=1, checksum="0")


def test_cache_04_a_folder_with_foreign_files_is_refused(tmp_path: Path) -> None:
    """mosaicml/streaming#988"""
    (tmp_path / "shard-cache").mkdir()
    (tmp_path / "shard-cache" / "mine.tar").touch()
    with pytest.raises(UsageError, match="files that no cache made"):
        ShardCache(tmp_path).path("http://127.0.0.1:9/x", bytes=1, checksum="0")
    assert os.listdir(tmp_path / "shard-cache") == ["mine.tar"]
