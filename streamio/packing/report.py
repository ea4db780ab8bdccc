"""What packing tells: how far it is, what came out, what was left out; and how names are written."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from streamio.sizes import size_text

Stage: TypeAlias = Literal["scan", "write", "commit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a pack is. Totals are None where they are not known: while scanning, and in `write`.

    Files and bytes are those that were read (in `write`: bytes that were written). Samples that were left
    out count as done.
    """

    stage: Stage
    done_samples: int = 0
    total_samples: int | None = None
    done_files: int = 0
    total_files: int | None = None
    done_bytes: int = 0
    total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file (or folder) that cannot be packed, and why. `path` is relative to SRC and fit to print."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitReport:
    """One finished shard set: `streamio.open(path)` reads it. After a dry run bytes are estimated."""

    path: str
    samples: int
    shards: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PackReport:
    """What a pack made. After a dry run: what it would make.

    splits:  by name; `all` without a validation split, else `train` and `val`.
    fields:  names of the fields that samples have, media first.
    skipped: what was left out because it is broken (`on_error="skip"`); also in OUT/skipped.jsonl.
    notes:   sentences that the user should see: what was left out on purpose, and what looks odd.
    """

    out: str
    format: str
    layout: str
    layout_reason: str
    splits: Mapping[str, SplitReport]
    fields: tuple[str, ...]
    samples: int
    classes: tuple[str, ...] | None
    shards: int
    bytes: int
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    dry_run: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers, fit for `json.dumps`; every text is valid Unicode."""
        return _plain({**asdict(self), "seconds": round(self.seconds, 3)})  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    """Lists for tuples; names that are not UTF-8 as `shown` writes them."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


class Meter:
    """Counts what is done and calls back at most ten times a second, so that telling costs nothing."""

    def __init__(self, callback: Callable[[Progress], None] | None, stage: Stage = "scan") -> None:
        self._callback = callback
        self._last = 0.0
        self.samples = self.files = self.bytes = 0
        self._totals: dict[str, int] = {}
        self._stage: Stage = stage

    def start(self, stage: Stage, *, samples: int, files: int, bytes: int) -> None:
        """Begin a stage with known totals; counts start at 0."""
        self._stage, self._totals = stage, {"samples": samples, "files": files, "bytes": bytes}
        self.samples = self.files = self.bytes = 0
        self.tell()

    def add(self, samples: int, files: int, bytes: int) -> None:
        self.samples += samples
        self.files += files
        self.bytes += bytes
        if self._callback is not None and time.monotonic() - self._last >= 0.1:
            self.tell()

    def finish(self, stage: Stage) -> None:
        """Tell once more, with the counts as they are."""
        self._stage = stage
        self.tell()

    def tell(self) -> None:
        if self._callback is None:
            return
        self._last = time.monotonic()
        done = {"done_samples": self.samples, "done_files": self.files, "done_bytes": self.bytes}
        totals = {f"total_{name}": value for name, value in self._totals.items()}
        self._callback(Progress(stage=self._stage, **done, **totals))


def shown(name: str) -> str:
    """A file name fit to print: bytes that are not UTF-8 and control characters come as `\\xe9`."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def named(names: Sequence[str], most: int = 5) -> str:
    """`a, b, c and 7 more`."""
    text = ", ".join(shown(name) for name in names[:most])
    return f"{text} and {len(names) - most:,} more" if len(names) > most else text


def large_note(large: Sequence[tuple[str, int]], limit: int) -> list[str]:
    """A note on the samples (key, bytes) that are larger than a shard should be, if there are any."""
    if not large:
        return []
    found = named([f"{key} ({size_text(size)})" for key, size in large])
    count = plural(len(large), "sample is", "samples are")
    return [f"{count} larger than the shard limit of {size_text(limit)}: {found}"]


def plural(count: int, word: str, words: str = "") -> str:
    """`1 file`, `4,310 files`."""
    return f"{count:,} {word if count == 1 else words or word + 's'}"
