"""What a shard format must offer. To add one: a writer, a `scan`, a `ShardFormat`, and one fixture in
`tests/shards/conformance.py`.

There is no reader per format. Every format keeps each value in one piece, so an index of offsets and sizes
is enough to read any of them from a memory map (`reader.py`). The format's own library is needed only to
write, and to make an index that was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray

from streamio.shards.index import ShardIndex

IMAGE = "image"
"""The field that stands for pictures of several kinds (`pictures.py`)."""


Row: TypeAlias = "tuple[str, Mapping[str, bytes | NDArray[Any]]]"
"""A sample to write: its key, and its fields by stored name (file extension)."""


class ShardWriter(Protocol):
    """Writes one shard file. Calls: `write` and `write_all` any number of times, then `close` or `abort`, once."""

    def write_all(self, rows: Sequence[Row]) -> None:
        """Append samples.

        Values are bytes, or arrays where the format `takes_arrays`. Raises UsageError, naming the key, for one
        that came before, an empty one, or a name that the format cannot hold; then only `abort` may follow.
        """
        ...

    def write(self, key: str, fields: Mapping[str, bytes | NDArray[Any]]) -> None:
        """Append one sample."""
        ...

    def close(self) -> ShardIndex:
        """Finish and fsync the file; the index has keys and fields, and no columns yet."""
        ...

    def checksum(self) -> str:
        """xxh3-64 of the finished file, in hex. Only after `close`."""
        ...

    def abort(self) -> None:
        """Close and remove what was written. Never raises."""
        ...


class PieceWriter(ShardWriter, Protocol):
    """Writes a shard of which several processes write a piece each. Calls: `write_all` any number of times, then
    `cut`; or `append` for each piece in turn, then `close`; or `abort` at any time."""

    def cut(self) -> Any:
        """End the piece and give what `append` has to know of it, fit to be pickled. The file stays."""
        ...

    def append(self, path: Path, piece: Any) -> None:
        """Take over the piece at `path`, whose file is gone then. Its keys must be new ones."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFormat:
    """One way to lay samples into a file.

    takes_arrays: `write` wants arrays as arrays (HDF5); otherwise they are encoded to bytes before.
    footprint:    bytes that a sample with fields of these sizes adds to a shard, overhead included; used to
                  deal samples into shards before anything is written.
    create:       path -> writer.
    in_pieces:    `create` gives a `PieceWriter`; the bytes do not tell whether there were pieces.
    scan:         (path, escaped) -> index with keys and fields, from the file alone. `escaped`: member names
                  are percent-encoded (what streamio wrote).
    """

    name: str
    suffix: str
    takes_arrays: bool
    footprint: Callable[[Sequence[int]], int]
    create: Callable[[Path], ShardWriter]
    in_pieces: bool = False
    scan: Callable[[Path, bool], ShardIndex]
