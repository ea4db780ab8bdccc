"""streamio: pack folders of small files into a few shards, and stream them into PyTorch as ready-made batches.

streamio pack ./images out/                                  # on the command line

ds = streamio.ShardDataset("out/", 256, shuffle=True, decode=streamio.image.RandomResizedCrop(224))
for batch in streamio.StreamLoader(ds): ...                  # {"__key__": …, "jpg": uint8 (256, 224, 224, 3), …}
"""

from __future__ import annotations

import gc
import importlib
from typing import TYPE_CHECKING, Any

from streamio.version import __version__

if TYPE_CHECKING:
    from streamio import adapters, device, image
    from streamio.batching.choice import RandomChoice
    from streamio.batching.missing import Fill
    from streamio.batching.mixup import CutMix, MixUp
    from streamio.batching.padding import Pad
    from streamio.batching.ragged import Ragged
    from streamio.dataset import ShardDataset
    from streamio.diagnostics.verify import verify
    from streamio.diagnostics.watch import watch
    from streamio.errors import (
        BadIndex,
        BadManifest,
        CorruptShard,
        DecodeError,
        InputError,
        MissingExtra,
        MissingShard,
        OutputExists,
        SampleError,
        ShapeMismatch,
        ShardError,
        ShardWarning,
        StorageError,
        StreamioError,
        TailError,
        TooManyBadSamples,
        TransformError,
        UsageError,
        WorkerDied,
        WorkerError,
        WorkerTimeout,
    )
    from streamio.interop.dali import DaliSource
    from streamio.loading.loader import StreamLoader
    from streamio.making import make_loader
    from streamio.mixture import Mixture
    from streamio.order.balance import Draw
    from streamio.order.lengths import Buckets
    from streamio.packing.pack import pack
    from streamio.packing.report import PackReport, Progress
    from streamio.packing.stream import write
    from streamio.sequential import SequentialDataset
    from streamio.shards.shardset import ShardSet
    from streamio.shards.shardset import open_shards as open
    from streamio.sources.base import Chunk, Partition, Source
    from streamio.sources.capture import CaptureReport, capture
    from streamio.sources.dataset import SourceDataset, gather_states
    from streamio.sources.fieldtypes import FieldType
    from streamio.sources.kafka.dataset import KafkaDataset
    from streamio.sources.logs.dataset import LogDataset
    from streamio.sources.nats import NatsDataset
    from streamio.sources.redis import RedisDataset
    from streamio.sources.sql.dataset import SqlDataset
    from streamio.tokens import TokenDataset

_HOMES = {
    "streamio.batching.missing": ("Fill",),
    "streamio.batching.choice": ("RandomChoice",),
    "streamio.batching.mixup": ("CutMix", "MixUp"),
    "streamio.batching.padding": ("Pad",),
    "streamio.batching.ragged": ("Ragged",),
    "streamio.dataset": ("ShardDataset",),
    "streamio.diagnostics.verify": ("verify",),
    "streamio.diagnostics.watch": ("watch",),
    "streamio.errors": (
        "BadIndex", "BadManifest", "CorruptShard", "DecodeError", "InputError", "MissingExtra", "MissingShard",
        "OutputExists", "SampleError", "ShapeMismatch", "ShardError", "ShardWarning", "StorageError",
        "StreamioError", "TailError", "TooManyBadSamples", "TransformError", "UsageError", "WorkerDied",
        "WorkerError", "WorkerTimeout",
    ),
    "streamio.interop.dali": ("DaliSource",),
    "streamio.loading.loader": ("StreamLoader",),
    "streamio.making": ("make_loader",),
    "streamio.mixture": ("Mixture",),
    "streamio.order.balance": ("Draw",),
    "streamio.order.lengths": ("Buckets",),
    "streamio.packing.pack": ("pack",),
    "streamio.packing.report": ("PackReport", "Progress"),
    "streamio.packing.stream": ("write",),
    "streamio.sequential": ("SequentialDataset",),
    "streamio.shards.shardset": ("ShardSet",),
    "streamio.sources.base": ("Chunk", "Partition", "Source"),
    "streamio.sources.capture": ("CaptureReport", "capture"),
    "streamio.sources.dataset": ("SourceDataset", "gather_states"),
    "streamio.sources.logs.dataset": ("LogDataset",),
    "streamio.sources.fieldtypes": ("FieldType",),
    "streamio.sources.kafka.dataset": ("KafkaDataset",),
    "streamio.sources.nats": ("NatsDataset",),
    "streamio.sources.redis": ("RedisDataset",),
    "streamio.sources.sql.dataset": ("SqlDataset",),
    "streamio.tokens": ("TokenDataset",),
}  # fmt: skip
"""Where each public name lives. Modules load on first use: `import streamio` stays fast, and free of torch."""

_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "BadIndex",
    "BadManifest",
    "Buckets",
    "CaptureReport",
    "Chunk",
    "CorruptShard",
    "CutMix",
    "DaliSource",
    "DecodeError",
    "Draw",
    "FieldType",
    "Fill",
    "InputError",
    "KafkaDataset",
    "LogDataset",
    "MissingExtra",
    "MissingShard",
    "MixUp",
    "Mixture",
    "NatsDataset",
    "OutputExists",
    "PackReport",
    "Pad",
    "Partition",
    "Progress",
    "Ragged",
    "RandomChoice",
    "RedisDataset",
    "SampleError",
    "SequentialDataset",
    "ShapeMismatch",
    "ShardDataset",
    "ShardError",
    "ShardSet",
    "ShardWarning",
    "Source",
    "SourceDataset",
    "SqlDataset",
    "StorageError",
    "StreamLoader",
    "StreamioError",
    "TailError",
    "TokenDataset",
    "TooManyBadSamples",
    "TransformError",
    "UsageError",
    "WorkerDied",
    "WorkerError",
    "WorkerTimeout",
    "__version__",
    "adapters",
    "capture",
    "device",
    "gather_states",
    "image",
    "make_loader",
    "open",
    "pack",
    "verify",
    "watch",
    "write",
]


def __getattr__(name: str) -> Any:
    if name in ("adapters", "device", "image"):
        return _loaded(f"streamio.{name}")
    if name == "open":
        value = _loaded("streamio.shards.shardset").open_shards
    elif name in _MODULE_OF:
        value = getattr(_loaded(_MODULE_OF[name]), name)
    else:
        raise AttributeError(f"module 'streamio' has no attribute {name!r}")
    globals()[name] = value
    return value


def _loaded(module: str) -> Any:
    """The module, imported while no garbage is collected.

    What an import makes stays. That it makes so much would set off a full collection, which also walks through all
    that torch has made: 0.1 s, as long as the import itself.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        if collects:
            gc.enable()


def __dir__() -> list[str]:
    return sorted(__all__)
