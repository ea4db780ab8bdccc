"""Files in buckets (S3, Google, Azure) and everything else that fsspec can read.

An fsspec file system has connections and a thread with an event loop. Neither survives a fork: a worker that
went on with its parent's file system would wait for ever for a thread that it does not have. So file systems
are kept by process id, and a child makes its own; fsspec forgets the loop and the thread in a forked child
by itself (`fsspec.asyn.reset_after_fork`). The parent's ones stay in the child's table on purpose: letting
them go would run their finalizers, which close connections that the parent still uses.
"""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from streamio.errors import StorageError, StreamioError, UsageError, missing_extra
from streamio.storage.addresses import protocol, redact, scrub
from streamio.storage.transfer import Answer, Interrupted, NotFound, OutOfRange

_BLOCK = 8 << 20
_LANES = 4  # blocks that are asked for at a time, on as many connections
_SLOWEST = 100_000  # bytes per second under which a whole request counts as stalled

_EXTRAS = {
    "s3": ("s3fs", "s3"), "s3a": ("s3fs", "s3"),
    "gs": ("gcsfs", "gcs"), "gcs": ("gcsfs", "gcs"),
    "az": ("adlfs", "azure"), "abfs": ("adlfs", "azure"), "abfss": ("adlfs", "azure"),
}  # fmt: skip
_CREDENTIALS = {
    "NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "TokenRetrievalError",
    "DefaultCredentialsError", "ClientAuthenticationError",
}  # fmt: skip
_FINAL = {errno.EINVAL, errno.EPERM, errno.ENOSYS, errno.ENAMETOOLONG, getattr(errno, "EREMCHG", -1)}

_systems: dict[tuple[int, str, str, float], Any] = {}


class BucketFile:
    """A file or folder that fsspec reads; a `Remote`. Options: what the fsspec file system takes."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._url, self._options = url, options

    @contextmanager
    def open(
        self, start: int, end: int | None, *, size: int | None, tag: str | None, timeout: float
    ) -> Iterator[Answer]:
        stop = end if end is not None else size
        if stop is None:
            stop = size = self.size(timeout)
        yield Answer(start, size, self._blocks(start, stop, timeout))

    def size(self, timeout: float) -> int:
        return int(self._call("info", timeout)["size"])

    def names(self, timeout: float) -> list[str]:
        found = self._call("ls", timeout, detail=True)
        return sorted(item["name"].rpartition("/")[2] for item in found if item["type"] == "file")

    def _blocks(self, start: int, stop: int, timeout: float) -> Iterator[bytes]:
        while start < stop:
            edges = range(start, min(stop, start + _LANES * _BLOCK), _BLOCK)
            parts = self._ranges([(edge, min(edge + _BLOCK, stop)) for edge in edges], timeout)
            yield from parts
            start += sum(map(len, parts))
            if not parts[-1]:
                return

    def _ranges(self, spans: list[tuple[int, int]], timeout: float) -> list[bytes]:
        """The bytes of several ranges up to the first that the file does not fill."""
        starts, ends = zip(*spans, strict=True)
        patience = timeout + (ends[-1] - starts[0]) / _SLOWEST
        parts = self._call("cat_ranges", timeout, starts, ends, patience=patience)
        for n, (part, (start, end)) in enumerate(zip(parts, spans, strict=True)):
            if isinstance(part, BaseException):
                raise self._translated(part, start) from None
            if len(part) < end - start:
                return [*parts[: n + 1], b""]
        return parts  # type: ignore[no-any-return]

    def _call(self, what: str, timeout: float, *args: Any, patience: float = 0.0, **settings: Any) -> Any:
        """Call a method of the file system on this path, and translate what it raises."""
        try:
            system = _system(self._url, self._options, timeout)
            path = system._strip_protocol(self._url)
            if system.async_impl:
                settings["timeout"] = patience or timeout
            if what == "ls":
                system.invalidate_cache()
            if what == "cat_ranges":
                return system.cat_ranges([path] * len(args[0]), *map(list, args), **settings)
            return getattr(system, what)(path, **settings)
        except StreamioError:
            raise
        except Exception as error:
            raise self._translated(error, 0) from None

    def _translated(self, error: BaseException, start: int) -> Exception:
        shown = redact(self._url)
        words = scrub(f"{type(error).__name__}: {error}", self._url, self._options)
        if isinstance(error, FileNotFoundError):
            return NotFound("404, there is no such file", fix="Look at the address", path=shown)
        if isinstance(error, PermissionError):
            return StorageError(f"403, no permission: {words}", fix="May this account read it?", path=shown)
        if _CREDENTIALS.intersection(kind.__name__ for kind in type(error).__mro__):
            return StorageError(f"no credentials: {words}", fix=_LOGIN, path=shown)
        if isinstance(error, OSError) and error.errno == errno.EINVAL and start:
            return OutOfRange()
        if isinstance(error, (TypeError, ValueError)) or (isinstance(error, OSError) and error.errno in _FINAL):
            return StorageError(words, path=shown)
        return Interrupted(words)


_LOGIN = "Set the provider's environment variables (AWS_ACCESS_KEY_ID, …) or give storage_options="


def _system(url: str, options: Mapping[str, Any], timeout: float) -> Any:
    """This process's file system for an address."""
    scheme = protocol(url)
    kind = _kind(scheme)
    settings = {**kind._get_kwargs_from_urls(url), **options}
    key = (os.getpid(), scheme, json.dumps(settings, sort_keys=True, default=repr), timeout)
    if key not in _systems:
        # two threads may both come here; one of the two file systems is then never used
        _systems[key] = _make(kind, scheme, settings, timeout)
    return _systems[key]


def _kind(scheme: str) -> Any:
    import fsspec  # here, as it takes longer to import than the rest of the package below shards

    try:
        return fsspec.get_filesystem_class(scheme)
    except ValueError:
        raise UsageError(
            f"no storage is known for {scheme}:// addresses",
            fix=f"Known: local paths, http, https, {', '.join(_EXTRAS)} and what fsspec has",
        ) from None
    except ImportError as error:
        if scheme not in _EXTRAS:
            raise StorageError(f"{scheme}:// addresses: {error}") from None
        raise missing_extra(*_EXTRAS[scheme], f"reading {scheme}:// addresses") from None


def _make(kind: Any, scheme: str, settings: Mapping[str, Any], timeout: float) -> Any:
    _keep_quiet()
    if scheme not in ("s3", "s3a"):
        return kind(skip_instance_cache=True, **settings)
    # retries are `transfer`'s business: three layers of five tries each would take an hour to give up
    config = {"connect_timeout": min(timeout, 10.0), "read_timeout": timeout, "retries": {"total_max_attempts": 1}}
    config |= settings.get("config_kwargs", {})
    system = kind(skip_instance_cache=True, **{**settings, "config_kwargs": config})
    system.retries = 1
    return system


def _keep_quiet() -> None:
    """Keep request headers and keys out of a debug log that was turned on for everything.

    Who sets a level for one of these loggers by name still gets what he asked for.
    """
    for name in ("fsspec", "s3fs", "gcsfs", "adlfs", "botocore", "aiobotocore", "azure", "google"):
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
