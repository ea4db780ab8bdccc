"""Remote shards on the local disk: fetched once per machine, verified, and dropped again when room is needed.

All processes of a machine share one folder, and a shard has up to three files in it:

    <hash>-shard-000007.tar        whole and verified; appears by a rename
    <hash>-shard-000007.tar.part   being fetched, or left by a process that died; the next one goes on with it
    <hash>-shard-000007.tar.lock   empty; locked with flock: exclusively to fetch or to remove, shared to use

The kernel drops a lock with the process that held it, so a killed process blocks nobody. A shard is in use
from `hold` until its block ends; that is meant to be short: open or map the file inside it. What is open or
mapped stays readable after it was removed (POSIX keeps the bytes until the last map is gone), so readers
need no lock while they read, and neither do the children that inherit a map.

Only files with such names, in a folder that the cache made itself and marked, are ever removed.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from streamio.errors import CorruptShard, StorageError, UsageError, where
from streamio.storage.files import TIMEOUT, file_name, fill, is_url, local_path, publish, redact

_FOLDER = "shard-cache"
_MARKER = "CACHEDIR.TAG"
_MANIFEST = "streamio.json"  # shards.manifest is a rung above
_MARK = b"Signature: 8a477f597d28d172789f06886806bc55\n# Shards fetched by streamio; may be deleted at any time.\n"
_NAME = re.compile(r"[0-9a-f]{32}-[\w.-]+")


def default_cache_root() -> Path:
    """STREAMIO_CACHE, else XDG_CACHE_HOME/streamio, else ~/.cache/streamio. Not created here."""
    if own := os.environ.get("STREAMIO_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "streamio"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """What a cache did in this process, and what lies in it now.

    hits:       shards that were there already, or that another process fetched while this one waited.
    misses:     shards that this process fetched.
    downloaded: bytes of those.
    evictions:  shards that this process removed to make room.
    held:       bytes on disk now, unfinished ones included, of all processes.
    """

    hits: int
    misses: int
    downloaded: int
    evictions: int
    held: int


class ShardCache:
    """Local copies of remote shards; local shards are handed through and never touched.

    root:    folder to keep them in; None: `default_cache_root()`. Must be on a local disk with flock.
    limit:   bytes to hold, None for as many as the disk takes. The least recently used shards go first.
             Shards in use are never removed, and a shard larger than the limit is fetched all the same, so
             it may be exceeded by one shard per process that fetches.
    storage_options, timeout: as in `streamio.storage.files`.

    Picklable at any time: only the settings travel, and the statistics start at zero again.
    """

    def __init__(
        self,
        root: str | PathLike[str] | None = None,
        limit: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        *,
        timeout: float = TIMEOUT,
    ) -> None:
        self.root = default_cache_root() if root is None else local_path(root)
        self.limit = limit
        self.timeout = timeout
        self._options = storage_options
        self._folder = self.root / _FOLDER
        self._ready = False
        self._hits = self._misses = self._downloaded = self._evictions = 0

    def __repr__(self) -> str:
        return f"ShardCache({str(self.root)!r}, limit={self.limit})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (str(self.root), self.limit, self._options, self.timeout)

    def path(self, url: str | PathLike[str], *, bytes: int, checksum: str) -> Path:
        """A local file with the contents of `url`.

        With a limit it may be removed again before the caller opens it: use `hold` or `open` then.
        Raises as `hold`.
        """
        with self.hold(url, bytes=bytes, checksum=checksum) as path:
            return path

    def open(self, url: str | PathLike[str], *, bytes: int, checksum: str) -> BinaryIO:
        """The file opened for reading; the caller closes it. It stays readable when the cache drops it."""
        with self.hold(url, bytes=bytes, checksum=checksum) as path:
            return open(path, "rb")

    @contextmanager
    def hold(self, url: str | PathLike[str], *, bytes: int, checksum: str) -> Iterator[Path]:
        """A local file with the contents of `url`, which nobody removes before the block ends.

        bytes, checksum: of the whole shard, xxh3-64 in hex, as the manifest has them.
        Waits while another process fetches the same shard. Raises StorageError when it cannot be fetched,
        CorruptShard when what arrives is not what the manifest says, twice; UsageError for a cache folder
        that holds something else.
        """
        if not is_url(url):
            yield local_path(url)
            return
        shard = _Cached(self._prepared(), fspath(url), bytes, checksum)
        lock = self._acquire(shard)
        try:
            yield shard.path
        finally:
            _unlock(lock)

    def stats(self) -> CacheStats:
        return CacheStats(
            hits=self._hits,
            misses=self._misses,
            downloaded=self._downloaded,
            evictions=self._evictions,
            held=sum(size for _, size, _ in _entries(self._folder)),
        )

    def _acquire(self, shard: _Cached) -> int:
        """A shared lock on a shard that is there. Each round either ends or has fetched it."""
        fetched = False
        while True:
            lock = _lock(shard.lock, fcntl.LOCK_SH)
            if shard.is_whole():
                self._hits += not fetched
                with suppress(OSError):  # a cache that another user filled
                    os.utime(shard.path)
                return lock
            _unlock(lock)
            lock = _lock(shard.lock, fcntl.LOCK_EX)
            try:
                if not shard.is_whole():
                    self._fetch(shard)
                    fetched = True
            finally:
                _unlock(lock)

    def _fetch(self, shard: _Cached) -> None:
        """Bring a shard; the caller has its lock. A wrong checksum gets one more download, from the start."""
        self._make_room(shard)
        if (found := self._fill(shard)) != shard.checksum and (again := self._fill(shard)) != shard.checksum:
            raise CorruptShard(
                f"its checksum is {again}, the manifest says {shard.checksum} (first try: {found})",
                fix="Copy the set to the server again", path=redact(shard.url), shard=shard.name,
            )  # fmt: skip
        publish(shard.part, shard.path)
        self._misses += 1

    def _fill(self, shard: _Cached) -> str:
        """Bring the part file up to the whole; gives its checksum, and removes it where that is wrong."""
        try:
            with where(shard=shard.name):
                fill(
                    shard.url,
                    shard.part,
                    expected=shard.bytes,
                    timeout=self.timeout,
                    storage_options=self._options,
                )
        finally:
            shard.drop_empty_part()
        self._downloaded += shard.bytes
        found = _checksum(shard.part)
        if found != shard.checksum:
            shard.part.unlink()
        return found

    def _make_room(self, shard: _Cached) -> None:
        """Remove what was not used for longest until the shard fits, or all that is left is in use."""
        if self.limit is None:
            return
        entries = sorted(_entries(self._folder))
        held = sum(size for _, size, path in entries if path != shard.part)
        for _, size, path in entries:
            if held + shard.bytes <= self.limit:
                return
            if path != shard.part and _evict(path):
                self._evictions += 1
                held -= size

    def _prepared(self) -> Path:
        """The folder of the shards, made and marked on first use."""
        if not self._ready:
            _prepare(self.root, self._folder)
            self._ready = True
        return self._folder


class _Cached:
    """The names of one shard in the cache. No secret gets into them: the hash is of the redacted address."""

    def __init__(self, folder: Path, url: str, size: int, checksum: str) -> None:
        self.url, self.bytes, self.checksum = url, size, checksum
        self.name = file_name(url)
        plain = re.sub(r"[^\w.-]", "_", self.name, flags=re.ASCII)[-100:] or "shard"
        name = f"{xxhash.xxh3_128_hexdigest(f'{redact(url)} {checksum}'.encode())}-{plain}"
        self.path = folder / name
        self.part = folder / (name + ".part")
        self.lock = folder / (name + ".lock")

    def drop_empty_part(self) -> None:
        """A failure before the first byte leaves nothing behind."""
        if self.bytes and self.part.exists() and not self.part.stat().st_size:
            self.part.unlink()

    def is_whole(self) -> bool:
        try:
            return self.path.stat().st_size == self.bytes
        except FileNotFoundError:
            return False


def _rebuild(root: str, limit: int | None, options: Mapping[str, Any] | None, timeout: float) -> ShardCache:
    return ShardCache(root, limit, options, timeout=timeout)


def _prepare(root: Path, folder: Path) -> None:
    """Make the cache's folder, or see that the one there is a cache's."""
    if (root / _MANIFEST).exists() or (folder / _MANIFEST).exists():
        raise UsageError("holds a shard set; it cannot be a cache too", fix=_ELSEWHERE, path=str(root))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        marked = (folder / _MARKER).exists()
        if not marked and any(folder.iterdir()):
            raise UsageError("holds files that no cache made", fix=_ELSEWHERE, path=str(folder))
        if not marked:
            (folder / _MARKER).write_bytes(_MARK)
    except OSError as error:
        raise StorageError(f"cannot hold a cache: {error.strerror}", fix=_ELSEWHERE, path=str(root)) from error


_ELSEWHERE = "Give another folder, or set STREAMIO_CACHE"


def _entries(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """(time of last use, bytes, path) of each whole or unfinished shard. Others may come and go meanwhile."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return
    for name in names:
        if not _NAME.fullmatch(name) or name.endswith(".lock"):
            continue
        try:
            facts = os.stat(folder / name)
        except FileNotFoundError:
            continue
        yield facts.st_mtime, facts.st_size, folder / name


def _evict(path: Path) -> bool:
    """Remove a shard, whole or unfinished, unless somebody uses or fetches it."""
    lock_path = path.with_name(path.name.removesuffix(".part") + ".lock")
    try:
        lock = _lock(lock_path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    try:
        path.unlink(missing_ok=True)
        # still locked: who waits for the file of this name sees that it is gone and opens the next one
        lock_path.unlink(missing_ok=True)
    finally:
        _unlock(lock)
    return True


def _lock(path: Path, mode: int) -> int:
    """An open, locked file descriptor of the file that has this name now. Waits, unless LOCK_NB is given."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, mode)
            if _same_file(lock, path):
                return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def _unlock(lock: int) -> None:
    # said in words: closing alone would leave it locked while a child that was forked meanwhile lives
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def _same_file(lock: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(lock), os.stat(path))
    except FileNotFoundError:
        return False


def _checksum(path: Path) -> str:
    state = xxhash.xxh3_64()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            state.update(block)
    return state.hexdigest()
