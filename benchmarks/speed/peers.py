"""Who takes part: for each loader what pip installs for it, and for each of its variants where it runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Role = Literal["ours", "peer", "hand", "bare"]

BASE = ("ideal", ("torch", "numpy", "simplejpeg", "pillow"))
"""The environment whose packages all peers share, and what is in it."""

PACKAGES: dict[str, tuple[str, ...]] = {
    "webdataset": ("webdataset",),
    "mosaicml": ("mosaicml-streaming",),
    "litdata": ("litdata",),
    "huggingface": ("datasets",),
    "grain": ("grain", "array-record"),
    "spdl": ("spdl",),
    "ffcv": ("numba", "opencv-python-headless", "ffcv"),
}
"""Script in loaders/ -> what pip installs for it. Those that are not here run in streamio's own environment.

ffcv is compiled against libopencv-dev and libturbojpeg0-dev, which are no Python packages.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way of one loader.

    role:      "hand": loaders written by hand, and what is not shuffled, which are no peers in the goals; "bare":
               nothing is read.
    workloads: the names of those that it takes part in.
    quick:     those of a quick run, each with its numbers of workers: "a2 c02".
    store:     whose data it reads; its first word is who writes them. "": the source itself.
    torch:     whether it feeds through torch's DataLoader.
    """

    peer: str
    name: str
    label: str
    workloads: str
    quick: str
    store: str = ""
    role: Role = "peer"
    workers: tuple[int, ...] = (0, 2)
    torch: bool = True

    def runs(self, workload: str, quick: bool) -> tuple[int, ...]:
        """Numbers of workers with which it takes part in a workload."""
        if not quick:
            return self.workers if workload in self.workloads else ()
        return tuple(int(workers) for word in self.quick.split() if word[0] == workload for workers in word[1:])

    @property
    def writer(self) -> str:
        return self.store.split("-")[0]


def _ours() -> Iterator[Variant]:
    for kind, workloads in (("tar", "abcdef"), ("hdf5", "cdef"), ("lmdb", "ad"), ("windows", "f")):
        for how, workers in _SETTINGS if kind != "lmdb" else _SETTINGS[1:2]:
            yield Variant(
                peer="streamio", name=f"{kind}/{how}", label=f"streamio {_LABEL.get(kind, kind)}, {_HOW[how]}",
                workloads=workloads, quick=_QUICK.get(f"{kind}/{how}", ""), store=f"streamio-{kind}",
                role="ours", workers=workers,
                torch=how == "dataloader",
            )  # fmt: skip
    yield Variant(
        peer="streamio", name="hdf5/process", label="streamio hdf5, process", workloads="h", quick="h1",
        store="streamio-hdf5", role="ours", workers=(1,), torch=False,
    )  # fmt: skip


_QUICK = {
    "tar/inline": "a0 c0 d0 e0 f0", "tar/auto": "a2 b2 c2 d2 e2 f2", "tar/dataloader": "a2 c02 d02 e02 f02",
    "tar/process": "c2", "windows/inline": "f0", "hdf5/process": "c2",
}  # fmt: skip
_SETTINGS = (("inline", (0,)), ("auto", (2,)), ("thread", (2,)), ("process", (2,)), ("dataloader", (0, 2)))
_LABEL = {"windows": "hdf5, windows cut before"}
"""Of what is no format. Other rows of ours read documents of many lengths; this one what the peers have."""
_HOW = {"inline": "inline", "auto": "auto", "thread": "threads", "process": "process", "dataloader": "DataLoader"}


def _peer(peer: str, label: str, workloads: str, quick: str, name: str = "own", **more: object) -> Variant:
    return Variant(peer=peer, name=name, label=label, workloads=workloads, quick=quick, store=peer, **more)  # type: ignore[arg-type]


def _hand(peer: str, name: str, label: str, workloads: str, quick: str, store: str = "") -> Variant:
    workers = (1,) if workloads == "h" else (0, 2)
    return Variant(
        peer=peer, name=name, label=label, workloads=workloads, quick=quick, store=store, role="hand",
        workers=workers,
    )  # fmt: skip


VARIANTS: tuple[Variant, ...] = (
    *_ours(),
    Variant(
        peer="bare", name="bare", label="nothing read", workloads="abcdef", quick="a02",
        role="bare",
    ),
    Variant(peer="imagefolder", name="simplejpeg", label="ImageFolder-like", workloads="ab", quick="a2"),
    Variant(peer="imagefolder", name="pillow", label="ImageFolder-like, Pillow", workloads="a", quick=""),
    _peer("webdataset", "WebDataset", "abcdef", "a2"),
    _peer("webdataset", "WebDataset, own decoder", "a", "", "pillow"),
    Variant(
        peer="webdataset", name="plain", label="WebDataset on streamio's tar", workloads="acde", quick="d2",
        store="streamio-tar",
    ),
    _peer("mosaicml", "MosaicML Streaming", "abcdef", ""),
    _peer("mosaicml", "MosaicML Streaming, own decoder", "a", "", "pillow"),
    _peer("litdata", "LitData", "abcdef", "a2 c2"),
    _peer("huggingface", "HF datasets", "abcdef", "a2 c02 d0 e0 f0", "map"),
    _peer("huggingface", "HF datasets, not shuffled", "cdef", "", "slices", role="hand"),
    _peer("huggingface", "HF datasets, own decoder", "a", "", "pillow"),
    _peer("grain", "Grain + ArrayRecord", "abcdef", "", torch=False),
    Variant(peer="spdl", name="own", label="SPDL, loose files", workloads="ab", quick="", torch=False),
    _peer("ffcv", "FFCV", "abcdef", "d2 e2 f2", torch=False),
    _hand("slices", "memmap", "by hand: memmap, not shuffled", "cdef", "c2 d0 e0 f0"),
    _hand("slices", "memmap", "by hand: memmap, not shuffled", "h", "h1"),
    _hand("slices", "h5py", "by hand: h5py, not shuffled", "cdef", "", "slices"),
    _hand("lmdbmap", "own", "by hand: LMDB", "abcdef", "", "lmdbmap"),
)  # fmt: skip

SCRIPTS = tuple(dict.fromkeys(variant.peer for variant in VARIANTS))
