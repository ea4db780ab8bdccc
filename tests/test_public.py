"""What `import streamio` gives, and what it costs."""

from __future__ import annotations

import gc
import importlib
import json
import subprocess
import sys
from contextlib import suppress

import pytest

import streamio

PUBLIC = [
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

HEAVY = {"torch", "webdataset", "aiohttp", "s3fs", "gcsfs", "adlfs", "boto3", "botocore", "pandas", "cv2"}
"""What no command but a training loop may load: torch, and every extra."""


LATER = {"PIL", "numpy.random", "h5py", "fsspec", "rich", "typer", "streamio.packing", "streamio.sources"}
"""What a training loop may load when it needs it, and not before: each takes as long as ten of our modules."""


def _modules(code: str, before: str = "") -> set[str]:
    """Full names of the modules that a fresh interpreter has loaded after this code, without those of `before`."""
    code = f"import json, sys\n{before}\nthere = set(sys.modules)\n{code}"
    code += "\nprint(json.dumps(sorted(set(sys.modules) - there)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def _loaded_by(code: str) -> set[str]:
    """Top-level packages that a fresh interpreter has loaded after this code."""
    return {name.split(".")[0] for name in _modules(code)}


def test_exactly_these_names_are_public() -> None:
    assert streamio.__all__ == PUBLIC
    assert dir(streamio) == sorted(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_there_and_says_what_it_is(name: str) -> None:
    value = getattr(streamio, name)
    assert name == "__version__" or (value.__doc__ or "").strip()


@pytest.mark.parametrize(
    "name",
    ["Mixture", "SequentialDataset", "ShardDataset", "ShardSet", "StreamLoader", "TokenDataset", "PackReport"],
)
def test_every_public_method_says_what_it_does(name: str) -> None:
    kind = getattr(streamio, name)
    silent = [
        attribute
        for attribute, value in vars(kind).items()
        if not attribute.startswith("_") and (callable(value) or isinstance(value, property)) and not value.__doc__
    ]
    assert silent == []


def test_a_name_that_is_not_there_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        streamio.nonsense  # noqa: B018


def test_the_image_operations_are_public() -> None:
    assert {"CenterCrop", "RandomResizedCrop", "Resize"} <= set(vars(streamio.image))


def test_a_training_loop_loads_what_it_needs_and_nothing_more() -> None:
    names = "streamio.ShardDataset, streamio.StreamLoader, streamio.make_loader, streamio.image"
    loaded = _modules(f"import streamio; {names}", before="import numpy, torch")
    assert {"streamio.dataset", "streamio.loading.loader", "simplejpeg"} <= loaded
    assert not loaded & LATER


@pytest.mark.parametrize("collects", [True, False])
@pytest.mark.parametrize("name", ["json", "not.there"])
def test_no_garbage_is_collected_while_a_module_loads(
    monkeypatch: pytest.MonkeyPatch, name: str, collects: bool
) -> None:
    during, load = [], importlib.import_module
    monkeypatch.setattr(importlib, "import_module", lambda _: (during.append(gc.isenabled()), load(name))[1])
    (gc.enable if collects else gc.disable)()
    try:
        with suppress(ModuleNotFoundError):
            streamio.__getattr__("image")
        after = gc.isenabled()
    finally:
        gc.enable()
    assert (during, after) == ([False], collects)


def test_importing_streamio_loads_no_torch_and_no_extra() -> None:
    loaded = _loaded_by("import streamio")
    assert not loaded & (HEAVY | {"numpy", "rich", "typer"})


@pytest.mark.parametrize("name", ["open", "pack", "write", "verify", "image"])
def test_what_needs_no_torch_loads_no_torch(name: str) -> None:
    assert not _loaded_by(f"import streamio; streamio.{name}") & HEAVY


def test_star_import_brings_all_names() -> None:
    assert {"ShardDataset", "StreamLoader", "pack"} <= set(
        _run_names("from streamio import *\nimport json\nprint(json.dumps(sorted(globals())))")
    )


def _run_names(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    names: list[str] = json.loads(done.stdout)
    return names
