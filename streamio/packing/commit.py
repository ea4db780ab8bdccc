"""Makes a finished set appear all at once, or not at all.

Parts are written into `OUT/.streamio-partial/`, which also holds a lock and a journal. `publish` then moves
them into OUT and writes the manifests last. Without its manifest a set does not exist, so whatever moment a
pack is killed at, what can be read is whole. The journal names the files that the next pack may clear away.

    OUT/.streamio-partial/lock          held by the pack that runs, and by its workers
                          journal.json  {"stage": "write"}: nothing in OUT is ours yet
                                        {"stage": "commit", "names": […]}: these are, old and new
                          part-…        shards and indexes on their way
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

from streamio.errors import BadManifest, OutputExists, StorageError, UsageError
from streamio.packing.report import named, plural, shown
from streamio.shards.index import INDEX_SUFFIX
from streamio.shards.manifest import MANIFEST_NAME, Manifest

PARTIAL = ".streamio-partial"
SKIPPED_NAME = "skipped.jsonl"
FOLDERS = {"all": "", "train": "train/", "val": "val/"}
"""Where the set of each split lies in OUT."""

_GATES = ("val/" + MANIFEST_NAME, "train/" + MANIFEST_NAME, MANIFEST_NAME)
"""Every place for a manifest, in the order of writing. They are removed the other way round."""
_LOCK_WAIT = 2.0
"""Seconds; the workers of a pack that was killed hold its lock for a moment longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSet:
    """A set to publish. folder: "", "train/" or "val/". parts: path of the part -> final file name."""

    folder: str
    parts: dict[str, str]
    manifest: Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """What an output folder holds; names are relative to it.

    sets:    manifests of finished sets.
    ours:    all files of finished sets, and leftovers of a pack that was interrupted.
    left:    those leftovers.
    foreign: everything else; never touched.
    """

    sets: dict[str, Manifest]
    ours: list[str]
    left: list[str]
    foreign: list[str]


def look(out: str) -> Holdings:
    """Sort what lies in OUT. Raises OutputExists for a manifest that cannot be read."""
    claimed = _claimed(out)
    names = set(_names(out))
    gates = [gate for gate in _GATES if gate in names]
    if "train/" + MANIFEST_NAME in claimed and gates == ["val/" + MANIFEST_NAME]:
        gates = []  # killed between the two manifests of a split set
    sets = {gate: _manifest(out, gate) for gate in gates}
    kept = {name for gate in sets for name in _files_of(gate[: -len(MANIFEST_NAME)], sets[gate])}
    ours = kept | claimed
    return Holdings(
        sets=sets, ours=sorted(names & ours), left=sorted(names & claimed - kept), foreign=sorted(names - ours)
    )


def output_folder(out: str | os.PathLike[str]) -> str:
    """The name of an output as it is used in paths."""
    if not os.fspath(out):
        raise UsageError("the output has no name", fix="Name a new folder")
    return os.path.normpath(os.fsdecode(out))


def check_output(out: str, *, overwrite: bool) -> None:
    """Raise unless a pack may write to OUT: a new folder, an empty one, or with `overwrite` a finished set."""
    if os.path.lexists(out) and not os.path.isdir(out):
        raise OutputExists("is a file, not a folder", fix="Name another folder", path=shown(out))
    place = out
    while not os.path.exists(place):
        place = os.path.dirname(os.path.abspath(place))
    if not os.path.isdir(place):
        raise UsageError(f"{shown(place)} is not a folder", fix="Name another output", path=shown(out))
    if not os.access(place, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise _no_permission(out, place)
    if place == out:
        _check_holdings(out, look(out), overwrite=overwrite)


def _check_holdings(out: str, holdings: Holdings, *, overwrite: bool) -> None:
    if holdings.sets and not overwrite:
        samples = sum(manifest.samples for manifest in holdings.sets.values())
        raise OutputExists(
            f"holds a finished shard set of {plural(samples, 'sample')}; nothing was touched",
            fix="Use --overwrite (overwrite=True) to replace it, or name another folder",
            path=shown(out),
        )
    if holdings.foreign:
        raise OutputExists(
            f"holds {plural(len(holdings.foreign), 'file')} that no shard set names: {named(holdings.foreign)}; "
            "nothing was touched",
            fix="Name a new or empty folder; --overwrite replaces shard sets only",
            path=shown(out),
        )


class Output:
    """Owns OUT while a pack runs. Use as a context: without `publish` it leaves OUT as it was."""

    def __init__(self, out: str, *, overwrite: bool) -> None:
        self.folder = out
        self.partial = os.path.join(out, PARTIAL)
        self._overwrite = overwrite
        self._made: list[str] = []
        self._lock = -1

    @property
    def lock(self) -> int:
        """The descriptor of the lock; processes that write parts inherit it."""
        return self._lock

    def part(self, split: str, number: int, suffix: str) -> str:
        """Where to write a part; its index goes beside it."""
        return os.path.join(self.partial, f"part-{split}-{number:06d}{suffix}")

    def __enter__(self) -> Output:
        check_output(self.folder, overwrite=self._overwrite)
        with _writing(self.folder):
            self._made = _make_folders(self.partial)
            self._lock = _locked(self.partial)
        try:
            holdings = look(self.folder)
            _check_holdings(self.folder, holdings, overwrite=self._overwrite)
            with _writing(self.folder):
                self._clear()
                self._write_journal({"stage": "write"})
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._clear()
            shutil.rmtree(self.partial, ignore_errors=True)
        finally:
            os.close(self._lock)
        for folder in reversed(self._made):
            with contextlib.suppress(OSError):  # not empty: it holds the new set
                os.rmdir(folder)

    def publish(self, sets: Sequence[NewSet], skipped: bytes) -> None:
        """Put the sets in place of what was there. `skipped`: the contents of skipped.jsonl, or b""."""
        with _writing(self.folder):
            self._publish(sets, skipped, look(self.folder).ours)

    def append(self, new: NewSet) -> None:
        """Add the parts of a set to the shards that are there, which its manifest names too. May be called again.

        The rename of the manifest shows them all at once; before it nobody sees any of them.
        """
        with _writing(self.folder):
            self._publish([new], b"", [])

    def _publish(self, sets: Sequence[NewSet], skipped: bytes, replaced: Sequence[str]) -> None:
        for new in sets:
            for part in new.parts:
                _sync(part)
        _sync(self.partial)
        names = sorted({*replaced, *_new_names(sets, skipped)})
        self._write_journal({"stage": "commit", "names": names})
        _remove(self.folder, replaced)
        for new in sets:
            os.makedirs(os.path.join(self.folder, new.folder), exist_ok=True)
            for part, name in new.parts.items():
                os.rename(part, os.path.join(self.folder, new.folder, name))
        if skipped:
            self._write(SKIPPED_NAME, skipped)
        for folder in {"", *(new.folder for new in sets)}:
            _sync(os.path.join(self.folder, folder))
        for new in sorted(sets, key=lambda new: _GATES.index(new.folder + MANIFEST_NAME)):
            self._write(new.folder + MANIFEST_NAME, new.manifest.to_json())
            _sync(os.path.join(self.folder, new.folder))
        _sync(os.path.dirname(os.path.abspath(self.folder)))

    def _clear(self) -> None:
        """Remove what an interrupted pack left that no finished set names."""
        _remove(self.folder, look(self.folder).left)
        for name in os.listdir(self.partial):
            if name.startswith("part-"):
                os.unlink(os.path.join(self.partial, name))

    def _write_journal(self, entry: dict[str, object]) -> None:
        self._write(f"{PARTIAL}/journal.json", json.dumps(entry).encode())
        _sync(self.partial)

    def _write(self, name: str, data: bytes) -> None:
        """Write a whole file under its name, or nothing."""
        passing = os.path.join(self.partial, "part-file")
        with open(passing, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(passing, os.path.join(self.folder, name))


def _new_names(sets: Iterable[NewSet], skipped: bytes) -> Iterator[str]:
    for new in sets:
        yield new.folder + MANIFEST_NAME
        yield from (new.folder + name for name in new.parts.values())
    if skipped:
        yield SKIPPED_NAME


def _names(out: str) -> Iterator[str]:
    """Files in OUT and in the folders of its splits; other folders end in `/`."""
    if not os.path.isdir(out):
        return
    for name in os.listdir(out):
        path = os.path.join(out, name)
        if name == PARTIAL:
            continue
        if not os.path.isdir(path) or os.path.islink(path):
            yield name
        elif name + "/" in FOLDERS.values():
            yield from (f"{name}/{inner}" for inner in os.listdir(path))
        else:
            yield name + "/"


def _files_of(folder: str, manifest: Manifest) -> set[str]:
    """Everything that belongs to a finished set; plain `lmdb` leaves a lock beside a shard that it reads."""
    names = {folder + MANIFEST_NAME, SKIPPED_NAME}
    for shard in manifest.shards:
        names |= {folder + shard.name + end for end in ("", INDEX_SUFFIX, "-lock")}
    return names


def _claimed(out: str) -> set[str]:
    """Names that an interrupted pack was about to replace or write."""
    try:
        with open(os.path.join(out, PARTIAL, "journal.json"), "rb") as file:
            journal = json.load(file)
        return set(journal["names"]) if journal["stage"] == "commit" else set()
    except (OSError, ValueError, KeyError, TypeError):
        return set()  # killed before there was a journal


def _manifest(out: str, gate: str) -> Manifest:
    path = os.path.join(out, gate)
    try:
        with open(path, "rb") as file:
            return Manifest.from_json(file.read(), shown(path))
    except (BadManifest, OSError) as error:
        raise OutputExists(
            f"holds a manifest that cannot be read, so nobody knows which files belong to it: {error}",
            fix="Delete the folder yourself, or name another one",
            path=shown(out),
        ) from error


def _remove(out: str, names: Sequence[str]) -> None:
    """Remove files of sets, the manifests first, so that no half of a set can be read in between."""
    gates = [gate for gate in reversed(_GATES) if gate in names]
    for gate in gates:
        os.unlink(os.path.join(out, gate))
        _sync(os.path.dirname(os.path.join(out, gate)))
    for name in names:
        if name not in gates:
            os.unlink(os.path.join(out, name))
    for folder in ("train", "val"):
        with contextlib.suppress(OSError):  # not there, or not empty
            os.rmdir(os.path.join(out, folder))


def _make_folders(path: str) -> list[str]:
    """Make a folder and those above it; gives the ones that were new, the outermost first."""
    made: list[str] = []
    path = os.path.abspath(path)
    if not os.path.isdir(path):
        made = _make_folders(os.path.dirname(path))
        with contextlib.suppress(FileExistsError):  # another pack was faster
            os.mkdir(path)
            made.append(path)
    return made


def _locked(partial: str) -> int:
    """A descriptor that holds the lock of the folder. Raises OutputExists if another pack has it."""
    path = os.path.join(partial, "lock")
    deadline = time.monotonic() + _LOCK_WAIT
    while True:
        os.makedirs(partial, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The pack that had it may have removed the file since we opened it; then we hold nothing.
            if os.path.exists(path) and os.path.samestat(os.fstat(lock), os.stat(path)):
                return lock
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                os.close(lock)
                raise
        os.close(lock)
        if time.monotonic() > deadline:
            raise OutputExists(
                "another pack is writing to this folder",
                fix="Wait until it has ended, or name another folder",
                path=shown(os.path.dirname(partial)),
            )
        time.sleep(0.05)


def _sync(path: str) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path or ".", os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _writing(out: str) -> Iterator[None]:
    """What the system refuses while OUT is written, as an error that names OUT."""
    try:
        yield
    except PermissionError as error:
        raise _no_permission(out, out) from error
    except OSError as error:
        raise StorageError(
            f"cannot be written: {error.strerror or error}", fix="Check the free space", path=shown(out)
        ) from error


def _no_permission(out: str, place: str) -> UsageError:
    return UsageError(f"no permission to write to {shown(place)}", fix="Name another folder", path=shown(out))
