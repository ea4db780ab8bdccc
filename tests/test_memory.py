"""Memory of batches is used again when nobody views it, and never before."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import torch

from streamio.memory import ALIGNMENT, SMALLEST, Recycler, aligned_array

SHAPE, DTYPE = (SMALLEST // 4, 1), np.dtype(np.float32)


def place(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a,
        lambda a: a[3:5],
        lambda a: a.T[0].view(np.uint8),
        lambda a: memoryview(a),
        lambda a: torch.from_numpy(a),
        lambda a: torch.from_numpy(a)[1:2].view(torch.uint8),
        lambda a: torch.from_numpy(a).numpy()[:1],
        lambda a: a.ctypes,
    ],
)
def test_memory_is_not_used_again_while_something_views_it(view) -> None:
    recycler = Recycler()
    array = recycler.array(SHAPE, DTYPE)
    first, held = place(array), view(array)
    del array
    gc.collect()
    assert place(recycler.array(SHAPE, DTYPE)) != first
    del held
    gc.collect()
    assert first in {place(recycler.array(SHAPE, DTYPE)) for _ in range(2)}


def test_two_batches_take_turns_in_a_loop_that_holds_the_last_one() -> None:
    recycler = Recycler()
    places, last = set(), None
    for _ in range(10):
        last = recycler.array(SHAPE, DTYPE)
        places.add(place(last))
    assert len(places) == 2


def test_memory_of_another_size_is_not_given_out() -> None:
    recycler = Recycler()
    first = place(recycler.array((8 * SMALLEST,), np.dtype(np.uint8)))
    assert place(recycler.array((SMALLEST,), np.dtype(np.uint8))) != first
    again = recycler.array((7 * SMALLEST,), np.dtype(np.uint8))  # the last batch is somewhat smaller
    assert (place(again), again.nbytes) == (first, 7 * SMALLEST)


@pytest.mark.parametrize("shape", [(0,), (5, 13), (1000, 3), (1 << 20,), (3, 1 << 20)])
@pytest.mark.parametrize("dtype", ["u1", "<f4", "<c16", "?", "V768"])
def test_batches_begin_where_shards_have_their_arrays(shape: tuple[int, ...], dtype: str) -> None:
    """12 KB items of a batch that began 16 bytes after a page came at a fifth of the speed (glibc bug 30994)."""
    for array in (aligned_array(shape, np.dtype(dtype)), Recycler().array(shape, np.dtype(dtype))):
        assert array.shape == shape and array.dtype == dtype and array.flags.c_contiguous and array.flags.writeable
        assert array.nbytes < ALIGNMENT or place(array) % ALIGNMENT == 0


def test_no_more_than_four_are_kept() -> None:
    recycler = Recycler()
    many = [recycler.array(SHAPE, DTYPE) for _ in range(9)]
    del many
    assert len(recycler._free) == 4


@pytest.mark.parametrize("dtype", ["u1", "?", "<f8", "<c16", "S3", "O"])
@pytest.mark.parametrize("shape", [(), (0, 5), (3, 2), (SMALLEST, 2)])
def test_any_shape_and_type_is_plain_writable_memory(shape: tuple[int, ...], dtype: str) -> None:
    array = Recycler().array(shape, np.dtype(dtype))
    assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
    assert array.flags.c_contiguous and array.flags.writeable and array.flags.aligned
    array[...] = np.zeros((), dtype)


def test_threads_never_share_memory() -> None:
    recycler, wrong = Recycler(), []

    def work(number: int) -> None:
        for _ in range(50):
            array = recycler.array(SHAPE, DTYPE)
            array[::4096] = number
            if (array[::4096] != number).any():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
