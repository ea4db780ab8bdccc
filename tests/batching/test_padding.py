"""Values of different sizes, padded or end to end, come back as they were; what does not go together is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from streamio import Pad, Ragged, SampleError, ShapeMismatch, UsageError
from streamio.batching.padding import pad
from streamio.batching.ragged import end_to_end
from streamio.types import new_array

DTYPES = st.sampled_from(["?", "u1", "u2", "i4", "i8", "f2", "f4", "f8"])


def named(values: Any) -> list[str]:
    return [f"k{i}" for i in range(len(values))]


def padded(values: Any, how: Pad) -> Any:
    return pad("x", values, named(values), new_array, how)


def joined(values: Any, how: Ragged) -> tuple[np.ndarray, np.ndarray]:
    return end_to_end("x", values, named(values), new_array, how)


@st.composite
def uneven(draw: st.DrawFn, dims: int, longest: int = 5) -> list[np.ndarray]:
    """1 to 6 arrays of one dtype that differ in so many dimensions; more may follow."""
    dtype, rest = draw(DTYPES), draw(st.lists(st.integers(1, 3), max_size=2))
    sizes = st.tuples(*[st.integers(0, longest)] * dims)
    return draw(st.lists(sizes.flatmap(lambda size: hnp.arrays(dtype, (*size, *rest))), min_size=1, max_size=6))


def alike(mine: np.ndarray, yours: np.ndarray) -> bool:
    return mine.dtype == yours.dtype and mine.shape == yours.shape and mine.tobytes() == yours.tobytes()


@given(st.data(), st.integers(1, 3), st.sampled_from(["right", "left"]), st.integers(1, 4), st.sampled_from([0, 1]))
def test_what_was_padded_comes_back_by_its_lengths_and_by_its_mask(
    data: st.DataObject, dims: int, side: Any, multiple_of: int, value: int
) -> None:
    values = data.draw(uneven(dims))
    made = padded(values, Pad(dims=dims, side=side, multiple_of=multiple_of, value=value))
    sizes = made.lengths.reshape(-1, dims)
    largest = np.array([v.shape[:dims] for v in values]).max(0)
    assert made.values.shape[1 : dims + 1] == tuple(-(-largest // multiple_of) * multiple_of)
    for out, mask, size, value_in in zip(made.values, made.mask, sizes.tolist(), values, strict=True):
        place = tuple(
            slice(0, n) if side == "right" else slice(m - n, m) for n, m in zip(size, out.shape, strict=False)
        )
        assert alike(out[place].copy(), value_in)
        assert alike(out[mask], value_in.reshape(-1, *value_in.shape[dims:]))
        assert mask.sum() == mask[place].sum() == np.prod(size)  # all True there, False elsewhere
        assert (out[~mask] == value).all()


@given(uneven(1, longest=200), st.sampled_from(["right", "left"]))
def test_long_values_are_padded_as_short_ones_are(values: list[np.ndarray], side: Any) -> None:
    with_mask, without = padded(values, Pad(side=side)), padded(values, Pad(side=side, mask=False))
    assert without.mask is None and alike(with_mask.values, without.values)


@given(uneven(1), st.integers(1, 6), st.sampled_from(["right", "left"]), st.booleans())
def test_what_is_too_long_loses_the_end_that_was_named(
    values: list[np.ndarray], most: int, end: Any, fixed: bool
) -> None:
    limit = {"length": most} if fixed else {"max_length": most}
    made = padded(values, Pad(truncate=end, **limit))
    assert made.values.shape[1] == (most if fixed else min(most, max(map(len, values))))
    for out, mask, value in zip(made.values, made.mask, values, strict=True):
        assert alike(out[mask], value[:most] if end == "right" else value[max(0, len(value) - most) :])


@given(uneven(1))
def test_what_was_laid_end_to_end_comes_back_by_its_offsets(values: list[np.ndarray]) -> None:
    flat, offsets = joined(values, Ragged())
    assert offsets.dtype == np.int64 and offsets[0] == 0 and offsets[-1] == len(flat)
    back = np.split(flat, offsets[1:-1])
    assert all(map(alike, back, values)) and len(back) == len(values)


@given(hnp.arrays(DTYPES, st.tuples(st.integers(1, 4), st.integers(0, 4), st.integers(1, 2))))
def test_a_batch_that_is_one_array_already_joins_as_its_rows_do(array: np.ndarray) -> None:
    for mine, yours in zip(joined(array, Ragged()), joined(list(array), Ragged()), strict=True):
        assert alike(mine, yours)
    for mine, yours in zip(padded(array, Pad(length=6)), padded(list(array), Pad(length=6)), strict=True):
        assert alike(mine, yours)


@pytest.mark.parametrize("dtype", ["?", "u1", "i8", "f2", "f4", "f8"])
def test_batch_04_padded_and_ragged_values_keep_their_types(dtype: str) -> None:
    """pytorch/pytorch#14507, #1113, #109968, #2178."""
    values = [np.array([1], dtype), np.array([1, 0], dtype)]
    assert padded(values, Pad()).values.dtype == joined(values, Ragged())[0].dtype == dtype
    large = [np.array([2**53 + 1]), np.array([0, 2**53 + 1])]
    assert padded(large, Pad()).values.tolist() == [[2**53 + 1, 0], [0, 2**53 + 1]]


def test_lists_of_numbers_take_the_type_and_shape_of_the_others() -> None:
    assert padded([[1, 2], [3]], Pad()).values.tolist() == [[1, 2], [3, 0]]
    assert padded([[1, 2], [0.5]], Pad()).values.tolist() == [[1.0, 2.0], [0.5, 0.0]]
    boxes, offsets = joined([[[1, 2, 3, 4]], [], [[0.5, 1, 1, 1]]], Ragged())
    assert boxes.shape == (2, 4) and boxes.dtype == np.float64 and offsets.tolist() == [0, 1, 1, 2]
    assert padded([np.array([1], np.uint16), []], Pad()).values.dtype == np.uint16


def test_token_ids_of_16_bits_come_as_64_with_a_padding_value_that_16_do_not_hold() -> None:
    ids = [np.array([65_535, 1], np.uint16), np.array([7], np.uint16)]
    assert padded(ids, Pad(dtype="int64", value=-100)).values.tolist() == [[65_535, 1], [7, -100]]
    with pytest.raises(SampleError, match=r"field x: uint16 does not hold the padding value -100.*dtype="):
        padded(ids, Pad(value=-100))


@pytest.mark.parametrize(
    ("values", "how", "error", "message"),
    [
        ([np.zeros((2, 4)), np.zeros((2, 5))], Pad(), ShapeMismatch, r"'k1', field x: float64 \(2, 5\)"),
        ([np.zeros((2, 4)), np.zeros((2, 5))], Ragged(), ShapeMismatch, r"'k1', field x: .*float64 \(\*, 4\)"),
        ([np.zeros(2, "f4"), np.zeros(2, "f8")], Pad(), ShapeMismatch, r"'k1', field x: float64 \(2,\)"),
        ([np.zeros(3), np.array(1.0)], Pad(), SampleError, r"'k1', field x: an array of shape \(\)"),
        ([np.zeros((3, 3)), np.zeros(3)], Pad(dims=2), SampleError, r"'k1', field x: an array of shape \(3,\)"),
        ([np.zeros(3), None], Pad(), SampleError, r"'k1', field x: the sample has no such field.*missing="),
        ([np.zeros(3), {"a": 1}], Ragged(), SampleError, r"'k1', field x: a dict that does not become an array"),
        ([[1], [[1], [2, 3]]], Ragged(), SampleError, r"'k1', field x: a list that does not become an array"),
        (["ab", "c"], Pad(), SampleError, r"field x: "),
        ([np.array(["a"]), np.array(["b"])], Pad(), SampleError, r"field x: text: these are no numbers"),
        ([np.zeros(2), np.zeros(9)], Pad(max_length=4), SampleError, r"'k1', field x: its size 9 .*truncate="),
        ([np.zeros(2), np.zeros(1)], Pad(dtype="int64"), SampleError, r"x: float64 does not fit into dtype=int64"),
        ([np.zeros(2, int), np.zeros(1, int)], Pad(dtype="int32"), SampleError, r"int64 does not fit .*=int32"),
        ([np.zeros(2, int), np.zeros(1, int)], Pad(value=0.5), SampleError, r"does not hold the padding value 0.5"),
        ([np.zeros(2, "u1"), np.zeros(1, "u1")], Pad(value=256), SampleError, r"uint8 does not hold .* 256"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_named_with_the_sample_and_the_way_out(
    values: Any, how: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=rf"(?s){message}"):
        padded(values, how) if isinstance(how, Pad) else joined(values, how)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"value": "0"}, "value='0'"),
        ({"side": "top"}, "side='top'"),
        ({"dims": 0}, "dims=0"),
        ({"multiple_of": 0}, "multiple_of=0"),
        ({"length": (3, 4)}, r"length=\(3, 4\), dims=1"),
        ({"length": 8, "multiple_of": 8}, "A length says it all"),
        ({"length": 8, "max_length": 16}, "A length says it all"),
        ({"max_length": 12, "multiple_of": 8}, "no multiple of multiple_of=8"),
        ({"truncate": "right"}, "to no length"),
        ({"mask": ""}, "mask=''"),
        ({"dtype": "tokens"}, "dtype='tokens'"),
        ({"dtype": "U5"}, "dtype='U5'"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused_where_it_is_made(options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Pad(**options)


def test_ragged_refuses_what_it_cannot_do() -> None:
    with pytest.raises(UsageError, match="nested='yes'"):
        Ragged(nested="yes")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="dtype='object'"):
        Ragged(dtype="object")


def test_pictures_are_padded_in_both_dimensions() -> None:
    pictures = [np.full((2, 3, 3), 7, np.uint8), np.full((4, 1, 3), 9, np.uint8)]
    made = padded(pictures, Pad(dims=2, multiple_of=(4, 2), value=114))
    assert made.values.shape == (2, 4, 4, 3) and made.lengths.tolist() == [[2, 3], [4, 1]]
    assert made.mask.sum((1, 2)).tolist() == [6, 4] and (made.values[0, 2:] == 114).all()
