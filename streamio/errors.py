"""Every exception that streamio raises, and the one way to add where it happened.

    StreamioError
    ├── UsageError (also ValueError)      a call that cannot work; raised before any work starts
    │   ├── OutputExists                  the output holds something already
    │   └── TailError                     an even epoch is impossible with these sizes
    ├── MissingExtra (also ImportError)   an optional package is needed; the message has the install line
    ├── StorageError                      a file or URL could not be listed, read or written
    ├── InputError                        files to pack that cannot be read, or are not what they should be
    ├── ShardError                        a shard set is not what its manifest or index says
    │   ├── BadManifest
    │   ├── BadIndex
    │   ├── MissingShard
    │   └── CorruptShard
    ├── SampleError                       one sample is at fault
    │   ├── DecodeError                   its bytes do not decode
    │   ├── TransformError                the user's transform failed on it, or collate on its batch
    │   ├── TooManyBadSamples             more than max_errors of an epoch
    │   └── ShapeMismatch                 it does not fit into one array with the others of its batch
    └── WorkerError                       a worker process is at fault
        ├── WorkerDied
        └── WorkerTimeout

    ShardWarning (UserWarning)            a shard is readable, but not quite what it should be

A message has three parts: what was found, where (shard, row, key, field, path), what to do about it.
The code that finds a fault knows the first; layers above it add the second with `where`.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

_ORDER = ("path", "shard", "row", "key", "field")


class StreamioError(Exception):
    """Base of all exceptions of streamio.

    `found` says what was found, `fix` what to do about it, and the keyword arguments (path, shard, row,
    key, field) where. `str()` joins them: `train-00012.tar, row 4711 ('n01/img_7'), field jpg: … . …`.
    """

    def __init__(self, found: str, *, fix: str = "", **where: Any) -> None:
        super().__init__(found)
        self.found = found
        self.fix = fix
        self.where: dict[str, Any] = {k: v for k, v in where.items() if v is not None}

    def __str__(self) -> str:
        place = _place(self.where)
        text = f"{place}: {self.found}" if place else self.found
        if not self.fix:
            return text
        return f"{text}{self.fix}" if text.endswith("\n") else f"{text.rstrip('.')}. {self.fix}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.found, self.fix, self.where, getattr(self, "__notes__", []))


def _rebuild(
    kind: type[StreamioError], found: str, fix: str, where: dict[str, Any], notes: list[str]
) -> StreamioError:
    error = kind(found, fix=fix, **where)
    for note in notes:
        error.add_note(note)
    return error


def _place(where: dict[str, Any]) -> str:
    """Words for a place: `a.tar, row 3 ('cat/7'), field jpg`."""
    words = [str(where[name]) for name in ("path", "shard") if name in where]
    key = f"'{where['key']}'" if "key" in where else ""
    if "row" in where:
        words.append(f"row {where['row']}" + (f" ({key})" if key else ""))
    elif key:
        words.append(f"sample {key}")
    if "field" in where:
        words.append(f"field {where['field']}")
    words += [f"{name} {value}" for name, value in where.items() if name not in _ORDER]
    return ", ".join(words)


class where:  # noqa: N801 - it reads as a word, and is three times as quick as a generator
    """Add a place to any `StreamioError` that passes; what the inner layers said already stays.

    >>> with where(shard="a.tar"):
    ...     raise CorruptShard("the shard is cut")
    Traceback (most recent call last):
    streamio.errors.CorruptShard: a.tar: the shard is cut
    """

    def __init__(self, **place: Any) -> None:
        self._place = place

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, StreamioError):
            for name, value in self._place.items():
                if value is not None:
                    error.where.setdefault(name, value)


class UsageError(StreamioError, ValueError):
    """A call that cannot work. Raised before any work starts; the command line ends with exit code 2."""


class OutputExists(UsageError):
    """The output folder holds something already; nothing was touched."""


class TailError(UsageError):
    """With these sizes not every sample can come once and every rank get as many batches as the others."""


class MissingExtra(StreamioError, ImportError):
    """An optional package is needed; the message has the `pip install` line that brings it."""

    def __init__(self, found: str, *, fix: str = "", **where: Any) -> None:
        StreamioError.__init__(self, found, fix=fix, **where)


class StorageError(StreamioError):
    """A file or URL could not be listed, read or written."""


class InputError(StreamioError):
    """Files to pack cannot be read, or are not what they should be."""


class ShardError(StreamioError):
    """A shard set is not what its manifest or index says."""


class BadManifest(ShardError):
    """The manifest is missing, cut, or of a format that this version does not know."""


class BadIndex(ShardError):
    """A shard index is missing, cut, or does not belong to its shard."""


class MissingShard(ShardError):
    """Shards that the manifest lists are not there."""


class CorruptShard(ShardError):
    """The bytes of a shard are not those that were written."""


class ShardWarning(UserWarning):
    """A shard is readable, but not quite what it should be; the text names it and says what was left out."""


class SampleError(StreamioError):
    """One sample is at fault."""


class DecodeError(SampleError):
    """The bytes of a field do not decode."""


class TransformError(SampleError):
    """The user's transform raised on a sample, or collate on a batch; the exception is the `__cause__`."""


class TooManyBadSamples(SampleError):
    """More samples of an epoch than `max_errors` allows are bad; the last of them is the `__cause__`."""


class ShapeMismatch(SampleError):
    """Samples of one batch have different shapes and nothing was said about how to join them."""


class WorkerError(StreamioError):
    """A worker process is at fault."""


class WorkerDied(WorkerError):
    """A worker process ended without being asked to."""


class WorkerTimeout(WorkerError):
    """No worker delivered a batch in time."""


def missing_extra(package: str, extra: str, purpose: str) -> MissingExtra:
    """The exception for a package that is not installed, with the command that brings it."""
    return MissingExtra(
        f"{purpose} needs the package '{package}', which is not installed",
        fix=f"Run: pip install 'streamio[{extra}]'",
    )
