"""Values of several samples become one array with their dtype, or a list; what does not fit is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from streamio.batching.collate import collate, stack
from streamio.batching.joining import Joiner
from streamio.batching.options import JoinOptions
from streamio.batching.tensors import as_tensors
from streamio.errors import SampleError, ShapeMismatch
from streamio.types import new_array

KEYS = ["a", "b", "c"]


def joined(values: list[object]) -> object:
    return as_tensors(stack("x", values, KEYS[: len(values)], new_array))


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([True, False, True], torch.bool),
        ([2**53 + 1, 0, -1], torch.int64),
        ([0.1, 1, 2.5], torch.float64),
        ([np.float16(0.5), np.float16(1), np.float16(2)], torch.float16),
        ([np.float32(0.1), np.float32(1), np.float32(2)], torch.float32),
        ([np.array(3, np.uint8)] * 3, torch.uint8),
        ([np.array(True)] * 3, torch.bool),
        ([np.array(2**53 + 1)] * 3, torch.int64),
        ([np.array(0.1)] * 3, torch.float64),
        ([np.full((2, 3), 0.1)] * 3, torch.float64),
        ([np.zeros((2, 3), np.int16)] * 3, torch.int16),
    ],
)
def test_batch_04_dtypes_stay_as_they_are(values: list[object], dtype: torch.dtype) -> None:
    """pytorch/pytorch#14507, #1113, #109968, #2178."""
    batch = joined(values)
    assert isinstance(batch, torch.Tensor)
    assert batch.dtype == dtype
    assert [x.tolist() for x in batch] == [np.asarray(v).tolist() for v in values]


@pytest.mark.parametrize("values", [["a", "b", ""], [b"a\0", b"", b"c"], [{"x": 1}, {"x": 2}, None], [None] * 3])
def test_batch_04_text_bytes_and_objects_become_lists(values: list[object]) -> None:
    assert joined(values) == values


DTYPES = st.sampled_from(["u1", "i8", "f2", "f4", "f8", "?"])


@given(array=hnp.arrays(DTYPES, st.tuples(st.integers(1, 3), st.integers(0, 4))))
def test_rows_of_an_array_stack_to_the_array(array: np.ndarray) -> None:
    batch = stack("x", list(array), KEYS, new_array)
    assert batch.dtype == array.dtype and batch.tobytes() == array.tobytes()


def test_shapes_that_differ_are_named_with_the_sample_and_the_ways_out() -> None:
    values = [np.zeros((4, 5, 3)), np.zeros((4, 6, 3)), np.zeros((4, 5, 3))]
    with pytest.raises(ShapeMismatch, match=r"(?s)'b'.*field x.*\(4, 5, 3\).*\(2×\).*\(4, 6, 3\).*collate="):
        stack("x", values, KEYS, new_array)


def test_dtypes_that_differ_are_not_mixed_in_silence() -> None:
    with pytest.raises(ShapeMismatch, match=r"uint8.*float32"):
        stack("x", [np.zeros(2, np.uint8), np.zeros(2, np.float32)], KEYS[:2], new_array)


def test_a_number_that_is_too_large_is_named() -> None:
    with pytest.raises(SampleError, match=r"'b'.*9223372036854775808 does not fit into int64"):
        stack("x", [1, 2**63], KEYS[:2], new_array)


@pytest.mark.parametrize("others", [1, 2.0, True, np.zeros(2)])
def test_a_missing_value_among_numbers_is_an_error_that_names_the_sample(others: object) -> None:
    with pytest.raises(SampleError, match=r"sample 'b', field x: the sample has no such field"):
        stack("x", [others, None], KEYS[:2], new_array)


def test_tuples_and_nested_mappings_collate_field_by_field() -> None:
    samples = [({"box": np.ones(4), "name": "n"}, 1), ({"box": np.zeros(4), "name": "m"}, 2)]
    (inner, label) = as_tensors(collate(samples, KEYS[:2], new_array))
    assert inner["box"].shape == (2, 4) and inner["name"] == ["n", "m"] and label.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("sample", "says"),
    [
        ({"ids": (2,)}, r"field ids: .*\. Say how they are joined: collate="),
        ({"jpg": (9, 8, 3)}, r"field jpg: .*RandomResizedCrop"),
        ({"target": {"boxes": (0, 4)}}, r"field target\['boxes'\]: .*Return it as a field.*lies in a 'list'"),
        ({"target": ({"boxes": (0, 4)},)}, r"field target\[0\]\['boxes'\]: "),
        (({"boxes": (0, 4)}, (2,)), r"field 0\['boxes'\]: "),
    ],
)
def test_values_of_several_shapes_are_named_with_their_path_and_a_way_out_of_their_kind(
    sample: Any, says: str
) -> None:
    def made(part: Any, longer: int) -> Any:
        if isinstance(part, dict):
            return {name: made(value, longer) for name, value in part.items()}
        if isinstance(part[0], int):
            return np.zeros((part[0] + longer, *part[1:]), np.uint8)
        return tuple(made(value, longer) for value in part)

    with pytest.raises(ShapeMismatch, match=says) as caught:
        collate([made(sample, 0), made(sample, 1)], KEYS[:2], new_array)
    assert ("RandomResizedCrop" in str(caught.value)) == ("jpg" in sample)


def test_samples_with_other_fields_are_named() -> None:
    with pytest.raises(SampleError, match=r"sample 'b': has other fields than the sample 'a' of its batch: y"):
        collate([{"x": 1}, {"x": 1, "y": 2}], KEYS[:2], new_array)


def test_tensors_of_a_transform_stack_and_ragged_ones_stay_a_list() -> None:
    assert as_tensors([torch.zeros(2, dtype=torch.bfloat16)] * 3).shape == (3, 2)
    assert isinstance(as_tensors([torch.zeros(2), torch.zeros(3)]), list)


def test_tensors_share_memory_unless_the_array_is_read_only_or_reversed() -> None:
    array = np.zeros(3)
    as_tensors(array)[0] = 1
    assert array[0] == 1
    array.flags.writeable = False
    as_tensors(array)[0] = 2
    assert array[0] == 1
    assert as_tensors(np.arange(3)[::-1]).tolist() == [2, 1, 0]
    assert as_tensors(np.arange(3, dtype=">i4")).tolist() == [0, 1, 2]


def test_channels_first_is_a_view_in_channels_last_memory() -> None:
    pictures = np.zeros((2, 5, 4, 3), np.uint8)
    joiner = Joiner(JoinOptions(fields=("jpg",), layout="chw"), frozenset({"jpg"}))
    view = as_tensors(joiner.fields({"jpg": pictures}, ["a", "b"], {}, new_array))["jpg"]
    assert view.shape == (2, 3, 5, 4) and view.data_ptr() == pictures.ctypes.data
    assert view.is_contiguous(memory_format=torch.channels_last)
