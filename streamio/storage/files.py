"""Any address: read a range, list, download, write. What a path or URL is, nobody above needs to know.

`storage_options` goes to the storage: `headers` for http(s), what the fsspec file system takes otherwise
(`key`, `secret`, `endpoint_url`, … for S3). Without it the provider's environment variables count (AWS_…,
FSSPEC_…). Options and the secret parts of addresses never appear in a message.

`timeout` is the longest silence of a server, in seconds. A dropped or silent connection is tried again a few
times; without any progress that ends within a minute, or within `timeout` where that is longer. Then, and at
once for what another try cannot cure (no such file, no permission), the functions raise StorageError.
"""

from __future__ import annotations

import errno
import io
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import Any, BinaryIO

from streamio.errors import StorageError
from streamio.storage.addresses import file_name, is_url, is_web, join, local_path, redact
from streamio.storage.buckets import BucketFile
from streamio.storage.transfer import NotFound, Remote, fetch, persist
from streamio.storage.web import WebFile

__all__ = [
    "TIMEOUT",
    "NotFound",
    "download",
    "exists",
    "file_name",
    "fill",
    "is_url",
    "join",
    "list_names",
    "local_path",
    "publish",
    "read_bytes",
    "redact",
    "size",
    "write_atomic",
]

TIMEOUT = 30.0

Options = Mapping[str, Any] | None


def read_bytes(
    url: str | PathLike[str],
    *,
    start: int = 0,
    end: int | None = None,
    timeout: float = TIMEOUT,
    storage_options: Options = None,
) -> bytes:
    """The bytes [start, end) of a file, or to its end; exactly those, never fewer."""
    if not is_url(url):
        return _read_local(local_path(url), start, end)
    sink = io.BytesIO()
    fetch(_remote(url, storage_options), sink, path=redact(fspath(url)), start=start, end=end, timeout=timeout)
    return sink.getvalue()


def size(url: str | PathLike[str], *, timeout: float = TIMEOUT, storage_options: Options = None) -> int:
    """Bytes of a file."""
    if not is_url(url):
        with _local_errors(url):
            return local_path(url).stat().st_size
    return persist(_remote(url, storage_options).size, path=redact(fspath(url)), timeout=timeout)


def exists(url: str | PathLike[str], *, timeout: float = TIMEOUT, storage_options: Options = None) -> bool:
    """Whether there is such a file. A server that does not let us look raises StorageError."""
    if not is_url(url):
        return local_path(url).is_file()
    try:
        size(url, timeout=timeout, storage_options=storage_options)
    except NotFound:
        return False
    return True


def list_names(url: str | PathLike[str], *, timeout: float = TIMEOUT, storage_options: Options = None) -> list[str]:
    """Sorted names of the files directly in a folder. Over http(s): those that its page links to."""
    if not is_url(url):
        with _local_errors(url):
            return sorted(item.name for item in os.scandir(local_path(url)) if item.is_file())
    return persist(_remote(url, storage_options).names, path=redact(fspath(url)), timeout=timeout)


def download(
    url: str | PathLike[str],
    dest: Path,
    *,
    expected: int | None = None,
    timeout: float = TIMEOUT,
    storage_options: Options = None,
) -> int:
    """Copy a file to `dest`, which appears only when it is whole; gives its bytes.

    expected: its size; anything else is an error. Nothing is left behind after a failure.
    """
    part = _neighbour(dest)
    try:
        count = fill(url, part, expected=expected, timeout=timeout, storage_options=storage_options)
        with _local_errors(dest):
            publish(part, dest)
    finally:
        part.unlink(missing_ok=True)
    return count


def fill(
    url: str | PathLike[str],
    part: Path,
    *,
    expected: int | None = None,
    timeout: float = TIMEOUT,
    storage_options: Options = None,
) -> int:
    """Copy a file to `part`, going on with what is there already; gives the bytes that it then has.

    After a failure `part` holds a beginning of the file, for the next call. The caller sees to it that
    nobody else writes it. Returns when the bytes are on disk.
    """
    with _local_errors(part), open(part, "r+b" if part.exists() else "x+b") as file:
        if is_url(url):
            shown = redact(fspath(url))
            count = fetch(_remote(url, storage_options), file, path=shown, size=expected, timeout=timeout)
        else:
            count = _copy(local_path(url), file, expected)
        _sync(file)
    return count


def publish(part: Path, target: Path) -> None:
    """Rename, and make the rename itself last."""
    os.replace(part, target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_atomic(path: str | PathLike[str], data: bytes | memoryview) -> None:
    """Write a local file that others see either not at all or whole, also after a power cut."""
    target = local_path(path)
    part = _neighbour(target)
    with _local_errors(target):
        try:
            with open(part, "xb") as file:
                file.write(data)
                _sync(file)
            publish(part, target)
        finally:
            part.unlink(missing_ok=True)


def _remote(url: str | PathLike[str], options: Options) -> Remote:
    return WebFile(fspath(url), options or {}) if is_web(url) else BucketFile(fspath(url), options or {})


def _read_local(path: Path, start: int, end: int | None) -> bytes:
    with _local_errors(path), open(path, "rb") as file:
        file.seek(start)
        data = file.read() if end is None else file.read(end - start)
    if end is not None and len(data) < end - start:
        raise StorageError(f"ends early: got {len(data):,} of {end - start:,} bytes", path=str(path))
    return data


def _copy(source: Path, sink: BinaryIO, expected: int | None) -> int:
    sink.truncate(0)
    with open(source, "rb") as file:
        shutil.copyfileobj(file, sink, 1 << 20)
    if expected not in (None, sink.tell()):
        raise StorageError(f"has {sink.tell():,} bytes, expected {expected:,}", path=str(source))
    return sink.tell()


def _neighbour(path: Path) -> Path:
    return path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.part")


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def _local_errors(path: str | PathLike[str]) -> Iterator[None]:
    """OSErrors of local files as StorageErrors."""
    try:
        yield
    except OSError as error:
        kind = NotFound if isinstance(error, FileNotFoundError) else StorageError
        fix = _FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise kind(error.strerror or str(error), fix=fix, path=error.filename or fspath(path)) from error


_FULL = "Free some space, set a limit for the cache, or set STREAMIO_CACHE to a larger disk"
