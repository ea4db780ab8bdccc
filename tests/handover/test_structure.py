"""Any batch comes out on the other side as it went in."""

from __future__ import annotations

import pickle
import threading
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from streamio import SampleError
from streamio.handover.ring import SlotRing
from streamio.handover.structure import put_together, take_apart


@dataclass
class Pair:
    name: str
    value: Any


Point = namedtuple("Point", "x y")

ALL_DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.float8_e5m2, torch.uint16, torch.uint64,
]  # fmt: skip
ODD = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
ARRAYS = {
    "plain": ODD, "of no dimension": np.array(3.5), "empty": np.empty((0, 2)), "steps": ODD[:, ::2],
    "backwards": ODD[::-1], "fortran": np.asfortranarray(ODD), "turned": ODD.transpose(2, 0, 1),
    "big-endian": ODD.astype(">i2"), "text": np.array(["a", "bcd"]), "dates": np.array(["2020-01-01"], "M8[D]"),
    "records": np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]), "objects": np.array([{"a": 1}, None], object),
    "repeated": np.broadcast_to(np.float32(2), (3, 4)), "bytes": np.array([b"ab", b"c"]),
}  # fmt: skip


def through(batch: Any, pickle_bytes: int) -> Any:
    ring = SlotRing(pickle_bytes=pickle_bytes)
    return pickle.loads(pickle.dumps(ring.make(lambda alloc: batch)))


@pytest.fixture(params=[0, 1 << 40], ids=["slot", "pickle"])
def pickle_bytes(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_tensors_of_every_dtype(dtype: torch.dtype, pickle_bytes: int) -> None:
    for shape in ((3, 5), (), (0, 4), (1,)):
        sent = (torch.rand(shape) * 9).to(dtype)
        got = through(sent, pickle_bytes)
        assert got.dtype == dtype and got.shape == sent.shape
        assert torch.equal(got.to(torch.complex64), sent.to(torch.complex64))


@pytest.mark.parametrize(
    "turn",
    [
        lambda t: t.permute(0, 3, 1, 2), lambda t: t[:, ::2], lambda t: t[1], lambda t: t.transpose(0, 2)[1:],
        lambda t: t[:1, :1].expand(5, 4, -1, -1), lambda t: torch.view_as_complex(t[..., :2].contiguous()).conj(),
    ],
)  # fmt: skip
def test_views_have_their_values_and_nothing_else(turn: Any, pickle_bytes: int) -> None:
    sent = turn(torch.rand(3, 4, 5, 6))
    got = through(sent, pickle_bytes)
    assert torch.equal(got, sent)
    assert got.untyped_storage().nbytes() <= sent.numel() * sent.element_size()


def test_channels_last_stays_so(pickle_bytes: int) -> None:
    pictures = torch.zeros(2, 8, 8, 3).permute(0, 3, 1, 2)
    assert through(pictures, pickle_bytes).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_stay_arrays(kind: str, pickle_bytes: int) -> None:
    got = through(ARRAYS[kind], pickle_bytes)
    assert type(got) is np.ndarray
    np.testing.assert_array_equal(got, ARRAYS[kind])
    assert got.dtype == ARRAYS[kind].dtype


def test_structures_and_objects_of_all_kinds(pickle_bytes: int) -> None:
    sent = {
        "tuple": (torch.ones(2), [np.zeros(3), {"deep": torch.tensor(1)}]), "named": Point(1, torch.ones(2)),
        "class": Pair("a", torch.full((2, 2), 7)), "text": ["a", "ö", "\udce9"], "bytes": b"\x00\xff", "none": None,
        "numbers": (1, 2.5, True, 10**30), 5: {1, 2}, "ragged": [torch.arange(n) for n in range(4)],
    }  # fmt: skip
    got = through(sent, pickle_bytes)
    assert list(got) == list(sent)
    assert isinstance(got["tuple"], tuple) and got["tuple"][1][1]["deep"].item() == 1
    assert type(got["named"]) is Point and torch.equal(got["named"].y, torch.ones(2))
    assert type(got["class"]) is Pair and got["class"].value.tolist() == [[7, 7], [7, 7]]
    assert [t.tolist() for t in got["ragged"]] == [[], [0], [0, 1], [0, 1, 2]]
    for name in ("text", "bytes", "none", "numbers", 5):
        assert got[name] == sent[name]


def test_all_that_arrives_can_be_written_to(pickle_bytes: int) -> None:
    got = through({"t": torch.zeros(1000), "a": np.zeros(1000), "zero": torch.tensor(0)}, pickle_bytes)
    got["t"] += 1
    got["a"] += 1
    got["zero"] += 1
    assert got["t"].sum() == got["a"].sum() == 1000 and got["zero"] == 1


def test_the_same_tensor_twice_is_one_and_views_of_one_memory_share_it(pickle_bytes: int) -> None:
    tensor = torch.zeros(4, 4)
    first, second, turned = through((tensor, tensor, tensor.t()), pickle_bytes)
    assert first is second
    first[0, 1] = 5
    assert turned[1, 0] == 5


@pytest.mark.filterwarnings("ignore:Sparse invariant:UserWarning")
def test_a_tensor_with_a_gradient_goes_the_way_of_torch(pickle_bytes: int) -> None:
    leaf = torch.ones(3, requires_grad=True)
    with pytest.raises(SampleError, match="batch is a tensor that requires a gradient"):
        through(leaf * 2, pickle_bytes)
    got = through({"leaf": leaf, "sparse": torch.eye(3).to_sparse()}, pickle_bytes)
    assert got["leaf"].requires_grad and torch.equal(got["sparse"].to_dense(), torch.eye(3))


def test_what_cannot_be_pickled_is_an_error_where_the_batch_is_made(pickle_bytes: int) -> None:
    """Not in the thread that writes into the pipe, where a DataLoader would print it and wait for ever."""
    with pytest.raises(SampleError, match=r"batch\['all'\]\[1\] is of the type _thread.lock, which cannot be sent"):
        through({"x": torch.zeros(10), "all": [1, threading.Lock()]}, pickle_bytes)


def test_memory_is_left_out_of_the_pickle_and_not_copied() -> None:
    tensor = torch.zeros(1 << 20)
    body, memory = take_apart([tensor])
    assert len(body) < 300
    memory[0][:4] = np.frombuffer(np.float32(3).tobytes(), np.uint8)
    assert tensor[0] == 3
    assert put_together(body, memory)[0].data_ptr() == tensor.data_ptr()
