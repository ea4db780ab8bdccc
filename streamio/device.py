"""Work on the device that the model is on: pictures to numbers there, and JPEG files decoded by the GPU itself.

    loader = streamio.StreamLoader(ds).to("auto", streamio.device.Normalize(mean, std))

How batches get there is the business of `streamio.loading.device`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from streamio.codecs import decode_image
from streamio.errors import MissingExtra, UsageError

Device: TypeAlias = str | int | torch.device

_CHANNELS = (1, 3, 4)


def find_device(device: Device) -> torch.device:
    """The device of this name. "auto" is "cuda" where CUDA is available, else "cpu".

    "cuda" without a number stays so: it is the process's current device (`torch.cuda.set_device`) when it is used.
    Raises UsageError for a device that is not there.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise UsageError(f"device={device!r} is no device: {error}", fix=_DEVICES) from None
    if found.type == "cuda":
        _check_cuda(found)
    elif found.type != "cpu":
        try:
            torch.empty(0, device=found)
        except Exception as error:
            first = str(error).partition("\n")[0]
            raise UsageError(f"device={device!r} cannot be used here: {first}", fix=_DEVICES) from None
    return found


def _check_cuda(device: torch.device) -> None:
    if not torch.cuda.is_available():
        raise UsageError(
            f"device='{device}', but CUDA is not available here",
            fix="Use 'auto', which takes CUDA where there is one and the CPU elsewhere, or 'cpu'",
        )
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise UsageError(f"device='{device}' of {torch.cuda.device_count()} CUDA devices", fix="They count from 0")


_DEVICES = "Use 'auto', 'cuda', 'cuda:1', 'cpu' or another device of torch"


class Normalize:
    """uint8 pictures of a batch -> floating point (B, C, H, W), for `loader.to(device, Normalize(…))`.

        x / 255, then (x - mean) / std for each channel

    mean, std: numbers from 0 to 1, one for all channels or one for each, as torchvision has them.
    dtype:     of the result; computed in float32.
    fields:    names in a batch that is a dict, places in one that is a tuple. None: all uint8 tensors with four
               dimensions; name them where others, such as masks, look the same.

    (B, H, W, C) and (B, C, H, W) are both taken. C is 1, 3 or 4, or as many as `mean` or `std` has; where both axes
    would do, it is the last. The result's memory is `torch.channels_last`, as the pictures' is, so nothing is
    turned. The batch that is given stays as it is. Raises UsageError, at the first batch, for fields that it has
    not, and for what are no such pictures.
    """

    def __init__(
        self,
        mean: float | Sequence[float],
        std: float | Sequence[float],
        *,
        dtype: torch.dtype = torch.float32,
        fields: Sequence[str | int] | None = None,
    ) -> None:
        self.mean, self.std = _numbers("mean", mean), _numbers("std", std)
        if not all(value > 0 for value in self.std):
            raise UsageError(f"Normalize(std={std!r})", fix="It is divided by std, which must be above 0")
        lengths = {len(self.mean), len(self.std)} - {1}
        if len(lengths) > 1:
            found = f"Normalize: {len(self.mean)} means and {len(self.std)} stds"
            raise UsageError(found, fix="Give as many of each")
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise UsageError(f"Normalize(dtype={dtype!r})", fix="Use torch.float32, bfloat16 or float16")
        if isinstance(fields, str | int):
            raise UsageError(f"Normalize(fields={fields!r})", fix=f"Give a sequence: fields=({fields!r},)")
        self.dtype, self.fields = dtype, None if fields is None else tuple(fields)
        self._channels = (lengths.pop(),) if lengths else _CHANNELS
        self._constants: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, batch: Any) -> Any:
        """The batch with its pictures converted, on the device that they are on."""
        if isinstance(batch, torch.Tensor):
            return self._convert(batch, "the batch")
        if isinstance(batch, Mapping):
            return {**batch, **{name: self._convert(batch[name], name) for name in self._chosen(batch)}}
        if isinstance(batch, tuple | list):
            values = list(batch)
            for place in self._chosen(dict(enumerate(values))):
                values[place] = self._convert(values[place], place)
            return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
        raise UsageError(f"Normalize gets a {type(batch).__name__} as batch", fix="Let it be a dict or a tuple")

    def _chosen(self, batch: Mapping[Any, Any]) -> list[Any]:
        if self.fields is None:
            found = [name for name, value in batch.items() if _is_picture(value)]
            if not found:
                raise UsageError(
                    f"Normalize finds no pictures in the batch, only {_listed(batch)}",
                    fix="Pictures are uint8 with four dimensions; let decode= give them one size",
                )
            return found
        gone = [name for name in self.fields if name not in batch]
        if gone:
            raise UsageError(
                f"Normalize(fields={self.fields!r}): a batch has no {', '.join(map(repr, gone))}",
                fix=f"It has {_listed(batch)}",
            )
        return list(self.fields)

    def _convert(self, pictures: Any, name: Any) -> torch.Tensor:
        axis = self._channel_axis(pictures)
        if axis is None:
            raise UsageError(
                f"Normalize: {name!r} is {_kind(pictures)}, no uint8 pictures of {self._words()} channels",
                fix="Name the pictures in fields=, and let decode= give them one size",
            )
        if axis == 3:
            pictures = pictures.permute(0, 3, 1, 2)
        scale, shift = self._scale_and_shift(pictures.device)
        values: torch.Tensor = pictures.to(torch.float32, memory_format=torch.channels_last)
        return values.mul_(scale).add_(shift).to(self.dtype)

    def _channel_axis(self, pictures: Any) -> int | None:
        if not _is_picture(pictures):
            return None
        return next((axis for axis in (3, 1) if pictures.shape[axis] in self._channels), None)

    def _scale_and_shift(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """(x / 255 - mean) / std as x * scale + shift. Kept, since sending them makes the program wait."""
        if device not in self._constants:
            mean, std = (np.array(values).reshape(1, -1, 1, 1) for values in (self.mean, self.std))
            scale, shift = (
                torch.from_numpy(values.astype(np.float32)).to(device) for values in (1 / (255 * std), -mean / std)
            )
            self._constants[device] = scale, shift
        return self._constants[device]

    def _words(self) -> str:
        return " or ".join(map(str, self._channels))

    def __reduce__(self) -> Any:
        return _rebuild, (self.mean, self.std, self.dtype, self.fields)

    def __repr__(self) -> str:
        return f"Normalize({self.mean}, {self.std}, dtype={self.dtype}, fields={self.fields})"


def _rebuild(mean: Any, std: Any, dtype: torch.dtype, fields: Any) -> Normalize:
    return Normalize(mean, std, dtype=dtype, fields=fields)


def decode_jpeg(files: Iterable[Any], device: Device = "auto") -> list[torch.Tensor]:
    """JPEG files decoded where the model is: uint8 (3, height, width) in RGB, each of its own size, on the device.

    files: bytes, or uint8 arrays or tensors (n,), as a data set with `decode={"jpg": False}` gives them.

    On a CUDA device torchvision does it, with NVIDIA's nvJPEG; MissingExtra where it cannot be imported. On the CPU
    the decoder of streamio does. Unlike there, nvJPEG does not turn a picture as its EXIF orientation says.
    Raises DecodeError on the CPU, and torchvision's RuntimeError on the GPU, for what is no JPEG file.
    """
    found = find_device(device)
    arrays = [np.frombuffer(f, np.uint8) if isinstance(f, bytes | bytearray | memoryview) else f for f in files]
    if found.type != "cuda":
        pixels = [decode_image(np.asarray(array).tobytes()) for array in arrays]
        return [torch.from_numpy(picture).permute(2, 0, 1).to(found) for picture in pixels]
    decode, rgb = _torchvision()
    copies = [torch.from_numpy(np.array(array)) for array in arrays]
    decoded: list[torch.Tensor] = decode(copies, mode=rgb, device=found)
    return decoded


def _torchvision() -> tuple[Any, Any]:
    """(its decode_jpeg, its word for RGB)."""
    try:
        from torchvision.io import ImageReadMode, decode_jpeg  # type: ignore[import-not-found, unused-ignore]
    except Exception as error:  # beside a torch of another release it raises RuntimeError
        raise MissingExtra(
            f"decoding on the GPU needs torchvision, which cannot be imported: {type(error).__name__}: {error}",
            fix="Install the torchvision of your torch's release, from the same place; or let the workers decode",
        ) from error
    return decode_jpeg, ImageReadMode.RGB


def _is_picture(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.uint8 and value.ndim == 4


def _numbers(name: str, value: Any) -> tuple[float, ...]:
    try:
        numbers = tuple(float(one) for one in (value if hasattr(value, "__len__") else (value,)))
    except (TypeError, ValueError):
        numbers = ()
    if not numbers:
        raise UsageError(f"Normalize({name}={value!r})", fix="Give one number, or one for each channel")
    if any(not -1 <= number <= 1 for number in numbers):
        raise UsageError(
            f"Normalize({name}={value!r})", fix=f"Pictures are divided by 255 before: divide {name} by it too"
        )
    return numbers


def _listed(batch: Mapping[Any, Any]) -> str:
    return ", ".join(f"{name!r} ({_kind(value)})" for name, value in batch.items())


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return type(value).__name__
