"""`streamio capture`: a log, a broker's topic or a table -> shards that grow."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

import streamio
from streamio.cli import options as opt
from streamio.cli.console import result, result_json, stderr, table, tell
from streamio.errors import UsageError
from streamio.packing.report import plural, shown
from streamio.sizes import size_text

if TYPE_CHECKING:  # it would load torch
    from streamio import CaptureReport


def _option(metavar: str, help: str, *names: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, show_default=False)


def capture(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Logs, or the address of a topic or table.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="The folder of the shards; it is gone on with.")],
    every: Annotated[str | None, _option("TIME", "Finish a shard after 30s, 15m, 1h from its first row.")] = None,
    format: opt.Format = "tar",
    shard_size: opt.ShardSize = None,
    shard_samples: opt.ShardSamples = None,
    follow: Annotated[bool, opt.flag("Go on with what comes, until stopped.", "--follow")] = False,
    parse: Annotated[
        str | None, _option("FORM", "Logs: jsonl, text or a regular expression. Brokers: json or raw.")
    ] = None,
    types: Annotated[
        list[str] | None, _option("NAME=TYPE", "Of a field: x=int64, img=jpg; can be repeated.", "--type")
    ] = None,
    idle_timeout: Annotated[str | None, _option("TIME", "End when nothing came for so long.")] = None,
    on_error: Annotated[
        str, _option("raise|skip", "Rows that cannot be read: stop at the first, or leave them out.")
    ] = "raise",
    quiet: Annotated[bool, opt.flag("Print errors, nothing else.", "--quiet", "-q")] = False,
    as_json: Annotated[bool, opt.flag("Print the result as JSON on stdout.", "--json")] = False,
) -> None:
    """Land logs, messages or rows as shards, each once, and go on after any stop.

    Ctrl-C or SIGTERM finishes the shard and ends. After a crash the same command goes on behind the last shard:
    where it was is in the manifest of OUT. Training may read OUT meanwhile.

    [bold]Examples[/]

    [cyan]streamio capture 'logs/*.jsonl' out/[/]                                  what is there

    [cyan]streamio capture app.log out/ --follow --every 15m[/]                    what comes

    [cyan]streamio capture kafka://host:9092/clicks out/ --follow --every 15m[/]

    [cyan]streamio capture 'redis://host/0?stream=clicks' out/ --follow[/]

    [cyan]streamio capture 'postgresql://me@host/db?table=events&key=id' out/[/]
    """
    declared = _types(types)
    with _stopping() as stopped, _progress(quiet) as told:
        report = streamio.capture(
            source, out, every=every, shard_size=shard_size, shard_samples=shard_samples, format=format,
            idle_timeout=idle_timeout, stopped=stopped, progress=told, parse=parse, follow=follow, types=declared,
            on_error=on_error,
        )  # fmt: skip
    if as_json:
        result_json(asdict(report))
    elif not quiet:
        _show(report)


def _types(given: list[str] | None) -> dict[str, str] | None:
    if not given:
        return None
    pairs = [one.partition("=") for one in given]
    if any(not name or not kind for name, _, kind in pairs):
        raise UsageError(f"--type {given[0]}", fix="Write it as --type name=int64")
    return {name: kind for name, _, kind in pairs}


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """The first SIGINT or SIGTERM asks for the end, the second one is as ever."""
    asked = Event()
    before: dict[signal.Signals, Any] = {}

    def ask(number: int, frame: FrameType | None) -> None:
        asked.set()
        signal.signal(number, before[signal.Signals(number)])

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, ask)
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[CaptureReport], None] | None]:
    """A line that changes, on a terminal; nothing elsewhere."""
    console = stderr()
    if quiet or not console.is_terminal or console.is_dumb_terminal:
        yield None
        return
    with console.status("waiting for rows") as status:
        yield lambda report: status.update(_sum(report))


def _sum(report: CaptureReport) -> str:
    return f"{plural(report.rows, 'row')} in {plural(report.shards, 'shard')} ({size_text(report.bytes)})"


def _show(report: CaptureReport) -> None:
    rows = [
        ("rows", f"{report.rows:,} now, {report.total_rows:,} in all"),
        ("shards", f"{report.shards:,} now, {report.total_shards:,} in all"),
        ("size", size_text(report.bytes)),
    ]
    if report.skipped:
        tell(f"{report.skipped:,} skipped")
    lag = "the source cannot tell" if report.lag is None else plural(report.lag, "row")
    table(
        [
            *rows,
            ("lag", "none: all of it is there" if report.complete else lag),
            ("time", f"{report.seconds:.1f} s"),
        ]
    )
    result(f"\nCaptured {_sum(report)} in {report.seconds:.1f} s: {shown(report.out)}")
