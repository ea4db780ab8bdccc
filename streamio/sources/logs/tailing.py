"""Tail: one worker's files while they are written, through rotation.

`look` finds out what has happened to the files, `portions` reads on. A file is in one of these states:

    unknown     not looked into, not this worker's, or without a whole line yet
    held        begins like another that is still there: rotation may be making a copy, not to be read twice
    followed    open; or asleep: read to its end, unchanged, and closed since there are many
    lost        not where it was: it was deleted, or cut (copytruncate). If a copy turns up, reading goes on there

Who reads a file follows from its first line, so a copy falls to the worker that knows the original.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamio.sources.logs.blocks import LineReader
from streamio.sources.logs.followed import Followed, Portion
from streamio.sources.logs.identity import TAIL, Head, Trace
from streamio.sources.logs.known import KnownFiles
from streamio.sources.logs.listing import Found, list_files, relatives
from streamio.sources.logs.names import age, is_packed_twin, log_name, may_be_copy
from streamio.sources.logs.opened import FileId, LogFile, opened

_log = logging.getLogger("streamio")

MOST_OPEN = 256
FORGET = 3600.0
"""Seconds after which the cursor of a lost file is dropped; a day, if it was lost while nobody looked."""
HOLD = 60.0
"""Seconds after which a file that does not change, like the one it was taken for a copy of, is one of its own."""
_COPYING = 10.0
"""Seconds for which a file that grows may be the copy of a lost one, so that it is not begun yet."""
_DAY = 86400


@dataclass(frozen=True, slots=True)
class Saved:
    """What a state has of a file. time: when it was read. length: of a compressed file that was read to its end."""

    trace: Trace
    time: int = 0
    length: int | None = None


@dataclass(slots=True)
class _Held:
    """A file that may be a copy.

    first, since: when it was seen first, and changed last. begins_like: whether it does, once that is known.
    """

    path: str
    stamp: tuple[int, int]
    first: float
    since: float
    begins_like: bool | None = None


class Tail:
    """Follows the files that match patterns, those that this reader owns.

    owns:   whether a key is this reader's.
    saved:  where to go on, by partition; those of other readers are ignored.
    linger: seconds for which a file is still read that was deleted, or got a name that no pattern matches.
    """

    def __init__(
        self, patterns: Sequence[str], owns: Callable[[str], bool], saved: Mapping[str, Saved], reader: LineReader,
        linger: float,
    ) -> None:  # fmt: skip
        self._patterns, self._owns, self._reader, self._linger = patterns, owns, reader, linger
        self._known = KnownFiles(saved)
        self._passed: dict[FileId, tuple[int, int]] = {}
        self._held: dict[FileId, _Held] = {}
        self._forget: list[str] = []
        self._moved: dict[str, Any] = {}
        self._old: set[str] = set()
        self._room = MOST_OPEN
        self.must_look = True
        """Whether a file is not where it was, so that another is to be found before anything is read."""
        now = time.monotonic()
        for name, one in saved.items():
            if owns(one.trace.head.key):
                followed = Followed(name, one.trace)
                followed.lost = now
                if one.length is not None:
                    followed.stamp = (one.length, 0)
                self._known.add(followed)
                if time.time() - one.time > _DAY:
                    self._old.add(name)

    # ---- what has happened

    def look(self) -> None:
        """Find out what has happened to the files. Raises StorageError for what can no longer be listed or read."""
        now, self.must_look = time.monotonic(), False
        found = list_files(self._patterns, may_lack=True)
        listed = {one.id: one for one in found}
        self._check_open(listed, now)
        self._find_by_id(listed, now)
        self._look_into(found, now)
        self._search_copies(listed, now)
        self._drop(now)
        self._passed = {id: stamp for id, stamp in self._passed.items() if id in listed}
        self._held = {id: held for id, held in self._held.items() if id in listed}

    def _check_open(self, listed: Mapping[FileId, Found], now: float) -> None:
        """Notice files that were cut, renamed or deleted; close what need not stay open."""
        for one in self._known.open():
            if not one.is_intact():
                self._lose(one, now)
            elif one.id in listed:
                one.path, one.left = listed[one.id].path, None
            elif one.left is None:
                beside = (other.path for other in relatives(one.path) if other.id == one.id)
                one.left, one.path = now, next(beside, one.path)
            elif now - max(one.left, one.touched) > self._linger and one.is_dry:
                assert one.file is not None
                if one.file.is_deleted:
                    self._lose(one, now)
                else:
                    self._forget_one(one)
        still_open = self._known.open()
        for one in sorted(still_open, key=lambda one: one.touched)[: -MOST_OPEN // 2]:
            if one.is_dry and one.left is None:
                one.close()
        self._room = MOST_OPEN - len(self._known.open())

    def _find_by_id(self, listed: Mapping[FileId, Found], now: float) -> None:
        """Files without a handle, where they were or under another name."""
        for one in self._known.closed():
            there = listed.get(one.id)
            if there is None and one.lost is not None and now - one.lost <= self._linger:
                there = next((other for other in relatives(one.path) if other.id == one.id), None)
            if there is not None and there.id in listed and self._is_asleep(one, there):
                one.path, one.lost = there.path, None
                self._known.found(one)
            elif there is not None and one.lost is None and self._room <= 0:
                one.path = there.path  # it waits until others need not be open
            elif there is None or not self._takes(one, there, listed, now):
                one.lost = now if one.lost is None else one.lost
                if one.at == 0:
                    self._known.remove(one)

    def _is_asleep(self, one: Followed, there: Found) -> bool:
        """Whether it was read to its end and has not changed."""
        if one.stamp is None:
            return False
        return one.stamp == there.stamp or one.stamp == (there.size, 0)

    def _look_into(self, found: Sequence[Found], now: float) -> None:
        """Files that nobody follows. The youngest first, so that an original is known before its copies."""
        young = sorted(found, key=lambda one: age(one.path), reverse=True)
        for one in sorted(young, key=lambda one: log_name(one.path).is_packed):
            if self._known.owner(one.id) is not None or self._passed.get(one.id) == one.stamp:
                continue
            file = opened(one.path)
            if file is None:
                continue
            if file.id != one.id or not self._sort(file, one, now):
                file.close()

    def _sort(self, file: LogFile, found: Found, now: float) -> bool:
        """Decide about a file; whether it is kept open."""
        head = Head.first_line(file)
        if head is None or not self._owns(head.key):
            self._passed[found.id] = found.stamp
            return False
        held = self._held.get(found.id)
        is_growing = held is None or held.stamp != found.stamp
        if held is None:
            held = self._held[found.id] = _Held(file.path, found.stamp, now, now)
        elif is_growing:
            held.stamp, held.since, held.begins_like = found.stamp, now, None
        held.path = file.path
        if self._is_copy(file, head, held, is_growing, now):
            return False
        if self._goes_on_in(file, head, now, weak=False):
            return True
        if is_growing and now - held.first < _COPYING and self._may_be_lost_one(file, head):
            return False  # of which there will be more in a moment
        if any(may_be_copy(file.path, other.path) for other in self._held.values() if other is not held):
            return False
        if self._was_read(file, head, now) or self._goes_on_in(file, head, now, weak=True):
            return True
        self._begin(file, head, 0, now)
        return True

    def _may_be_lost_one(self, file: LogFile, head: Head) -> bool:
        """Whether it may be the copy of a lost file that is being made."""
        is_copy = not log_name(file.path).is_live
        return is_copy and any(one.lost is not None for one in self._known.like(file.path, head))

    def _begin(self, file: LogFile, head: Head, at: int, now: float) -> None:
        """Follow a file that is none of those which are known."""
        name = self._known.new_name(file.path, head)
        one = Followed(name, Trace(path=file.path, id=file.id, head=head, at=at, begins=(), tail=""))
        self._known.add(one)
        self._follow(one, file, now)
        if at:
            self._moved[name] = one.trace.to_json()

    def _goes_on_in(self, file: LogFile, head: Head, now: float, *, weak: bool) -> bool:
        """Whether this is a copy of a file that is no longer there, which is then read on from here.

        weak: whether to try those of which little was read, and no others.
        """
        for one in self._known.like(file.path, head):
            is_gone = one.lost is not None or (one.is_deleted and one.is_dry)
            if is_gone and one.is_weak == weak and one.trace.is_of(file):
                _log.info("%s goes on in %s at byte %s", one.path, file.path, f"{one.at:,}")
                self._follow(one, file, now)
                return True
        return False

    def _was_read(self, file: LogFile, head: Head, now: float) -> bool:
        """Whether this is a copy of a lost file of which more was read, as when lines came between copy and cut."""
        for one in self._known.like(file.path, head):
            if one.lost is not None and may_be_copy(file.path, one.path):
                length, _ = file.ending(0, head.length)
                if one.has_read(file, length):
                    _log.info("%s is a part of what was read of %s", file.path, one.path)
                    self._begin(file, head, length, now)  # in case that more comes to it
                    return True
        return False

    def _is_copy(self, file: LogFile, head: Head, held: _Held, is_growing: bool, now: float) -> bool:
        """Whether it is to be held: the copy, whole or in part, of a file that is still there."""
        for one in self._known.like(file.path, head):
            if one.lost is not None:
                continue
            if one.is_deleted:
                if not one.is_dry:  # then it may go on here
                    return True
            elif may_be_copy(file.path, one.path) and self._is_open(one, now):
                if self._is_held_by(one, file, held, is_growing, now):
                    return True
                if not one.is_intact():  # it was cut while it was compared
                    self._lose(one, now)
        return False

    def _is_held_by(self, one: Followed, file: LogFile, held: _Held, is_growing: bool, now: float) -> bool:
        is_twin, is_fresh = is_packed_twin(file.path, one.path), now - held.since < HOLD
        if (file.is_packed and is_growing) or (is_twin and is_fresh):
            return True
        if held.begins_like is None or not file.is_packed:
            held.begins_like = self._begins_like(file, one)
        return held.begins_like and (is_twin or is_fresh)

    def _begins_like(self, file: LogFile, one: Followed) -> bool:
        """Whether all of the file is the beginning of what the other holds."""
        assert one.file is not None
        if one.file.is_packed:
            return False
        length, ending = file.ending(TAIL, one.head.length)
        return ending == one.file.read_at(length - len(ending), len(ending))

    def _search_copies(self, listed: Mapping[FileId, Found], now: float) -> None:
        """Lost files may go on under a name that the patterns do not match."""
        for one in self._known.closed():
            if one.lost is None or now - one.lost > self._linger:
                continue
            for other in relatives(one.path):
                if other.id not in listed and self._takes(one, other, listed, now):
                    break

    def _takes(self, one: Followed, there: Found, listed: Mapping[FileId, Found], now: float) -> bool:
        """Go on in a file that begins with what was read, if this one does."""
        if self._known.owner(there.id) not in (None, one):
            return False
        file = opened(there.path)
        if file is None:
            return False
        if file.id != there.id or not one.trace.is_of(file) or self._is_rather_copy(one, file, now):
            file.close()
            return False
        if one.is_weak and (
            self._goes_on_in(file, one.head, now, weak=False) or self._was_read(file, one.head, now)
        ):
            return False  # one that knows more of it has it
        one.left = None if there.id in listed else now
        self._follow(one, file, now)
        return True

    def _is_rather_copy(self, one: Followed, file: LogFile, now: float) -> bool:
        """Whether little speaks for it, and all of the file is in another one."""
        others = [
            other for other in self._known.like(file.path, one.head) if other is not one and other.lost is None
        ]
        return one.is_weak and any(
            other.is_deleted  # and may go on there
            or (may_be_copy(file.path, other.path) and self._is_open(other, now) and self._begins_like(file, other))
            for other in others
        )

    def _drop(self, now: float) -> None:
        """Forget files that stay away."""
        for one in self._known.closed():
            if one.lost is not None and (now - one.lost > FORGET or one.name in self._old):
                self._forget_one(one)
        self._old.clear()

    # ---- reading on

    def portions(self) -> Iterator[Portion]:
        """The next lines of each log; of its files the oldest that has some."""
        busy = set()
        now = time.monotonic()
        for one in sorted(self._known.open(), key=lambda one: age(one.path)):
            log = os.path.dirname(one.path), log_name(one.path).family
            if log in busy or one.file is None:
                continue
            portion = one.next(self._reader, now)
            if portion is not None:
                busy.add(log)
                yield portion
            elif not one.is_dry and not one.is_intact():
                self._lose(one, now)
                return

    def forgotten(self) -> list[str]:
        """Names of partitions that were dropped since this was asked last."""
        names, self._forget = self._forget, []
        return names

    def moved(self) -> dict[str, Any]:
        """Cursors of partitions whose content is found in another file, since this was asked last."""
        moved, self._moved = self._moved, {}
        return moved

    def close(self) -> None:
        self._known.close()

    # ---- states

    def _is_open(self, one: Followed, now: float) -> bool:
        """Whether its handle is there, which is opened again if it was asleep."""
        if one.file is not None:
            return True
        if one.lost is not None:
            return False
        file = opened(one.path)
        if file is None:
            return False
        if file.id != one.id or not one.trace.is_of(file):
            file.close()
            return False
        one.take(file, now)
        return True

    def _follow(self, one: Followed, file: LogFile, now: float) -> None:
        """Go on in a file. Where too many are open, it is closed again, and read later."""
        is_elsewhere = one.id != file.id
        one.take(file, now)
        self._known.found(one)
        if is_elsewhere:
            self._moved[one.name] = one.trace.to_json()
        self._passed.pop(file.id, None)
        self._held.pop(file.id, None)
        self._room -= 1
        if self._room < 0 and one.left is None:
            one.close()

    def _lose(self, one: Followed, now: float) -> None:
        one.close()
        one.lost, one.stamp, self.must_look = now, None, True
        if one.at == 0:  # nothing of it was read
            self._known.remove(one)

    def _forget_one(self, one: Followed) -> None:
        self._known.remove(one)
        self._moved.pop(one.name, None)
        self._forget.append(one.name)
