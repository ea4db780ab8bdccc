"""What the writers of all formats share: the rules for keys and field names, and the border for I/O errors.

The rules are those of the strictest format, so that a set in one format can be written in any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from streamio.errors import StorageError, UsageError
from streamio.shards.base import Row

_SLASH = ord("/")
KEY = "__key__"
"""The name under which LMDB and HDF5 shards hold the keys; no field may be called so."""


class Names:
    """The keys that a writer has taken so far, in order, as bytes."""

    def __init__(self, shard: str) -> None:
        self._shard = shard
        self._keys: dict[bytes, None] = {}
        self._good_fields: set[tuple[str, ...]] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def keys(self) -> list[bytes]:
        return list(self._keys)

    def add(self, rows: Sequence[Row]) -> list[bytes]:
        """Take the keys of samples and give their bytes.

        Raises UsageError for a key that came before or that cannot be a file name, and for such fields;
        then nothing is taken.
        """
        for names in dict.fromkeys([tuple(fields) for _, fields in rows]):
            if names not in self._good_fields:
                self._check_fields(next(key for key, fields in rows if tuple(fields) == names), names)
                self._good_fields.add(names)
        try:  # the plain case of `_checked_keys`, which says what is wrong with any other
            keys = [key.encode() for key, _ in rows]
            ended = b"\0".join([*keys, b""])
            good = all(keys) and ended.count(b"\0") == len(keys) and b"/\0" not in ended
        except (AttributeError, UnicodeEncodeError):
            good = False
        new = dict.fromkeys(keys) if good else {}
        if len(new) < len(rows) or not self._keys.keys().isdisjoint(new):
            keys = self._checked_keys([key for key, _ in rows])
            new = dict.fromkeys(keys)
        self._keys.update(new)
        return keys

    def extend(self, keys: list[bytes]) -> None:
        """Take keys that another one checked, and that are not among these."""
        before = len(self._keys)
        self._keys.update(dict.fromkeys(keys))
        assert len(self._keys) == before + len(keys), f"{self._shard}: a key comes twice"

    def _checked_keys(self, keys: Sequence[str]) -> list[bytes]:
        new: dict[bytes, None] = {}
        for key in keys:
            if not isinstance(key, str) or not key or "\0" in key or key[-1] == "/":
                raise self._refused(f"{key!r} cannot be a key", "A key is a path as 'cat/img_7': str, not empty, "
                                    "no zero byte, no '/' at its end")  # fmt: skip
            raw = self._encoded(key, "key")
            if raw in self._keys or raw in new:
                raise self._refused(f"the key {key!r} comes twice", "Give each sample a key of its own")
            new[raw] = None
        return list(new)

    def _check_fields(self, key: str, names: tuple[str, ...]) -> None:
        if not names:
            raise self._refused(f"the sample {key!r} has no fields", "Give it at least one, as 'jpg' or 'cls'")
        for name in names:
            if name == KEY or not name.strip(".") or "/" in name or "\0" in name:
                raise self._refused(f"{name!r} cannot be a field (sample {key!r})",
                                    "A field is named like a file extension: 'jpg', 'seg.png'")  # fmt: skip
            self._encoded(name, "field")

    def _encoded(self, name: str, kind: str) -> bytes:
        try:
            return encoded(name)
        except UnicodeEncodeError as error:
            raise self._refused(f"the {kind} {name!r} has no bytes: {error.reason}",
                                "Take keys from os.fsdecode, or without surrogates") from error  # fmt: skip

    def _refused(self, found: str, fix: str) -> UsageError:
        return UsageError(found, fix=fix, shard=self._shard)


def encoded(name: str) -> bytes:
    """The bytes of a key or field: UTF-8, and what was not UTF-8 in a file name as it was (PEP 383)."""
    return name.encode("utf-8", "surrogateescape")


def decoded(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


@contextmanager
def storage_errors(path: Path, *foreign: type[Exception]) -> Iterator[None]:
    """Turn OSError, and the exceptions of a format's library, into StorageError that names the file."""
    kinds: tuple[type[Exception], ...] = (OSError, *foreign)
    try:
        yield
    except kinds as error:
        raise storage_error(path, error) from error


def storage_error(path: Path, error: Exception) -> StorageError:
    """As `storage_errors` raises it; where a context manager for each sample would cost too much."""
    reason = getattr(error, "strerror", None) or str(error)
    return StorageError(reason, fix="Check free space and permissions", path=str(path))


def discard(path: Path, close: Callable[[], object]) -> None:
    """Close what is open and remove the file, whatever fails on the way: a full disk must not hide its cause."""
    with suppress(Exception):
        close()
    with suppress(OSError):
        path.unlink(missing_ok=True)
