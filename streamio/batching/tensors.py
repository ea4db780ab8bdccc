"""Arrays -> tensors, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from streamio.batching.declared import Apart
from streamio.batching.ragged import Jagged
from streamio.shards.uniform import is_plain


def as_tensors(batch: Any) -> Any:
    """Every array in a batch (dicts, lists and tuples of any depth) as a tensor that shares its memory.

    A list of tensors of one shape (from a user's transform) becomes one tensor, unless it is declared a list;
    values that are declared so become a nested tensor. Strings, bytes and other objects
    stay as they are, and so do arrays of what torch lacks (text, or what a user's collate returned).
    dtypes stay; big-endian numbers become native ones.
    """
    if isinstance(batch, np.ndarray):
        return _tensor(batch)
    if isinstance(batch, Mapping):
        return {name: as_tensors(value) for name, value in batch.items()}
    if isinstance(batch, tuple):
        values = [as_tensors(value) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else tuple(values)
    if isinstance(batch, Apart):
        return [as_tensors(value) for value in batch]
    if isinstance(batch, Jagged):
        return torch.nested.nested_tensor_from_jagged(_tensor(batch.values), offsets=_tensor(batch.offsets))
    if isinstance(batch, list) and batch and all(isinstance(value, torch.Tensor) for value in batch):
        same = len({(value.shape, value.dtype) for value in batch}) == 1
        return torch.stack(batch) if same else batch
    return batch


def _tensor(array: np.ndarray[Any, Any]) -> Any:
    if not _is_plain(array.dtype):
        return array
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or min(array.strides, default=0) < 0:
        array = array.copy()
    return torch.from_numpy(array)


@lru_cache(maxsize=256)
def _is_plain(dtype: np.dtype[Any]) -> bool:
    return is_plain(dtype.newbyteorder("<"))
