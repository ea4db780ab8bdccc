"""Lands a source as shards that grow, and goes on after any end: where it is lies in the manifest of the shards."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from streamio.errors import OutputExists, StreamioError, UsageError
from streamio.packing.commit import Output, check_output, output_folder
from streamio.packing.growing import GrowingSet, grown_so_far, refuse_clashes
from streamio.packing.report import shown
from streamio.packing.request import shard_limits
from streamio.shards.formats import format_named
from streamio.shards.manifest import GROWS, FieldSpec, Manifest
from streamio.sizes import parse_seconds
from streamio.sources.base import Chunk, Cursor, Source
from streamio.sources.dataset import SourceDataset
from streamio.sources.epochs import EpochWork
from streamio.sources.held import Mark
from streamio.sources.landing import landed_field, landed_row, values_of
from streamio.sources.named import dataset_at
from streamio.sources.state import SourceState
from streamio.world import World

_log = logging.getLogger("streamio")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureReport:
    """What a capture did.

    rows, shards, bytes, seconds: of this run. total_rows, total_shards: that OUT holds.
    skipped:  bad rows that were left out, with on_error="skip".
    complete: whether the source has ended, and all of it is in OUT.
    lag:      rows that the source has behind those in OUT: 0 where it had no more when it was left; None where it
              cannot tell.
    """

    out: str
    format: str
    rows: int = 0
    shards: int = 0
    bytes: int = 0
    seconds: float = 0.0
    total_rows: int = 0
    total_shards: int = 0
    skipped: int = 0
    complete: bool = False
    lag: int | None = None


def capture(
    source: Source | SourceDataset | str,
    out: str | os.PathLike[str],
    *,
    every: float | str | None = None,
    shard_size: int | str | None = None,
    shard_samples: int | None = None,
    format: str = "tar",
    idle_timeout: float | str | None = None,
    stopped: Callable[[], bool] = lambda: False,
    progress: Callable[[CaptureReport], None] | None = None,
    **options: Any,
) -> CaptureReport:
    """Write the rows of a source to shards in OUT, each once, and go on where an earlier call was.

        streamio.capture(streamio.LogDataset("app.log", 1, follow=True), "out/", every="15m")
        streamio.open("out/")                           # meanwhile, and ds.refresh() for further shards

    A shard appears whole, with the cursors behind its last row, in one rename of the manifest. So whatever moment
    the call ends at, by an exception, a signal or a power cut, the next one goes on behind the last shard, and
    removes what was half written. Of a source that has an end, nothing is done when all of it is there.

    source:  a source, or a data set over one, whose fields=, on_error= and idle_timeout= hold; or the address of
             one, as on the command line (`streamio/sources/named.py`).
    every:   seconds, or "15m", from the first row of a shard after which it is finished. It is too when it has
             shard_size or shard_samples (as for `pack`), and at the end.
    format:  tar, lmdb or hdf5.
    idle_timeout: seconds, or "30s", without any row after which a source without an end is left.
    stopped: asked all the time: whether to finish the shard and end. For signal handlers.
    progress: called with the figures so far, ten times a second at most.
    options: of the data set, where an address was given: parse, types, follow, on_error. types: default those
             with which OUT began.

    Keys are `partition:place`. How fields are stored, `streamio/sources/landing.py` says. One call at a time may
    write to OUT. Raises UsageError for an OUT with rows of another source, or with other fields; OutputExists for
    one that holds anything else; and what the source raises, when the shards so far are there.
    """
    started = time.monotonic()
    if isinstance(source, str):
        source = dataset_at(source, **{**options, "types": options.get("types") or _types_so_far(out)})
    elif options:
        raise UsageError(f"{next(iter(options))}= beside a data set", fix="Give it to the data set")
    how = _How.of(source, every=every, size=shard_size, samples=shard_samples, idle_timeout=idle_timeout)
    folder, kind = output_folder(out), format_named(format)
    specs = {name: landed_field(name, how.source.fields[name]) for name in how.fields}
    refuse_clashes(specs)
    check_output(folder, overwrite=True)
    with Output(folder, overwrite=True) as output:
        so_far = grown_so_far(folder)
        state = _state(how, so_far, kind.name, folder)
        grown = GrowingSet(output, kind.name, specs, so_far)
        landing = _Landing(how, grown, state, specs, folder, progress)
        if not landing.is_complete:
            landing.run(stopped)
        report = landing.report
    lag = 0 if landing.caught_up else _lag(how.source, landing.state)
    return replace(report, seconds=time.monotonic() - started, lag=lag)


def _types_so_far(out: str | os.PathLike[str]) -> dict[str, str] | None:
    """{field: type} of what was captured to OUT; None where nothing was. Found once, when a capture begins."""
    so_far = grown_so_far(output_folder(out))
    return None if so_far is None else dict(so_far.extra[GROWS]["fields"])


@dataclass(frozen=True, slots=True, kw_only=True)
class _How:
    """The arguments, checked."""

    source: Source
    fields: tuple[str, ...]
    skips: bool
    every: float | None
    size: int | None
    samples: int | None
    idle_timeout: float | None

    @classmethod
    def of(
        cls,
        source: Any,
        *,
        every: float | str | None,
        size: Any,
        samples: int | None,
        idle_timeout: float | str | None,
    ) -> _How:
        skips = False
        if isinstance(source, SourceDataset):
            options = source.reader.options
            skips = options.on_error == "skip"
            fields = tuple(name for name in options.fields if name in source.source.fields)
            idle_timeout = source.idle_timeout if idle_timeout is None else idle_timeout
            source = source.source
        elif isinstance(source, Source):
            fields = tuple(source.fields)
        else:
            raise UsageError(
                f"a {type(source).__name__} cannot be captured, as it has rows and no cursors",
                fix="Give a source, a data set over one, or an address; a SqlDataset without key=, but with order=",
            )
        size, samples = shard_limits(size, samples)
        return cls(
            source=source, fields=fields, skips=skips, every=None if every is None else parse_seconds(every),
            size=size, samples=samples, idle_timeout=None if idle_timeout is None else parse_seconds(idle_timeout),
        )  # fmt: skip

    @property
    def types(self) -> dict[str, str]:
        return {name: str(self.source.fields[name]) for name in self.fields}


def _state(how: _How, so_far: Manifest | None, format: str, folder: str) -> SourceState:
    """Where to go on. Raises for an OUT that belongs to something else."""
    if so_far is None:
        state = SourceState(data=how.source.fingerprint)
    else:
        place = so_far.extra[GROWS]
        state = SourceState.from_json(place["state"])
        _compare("the source", state.data, how.source.fingerprint, folder)
        _compare("the fields", place["fields"], how.types, folder)
        if so_far.format != format:
            raise OutputExists(f"holds {so_far.format} shards, not {format}", fix="Go on with those", path=folder)
    return state


def _work(source: Source, state: SourceState) -> EpochWork:
    """All that is left to read."""
    partitions = source.partitions() if state.partitions is None else state.partitions
    if state.cursors or state.partitions is not None:
        partitions = source.found_again(partitions, state.cursors)
    return EpochWork.of(source, partitions, state.cursors, epoch=0, steps=None, world_size=1)


def _compare(what: str, before: object, now: object, folder: str) -> None:
    if before != now:
        raise UsageError(
            f"{what} of the rows that are there: {before}; of this call: {now}",
            fix="Go on with the same, or name another folder", path=shown(folder),
        )  # fmt: skip


def _lag(source: Source, state: SourceState) -> int | None:
    if source.endless or state.partitions is None:
        return None
    try:
        return sum(source.count(one, state.cursors.get(one.name, one.start)) for one in state.partitions)
    except UsageError:  # it cannot tell
        return None


@dataclass(slots=True)
class _Pending:
    """What was read since the last publication: where it is now."""

    cursors: dict[str, Cursor] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    forget: list[str] = field(default_factory=list)

    def mark(self) -> Mark:
        return Mark(cursors=self.cursors, ended=self.ended, forget=self.forget)


class _Landing:
    """Writes what a source gives, shard by shard. state: behind the last shard that was published."""

    def __init__(
        self, how: _How, grown: GrowingSet, state: SourceState, specs: Mapping[str, FieldSpec], folder: str,
        progress: Callable[[CaptureReport], None] | None,
    ) -> None:  # fmt: skip
        self._how, self._grown, self._specs, self._progress = how, grown, specs, progress
        self.state, self._pending = state, _Pending()
        self.caught_up = False
        """Whether nothing more was there when it was looked last."""
        self.report = CaptureReport(out=folder, format=grown.manifest.format)
        self._tell()
        self._since = self._row_came = time.monotonic()
        self._told = 0.0

    @property
    def is_complete(self) -> bool:
        return self.state.partitions == ()

    def run(self, stopped: Callable[[], bool]) -> None:
        """Until the source ends, or whoever asked for it wants to stop."""
        source = self._how.source
        work = _work(source, self.state)
        own = None if source.endless else work.partitions
        self.state = replace(self.state, partitions=own, cursors=work.cursors)
        try:
            with closing(source.read(work.of_worker(World(), stopped))) as chunks:  # type: ignore[type-var]
                self._take_all(chunks, stopped)
            self._publish()
        except BaseException:
            self._grown.abort()
            raise

    def _take_all(self, chunks: Iterator[Chunk | None], stopped: Callable[[], bool]) -> None:
        for chunk in chunks:
            self.caught_up = chunk is None
            if chunk is not None:
                self._take(chunk)
            now = time.monotonic()
            if self._grown.samples and self._how.every is not None and now - self._since >= self._how.every:
                self._publish()
            idle = self._how.idle_timeout
            if stopped() or (chunk is None and idle is not None and now - self._row_came >= idle):
                return

    def _take(self, chunk: Chunk) -> None:
        columns = {name: values_of(chunk.columns[name]) for name in self._how.fields if name in chunk.columns}
        for row in range(len(chunk)):
            fields = self._row(chunk, columns, row)
            if fields is not None:
                size = self._grown.footprint(fields)
                self._make_room(size)
                self._grown.add(f"{chunk.partition}:{chunk.place(row)}".lstrip("/"), fields, size)
            self._pending.cursors[chunk.partition] = chunk.cursor(row)
        if chunk.behind is not None:
            self._pending.cursors[chunk.partition] = chunk.behind
        if len(chunk):
            self._row_came = time.monotonic()
            self._look()
        self._pending.ended += [chunk.partition] if chunk.ended else []
        self._pending.forget += chunk.forget

    def _row(self, chunk: Chunk, columns: Mapping[str, Any], row: int) -> dict[str, Any] | None:
        """The fields of a row; None for a bad one that is left out."""
        error = chunk.bad.get(row)
        fields: dict[str, Any] = {}
        if error is None:
            try:
                fields = landed_row(columns, self._specs, row, takes_arrays=self._grown.takes_arrays)
            except StreamioError as found:
                error = found
        if error is None and not fields:
            error = UsageError("has no value in any field, and a shard cannot hold that")
        if error is None:
            return fields
        error.where = {"shard": chunk.partition, "row": chunk.place(row)} | error.where
        if not self._how.skips:
            raise error
        _log.warning("skipped %s: %s", type(error).__name__, error)
        self._tell(skipped=self.report.skipped + 1)
        return None

    def _make_room(self, size: int) -> None:
        """Finish the shard if a sample of this footprint is too much for it."""
        grown, how = self._grown, self._how
        is_large = how.size is not None and grown.bytes + size > how.size
        if grown.samples and (is_large or grown.samples == how.samples):
            self._publish()
        if not grown.samples:
            self._since = time.monotonic()

    def _publish(self) -> None:
        """Show the shard that is being written, and where the source is behind it."""
        state = replace(self.state.after(self._pending.mark()), steps=0)
        entry = self._grown.publish({"state": state.to_json(), "fields": self._how.types})
        self.state, self._pending = state, _Pending()
        if entry is None:
            self._tell()
        else:
            self._tell(rows=entry.samples, shards=1, bytes=entry.bytes)
        self._look(at_once=True)

    def _tell(self, *, rows: int = 0, shards: int = 0, bytes: int = 0, skipped: int | None = None) -> None:
        before, manifest = self.report, self._grown.manifest
        self.report = replace(
            before, rows=before.rows + rows, shards=before.shards + shards, bytes=before.bytes + bytes,
            total_rows=manifest.samples, total_shards=len(manifest.shards), complete=self.is_complete,
            skipped=before.skipped if skipped is None else skipped,
        )  # fmt: skip

    def _look(self, *, at_once: bool = False) -> None:
        """Tell the user how far it is, with the rows that no shard shows yet."""
        now = time.monotonic()
        if self._progress is not None and (at_once or now - self._told >= 0.1):
            self._told = now
            report, grown = self.report, self._grown
            self._progress(replace(report, rows=report.rows + grown.samples, bytes=report.bytes + grown.bytes))
