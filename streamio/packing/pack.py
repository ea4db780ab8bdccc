"""The public call: scan, assign, write, commit, one after the other."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from streamio.codecs import encode_field, is_image_field
from streamio.codecs.sniff import read_head
from streamio.errors import InputError, UsageError, where
from streamio.packing.assign import ShardTask, assign
from streamio.packing.commit import FOLDERS, NewSet, Output
from streamio.packing.engines import Team
from streamio.packing.pieces import FIELD, worth
from streamio.packing.report import (
    Meter,
    PackReport,
    Progress,
    Skipped,
    SplitReport,
    large_note,
    named,
    plural,
    shown,
)
from streamio.packing.request import Request, checked
from streamio.packing.samples import Sample, in_order
from streamio.packing.scan import Scan, scan
from streamio.packing.sets import new_set, skipped_lines, split_reports
from streamio.packing.write import (
    Example,
    Job,
    Options,
    ShardDone,
    Unfit,
    column_name,
    input_error,
    raw_name,
    read_file,
)
from streamio.shards.base import IMAGE

PathLike = str | os.PathLike[str]


def pack(
    src: PathLike,
    out: PathLike,
    *,
    format: str = "tar",
    layout: Literal["auto", "classes", "stems", "list"] = "auto",
    shard_size: int | str | None = None,
    shard_samples: int | None = None,
    shuffle: bool | None = None,
    seed: int = 0,
    workers: int | None = None,
    val: float = 0.0,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    labels: PathLike | None = None,
    classes_from: PathLike | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    resize_short: int | None = None,
    max_side: int | None = None,
    quality: int | None = None,
    store: Literal["bytes", "raw"] = "bytes",
    check: bool = False,
    on_error: Literal["raise", "skip"] = "raise",
    progress: Callable[[Progress], None] | None = None,
) -> PackReport:
    """Pack a folder of files, or a list of them, into shards. The same input gives the same bytes.

    src:     a folder, or a `.csv` or `.jsonl` list with a column of paths (relative to the list), perhaps one
             of labels, and further columns, which become fields.
    out:     a folder that is new or empty. Nothing can be read there until everything is written; after an
             error it is as it was.
    format:  tar, lmdb or hdf5.
    layout:  classes: folders at the top are classes, sorted, and `cls` is their number. stems: files that
             differ only in their extension are one sample. list: see src. auto finds out.
    shard_size, shard_samples: where a shard ends; one of the two (default 256 MB). Sizes are those of the
             files on disk, so they are an upper limit where pictures are made smaller.
    shuffle: the order in the shards (default: yes if samples have labels); it depends on `seed` and keys only.
    workers: processes that write, at most (default: the CPUs that may be used); one where there is little to
             do. They change nothing but the time.
    val:     share of the samples for a second set; then OUT/train and OUT/val are sets, split by label alike.
    include, exclude: patterns (`*.jpg`, `cat/*`) of the files to pack and to leave out; case does not count.
    labels:  a table as in `src` that gives the files of a folder their labels and further fields.
    classes_from: a packed set whose classes and numbers are used, so that train and test agree.
    overwrite: replace a finished set. Other files are never touched.
    dry_run: scan and report, write nothing.
    resize_short, max_side, quality: make pictures smaller (`--resize-short 256`: the shorter side). Without
             them their bytes are kept exactly.
    store:   raw keeps pictures decoded, uint8 of one size: all as they are, or squares of `resize_short`.
    check:   decode every picture, to find those that cannot be.
    on_error: raise reports files that cannot be packed and writes nothing; skip leaves their samples out and
             lists them in OUT/skipped.jsonl and in the report.
    progress: called with a `Progress` about ten times a second.

    Raises UsageError for a call that cannot work, before any work; OutputExists; InputError, with the paths,
    for files that cannot be packed; StorageError where OUT cannot be written.
    """
    started = time.monotonic()
    request = checked(
        src=src, out=out, format=format, layout=layout, shard_size=shard_size, shard_samples=shard_samples,
        shuffle=shuffle, seed=seed, workers=workers, val=val, include=include, exclude=exclude, labels=labels,
        classes_from=classes_from, overwrite=overwrite, resize_short=resize_short, max_side=max_side,
        quality=quality, store=store, check=check, on_error=on_error,
    )  # fmt: skip
    meter = Meter(progress)
    if dry_run:
        return _Pack(request, meter, started).rehearse()
    with Output(request.out, overwrite=overwrite) as output, Team(request.workers, (output.lock,)) as team:
        return _Pack(request, meter, started, team).perform(output, team)


class _Pack:
    """One run: what was found and dealt, and what comes of it."""

    def __init__(self, request: Request, meter: Meter, started: float, team: Team | None = None) -> None:
        self._request = request
        self._meter = meter
        self._started = started
        self._team = team
        self._scan = scan(
            request.src, layout=request.layout, include=request.include, exclude=request.exclude,
            labels=request.labels, classes=request.classes, tick=self._scanned,
        )  # fmt: skip
        meter.finish("scan")
        _refuse(self._scan, request)
        self._samples = self._scan.samples
        self._options = _options(request, self._scan)
        self._sizes = _footprints(self._samples, request, self._options)
        shuffle = self._scan.labelled if request.shuffle is None else request.shuffle
        self._tasks = assign(
            [sample.key for sample in self._samples], self._sizes,
            seed=request.seed, shuffle=shuffle, shard_size=request.shard_size,
            shard_samples=request.shard_samples, val=request.val,
            labels=[sample.value("cls") for sample in self._samples] if request.val else None,
        )  # fmt: skip

    def rehearse(self) -> PackReport:
        """The report of a run that writes nothing; sizes are estimates."""
        splits: dict[str, SplitReport] = {}
        for split in dict.fromkeys(task.split for task in self._tasks):
            tasks = [task for task in self._tasks if task.split == split]
            splits[split] = SplitReport(
                path=os.path.join(self._request.out, FOLDERS[split]).rstrip("/"),
                samples=sum(len(task.samples) for task in tasks), shards=len(tasks),
                bytes=sum(self._sizes[at] for task in tasks for at in task.samples.tolist()),
            )  # fmt: skip
        files = {name for sample in self._samples for name, _, _ in sample.files}
        fields = {self._options.raw.get(name, name) for name in files} | set(self._options.stored)
        return self._report(splits, in_order(fields), self._scan.bad, dry_run=True)

    def _scanned(self, samples: int, files: int, bytes: int) -> None:
        """Files were found. Where there is work for several workers they start while it goes on."""
        self._meter.add(samples, files, bytes)
        if self._team is not None and self._request.format.in_pieces:
            self._team.start(worth(self._meter.bytes + FIELD * self._meter.files, self._request.workers))

    def perform(self, output: Output, team: Team) -> PackReport:
        found = [size for sample in self._samples for _, _, size in sample.files]
        self._meter.start("write", samples=len(self._samples), files=len(found), bytes=sum(found))
        jobs = [self._job(task, output) for task in self._tasks]
        done = team.run(jobs, self._meter.add)
        skipped = (*self._scan.bad, *(item for shard in done for item in shard.skipped))
        sets = self._sets(done, skipped)
        self._meter.finish("commit")
        output.publish(list(sets.values()), skipped_lines(skipped))
        fields = {name for new in sets.values() for name in new.manifest.fields}
        return self._report(split_reports(self._request.out, sets), in_order(fields), skipped)

    def _job(self, task: ShardTask, output: Output) -> Job:
        return Job(
            split=task.split, number=task.number, format=self._request.format.name,
            path=output.part(task.split, task.number, self._request.format.suffix),
            samples=tuple(self._samples[at] for at in task.samples.tolist()), options=self._options,
        )  # fmt: skip

    def _sets(self, done: Iterable[ShardDone], skipped: Sequence[Skipped]) -> dict[str, NewSet]:
        users = {stored: name for name, stored in self._options.stored.items()}
        users |= {raw_name(name): name for name in self._options.raw.values()}
        parts: dict[str, list[Any]] = {task.split: [] for task in self._tasks}
        for shard in done:
            if shard.part is not None:
                parts[shard.split].append(shard.part)
        for split, found in parts.items():
            if not found:
                raise InputError(
                    f"nothing is left to pack{'' if split == 'all' else f' for {split}'}: all of "
                    f"{plural(len(skipped), 'file')} cannot be packed, {shown(skipped[0].path)} "
                    f"for one: {skipped[0].reason}",
                    path=shown(self._request.src),
                )
        return {
            split: new_set(split, found, self._request.format, self._scan.classes, users)
            for split, found in parts.items()
        }

    def _report(
        self,
        splits: dict[str, SplitReport],
        fields: Sequence[str],
        skipped: tuple[Skipped, ...],
        dry_run: bool = False,
    ) -> PackReport:
        return PackReport(
            out=self._request.out, format=self._request.format.name,
            layout=self._scan.layout, layout_reason=self._scan.reason, splits=splits, fields=tuple(fields),
            samples=sum(split.samples for split in splits.values()), classes=self._scan.classes,
            shards=sum(split.shards for split in splits.values()),
            bytes=sum(split.bytes for split in splits.values()), skipped=skipped,
            notes=(*self._scan.notes, *self._large()),
            seconds=time.monotonic() - self._started, dry_run=dry_run,
        )  # fmt: skip

    def _large(self) -> list[str]:
        limit = self._request.shard_size
        if limit is None:
            return []
        large = [(self._samples[at].key, size) for at, size in enumerate(self._sizes) if size > limit]
        return large_note(large, limit)


def _refuse(found: Scan, request: Request) -> None:
    """Stop before anything is written if the scan alone says that it must come to nothing."""
    if found.bad and not request.skip:
        raise input_error(list(found.bad))
    if not found.samples:
        if found.bad:
            raise InputError("nothing is left to pack: every file is broken", path=shown(request.src))
        hint = f"The scan says: {'; '.join(found.notes)}" if found.notes else "Is it the right folder?"
        raise UsageError("there are no files to pack", fix=hint, path=shown(request.src))
    if request.val and len(found.samples) < 2:
        raise UsageError("one sample cannot be split into train and val", fix="Leave out val")
    if (request.raw or request.resize_short or request.max_side or request.quality) and not any(
        is_image_field(name) for sample in found.samples for name, _, _ in sample.files
    ):
        raise UsageError("options for pictures are given, but there are none", fix="Leave them out",
                         path=shown(request.src))  # fmt: skip
    if request.resize_short or request.max_side:
        _refuse_pairs(found.samples)


def _refuse_pairs(samples: Sequence[Sample]) -> None:
    """A picture beside another one is a mask, as a rule, and its numbers must not be blended."""
    for sample in samples:
        pictures = [path for _, path, _ in sample.files if is_image_field(path)]
        if len(pictures) > 1:
            raise UsageError(
                f"the pictures {named(pictures)} are one sample: made smaller, a mask would be blurred",
                fix="Pack them as they are, or leave one kind out with --exclude (exclude=)",
            )


def _options(request: Request, found: Scan) -> Options:
    first: dict[str, Any] = {}
    for sample in found.samples:
        for name, value in sample.values:
            first.setdefault(name, value)
    stored = {name: column_name(name, value) for name, value in first.items()}
    twice = [name for name, count in Counter(map(str.lower, stored.values())).items() if count > 1]
    if twice:
        names = [name for name in stored if stored[name].lower() == twice[0]]
        raise UsageError(f"the columns {named(names)} would both be stored as {twice[0]}", fix="Rename one of them")
    raw = _raw_fields(found.samples) if request.raw else {}
    sizes = _picture_sizes(found, raw) if raw and request.resize_short is None else {}
    return Options(
        root=found.root, stored=stored, resize_short=request.resize_short, max_side=request.max_side,
        quality=request.quality, raw=raw, sizes=sizes, check=request.check, skip=request.skip,
    )  # fmt: skip


def _raw_fields(samples: Sequence[Sample]) -> dict[str, str]:
    """Field of pictures -> field of their pixels: its own, or `image` where each sample has one of many kinds."""
    fields = {name for sample in samples for name, _, _ in sample.files}
    kinds = sorted(filter(is_image_field, fields))
    others = {name for sample in samples for name, _ in sample.values} | fields
    single = all(sum(is_image_field(name) for name, _, _ in sample.files) <= 1 for sample in samples)
    if len(kinds) > 1 and single and IMAGE not in others:
        return dict.fromkeys(kinds, IMAGE)
    return {name: name for name in kinds}


def _picture_sizes(found: Scan, raw: Mapping[str, str]) -> dict[str, Example]:
    """The size of the first picture of each field of pixels whose header can be read."""
    sizes: dict[str, Example] = {}
    for sample in found.samples:
        for name, path, size in sample.files:
            if name not in raw or raw[name] in sizes:
                continue
            try:
                head = read_head(read_file(os.path.join(found.root, path), path, size))
            except Unfit:
                continue
            if head is not None:
                sizes[raw[name]] = Example(path, *head.upright)
    return sizes


def _footprints(samples: Sequence[Sample], request: Request, options: Options) -> list[int]:
    """Bytes that each sample adds to a shard."""
    decoded = _decoded_bytes(options)
    known: dict[tuple[int, ...], int] = {}  # many small files, few sizes
    labels: dict[tuple[str, int], int] = {}
    sizes: list[int] = []
    for sample in samples:
        own = [decoded(name, size) if decoded else size for name, _, size in sample.files]
        for name, value in sample.values:
            length = labels.get((name, value)) if type(value) is int else None
            if length is None:
                with where(key=shown(sample.key)):
                    length = len(encode_field(options.stored[name], value))
                if type(value) is int:
                    labels[name, value] = length
            own.append(length)
        of_all = tuple(own)
        size = known.get(of_all)
        if size is None:
            size = known[of_all] = request.format.footprint(own)
        sizes.append(size)
    return sizes


def _decoded_bytes(options: Options) -> Callable[[str, int], int] | None:
    """With store="raw": (field, bytes on disk) -> bytes in the shard."""
    if not options.raw:
        return None
    side = options.resize_short
    fixed: Mapping[str, int] = {name: 3 * example.width * example.height for name, example in options.sizes.items()}

    def decoded(name: str, size: int) -> int:
        if name not in options.raw:
            return size
        return 3 * side * side if side is not None else fixed.get(options.raw[name], size)

    return decoded
