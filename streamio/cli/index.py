"""`streamio index`: make the indexes of tars that others wrote, or of a set that lost them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamio.cli import options as opt
from streamio.cli.console import result
from streamio.errors import UsageError
from streamio.interop.dali import write_dali_index
from streamio.packing.report import plural, shown
from streamio.shards.foreign import IndexedShard, index_tars, reindex


def index(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="TARS…|SET", show_default=False, help="Tars ('a-{000..041}.tar' too), or one packed set."
        ),
    ],
    dali: Annotated[
        bool, opt.flag("Also write what NVIDIA DALI's webdataset reader wants: a.idx beside a.tar.", "--dali")
    ] = False,
    quiet: Annotated[bool, opt.flag("Print errors, nothing else.", "--quiet", "-q")] = False,
) -> None:
    """Make the indexes that streamio reads tars with, so that the first epoch need not.

    Tars of other tools are read as they are: an index is made on first use, or here. For a set that streamio
    packed, indexes that were lost are made again from the shards.
    """

    def tell(shard: IndexedShard) -> None:
        if not quiet:
            _show(shard)
        if dali:
            made = write_dali_index(shard)
            if not quiet:
                result(f"{shown(str(made))}: for DALI")

    folders = [source for source in sources if Path(source).is_dir()]
    if folders and len(sources) > 1:
        raise UsageError(f"{shown(folders[0])} is a folder among other arguments", fix="Give tars, or one set")
    if folders:
        reindex(folders[0], on_done=tell)
    else:
        index_tars(sources, on_done=tell)


def _show(shard: IndexedShard) -> None:
    done = f"index written to {shown(shard.kept)}" if shard.made else "has its index"
    result(f"{shown(shard.path)}: {plural(shard.samples, 'sample')}, {done}")
