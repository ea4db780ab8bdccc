"""make_loader: a folder of shards to batches for a model, with what is good practice chosen and said."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from streamio.batching.decode import NUMBER_CODECS, is_picture
from streamio.dataset import ShardDataset, open_table
from streamio.device import Device
from streamio.errors import UsageError
from streamio.image import CenterCrop, RandomResizedCrop
from streamio.loading.device import Convert
from streamio.loading.loader import StreamLoader
from streamio.shards.manifest import FieldSpec

_SIZE, _RESIZE = 224, 256
"""Pixels of a picture's side, and of its shorter side before the middle is cut out; the usual ones of ImageNet."""

_LABEL = "cls"


def make_loader(
    source: str | os.PathLike[str] | Sequence[str] | Any,
    batch_size: int | None,
    *,
    train: bool = True,
    size: int | None = None,
    fields: Sequence[str] | None = None,
    device: Device | None = None,
    convert: Convert | None = None,
    **options: Any,
) -> StreamLoader:
    """Batches (inputs, labels) of a packed set, or of tars, with everything chosen that was not asked for.

        for pictures, labels in make_loader("out/train", 64):               # uint8 (64, 3, 224, 224), int64 (64,)
        for pictures, labels in make_loader("out/val", 64, train=False):

    source, batch_size: as for `ShardDataset`.
    train:   True shuffles, crops at random, and leaves out what is less than a batch (tail="drop", others in each
             epoch): all batches are alike, so torch.compile compiles once and BatchNorm sees no small ones. False
             keeps the order, cuts out the middle, and gives every sample once (tail="even"): the last two batches
             may be smaller.
    size:    height and width of pictures, by RandomResizedCrop(size), or CenterCrop(size, resize=size * 8 / 7). By
             default 224, unless the pictures were packed in one size, or decode=, prepare=, transform= or collate=
             is given. None of these mirrors: decode=RandomResizedCrop(224, flip=0.5) does.
    fields:  what a batch holds, in this order. By default the picture, or else the only field that is no number;
             then `cls`, or else the only number. Where that is not one of each, UsageError lists what there is.
    device, convert: give them to `loader.to`; None leaves batches in the memory of the program.
    options: any other of `ShardDataset` (seed=, tail=, layout=, transform=, …) and `StreamLoader` (num_workers=,
             prefetch_bytes=, …), which come before what is chosen here. Pictures are laid out as layout="chw",
             unless collate= is a function.

    The data set is `loader.dataset`. Workers are as many as the CPUs that are usable, if any are worth it; memory
    for batches made ahead is bounded, and page-locked where there is CUDA. Raises UsageError for options that
    nobody takes, and for what cannot work.
    """
    for_dataset, for_loader = _dealt(options)
    table = open_table(source)
    chosen = tuple(fields) if fields is not None and not isinstance(fields, str) else fields
    if chosen is None:
        chosen = _input_and_label(table.fields)
    pictures = [name for name in chosen if name in table.fields and is_picture(table.fields[name])]
    defaults: dict[str, Any] = {"shuffle": train and "draw" not in options, "tail": "drop" if train else "even"}
    if pictures and not callable(options.get("collate")):
        defaults["layout"] = "chw"
    decode = _decode(pictures, table.fields, size, train, options)
    if decode is not None:
        defaults["decode"] = decode
    if convert is not None and device is None:
        raise UsageError("convert= without device=", fix="Say where it runs: device='auto', 'cuda' or 'cpu'")
    loader = StreamLoader(
        ShardDataset(table, batch_size, fields=chosen, **{**defaults, **for_dataset}), **for_loader
    )
    _refuse_no_batch(loader)
    return loader if device is None else loader.to(device, convert)


def _dealt(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(those of the data set, those of the loader). Raises UsageError for others."""
    takers = {kind: _named_options(kind) for kind in (ShardDataset, StreamLoader)}
    known = [name for names in takers.values() for name in names]
    unknown = [name for name in options if name not in known]
    if unknown:
        near = get_close_matches(unknown[0], known, n=1)
        guess = f"Did you mean {near[0]}=? " if near else ""
        taken = "; ".join(f"{kind.__name__} takes {', '.join(names)}" for kind, names in takers.items())
        raise UsageError(f"nobody takes {', '.join(f'{name}=' for name in unknown)}", fix=f"{guess}{taken}")
    dataset, loader = ({name: options[name] for name in names if name in options} for names in takers.values())
    return dataset, loader


def _named_options(kind: type) -> list[str]:
    """The options of a class that are given by name, but those that make_loader has itself."""
    own = inspect.signature(make_loader).parameters
    parameters = inspect.signature(kind).parameters.values()
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in own]


def _input_and_label(specs: Mapping[str, FieldSpec]) -> tuple[str, str]:
    pictures = [name for name, spec in specs.items() if is_picture(spec)]
    numbers = [name for name, spec in specs.items() if spec.codec in NUMBER_CODECS]
    others = [name for name in specs if name not in pictures and name not in numbers]
    inputs = pictures or others
    labels = [_LABEL] if _LABEL in numbers else numbers
    if len(inputs) == len(labels) == 1:
        return inputs[0], labels[0]
    lines = {"pictures": pictures, "numbers": numbers, "others": others}
    found = "; ".join(f"{what}: {', '.join(names) or 'none'}" for what, names in lines.items())
    what = "the input" if len(inputs) != 1 else "the label"
    raise UsageError(
        f"{what} of a sample cannot be told from its fields ({found})",
        fix=f"Name what a batch holds: fields={(*inputs[:1], *labels[:1])!r}",
    )


def _decode(
    pictures: list[str], specs: Mapping[str, FieldSpec], size: int | None, train: bool, options: Mapping[str, Any]
) -> Any:
    """The operation for the pictures; None where they stay as they are, or the user says how."""
    if size is not None and options.get("decode") is not None:
        raise UsageError(f"size={size} and decode={options['decode']!r}", fix="Leave one of them out")
    if size is not None and not pictures:
        raise UsageError(f"size={size}, but no field of the batch is a picture", fix="Leave it out")
    if size is None:
        named = any(options.get(name) is not None for name in ("decode", "prepare", "transform"))
        asked = named or _joins(options, pictures)
        if asked or not pictures or all(specs[name].shape is not None for name in pictures):
            return None
    if len(pictures) > 1:
        raise UsageError(
            f"the pictures {', '.join(pictures)} would all be cropped and smoothed alike, a mask too",
            fix="Say how each is decoded: decode={field: operation}",
        )
    side = _SIZE if size is None else size
    return RandomResizedCrop(side) if train else CenterCrop(side, resize=side * _RESIZE // _SIZE)


def _joins(options: Mapping[str, Any], pictures: list[str]) -> bool:
    """Whether collate= says how the pictures are joined, so that they may have any size."""
    collate = options.get("collate")
    return any(name in collate for name in pictures) if isinstance(collate, Mapping) else collate is not None


def _refuse_no_batch(loader: StreamLoader) -> None:
    try:
        batches = len(loader)
    except TypeError:  # an epoch without an end
        return
    if not batches:
        raise UsageError(
            f"an epoch of {loader.dataset!r} has no batch: what is less than one of every rank is left out",
            fix="Give tail='even', or a smaller batch_size",
        )
