"""Any batch -> bytes that say how it is built, and the memory of its arrays; and back."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

from streamio.errors import SampleError
from streamio.handover.segment import Bytes
from streamio.pickling import GRADIENT, find_fault


def take_apart(batch: Any) -> tuple[bytes, list[Bytes]]:
    """(how the batch is built, the memory of each array in it, not copied).

    Whatever can be pickled may be in a batch. Tensors keep their strides. Those that are more than memory of this
    machine's (on a GPU, sparse, with a gradient) go the way that torch.multiprocessing has for them.

    Raises SampleError with the path of what cannot be pickled.
    """
    file, found = io.BytesIO(), list[pickle.PickleBuffer]()
    try:
        _Pickler(file, pickle.HIGHEST_PROTOCOL, True, found.append).dump(batch)
    except Exception as error:
        raise _unsendable(batch, error) from error
    return file.getvalue(), [np.frombuffer(buffer.raw(), np.uint8) for buffer in found]


def _unsendable(batch: Any, error: Exception) -> SampleError:
    fault = find_fault(batch, "batch")
    if fault is None:  # the smallest part is not to be found; torch or an object of the user's knows why
        return SampleError(f"the batch cannot be sent from a worker process: {error}", fix=_PLAIN)
    return SampleError(
        f"{fault.path} is {fault.what}, which cannot be sent from a worker process: {fault.reason}",
        fix="Keep its values only: .detach()" if fault.what == GRADIENT else _PLAIN,
    )


_PLAIN = (
    "Let transform, batch_transform and collate return tensors, arrays, numbers, strings and dicts, lists and "
    "tuples of them; or use num_workers=0 or threads"
)


def put_together(body: bytes, memory: Iterable[Bytes]) -> Any:
    """The batch again, its arrays in this memory."""
    return pickle.loads(body, buffers=memory)


class _Pickler(ForkingPickler):
    """Protocol 5 leaves the memory of arrays out of the pickle; tensors do not know of it, so it is done here."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is torch.Tensor:
            return _reduce_tensor(value)
        if type(value) is np.ndarray and not value.flags.forc and not value.dtype.hasobject:
            return np.ascontiguousarray(value).__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return NotImplemented


def _reduce_tensor(tensor: torch.Tensor) -> Any:
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return NotImplemented
    if tensor.requires_grad or tensor.is_quantized:
        return NotImplemented
    if not tensor.numel():
        return _empty, (tuple(tensor.shape), tensor.dtype)
    if tensor.dtype in _PLAIN_TYPES and tensor.is_contiguous() and not tensor.is_neg():  # nearly all: the short way
        values: Any = tensor.numpy()
        return _tensor, (pickle.PickleBuffer(values), tensor.dtype, tuple(tensor.shape), tensor.stride())
    tensor = tensor.resolve_conj().resolve_neg()
    span = _span(tensor)
    if span > tensor.numel():  # between its values lie others, which stay here
        tensor = tensor.contiguous()
        span = tensor.numel()
    memory: Any = tensor.as_strided((span,), (1,)).view(torch.uint8).numpy()
    return _tensor, (pickle.PickleBuffer(memory), tensor.dtype, tuple(tensor.shape), tensor.stride())


_PLAIN_TYPES = {
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32,
    torch.float64,
}  # fmt: skip
"""Those that numpy has as well, and whose values are as they lie in memory."""


def _span(tensor: torch.Tensor) -> int:
    """Elements of memory from the first value to the last."""
    if tensor.is_contiguous():
        return tensor.numel()
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _tensor(memory: Any, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides)


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)
