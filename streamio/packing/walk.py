"""Finds the files below a folder, with their sizes and everything that is wrong with them.

Made for a million small files: `os.scandir`, plain strings and one `stat` a file.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from streamio.packing.report import named, plural, shown

Tick: TypeAlias = Callable[[int, int, int], None]
"""Called with (samples, files, bytes) that were done since the last call."""

Match: TypeAlias = Callable[[str, str], bool]
"""Does a file of this (name, path) match?"""

_HIDDEN = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx"})
_PLAIN = stat.S_IFREG | 0o444
"""The bits of a file that everybody may read."""
_CAN_ASK = os.access in os.supports_effective_ids


@dataclass(slots=True)
class Tree:
    """What lies below a folder. Paths are relative to it, with `/`, sorted by their bytes.

    files:   (path, bytes on disk) of everything that can be packed.
    folders: names of the folders at the top, empty ones too.
    bad:     what should be packed and cannot be read, and why; folders end in `/`.
    special: pipes, sockets and devices; they are never opened (opening a pipe waits for good).
    loops:   links to a folder above themselves.
    hidden, filtered: how many files and folders were left out as hidden, or by `include` and `exclude`.
    """

    files: list[tuple[str, int]] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    bad: dict[str, str] = field(default_factory=dict)
    special: list[str] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)
    hidden: int = 0
    filtered: int = 0

    def notes(self) -> list[str]:
        """What was left out on purpose, as sentences."""
        notes: list[str] = []
        if self.special:
            count = plural(len(self.special), "pipe, socket or device", "pipes, sockets or devices")
            notes.append(f"left out {count}: {named(self.special)}")
        if self.loops:
            notes.append(f"left out {plural(len(self.loops), 'link')} to a folder above: {named(self.loops)}")
        if self.hidden:
            notes.append(f"left out {plural(self.hidden, 'hidden file or folder', 'hidden files or folders')}")
        if self.filtered:
            what = plural(self.filtered, "file or folder", "files or folders")
            notes.append(f"left out {what} by include and exclude patterns")
        return notes


def walk(root: str, include: Sequence[str] = (), exclude: Sequence[str] = (), tick: Tick | None = None) -> Tree:
    """Everything below `root`; links to files and folders are followed.

    A pattern (`*.jpg`, `cat/*`) with a slash is matched against the path, any other against the name; `*`
    matches slashes too, and case does not count. `exclude` also leaves out whole folders.
    """
    tree = Tree()
    wanted = matcher(include) if include else None
    unwanted = matcher(exclude) if exclude else None
    pending: list[tuple[str, _Chain]] = [("", None)]
    while pending:
        prefix, above = pending.pop()
        before = len(tree.files)
        folders = _folder(tree, root, prefix, above, wanted, unwanted)
        pending += folders
        if not prefix:
            tree.folders = sorted((path[:-1] for path, _ in folders), key=os.fsencode)
        if tick:
            added = tree.files[before:]
            tick(0, len(added), sum(size for _, size in added))
    for found in (tree.special, tree.loops):
        found.sort(key=os.fsencode)
    if all(path.isascii() for path, _ in tree.files):
        tree.files.sort()  # no two paths are alike, so sizes are never compared
    else:
        tree.files.sort(key=lambda file: os.fsencode(file[0]))
    return tree


def examine(path: str) -> tuple[int, str]:
    """(bytes on disk, "") of a file, or (0, why it cannot be packed)."""
    try:
        facts = os.stat(path)
    except OSError as error:
        return 0, _why(error, path)
    except ValueError:  # a NUL or a lone surrogate, from a list
        return 0, "no file can have this name"
    if not stat.S_ISREG(facts.st_mode):
        return 0, "is a folder" if stat.S_ISDIR(facts.st_mode) else "is a pipe, socket or device"
    if not _readable(path, facts.st_mode):
        return 0, "no permission to read it"
    return facts.st_size, ""


_Chain: TypeAlias = "tuple[_Chain, tuple[int, int]] | None"
"""(device, inode) of a folder and, linked, of all above it."""


def _folder(
    tree: Tree, root: str, prefix: str, above: _Chain, wanted: Match | None, unwanted: Match | None
) -> list[tuple[str, _Chain]]:
    """Sort the entries of one folder into `tree`; gives the folders in it."""
    path = f"{root}/{prefix}" if prefix else root
    folders: list[tuple[str, _Chain]] = []
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        tree.bad[prefix or "./"] = _why(error, path)
        return folders
    try:
        facts = os.fstat(handle)
        here: _Chain = (above, (facts.st_dev, facts.st_ino))
        with os.scandir(handle) as entries:  # of a handle, `stat` need not find the folder again for each file
            for entry in entries:
                name = entry.name
                below = prefix + name
                if name[0] == "." or name.lower() in _HIDDEN:  # `is_hidden`, without the call
                    tree.hidden += 1
                elif unwanted and unwanted(name, below):
                    tree.filtered += 1
                elif _is_folder(entry):
                    if entry.is_symlink() and _loops(entry, here):
                        tree.loops.append(below)
                    else:
                        folders.append((f"{below}/", here))
                elif wanted and not wanted(name, below):
                    tree.filtered += 1
                else:
                    _file(tree, entry, below, root)
    finally:
        os.close(handle)
    return folders


def _file(tree: Tree, entry: os.DirEntry[str], path: str, root: str) -> None:
    try:
        facts = entry.stat()
    except OSError as error:
        tree.bad[path] = _why(error, f"{root}/{path}")
        return
    mode = facts.st_mode
    if mode & _PLAIN == _PLAIN and stat.S_ISREG(mode):
        tree.files.append((path, facts.st_size))
    elif not stat.S_ISREG(mode):
        tree.special.append(path)
    elif not _readable(f"{root}/{path}", mode):
        tree.bad[path] = "no permission to read it"
    else:
        tree.files.append((path, facts.st_size))


def is_hidden(name: str) -> bool:
    """Dot files (`._x` of a Mac among them) and what file managers leave behind."""
    return name[0] == "." or name.lower() in _HIDDEN


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle of links; `stat` says so again
        return False


def _loops(entry: os.DirEntry[str], chain: _Chain) -> bool:
    facts = entry.stat()
    while chain is not None:
        chain, folder = chain
        if folder == (facts.st_dev, facts.st_ino):
            return True
    return False


def _readable(path: str, mode: int) -> bool:
    """May this process read it? Asks the system only where the mode does not let everybody."""
    return mode & 0o444 == 0o444 or os.access(path, os.R_OK, effective_ids=_CAN_ASK)


def _why(error: OSError, path: str) -> str:
    if error.errno == errno.ENOENT and os.path.islink(path):
        return f"link to {shown(os.readlink(path))}, which is not there"
    if error.errno == errno.ENOENT:
        return "file not found"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "no permission to read it"
    return (error.strerror or str(error)).lower()


def matcher(patterns: Sequence[str]) -> Match:
    """Does a (name, path) match any of the patterns? See `walk`."""
    names = _joined([p for p in patterns if "/" not in p.rstrip("/")])
    paths = _joined([p for p in patterns if "/" in p.rstrip("/")])
    return lambda name, path: bool(names and names(name)) or bool(paths and paths(path))


def _joined(patterns: Sequence[str]) -> Callable[[str], re.Match[str] | None] | None:
    if not patterns:
        return None
    cleaned = (p.removeprefix("./").strip("/") for p in patterns)
    return re.compile("|".join(fnmatch.translate(p) for p in cleaned), re.IGNORECASE).match
