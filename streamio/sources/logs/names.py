"""What the name of a log says: which log it is a part of, how old it is, how it is packed. Text only.

app.log.10.gz < app.log.2 < app.log.1 < app.log          rotation numbers: the highest is the oldest
app.log-20240131.gz < app.log-20240201 < app.log         dates, at the end or before the extension
part-2.jsonl < part-10.jsonl                             else as people count
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

_PACKED = re.compile(r"\.(gz|gzip|zst|zstd|bz2|xz)$", re.IGNORECASE)
_TIME = r"(?:[-_.T ]?[0-2]\d(?:[-_.:h]?[0-5]\d){0,2}(?:[-_.,]\d{3,9})?Z?)?"
_DAY = r"(?P<cut>[-_.]?)(?:0[1-9]|1[0-2])(?P=cut)(?:0[1-9]|[12]\d|3[01])"
_DATE = rf"(?:19|20)\d\d(?:{_DAY}{_TIME}|-(?:0[1-9]|1[0-2]))(?:[-_.]\d{{1,6}})?"
_MARKS = (
    (0, re.compile(rf"(?P<stem>.+)[-_.](?P<mark>{_DATE})$")),
    (0, re.compile(r"(?P<stem>.+)[-_.](?P<mark>\d{10,19})$")),  # seconds since 1970, or parts of them
    (1, re.compile(r"(?P<stem>.+)\.(?P<mark>\d{1,9})$")),
    (2, re.compile(r"(?P<stem>.+?)(?P<mark>\.old|\.bak|\.orig|\.prev|~)$")),
    (0, re.compile(rf"(?P<stem>.+?)[-_.](?P<mark>{_DATE})(?P<end>\.[A-Za-z]\w*)$")),
)
_DATED, _NUMBERED, _OLD, _LIVE = range(4)

Age: TypeAlias = tuple[Any, ...]
"""Sorts the oldest first."""


@dataclass(frozen=True, slots=True)
class LogName:
    """family: name of the log itself, `app.log`. is_live: whether it is this. plain: the name without `.gz`."""

    family: str
    plain: str
    is_packed: bool
    kind: int
    mark: str

    @property
    def is_live(self) -> bool:
        return self.kind == _LIVE and not self.is_packed


@lru_cache(maxsize=65536)
def log_name(path: str) -> LogName:
    """What the last part of a path says."""
    name = os.path.basename(path)
    plain = _PACKED.sub("", name) or name
    for kind, pattern in _MARKS:
        found = pattern.fullmatch(plain)
        if found:
            parts = found.groupdict()
            return LogName(parts["stem"] + (parts.get("end") or ""), plain, plain != name, kind, parts["mark"])
    return LogName(plain, plain, plain != name, _LIVE, "")


def age(path: str) -> Age:
    """By folder, log, age in it, and packed behind plain."""
    name = log_name(path)
    mark: Any = -int(name.mark) if name.kind == _NUMBERED else _natural(name.mark)
    return _natural(os.path.dirname(path)), _natural(name.family), name.kind, mark, name.is_packed, path


def may_be_copy(path: str, original: str) -> bool:
    """Whether a file of this name may be one that rotation is making of a file that is still there.

    `app.log.1` of `app.log` (copytruncate), and `app.log.1.gz` of `app.log.1`.
    """
    copy, source = log_name(path), log_name(original)
    if copy.family != source.family:
        return False
    return (source.is_live and not copy.is_live) or is_packed_twin(path, original)


def is_packed_twin(path: str, original: str) -> bool:
    """Whether it is `app.log.1.gz` beside `app.log.1`."""
    copy, source = log_name(path), log_name(original)
    beside = os.path.dirname(path) == os.path.dirname(original)
    return beside and copy.is_packed and not source.is_packed and copy.plain == source.plain


def shown(path: str) -> str:
    """The path as text that can be written anywhere, whatever bytes are in it."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _natural(text: str) -> tuple[Any, ...]:
    """Text and numbers in turn."""
    return tuple(int(part) if at % 2 else part for at, part in enumerate(re.split(r"([0-9]+)", text)))
