"""streamio itself, by its public API. A variant is "<format>/<how>", for example "hdf5/process"."""

from __future__ import annotations

import csv
import inspect
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

import streamio
from benchmarks.speed.job import SEED, Job, Loop, holds_bytes, token_parts
from benchmarks.speed.source import FOLDERS, SHORT, read_files
from benchmarks.speed.workloads import CROP, TOKENS
from streamio.image import RandomResizedCrop

PACKAGE = "streamio"
_DOCUMENT = 800
"""Tokens of a document on average."""


def write(job: Job, out: Path, samples: Iterator[tuple[Any, int]]) -> None:
    kind = job.store.split("-")[1]
    if holds_bytes(job):
        _pack(job, out, kind)
    elif kind == "windows":
        windows = ({"x": value} for value, _ in samples)
        streamio.write(windows, out, format="hdf5", overwrite=True)
    elif job.about.kind == "tokens":
        streamio.write(_documents(samples), out, format=kind, overwrite=True)
    else:
        records = ({"x": value, "number": number} for value, number in samples)
        streamio.write(records, out, format=kind, overwrite=True)


def _pack(job: Job, out: Path, kind: str) -> None:
    """The pictures by a list that numbers them; b is a with the pictures made smaller as they are packed."""
    listed = out.with_suffix(".csv")
    with listed.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "number"])
        rows.writerows((path, number) for number, path in enumerate(read_files(job.source, "a")))
    short = SHORT if FOLDERS[job.workload] == "small" else None
    streamio.pack(listed, out, format=kind, resize_short=short, overwrite=True, workers=2)
    listed.unlink()


def _documents(samples: Iterator[tuple[Any, int]]) -> Iterator[dict[str, Any]]:
    """The windows cut anew, into documents of many lengths; and one more token, the last one's target."""
    tokens = np.concatenate([*(window for window, _ in samples), np.zeros(1, np.int32)])
    lengths = np.random.default_rng(SEED).exponential(_DOCUMENT, 2 * len(tokens) // _DOCUMENT).astype(int) + 1
    edges = np.cumsum(lengths)
    for start, stop in zip(chain([0], edges), chain(edges[edges < len(tokens)], [len(tokens)]), strict=False):
        yield {"tokens": tokens[start:stop]}


def dataset(job: Job) -> Any:
    about, path = job.about, str(job.packed)
    if job.variant.startswith("windows"):
        return streamio.ShardDataset(path, about.batch, fields=("x",), shuffle="global", seed=SEED)
    if about.kind == "tokens":
        return streamio.TokenDataset(
            path, about.batch, TOKENS, fields=("tokens",), dtype="int32", shuffle="global", seed=SEED
        )
    if about.kind == "jpeg":
        return streamio.ShardDataset(
            path, about.batch, fields=("jpg", "number"), shuffle="global", seed=SEED,
            decode=RandomResizedCrop(CROP),
        )  # fmt: skip
    return streamio.ShardDataset(
        path, about.batch, fields=("x", "number"), shuffle="global", seed=SEED, repeat=about.repeat
    )


def loop(job: Job) -> Loop:
    how = job.variant.split("/")[1]
    parts = _windows if job.about.kind == "tokens" else _pair
    if how == "dataloader":
        workers: dict[str, Any] = {"num_workers": job.workers, "persistent_workers": job.workers > 0}
        loader: Any = DataLoader(dataset(job), batch_size=None, **workers)
        return Loop(lambda: loader, parts)
    loader = streamio.StreamLoader(dataset(job), **_settings(how, job.workers))
    return Loop(lambda: loader, parts, loader.close)


def _settings(how: str, workers: int) -> dict[str, Any]:
    """Arguments of the loader for a transport; "auto" chooses workers, too."""
    if "transport" not in inspect.signature(streamio.StreamLoader.__init__).parameters:
        if how not in ("auto", "inline", "process"):
            raise NotImplementedError(f"this streamio has no transport {how!r}")
        return {"num_workers": workers}
    return {"num_workers": "auto" if how == "auto" else workers, "transport": how}


def _pair(batch: Any) -> tuple[Any, Any]:
    return batch[0], batch[1]


def _windows(batch: Any) -> tuple[Any, Any]:
    return token_parts(batch[0][:, :TOKENS])
