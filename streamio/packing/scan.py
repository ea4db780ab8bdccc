"""Finds the samples in a folder or a list, and the classes: what the layout is, and why."""

from __future__ import annotations

import os
import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from streamio.errors import UsageError
from streamio.packing.labels import Classes, check_fields, class_numbers, joined, row_values, table_classes
from streamio.packing.listing import Table, is_list, read_table
from streamio.packing.report import Skipped, named, plural, shown
from streamio.packing.samples import (
    File,
    Sample,
    empty_picture,
    field_notes,
    group,
    in_byte_order,
    is_known,
    is_media,
    sample,
    split_name,
)
from streamio.packing.walk import Tick, Tree, examine, matcher, walk

LAYOUTS = ("auto", "classes", "stems", "list")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What there is to pack.

    root:    what the paths of the samples are relative to.
    layout:  classes, stems or list; `reason` says in one line what was found.
    samples: sorted by the bytes of their keys (a list keeps its own order).
    classes: names of the classes that `cls` counts, or None.
    bad:     files that cannot be packed; their samples are not in `samples`.
    notes:   sentences on what was left out on purpose, and on what looks odd.
    """

    root: str
    layout: str
    reason: str
    samples: list[Sample]
    classes: tuple[str, ...] | None = None
    bad: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def labelled(self) -> bool:
        """Have samples a class that comes from a folder or a table?"""
        return any(item.value("cls") is not None for item in self.samples)


def scan(
    src: str,
    *,
    layout: str = "auto",
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    labels: str | None = None,
    classes: Classes = None,
    tick: Tick | None = None,
) -> Scan:
    """Find all samples. `labels` is a table that gives them their classes, `classes` the only ones allowed.

    Raises UsageError for a layout that SRC cannot have, and for classes that are not among `classes`.
    """
    if is_list(src):
        _allow(src, layout, ("auto", "list"), "a list of files")
        if labels is not None:
            raise UsageError("SRC is a list with labels of its own; 'labels' is for folders", path=shown(src))
        found = _listed(src, include, exclude, classes, tick)
    else:
        _allow(src, layout, ("auto", "classes", "stems"), "a folder")
        tree = walk(src, include, exclude, tick)
        if labels is not None:
            inside = os.path.relpath(os.path.realpath(labels), os.path.realpath(src))
            tree.files = [file for file in tree.files if file[0] != inside]
        found = _folder(src, tree, layout, labels, classes)
    return replace(found, notes=(*found.notes, *field_notes(found.samples)))


def _allow(src: str, layout: str, allowed: tuple[str, ...], what: str) -> None:
    if layout not in allowed:
        raise UsageError(f"is {what}, which layout '{layout}' does not fit", path=shown(src),
                         fix=f"Use one of: {', '.join(allowed)}")  # fmt: skip


def _folder(src: str, tree: Tree, layout: str, labels: str | None, classes: Classes) -> Scan:
    why = ""
    files = list(_keyed(tree.files))
    if labels is not None:
        if layout == "classes":
            raise UsageError("folders and a table of labels cannot both give the classes", fix="Give one of them")
        layout = "stems"
    elif layout == "auto":
        layout, why = _guess(tree, files)
    if layout == "classes":
        return _classes(src, tree, files, classes)
    if classes is not None and labels is None:
        raise UsageError("'classes_from' needs classes, and nothing here gives any",
                         fix="Use it with class folders, a list with labels, or 'labels'")  # fmt: skip
    return _stems(src, tree, files, why, labels, classes)


def _keyed(files: Sequence[tuple[str, int]]) -> Iterator[tuple[str, File]]:
    for path, size in files:
        key, name = split_name(path)
        yield key, (name, path, size)


_SPLITS = frozenset(["train", "training", "val", "valid", "validation", "test", "testing", "eval", "dev"])
_PARTS = frozenset({
    "image", "images", "img", "imgs", "jpegimages", "label", "labels", "mask", "masks", "annotation",
    "annotations", "depth", "text", "texts",
})  # fmt: skip


def _guess(tree: Tree, files: Sequence[tuple[str, File]]) -> tuple[str, str]:
    """The layout of a folder, and what speaks against classes."""
    names = {name.lower() for name in tree.folders}
    if not tree.folders:
        return "stems", ""
    fields = Counter([file[0] for _, file in files])
    top = [file[0] for _, file in files if "/" not in file[1]]
    if 2 * len(top) > len(files) or any(map(is_media, top)):  # a README beside the classes is none of them
        return "stems", "there are files at the top"
    if len(names) > 1 and names <= _SPLITS:
        raise UsageError(
            f"holds the splits {named(tree.folders)}, which are no classes",
            fix="Pack each on its own, e.g. SRC/train to OUT/train, then the others with 'classes_from'; or say "
            "layout 'classes' or 'stems'",
        )
    if names <= _PARTS:
        why = f"{named(tree.folders)} are parts, not classes"
        return "stems", f"{why}; parts of one sample need one name in one folder: 7.jpg, 7.txt"
    if "cls" in fields:
        return "stems", "classes come from .cls files"
    if 2 * sum(count for field, count in fields.items() if is_known(field)) < len(files):
        return "stems", "most files are of unknown kinds"
    return "classes", ""


def _classes(src: str, tree: Tree, found: Sequence[tuple[str, File]], given: Classes) -> Scan:
    """As ImageFolder reads it: folders at the top, sorted, are the classes."""
    outside = [path for path, _ in tree.files if "/" not in path]
    groups = group([keyed for keyed in found if "/" in keyed[1][1]] if outside else found, tree.bad)
    numbers = class_numbers(tree.folders, given, "folder")
    values = {name: (("cls", number),) for name, number in numbers.items()}
    samples = []
    for key in in_byte_order(groups.samples):
        own = groups.samples[key]
        for name, path, _ in own:
            if name == "cls":
                raise UsageError("this file and its folder both give 'cls'", path=shown(path),
                                 fix="Exclude such files, or use layout 'stems'")  # fmt: skip
        samples.append(sample(key, own, values[key[: key.index("/")]]))
    used = {item.key[: item.key.index("/")] for item in samples}
    empty = [name for name in tree.folders if name not in used]
    classes = given if given is not None else tuple(numbers)
    files = sum(len(item.files) for item in samples)
    each = "one sample per file" if files == len(samples) else f"{plural(len(samples), 'sample')} by name"
    count = plural(len(tree.folders), "class folder")
    notes = tree.notes()
    if outside:
        notes.append(f"left out {plural(len(outside), 'file')} outside the class folders: {named(outside)}")
    if empty:
        notes.append(f"{plural(len(empty), 'class folder holds', 'class folders hold')} no sample: {named(empty)}; "
                     "the numbers of the other classes stay as if there were some")  # fmt: skip
    if len(classes) == 1 and samples:
        inner = any(item.key.count("/") > 1 for item in samples)
        way_out = f"; if the folders in it are the classes, pack {shown(os.path.join(src, classes[0]))}" * inner
        notes.append(f"there is one class only, {shown(classes[0])}{way_out}")
    return Scan(
        root=src, layout="classes", samples=samples, classes=classes, bad=groups.skipped(), notes=tuple(notes),
        reason=f"{count} with {plural(files, 'file')}: {each}, cls = folder",
    )  # fmt: skip


def _stems(
    src: str, tree: Tree, found: Sequence[tuple[str, File]], why: str, labels: str | None, given: Classes
) -> Scan:
    """Files grouped by their path without the extension."""
    groups = group(found, tree.bad)
    samples = [sample(key, groups.samples[key], ()) for key in in_byte_order(groups.samples)]
    files = sum(len(item.files) for item in samples)
    reason = f"{plural(files, 'file')} grouped by name: {plural(len(samples), 'sample')}"
    notes, classes = tree.notes(), None
    if labels is not None:
        names = {path for path, _ in tree.files}
        table = read_table(labels, names.__contains__)
        samples, classes, more = joined(samples, table, given)
        notes += more
        reason += f", labels from {table.name}"
    return Scan(
        root=src, layout="stems", samples=samples, classes=classes, bad=groups.skipped(), notes=tuple(notes),
        reason=f"{reason} ({why})" if why else reason,
    )  # fmt: skip


def _listed(src: str, include: Sequence[str], exclude: Sequence[str], given: Classes, tick: Tick | None) -> Scan:
    """One sample per row of a `.csv` or `.jsonl` table."""
    root = os.path.dirname(src) or "."

    def exists(path: str) -> bool:
        return os.path.isfile(os.path.join(root, path))

    table = read_table(src, exists)
    numbers, classes = table_classes(table, given)
    wanted = _chosen(table.paths, include, exclude)
    samples: list[Sample] = []
    bad: dict[str, str] = {}
    seen: dict[str, int] = {}
    for row in wanted:
        path = table.paths[row]
        size, trouble = examine(os.path.join(root, path))
        key, name = split_name(_inside(path))
        if before := seen.get(key):
            raise UsageError(
                f"lines {table.lines[before - 1]} and {table.lines[row]} give the same key '{shown(key)}': "
                f"{shown(table.paths[before - 1])} and {shown(path)}",
                fix="List each file once; to join files that differ only in their extension, pack their folder, "
                "with this list as 'labels'",
                path=table.name,
            )
        seen[key] = row + 1
        trouble = trouble or empty_picture(name, size)
        if trouble:
            bad[path] = trouble
            continue
        samples.append(Sample(key, ((name, path, size),), row_values(table, numbers, row)))
        check_fields(samples[-1], table, row)
        if tick:
            tick(0, 1, size)
    notes = []
    if len(wanted) < len(table.paths):
        notes.append(f"left out {plural(len(table.paths) - len(wanted), 'row')} by include and exclude patterns")
    bare = [item.files[0][1] for item in samples if item.value("cls") is None]
    if bare and table.labels is not None:
        notes.append(f"{plural(len(bare), 'sample has', 'samples have')} no label: {named(bare)}")
    for column, values in table.extra.items():
        first = next(filter(None, values), None)
        if isinstance(first, str) and exists(first):
            notes.append(f"column '{column}' names files, as {shown(first)}; they are not packed, their names are")
    return Scan(
        root=root, layout="list", samples=samples, classes=classes, reason=_list_reason(table, classes),
        bad=tuple(Skipped(shown(path), bad[path]) for path in bad), notes=tuple(notes),
    )  # fmt: skip


def _chosen(paths: Sequence[str], include: Sequence[str], exclude: Sequence[str]) -> list[int]:
    """Rows whose paths the patterns let pass."""
    wanted = matcher(include) if include else None
    unwanted = matcher(exclude) if exclude else None
    named_paths = [(posixpath.basename(path), posixpath.normpath(path)) for path in paths]
    return [
        row
        for row, (name, path) in enumerate(named_paths)
        if not (wanted and not wanted(name, path)) and not (unwanted and unwanted(name, path))
    ]


def _inside(path: str) -> str:
    """A path for keys: without `./`, `../` and a leading `/`."""
    path = posixpath.normpath(path).lstrip("/")
    while path.startswith("../"):
        path = path[3:]
    return path


def _list_reason(table: Table, classes: Classes) -> str:
    text = f"{plural(len(table.paths), 'row')} in {table.name}: paths in column '{table.path_column}'"
    if table.labels is None:
        return f"{text}, no labels"
    kinds = "numbers" if classes is None else plural(len(classes), "class", "classes")
    return f"{text}, labels in '{table.label_column}' ({kinds})"
