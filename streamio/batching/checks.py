"""Tensors in a batch that no loop wants, found where the batch is made: the same in a worker and without one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch

from streamio.errors import SampleError

_PLAIN = (str, bytes, int, float, type(None))
"""What no tensor is in, and of which there may be many."""

_Path: TypeAlias = "tuple[_Path, str, Any] | None"
"""(path of what it is in, how that is written, name or index); words are made of it where something is wrong."""


def check_tensors(batch: Any, *, to_be_sent: bool) -> None:
    """Raise SampleError, with its path (`batch['boxes'][2]`), for a tensor that cannot be used or sent.

    to_be_sent: from a worker process to the loop.
    """
    _walk(batch, to_be_sent, None)


def _walk(value: Any, to_be_sent: bool, path: _Path) -> None:
    if isinstance(value, torch.Tensor):
        # Three questions are asked of every tensor; the rest, and the words, only where something is wrong.
        if value.requires_grad or not value.is_cpu or (to_be_sent and value.is_quantized):
            _check(value, _words(path), to_be_sent)
    elif isinstance(value, Mapping):
        for name, part in value.items():
            if not isinstance(part, _PLAIN):
                _walk(part, to_be_sent, (path, "[{!r}]", name))
    elif isinstance(value, list | tuple):
        for i, part in enumerate(value):
            if not isinstance(part, _PLAIN):
                _walk(part, to_be_sent, (path, "[{!r}]", i))
    elif isinstance(state := getattr(value, "__dict__", None), dict) and not isinstance(value, type):
        for name, part in state.items():
            if isinstance(part, torch.Tensor):
                _walk(part, to_be_sent, (path, ".{}", name))


def _words(path: _Path) -> str:
    if path is None:
        return "batch"
    before, form, name = path
    return _words(before) + form.format(name)


def _check(tensor: torch.Tensor, path: str, to_be_sent: bool) -> None:
    if tensor.requires_grad:
        raise SampleError(
            f"{path} is a tensor that requires a gradient, {tuple(tensor.shape)} {tensor.dtype}; the graph "
            "behind it stays where the batch is made",
            fix="Keep its values only: .detach(), or make it under 'with torch.no_grad():'",
        )
    device = tensor.device.type
    if device == "meta":
        raise SampleError(f"{path} is a tensor without values (device 'meta')", fix="Make it on the device 'cpu'")
    if to_be_sent and device != "cpu":
        raise SampleError(
            f"{path} is a tensor on {tensor.device}, which a worker process cannot hand over safely",
            fix="Leave it on the CPU, and let the loader bring batches to the device: loader.to('cuda'); or use "
            "num_workers=0 or threads",
        )
    if to_be_sent and tensor.is_quantized:
        raise SampleError(
            f"{path} is a quantized tensor, which torch does not send between processes",
            fix="Return .int_repr() or .dequantize()",
        )
