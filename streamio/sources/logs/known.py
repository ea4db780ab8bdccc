"""KnownFiles: what one reader follows, by name, by first line and by inode."""

from __future__ import annotations

from collections.abc import Iterable

from streamio.sources.logs.followed import Followed
from streamio.sources.logs.identity import Head
from streamio.sources.logs.names import log_name, shown
from streamio.sources.logs.opened import FileId


class KnownFiles:
    """Files that are followed. names: those of partitions that were there before; they are not given again."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = set(names)
        self._files: dict[str, Followed] = {}
        self._like: dict[Head, dict[str, Followed]] = {}
        self._owners: dict[FileId, Followed] = {}

    def add(self, one: Followed) -> None:
        self._files[one.name] = one
        self._like.setdefault(one.head, {})[one.name] = one

    def remove(self, one: Followed) -> None:
        one.close()
        del self._files[one.name]
        del self._like[one.head][one.name]

    def found(self, one: Followed) -> None:
        """This file is where its id says."""
        self._owners[one.id] = one

    def owner(self, id: FileId) -> Followed | None:
        """Who is known to be in this file."""
        one = self._owners.get(id)
        is_there = one is not None and one.id == id and one.lost is None and self._files.get(one.name) is one
        return one if is_there else None

    def open(self) -> list[Followed]:
        return [one for one in self._files.values() if one.file is not None]

    def closed(self) -> list[Followed]:
        """Those of which most was read first: they can be mistaken least."""
        closed = [one for one in self._files.values() if one.file is None]
        return sorted(closed, key=lambda one: one.at, reverse=True)

    def like(self, path: str, head: Head) -> list[Followed]:
        """Files of the same log that have this first line; those of which most was read first."""
        family = log_name(path).family
        like = [one for one in self._like.get(head, {}).values() if log_name(one.path).family == family]
        return sorted(like, key=lambda one: one.at, reverse=True)

    def new_name(self, path: str, head: Head) -> str:
        """A name that no other file has had here: its path now, and its key, which says whose it is."""
        name, number = f"{shown(path)}#{head.key}", 1
        while name in self._names:
            number += 1
            name = f"{shown(path)}~{number}#{head.key}"
        self._names.add(name)
        return name

    def close(self) -> None:
        for one in self._files.values():
            one.close()
