"""Values come back from their bytes as they were, or not at all."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from streamio.caching.packed import Packed, unpacked
from streamio.errors import UsageError

SLOT = 7

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=()))
    | st.binary() | st.binary().map(bytearray)
)  # fmt: skip
arrays = hnp.arrays(
    st.one_of(hnp.integer_dtypes(), hnp.floating_dtypes(), hnp.boolean_dtypes(), hnp.unicode_string_dtypes()),
    hnp.array_shapes(min_dims=0, min_side=0, max_side=5),
)
keys = st.text(max_size=4) | st.integers() | st.tuples(st.integers(), st.booleans())
values = st.recursive(
    scalars | arrays | hnp.from_dtype(np.dtype(np.float32)),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)


def packed(value: Any, slot: int = SLOT) -> np.ndarray[Any, Any]:
    made = Packed(value)
    data = b"".join(bytes(piece) for piece in made.pieces(slot))
    assert len(data) == made.size and made.size % 64 == 0
    return np.frombuffer(bytearray(data), np.uint8)


def same(a: Any, b: Any) -> bool:
    """Equal in value and in kind, to the bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray | np.generic):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return all(map(same, a, b)) and all(map(same, a.values(), b.values())) and len(a) == len(b)
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return bool(a == b)


@given(values)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    found = unpacked(packed(value), SLOT)
    assert found is not None and same(found[0], value), found


@pytest.mark.parametrize("value", [np.str_(""), np.bytes_(b""), np.str_("ä"), np.array([""]), np.zeros((0, 3))])
def test_empty_values_of_numpy_come_back(value: Any) -> None:
    found = unpacked(packed(value), SLOT)
    assert found is not None and type(found[0]) is type(value) and found[0].dtype == value.dtype
    assert np.array_equal(found[0], value) and found[0].shape == value.shape


def test_arrays_that_come_back_may_be_written_to() -> None:
    found = unpacked(packed([np.zeros(3)]), SLOT)
    assert found is not None
    found[0][0][0] = 1


@given(values, st.data())
def test_bytes_of_which_one_bit_changed_are_no_value(value: Any, data: st.DataObject) -> None:
    whole = packed(value)
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert unpacked(whole, SLOT) is None


def test_bytes_of_another_slot_are_no_value() -> None:
    assert unpacked(packed("a"), SLOT + 1) is None
    assert unpacked(np.zeros(128, np.uint8), SLOT) is None
    assert unpacked(np.zeros(0, np.uint8), SLOT) is None


@pytest.mark.parametrize(
    "value", [object(), np.array([object()]), {"a": {1, 2}}, np.zeros(2, "i4,f4"), type("Sub", (dict,), {})()]
)
def test_what_cannot_be_kept_exactly_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="which cache= cannot keep"):
        Packed(value)
