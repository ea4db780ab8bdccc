"""`streamio verify`: are the bytes still those that were written?"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

import streamio
from streamio.cli import options as opt
from streamio.cli.console import result, result_json
from streamio.diagnostics.verify import ShardVerdict
from streamio.packing.report import named, plural, shown


def verify(
    source: Annotated[
        str,
        typer.Argument(metavar="SET", show_default=False, help="A packed set, a tar, or 'a-{000..041}.tar'."),
    ],
    quiet: Annotated[bool, opt.flag("Print only what is damaged.", "--quiet", "-q")] = False,
    as_json: opt.Json = False,
) -> None:
    """Read every byte of a set and compare it with what was written.

    Ends with exit code 1 if anything is damaged, and names the shards and the samples.
    """

    def show(verdict: ShardVerdict) -> None:
        if not (as_json or (quiet and verdict.ok)):
            result(f"{shown(verdict.name)}: {_words(verdict)}")

    report = streamio.verify(source, on_shard=show)
    if as_json:
        result_json({**asdict(report), "ok": report.ok})
    elif not report.ok:
        result(
            f"{len(report.damaged):,} of {plural(len(report.shards), 'shard')} damaged. Copy or pack them again."
        )
    elif not quiet:
        result(f"All {plural(len(report.shards), 'shard')} good{'' if report.promised else _UNPROMISED}.")
    if not report.ok:
        raise typer.Exit(1)


_UNPROMISED = ", as far as can be told: other tools keep no checksums"


def _words(verdict: ShardVerdict) -> str:
    if verdict.ok:
        return "good"
    keys = f" (samples {named(verdict.keys)})" if verdict.keys else ""
    return f"DAMAGED: {shown(verdict.problem)}{keys}"
