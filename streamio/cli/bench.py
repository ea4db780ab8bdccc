"""`streamio bench`: how fast a training loop could get this set."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import streamio
from streamio.batching.decode import IMAGE_CODECS
from streamio.cli import options as opt
from streamio.cli.console import result_json, table, tell
from streamio.diagnostics.bench import bench as measure
from streamio.packing.report import plural
from streamio.shards.pictures import with_one_picture
from streamio.sizes import size_text


def bench(
    source: Annotated[str, typer.Argument(metavar="SET", show_default=False, help="A packed set.")],
    batch_size: Annotated[int, typer.Option(metavar="N", help="Samples in a batch.")] = 64,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", help="Worker processes; 0 for none.  [dim]default: one for each CPU[/]"),
    ] = None,
    crop: Annotated[int, typer.Option(metavar="PIXELS", help="Decode pictures to a random crop this large.")] = 224,
    raw: Annotated[bool, opt.flag("Read the bytes and decode nothing.", "--raw")] = False,
    shuffle: Annotated[bool, opt.flag("In random order, or as stored.", "--shuffle/--no-shuffle")] = True,
    as_json: opt.Json = False,
) -> None:
    """Read a set once, as a training loop would, and say how fast that was.

    Compare [cyan]--raw[/] (storage alone) with a run without it (storage and decoding) to see what is slow.
    """
    opened = streamio.open(source)
    decode: Any = None
    fields = with_one_picture(opened).fields
    alike = all(spec.samples == opened.total for spec in fields.values())
    if not (raw or alike):
        tell("note: samples have different fields, so nothing is decoded", "yellow")
    if raw or not alike:
        decode = False
    elif any(spec.codec in IMAGE_CODECS for spec in fields.values()):
        decode = streamio.image.RandomResizedCrop(crop)
    dataset = streamio.ShardDataset(opened, batch_size, shuffle=shuffle, decode=decode)
    loader = streamio.StreamLoader(dataset, num_workers="auto" if workers is None else workers)
    report = measure(loader)
    stages = loader.stats().stage_shares
    facts = {
        "samples": report.samples,
        "batches": report.batches,
        "workers": loader.num_workers,
        "seconds": round(report.seconds, 3),
        "first_batch_seconds": round(report.first_batch, 3),
        "samples_per_second": round(report.samples_per_second, 1),
        "bytes_per_second": round(report.bytes_per_second),
        "stage_shares": {name: round(share, 3) for name, share in stages.items()},
    }
    if as_json:
        result_json(facts)
        return
    table(
        [
            ("samples", f"{report.samples:,} in {plural(report.batches, 'batch', 'batches')}"),
            ("workers", f"{loader.num_workers:,}"),
            ("time", f"{report.seconds:.2f} s, of which {report.first_batch:.2f} s to the first batch"),
            ("rate", f"{report.samples_per_second:,.0f} samples/s, {size_text(round(report.bytes_per_second))}/s"),
            ("stages", ", ".join(f"{name} {100 * part:.0f} %" for name, part in stages.items() if part >= 0.005)),
        ]
    )
