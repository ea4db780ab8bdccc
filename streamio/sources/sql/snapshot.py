"""One state of the database that all workers and ranks read: a snapshot, which PostgreSQL exports."""

from __future__ import annotations

import re
from dataclasses import replace

from streamio.errors import StorageError, UsageError
from streamio.sources.sql.connect import Connection, Database, LostConnection

_ID = re.compile(r"[0-9A-Fa-f-]{3,64}")


class HeldSnapshot:
    """A transaction that only keeps a snapshot, in the process that made it. It ends with `close`, or with this.

    While it lasts the database keeps all rows that it sees, also those that were deleted or changed since.
    """

    def __init__(self, database: Database) -> None:
        self._connection = Connection(database)
        try:
            self._connection.run(database.dialect.begin)
            (self.id,) = self._connection.row("SELECT pg_export_snapshot()")
        except LostConnection:
            self._connection.close()
            raise
        except StorageError as error:
            self._connection.close()
            refused = error
        else:
            return
        raise UsageError(
            f"no snapshot of it can be exported: {refused.found}",
            fix="Read from the primary server and not through a pooler of transactions, or give snapshot=False: "
            "rows are then read as they are when their batch is made",
            path=database.shown,
        )

    def close(self) -> None:
        """End it."""
        self._connection.close()


def within(database: Database, snapshot: str) -> Database:
    """The same database, of which every connection reads in this snapshot. Raises UsageError for no name."""
    if not _ID.fullmatch(snapshot):
        raise UsageError(f"snapshot={snapshot!r}", fix="Give what pg_export_snapshot() returned, True or False")
    return replace(database, begin=(database.dialect.begin, f"SET TRANSACTION SNAPSHOT '{snapshot}'"))
