"""npy and npz: exact, deterministic, never unpickled."""

from __future__ import annotations

import io
import pickle
import struct
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from streamio.codecs import as_array, codec_for, is_array, npy_header
from streamio.errors import DecodeError, UsageError

NPY, NPZ = codec_for("npy"), codec_for("x.npz")

DTYPES = (
    hnp.boolean_dtypes()
    | hnp.integer_dtypes(endianness="?")
    | hnp.floating_dtypes(endianness="?")
    | hnp.complex_number_dtypes()
    | hnp.datetime64_dtypes()
    | hnp.byte_string_dtypes()
    | hnp.unicode_string_dtypes()
    | st.sampled_from([np.dtype([("a", "<f4"), ("b", ">i2", (2,))]), np.dtype([("é", "u1")])])
)
ARRAYS = DTYPES.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0, max_side=4)))


def saved(array: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array, **options)
    return out.getvalue()


def same(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return (
        a.dtype == b.dtype.newbyteorder("=") and a.shape == b.shape and a.tobytes() == b.astype(a.dtype).tobytes()
    )


@given(ARRAYS)
def test_arrays_come_back_exactly(array: NDArray[Any]) -> None:
    data = NPY.encode(array)
    assert same(NPY.decode(data), array)
    assert same(np.load(io.BytesIO(data)), array)  # plain numpy reads it
    assert same(NPY.decode(memoryview(saved(array))), array)  # and this reads plain numpy's


def test_the_bytes_are_those_of_the_format_1_0() -> None:
    array = np.arange(6, dtype=">i2").reshape(2, 3)
    data = NPY.encode(np.asfortranarray(array))
    assert data == saved(array.astype("<i2"))
    assert data[:8] == b"\x93NUMPY\x01\x00" and len(data) == 128 + 12


def test_the_header_says_where_the_elements_are() -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    data = NPY.encode(array)
    header = npy_header(data)
    assert header == (np.dtype("<i2"), (2, 3), 128, False)
    assert header is not None and data[header.skip :] == array.tobytes()
    assert npy_header(data[:130]) == header  # the first bytes suffice
    fortran = npy_header(saved(np.asfortranarray(array.astype(">f8"))))
    assert fortran == (np.dtype(">f8"), (2, 3), 128, True)
    for bad in (b"", b"\x93NUMPY", data[:100], b"x" * 200, saved(np.array([{}], object))):
        assert npy_header(bad) is None


def test_decoding_makes_no_copy() -> None:
    data = NPY.encode(np.arange(1000))
    array = NPY.decode(data)
    assert not array.flags.owndata and not array.flags.writeable
    assert np.shares_memory(array, np.frombuffer(data, np.uint8))


@pytest.mark.parametrize(
    "value",
    [
        np.array([True, False]), np.uint8(7), np.array(2**53 + 1), np.float16(0.1), np.float32([0.1]),
        np.float64(0.1), np.array(5), np.array("text"), np.array(b"bytes"),
    ],
    ids=lambda value: str(value.dtype),
)  # fmt: skip
def test_batch_04_types_stay_as_they_are(value: Any) -> None:
    """pytorch/pytorch#14507, #1113, #109968, #2178."""
    back = NPY.decode(NPY.encode(value))
    assert back.dtype == value.dtype and back.shape == value.shape and (back == value).all()


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.float32, torch.float64]
)
def test_batch_04_tensors_keep_their_types(dtype: torch.dtype) -> None:
    tensor = torch.ones((2, 3), dtype=dtype).t()
    back = torch.from_numpy(NPY.decode(NPY.encode(tensor)).copy())
    assert back.dtype == dtype and torch.equal(back, tensor)


def test_tensors_with_a_gradient_are_detached() -> None:
    tensor = torch.ones(3, requires_grad=True)
    assert is_array(tensor) and (as_array(tensor) == 1).all()


def test_what_could_only_be_pickled_is_refused() -> None:
    with pytest.raises(UsageError, match="Python objects"):
        NPY.encode(np.array([{}, None], object))
    with pytest.raises(UsageError, match="Python objects"):
        NPY.encode(np.zeros(2, [("a", "i4"), ("b", object)]))
    with pytest.raises(UsageError, match=r"bfloat16.*float\(\)"):
        NPY.encode(torch.ones(2, dtype=torch.bfloat16))
    with pytest.raises(UsageError):
        NPY.encode([[1, 2], [3]])


class Trap:
    def __reduce__(self) -> Any:
        return pytest.fail, ("unpickled",)


@pytest.mark.parametrize("shape", ["(1,)", "()"])
def test_pickles_in_an_npy_are_never_loaded(shape: str) -> None:
    text = f"{{'descr': '|O', 'fortran_order': False, 'shape': {shape}}}".encode()
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + pickle.dumps(Trap())
    with pytest.raises(DecodeError, match="never unpickles"):
        NPY.decode(data)
    with pytest.raises(DecodeError, match="no npy"):
        NPY.decode(pickle.dumps(Trap()))


def test_names_beyond_latin_letters_are_refused_both_ways() -> None:
    array = np.zeros(2, [("Ā", "<f4")])
    with pytest.raises(UsageError, match="Latin"):
        NPY.encode(array)
    with pytest.warns(UserWarning, match=r"3\.0"):
        data = saved(array)
    with pytest.raises(DecodeError, match=r"format 3\.0"):
        NPY.decode(data)


def test_every_cut_is_noticed() -> None:
    data = NPY.encode(np.arange(10.0))
    for end in range(len(data)):
        with pytest.raises(DecodeError, match=r"cut|no npy"):
            NPY.decode(data[:end])
    with pytest.raises(DecodeError, match=r"float64 \(10,\) takes 208 bytes, 207 are here"):
        NPY.decode(data[:-1])


@pytest.mark.parametrize(
    "shape",
    ["(-1,)", "(99999999999999999999,)", "(0, 99999999999999999999)", f"({'1,' * 80})", "(2.5,)", "3", "(", "x"],
)
def test_headers_that_make_no_sense_are_decode_errors(shape: str) -> None:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}".encode()
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(100)
    with pytest.raises(DecodeError):
        NPY.decode(data)


@pytest.mark.filterwarnings("ignore::UserWarning:numpy", "ignore::SyntaxWarning", "ignore::DeprecationWarning")
@given(st.data())
def test_altered_bytes_decode_or_raise_a_decode_error(data: st.DataObject) -> None:
    altered = bytearray(NPY.encode(np.arange(6.0).reshape(2, 3)))
    for at in data.draw(st.lists(st.integers(0, 127), min_size=1, max_size=3)):
        altered[at] = data.draw(st.integers(0, 255))
    with suppress(DecodeError):
        assert isinstance(NPY.decode(bytes(altered)), np.ndarray)


def test_bytes_pass_unchanged() -> None:
    for codec in (NPY, NPZ):
        assert codec.encode(memoryview(b"abc")) == b"abc" and codec.peek(b"abc") == {}


def test_npz_is_a_dict_of_arrays_and_the_same_bytes_every_time() -> None:
    arrays = {"a": np.arange(3), "b/c": np.float32(2)}
    data = NPZ.encode(arrays)
    assert data == NPZ.encode(arrays)
    for back in (NPZ.decode(memoryview(data)), np.load(io.BytesIO(data))):
        assert list(back) == list(arrays) and all(same(back[k], np.asarray(v)) for k, v in arrays.items())
    packed = io.BytesIO()
    np.savez_compressed(packed, x=np.arange(3))
    assert NPZ.decode(packed.getvalue())["x"].tolist() == [0, 1, 2]


def test_npz_refuses_pickles_cuts_and_what_is_no_dict() -> None:
    objects = io.BytesIO()
    np.savez(objects, x=np.array([Trap()], object))
    with pytest.raises(DecodeError, match="never unpickles"):
        NPZ.decode(objects.getvalue())
    data = NPZ.encode({"a": np.arange(3)})
    for bad in (data[:-10], b"", data.replace(b"NUMPY", b"NUMPX")):
        with pytest.raises(DecodeError):
            NPZ.decode(bad)
    with pytest.raises(UsageError, match="a dict of arrays, not ndarray"):
        NPZ.encode(np.arange(3))
