"""WebDataset: its ShardWriter and its pipeline; also on a tar that streamio wrote, which has no pax headers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import webdataset

from benchmarks.speed.job import SEED, Job, Loop, augmented, augmented_image, holds_bytes, token_parts

PACKAGE = "webdataset"
_SHARDS = 8


def write(job: Job, out: Path, samples: Iterator[tuple[Any, int]]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    field = "jpg" if holds_bytes(job) else "npy"
    most = -(-job.samples // _SHARDS)
    with webdataset.ShardWriter(str(out / "%06d.tar"), maxcount=most, verbose=0) as writer:
        for at, (value, number) in enumerate(samples):
            writer.write({"__key__": f"{at:08d}", field: value, "cls": number})


def loop(job: Job) -> Loop:
    tars = sorted(str(path) for path in job.packed.glob("*.tar"))
    stream = webdataset.WebDataset(tars, shardshuffle=len(tars), seed=SEED, empty_check=False).shuffle(1000)
    pipeline = _decoded(job, stream, "cls" if job.store.startswith(PACKAGE) else "number.int")
    loader = webdataset.WebLoader(
        pipeline.batched(job.about.batch), batch_size=None, num_workers=job.workers,
        persistent_workers=job.workers > 0,
    )  # fmt: skip
    return Loop(lambda: loader, token_parts) if job.about.kind == "tokens" else Loop(lambda: loader)


def _decoded(job: Job, stream: Any, label: str) -> Any:
    if job.about.kind != "jpeg":
        field = "npy" if job.store.startswith(PACKAGE) else "x.npy"
        return stream.decode(webdataset.handle_extension("int", int)).to_tuple(field, label)
    if job.variant == "pillow":
        return stream.decode("pil").to_tuple("jpg", label).map_tuple(augmented_image)
    return stream.to_tuple("jpg", label).map_tuple(augmented, int)
