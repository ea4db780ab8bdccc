"""LogDataset: batches from log files, to their end or as they grow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Unpack

import xxhash

from streamio.errors import UsageError
from streamio.sizes import parse_size
from streamio.sources.base import Source
from streamio.sources.dataset import SourceDataset, SourceOptions
from streamio.sources.fields import FieldType
from streamio.sources.lines import LineParser, Parse
from streamio.sources.logs.blocks import LineReader
from streamio.sources.logs.bounded import LogSource, without_twins
from streamio.sources.logs.following import FollowedLogs
from streamio.sources.logs.listing import Found, given_patterns, list_files
from streamio.sources.logs.opened import opened

_DECLARE = 'Declare them: types={"time": "timestamp[us]", "text": "str"}'
_SAMPLED_FILES = 8
_SAMPLED_BYTES = 1 << 20


class LogDataset(SourceDataset):
    """Streams the lines of log files, plain or compressed, as ready-made batches.

        ds = LogDataset("logs/*.jsonl*", 256)
        ds = LogDataset("app.log", 256, parse=r"(?P<level>\\w+) (?P<text>.*)", follow=True, max_wait=1)

    Which files are the same is told by their content, so a state goes on at the exact byte although files were
    renamed, copied or compressed meanwhile.

    paths:      a path, a glob (`**` too), or a sequence of them. gzip, zstd, bz2 and xz are told by content. The
                oldest file comes first: app.log.2.gz, app.log.1, app.log.
    batch_size: lines of one batch on one rank.
    parse:      "jsonl", "text", a regular expression with named groups, or a function of a line that returns a dict
                (or None for a line that is no sample).
    types:      {field: type}, see `FieldType`. None: those that the first lines of some files have, found once;
                further fields are then left out.
    follow:     False: an epoch is what the files hold when it begins; large plain ones are read in ranges by all
                workers. True: go on reading what is appended, through rotation; a file is read by one worker.
    poll:       seconds between two looks at the files, with follow=True.
    linger:     seconds for which a file is still read that was renamed to a name which no path matches.
    max_line:   bytes of the longest line: a number, or text such as "64MB". Longer ones are bad.
    split:      bytes of a range of a large file; None: so that there are up to 256 ranges of 16 MiB at least.
    options:    see `SourceDataset`.

    Raises UsageError for what cannot work and StorageError for files that are not there or cannot be read, at
    construction. A compressed file that is cut is a StorageError with the place, when it is read; with follow=True
    it is one that is still being written.
    """

    def __init__(
        self,
        paths: str | PathLike[str] | Sequence[str | PathLike[str]],
        batch_size: int,
        *,
        parse: Parse = "jsonl",
        types: Mapping[str, FieldType | str] | None = None,
        follow: bool = False,
        poll: float = 0.2,
        linger: float = 10.0,
        max_line: int | str = "128MiB",
        split: int | str | None = None,
        **options: Unpack[SourceOptions],
    ) -> None:
        patterns = given_patterns(paths)
        _check(follow=follow, poll=poll, linger=linger, split=split)
        files = list_files(patterns, may_lack=follow)
        parser = _with_types(LineParser(parse, types), files, follow)
        given = [str(path) for path in ([paths] if isinstance(paths, str | PathLike) else paths)]
        data = xxhash.xxh3_64_hexdigest("\n".join(["logs", *given]).encode("utf-8", "surrogateescape"))
        longest = parse_size(max_line)
        source: Source
        if follow:
            source = FollowedLogs(
                patterns=patterns, parser=parser, data=data, max_line=longest, poll=poll, linger=linger
            )
        else:
            source = LogSource(
                patterns=patterns, parser=parser, data=data, max_line=longest,
                split_bytes=None if split is None else parse_size(split),
            )  # fmt: skip
            source.partitions()  # whether all files can be read
        super().__init__(source, batch_size, **options)
        self._shown = ", ".join(given)

    def __repr__(self) -> str:
        follow = ", follow=True" if self.source.endless else ""
        return f"LogDataset({self._shown}, batch_size={self.batch_size}{follow})"


def _with_types(parser: LineParser, files: Sequence[Found], follow: bool) -> LineParser:
    """With the fields that some lines have, where they are not declared."""
    if parser.fields is not None:
        return parser
    if not any(one.size for one in files):
        raise UsageError(
            "there is no line yet from which the fields could be inferred" if follow else "the files are empty",
            fix=_DECLARE,
        )
    try:
        return parser.inferred(_samples(files, follow))
    except UsageError as error:
        raise UsageError(error.found, fix=_DECLARE) from error


def _samples(files: Sequence[Found], follow: bool) -> Iterator[bytes]:
    """The first lines of some files, the oldest and the youngest among them."""
    some = without_twins([one for one in files if one.size])
    step = max(1, -(-(len(some) - 1) // (_SAMPLED_FILES - 1)))
    for one in {one.id: one for one in [*some[::step], some[-1]]}.values():
        file = opened(one.path)
        if file is None:
            continue
        with file:
            block = LineReader(is_finished=not follow, size=_SAMPLED_BYTES).next(file, 0)
            if block is not None and block.data:
                yield block.data
            elif not follow:
                file.check_whole()


def _check(*, follow: Any, poll: Any, linger: Any, split: Any) -> None:
    if not isinstance(follow, bool):
        raise UsageError(f"follow={follow!r}", fix="Use True or False")
    for name, value, least in (("poll", poll, 0.001), ("linger", linger, 0)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
            raise UsageError(f"{name}={value!r}", fix=f"Give seconds, {least} at least")
    if follow and split is not None:
        raise UsageError(
            f"split={split!r} with follow=True", fix="Leave it out: one worker reads a file that grows"
        )
