"""`streamio pack`: a folder or a list of files -> shards."""

from __future__ import annotations

from typing import Any

import streamio
from streamio.cli import options as opt
from streamio.cli.console import result, result_json, table, tell
from streamio.cli.progress import progress
from streamio.cli.snippet import reading_lines
from streamio.packing.report import PackReport, SplitReport, named, plural
from streamio.sizes import size_text

MOST_SKIPPED = 20


def pack(
    src: opt.Src,
    out: opt.Out,
    layout: opt.Layout = "auto",
    include: opt.Include = None,
    exclude: opt.Exclude = None,
    labels: opt.Labels = None,
    classes_from: opt.ClassesFrom = None,
    format: opt.Format = "tar",
    shard_size: opt.ShardSize = None,
    shard_samples: opt.ShardSamples = None,
    shuffle: opt.Shuffle = None,
    seed: opt.Seed = 0,
    val: opt.Val = 0.0,
    overwrite: opt.Overwrite = False,
    resize_short: opt.ResizeShort = None,
    max_side: opt.MaxSide = None,
    quality: opt.Quality = None,
    store: opt.Store = "bytes",
    check: opt.Check = False,
    on_error: opt.OnError = "raise",
    workers: opt.Workers = None,
    dry_run: opt.DryRun = False,
    quiet: opt.Quiet = False,
    as_json: opt.PackJson = False,
) -> None:
    """Pack a folder of files into a few shards.

    SRC holds a folder for each class, or files that belong together by name
    ([cyan]7.jpg[/] and [cyan]7.json[/]), or is a table of paths: streamio looks which it is.
    OUT appears only when it is whole.

    [bold]Examples[/]

    [cyan]streamio pack photos/ out/[/]                        folders are classes

    [cyan]streamio pack photos/ out/ --val 0.1[/]              out/train and out/val

    [cyan]streamio pack photos/ out/ --resize-short 256[/]     smaller, so faster to decode

    [cyan]streamio pack files.csv out/ --format lmdb[/]        a list of paths and labels
    """
    choices: Any = {"layout": layout, "store": store, "on_error": on_error}  # words, which pack checks
    with progress(quiet) as told:
        report = streamio.pack(
            src, out, format=format, shard_size=shard_size, shard_samples=shard_samples,
            shuffle=shuffle, seed=seed, workers=workers, val=val, include=tuple(include or ()),
            exclude=tuple(exclude or ()), labels=labels, classes_from=classes_from, overwrite=overwrite,
            dry_run=dry_run, resize_short=resize_short, max_side=max_side, quality=quality,
            check=check, progress=told, **choices,
        )  # fmt: skip
    _tell_skipped(report)
    if not quiet:
        for note in report.notes:
            tell(f"note: {note}", "yellow")
    if as_json:
        result_json(report.to_dict())
    elif not quiet:
        _show(report)


def _tell_skipped(report: PackReport) -> None:
    if not report.skipped:
        return
    tell(f"{len(report.skipped):,} skipped:")
    for item in report.skipped[:MOST_SKIPPED]:
        tell(f"  {item.path}: {item.reason}")
    if (more := len(report.skipped) - MOST_SKIPPED) > 0:
        where = "" if report.dry_run else f", see {report.out}/skipped.jsonl"
        tell(f"  and {more:,} more{where}")


def _show(report: PackReport) -> None:
    splits = report.splits
    if len(splits) > 1:
        table([("", *splits), *_sizes(splits)], numbers=True)
        result()
    rows: list[tuple[str, ...]] = [
        ("layout", f"{report.layout}: {report.layout_reason}"),
        ("format", report.format),
    ]
    if report.classes is not None:
        rows.append(("classes", f"{len(report.classes):,}: {named(report.classes, most=10)}"))
    if len(splits) == 1:
        rows += _sizes(splits)
    table([*rows, ("time", _time(report))])
    if not report.dry_run:
        result("\nRead it with\n")
        for line in reading_lines(report):
            result(f"    {line}")
    result(f"\n{_sum(report)}")


def _sizes(splits: Any) -> list[tuple[str, ...]]:
    values: list[SplitReport] = list(splits.values())
    return [
        ("samples", *(f"{split.samples:,}" for split in values)),
        ("shards", *(f"{split.shards:,}" for split in values)),
        ("size", *(size_text(split.bytes) for split in values)),
    ]


def _time(report: PackReport) -> str:
    seconds = max(report.seconds, 1e-3)
    rate = f"{report.samples / seconds:,.0f} samples/s, {size_text(int(report.bytes / seconds))}/s"
    return f"{report.seconds:.1f} s" if report.dry_run else f"{report.seconds:.1f} s ({rate})"


def _sum(report: PackReport) -> str:
    """The last line: all that a log needs."""
    what = f"{plural(report.samples, 'sample')} into {plural(report.shards, 'shard')} ({size_text(report.bytes)})"
    if report.dry_run:
        return f"Would pack {what}: {report.out}"
    skipped = f", {len(report.skipped):,} skipped" if report.skipped else ""
    return f"Packed {what} in {report.seconds:.1f} s{skipped}: {report.out}"
