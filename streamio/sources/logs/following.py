"""FollowedLogs: lines as they are written, without an end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamio.errors import UsageError
from streamio.sources.base import Chunk, Partition, Source, Work
from streamio.sources.fields import FieldType
from streamio.sources.lines import LineParser
from streamio.sources.logs.blocks import LineReader
from streamio.sources.logs.chunks import ChunkMaker
from streamio.sources.logs.identity import Trace
from streamio.sources.logs.tailing import Saved, Tail

WAIT = 0.1
"""Seconds after which a reader that has found nothing says so, at most."""


@dataclass(frozen=True, kw_only=True)
class FollowedLogs(Source):
    """Reads files as they grow, are rotated, and come to be. Its partitions are found by the readers.

    patterns, parser, data, max_line: as for `LogSource`.
    poll:   seconds between two looks at the files.
    linger: seconds for which a file that no pattern matches any longer is still read.
    """

    endless = True

    patterns: tuple[str, ...]
    parser: LineParser
    data: str
    max_line: int
    poll: float
    linger: float

    @property
    def fields(self) -> Mapping[str, FieldType]:
        assert self.parser.fields is not None
        return self.parser.fields

    @property
    def fingerprint(self) -> str:
        return self.data

    def partitions(self) -> Sequence[Partition]:
        return ()

    def read(self, work: Work) -> Iterator[Chunk | None]:
        saved = {name: _saved(cursor) for name, cursor in work.cursors.items()}
        reader = LineReader(is_finished=False, longest=self.max_line)
        tail = Tail(self.patterns, work.share.owns, saved, reader, self.linger)
        maker = ChunkMaker(self.parser, follows=True)
        due = 0.0
        try:
            while True:
                if tail.must_look or time.monotonic() >= due:
                    tail.look()
                    due = time.monotonic() + self.poll
                    for name, cursor in tail.moved().items():
                        yield Chunk(partition=name, behind=cursor)
                    for name in tail.forgotten():
                        maker.forget(name)
                        yield Chunk(partition=name, forget=[name])
                is_silent = True
                for portion in tail.portions():
                    is_silent = False
                    chunk = maker.chunk(portion)
                    if chunk is not None:
                        yield chunk
                if is_silent and not tail.must_look:
                    time.sleep(min(WAIT, max(0.0, due - time.monotonic())))
                    yield None
        finally:
            tail.close()


def _saved(cursor: Any) -> Saved:
    trace = Trace.from_json(cursor)
    length = cursor.get("length")
    try:
        return Saved(trace, int(cursor.get("time", 0)), None if length is None else int(length))
    except (TypeError, ValueError) as error:
        raise UsageError(f"the state is damaged: {error}", fix="Give what loader.state_dict() returned") from error
