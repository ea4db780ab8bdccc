"""The options of `streamio pack`, and those that commands share: name, form, and the words of the help page."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def _option(panel: str, metavar: str, help: str, *names: str, default: str = "") -> Any:
    if default:
        help = f"{help}  [dim]default: {default}[/]"
    return typer.Option(*names, metavar=metavar, help=help, rich_help_panel=panel, show_default=False)


def flag(help: str, *names: str, panel: str | None = None) -> Any:
    """An option that takes no value."""
    return typer.Option(*names, metavar="", help=help, rich_help_panel=panel, show_default=False)


_IN, _OUT, _IMAGES, _RUN = "What goes in", "What comes out", "Pictures, changed once", "How it runs"

Src = Annotated[str, typer.Argument(metavar="SRC", help="A folder, or a list of files (.csv, .jsonl).")]
Out = Annotated[str, typer.Argument(metavar="OUT", help="The folder to make.")]

Layout = Annotated[
    str,
    _option(
        _IN, "auto|classes|stems|list",
        "[bold]classes[/]: each folder is a class. [bold]stems[/]: files that differ only in their extension are "
        "one sample. [bold]list[/]: SRC is a table of paths. [bold]auto[/] looks at SRC and says what it found.",
        default="auto",
    ),
]  # fmt: skip
Include = Annotated[list[str] | None, _option(_IN, "GLOB", "Only files like this; can be repeated.")]
Exclude = Annotated[list[str] | None, _option(_IN, "GLOB", "No files and folders like this; can be repeated.")]
Labels = Annotated[str | None, _option(_IN, "FILE", "A .csv or .jsonl with a path and a label in each row.")]
ClassesFrom = Annotated[
    str | None,
    _option(_IN, "SET", "Number the classes as this packed set does: for a validation set in its own folder."),
]

Format = Annotated[str, _option(_OUT, "tar|lmdb|hdf5", "Kind of the shards.", "--format", "-f", default="tar")]
ShardSize = Annotated[
    str | None, _option(_OUT, "SIZE", "Bytes of a shard at most: 256MB, 1GB, 64MiB.", default="256MB")
]
ShardSamples = Annotated[int | None, _option(_OUT, "N", "Samples of a shard, whatever their size.")]
Shuffle = Annotated[
    bool | None,
    _option(
        _OUT, "", "Mix the samples, or keep their order.", "--shuffle/--no-shuffle",
        default="mix where folders are classes, as shards of one class ruin training",
    ),
]  # fmt: skip
Seed = Annotated[int, _option(_OUT, "N", "Of the shuffle and the validation split.", default="0")]
Val = Annotated[
    float, _option(_OUT, "SHARE", "Put this share (0.1) of every class into OUT/val, the rest into OUT/train.")
]
Overwrite = Annotated[bool, flag("Replace the shard set that OUT holds.", "--overwrite", panel=_OUT)]

ResizeShort = Annotated[int | None, _option(_IMAGES, "PIXELS", "Make the shorter side this long.")]
MaxSide = Annotated[int | None, _option(_IMAGES, "PIXELS", "Make the longer side at most this long.")]
Quality = Annotated[int | None, _option(_IMAGES, "1-100", "Of JPEG and WebP files that are written anew.")]
Store = Annotated[
    str,
    _option(
        _IMAGES, "bytes|raw",
        "[bold]bytes[/]: files. [bold]raw[/]: decoded pixels, for pictures of one size; large, and read at once.",
        default="bytes",
    ),
]  # fmt: skip

Check = Annotated[bool, flag("Decode every picture, to find broken ones.", "--check", panel=_RUN)]
OnError = Annotated[
    str,
    _option(
        _RUN, "raise|skip",
        "Broken files: [bold]raise[/] names them and packs nothing; [bold]skip[/] leaves them out and lists them "
        "in OUT/skipped.jsonl.",
        default="raise",
    ),
]  # fmt: skip
Workers = Annotated[
    int | None,
    _option(_RUN, "N", "Processes that pack; OUT is the same for any.", default="one for each CPU"),
]
DryRun = Annotated[bool, flag("Say what would be made, and make nothing.", "--dry-run", panel=_RUN)]
Quiet = Annotated[bool, flag("Print errors and skipped files, nothing else.", "--quiet", "-q", panel=_RUN)]
PackJson = Annotated[bool, flag("Print the result as JSON on stdout.", "--json", panel=_RUN)]

Json = Annotated[bool, flag("Print the result as JSON on stdout.", "--json")]
