"""What streams of Redis and of JetStream have in common: counted ranges of messages, and places of groups."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from streamio.errors import UsageError
from streamio.sources.base import Chunk, Cursor, Partition, Source, Work
from streamio.sources.fieldtypes import FieldType
from streamio.sources.messages import MessageReader


class MessageStreams(Source):
    """Messages of streams on a server.

    A cursor of an endless one is the place of its last message; of a bounded one [place, messages up to there], and
    the facts of a partition have its number of `rows`.

    server: gives a `connection`, which is to be closed. reader: of messages. group: names the places that are kept
    on the server, or None.
    """

    server: Any
    _reader: MessageReader
    _group: str | None

    @property
    def fields(self) -> Mapping[str, FieldType]:
        return self._reader.fields

    def count(self, partition: Partition, cursor: Cursor) -> int:
        return int(partition.facts["rows"]) - int(cursor[1])

    def read(self, work: Work) -> Iterator[Chunk | None]:
        with closing(self.server.connection(work.stopped)) as connection:
            if self.endless:
                yield from self._follow(connection, work)
                return
            for partition, cursor in work.partitions:
                yield from self._range(connection, partition, cursor, work)

    def commit(self, cursors: Mapping[str, Cursor]) -> None:
        if self._group is None:
            raise UsageError("commit() without a group", fix="Give group=, the name of a place on the server")
        self._keep({name: cursor if self.endless else cursor[0] for name, cursor in cursors.items()})

    @abstractmethod
    def _follow(self, connection: Any, work: Work) -> Iterator[Chunk | None]:
        """Messages as they come, of all partitions."""

    @abstractmethod
    def _range(self, connection: Any, partition: Partition, cursor: Cursor, work: Work) -> Iterator[Chunk | None]:
        """The messages of one partition behind a cursor, and its end."""

    @abstractmethod
    def _keep(self, places: Mapping[str, Any]) -> None:
        """Keep the places of the group, by partition."""
