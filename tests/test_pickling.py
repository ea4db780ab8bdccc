"""What cannot go to another process is found, down to the smallest part, before it goes."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import streamio
from streamio import UsageError
from streamio.batching.functions import go_by_value
from streamio.pickling import find_fault
from tests import warm
from tests.sets import make_set, read

ROOT = Path(__file__).resolve().parent.parent
WEIGHTS = torch.ones(2, requires_grad=True)


class Steps:
    """A transform with parts."""

    def __init__(self, *steps: Any, **named: Any) -> None:
        self.steps = steps
        self.__dict__.update(named)

    def __call__(self, sample: Any) -> Any:
        return sample

    def run(self, sample: Any) -> Any:
        return sample


class Slotted:
    __slots__ = ("fn",)

    def __init__(self, fn: Any) -> None:
        self.fn = fn


class WithoutItsLock:
    """Leaves out of its pickle what cannot go."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {}


class Net(torch.nn.Module):
    def __init__(self, scale: torch.Tensor) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        self.layer.scale = scale  # type: ignore[assignment]


def numbers() -> Iterator[int]:
    yield 1


def circle() -> Steps:
    made = Steps()
    made.steps = (made, threading.Lock())
    return made


FAULTS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "a lambda": (lambda: lambda sample: sample, "f", "a lambda"),
    "in a list of an object": (lambda: Steps(1, Slotted(lambda s: s)), "f.steps[1].fn", "a lambda"),
    "a lock": (lambda: Steps(a={"b": [threading.Lock()]}), "f.a['b'][0]", "of the type _thread.lock"),
    "a generator": (lambda: Steps(source=numbers()), "f.source", "a generator"),
    "an open file": (lambda: Steps(log=sys.__stderr__), "f.log", "an open file"),
    "of a method": (lambda: Steps(a=lambda s: s).run, "f.__self__.a", "a lambda"),
    "of a partial": (lambda: partial(numbers, key=lambda s: s), "f.keywords['key']", "a lambda"),
    "round a circle": (circle, "f.steps[1]", "of the type _thread.lock"),
    "a gradient": (lambda: Steps(scale=WEIGHTS * 2), "f.scale", "a tensor that requires a gradient"),
    "a gradient in a module": (
        lambda: Steps(model=Net(WEIGHTS * 2)), "f.model.layer.scale", "a tensor that requires a gradient",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "path", "what"), FAULTS.values(), ids=list(FAULTS))
def test_the_smallest_part_that_cannot_go_is_named(make: Callable[[], Any], path: str, what: str) -> None:
    fault = find_fault(make(), "f")
    assert fault is not None and (fault.path, fault.what) == (path, what)


@pytest.mark.parametrize(
    "value",
    [Steps(1, model=torch.nn.Linear(2, 2)), WEIGHTS, np.zeros(3), WithoutItsLock(), Steps(numbers, len).run],
)
def test_what_can_go_has_no_fault(value: Any) -> None:
    assert find_fault(value, "f") is None
    assert not go_by_value({"f": value})


def test_a_probe_does_not_copy_memory_nor_share_it() -> None:
    weights = torch.zeros(1 << 20)
    assert find_fault(Steps(weights, array=np.zeros(1 << 20)), "f") is None
    assert not weights.is_shared()


@pytest.mark.parametrize("what", ["variable", "global"])
def test_with_cloudpickle_the_variable_that_cannot_go_is_named(what: str) -> None:
    lock = threading.Lock()
    function: Any = (lambda s: lock) if what == "variable" else eval("lambda s: lock", {"lock": lock})
    with pytest.raises(UsageError, match=r"transform's variable lock=<unlocked _thread.lock .*__getstate__"):
        go_by_value({"transform": function})


def test_cloudpickle_takes_no_open_file_along() -> None:
    with open(__file__) as file, pytest.raises(UsageError, match=r"transform.log=.* is an open file"):
        go_by_value({"transform": Steps(log=file)})


def test_a_transform_that_keeps_a_gradient_is_refused_before_a_worker_starts(tmp_path: Path) -> None:
    path = make_set(tmp_path / "s", 8)
    with pytest.raises(UsageError, match=r"transform.model.layer.scale=.* requires a gradient.*\.detach\(\)"):
        read(path, workers=1, context="spawn", transform=Steps(model=Net(WEIGHTS * 2)))
    with torch.no_grad():
        transform = Steps(model=Net(WEIGHTS * 2))
    assert len(read(path, workers=1, context="spawn", transform=transform)) == 2


NOTEBOOK = """
import sys
import streamio
from torch.utils.data import DataLoader

class Add:
    def __call__(self, sample):
        return {"n": sample["cls"] + N}

N = 100
ds = streamio.ShardDataset(sys.argv[1], 4, transform=Add())
for loader in (
    streamio.StreamLoader(ds, num_workers=1, context="spawn"),
    DataLoader(ds, batch_size=None, num_workers=1, multiprocessing_context="spawn"),
):
    print([n for batch in loader for n in batch["n"].tolist()])
"""
"""A cell; given as `-c` its classes are as far from a worker as those of a notebook."""


def notebook(path: str, before: str = "") -> subprocess.CompletedProcess[str]:
    return warm.run(["-c", before + NOTEBOOK, path], 100)


def test_a_class_of_a_notebook_goes_to_workers_by_cloudpickle(tmp_path: Path) -> None:
    done = notebook(make_set(tmp_path / "s", 6))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str([100, 101, 102, 103, 104, 105])] * 2


def test_without_cloudpickle_a_class_of_a_notebook_is_refused_with_how_to_move_it(tmp_path: Path) -> None:
    done = notebook(make_set(tmp_path / "s", 6), "import sys; sys.modules['cloudpickle'] = None\n")
    assert done.returncode == 1
    assert "transform=<__main__.Add object" in done.stderr and "defined in a notebook" in done.stderr
    assert "'%%writefile my_add.py'" in done.stderr and "'from my_add import Add'" in done.stderr
    assert "pip install streamio[notebook]" in done.stderr
    assert done.stderr.count("Traceback") == 1


def test_streamio_is_loaded_without_cloudpickle() -> None:
    code = "import sys; import streamio.stream; assert 'cloudpickle' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    assert streamio.__version__


class WithLock:
    """A table of one's own that holds a lock."""

    def __init__(self, table: Any) -> None:
        self.table, self.lock = table, threading.Lock()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("table", "lock"):
            raise AttributeError(name)
        return getattr(self.table, name)


def test_a_table_of_ones_own_that_cannot_go_is_named(tmp_path: Path) -> None:
    table = WithLock(streamio.open(make_set(tmp_path / "s", 8)))
    with pytest.raises(UsageError, match=r"source\.lock=.*__getstate__"):
        read(table, workers=1, context="spawn")
    assert len(read(table, workers=1, context="fork")) == 2
