"""Columns -> values. What does not decode is handed back as a failure, not raised: the caller has the policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamio.codecs import IMAGES, codec_named, decode_image, transform_image
from streamio.errors import DecodeError, StreamioError, UsageError
from streamio.image import ImageOp
from streamio.types import Alloc, ArrayColumn, Column

IMAGE_CODECS = frozenset(codec.name for codec in IMAGES)

Values: TypeAlias = NDArray[Any] | list[Any]
"""One field of a batch: an array (n, …) where all values came into one, else a list of n."""

Rng: TypeAlias = Callable[[int], np.random.Generator]
"""Index in the batch -> the generator of that sample; new, and the same, at every call."""

FieldDecode: TypeAlias = ImageOp | Callable[[bytes], Any] | bool | None
"""What a user may say for a field: a decode-time operation, a function of the raw bytes, None for the usual
decoding, False for the raw bytes."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A sample that did not decode: its index in the batch, the field, and the error."""

    index: int
    field: str
    error: StreamioError


@dataclass(frozen=True, kw_only=True)
class FieldDecoder:
    """How one field becomes a value. At most one of op, function and raw is set.

    codec:      name of the codec (from the manifest).
    op:         decode-time operation of pictures.
    function:   the user's, from the raw bytes to any value.
    raw:        hand over bytes.
    max_pixels: pictures with more are refused before they are decoded.
    """

    field: str
    codec: str
    op: ImageOp | None = None
    function: Callable[[bytes], Any] | None = None
    raw: bool = False
    max_pixels: int

    @property
    def is_image(self) -> bool:
        return self.codec in IMAGE_CODECS

    def decode(self, data: memoryview, rng: np.random.Generator | None, out: NDArray[np.uint8] | None) -> Any:
        """One value from its bytes; pictures go into `out` where it is given."""
        if self.raw:
            return bytes(data)
        if self.function is not None:
            return self.function(bytes(data))
        if self.is_image:
            return decode_image(data, self.op, rng, out=out, max_pixels=self.max_pixels)
        return codec_named(self.codec).decode(data)


def make_decoders(
    codecs: Mapping[str, str],
    decode: FieldDecode | Mapping[str, FieldDecode],
    max_pixels: int,
    array_shapes: Mapping[str, tuple[int, ...] | None],
) -> dict[str, FieldDecoder]:
    """A decoder for each field, from what the user said for all of them or for some by name.

    codecs: field -> codec name, of the fields that will be read. An operation for all fields goes to the
    pictures only. Raises UsageError for fields that are not there and for operations on what is no picture.
    """
    if isinstance(decode, Mapping):
        unknown = sorted(set(decode) - set(codecs))
        if unknown:
            raise UsageError(
                f"decode names the fields {', '.join(unknown)}",
                fix=f"The fields that are read: {', '.join(codecs)}",
            )
        return {f: _decoder(f, c, decode.get(f), max_pixels, array_shapes.get(f)) for f, c in codecs.items()}
    pictures = {f for f, c in codecs.items() if c in IMAGE_CODECS}
    if decode not in (None, False) and not isinstance(decode, ImageOp):
        raise UsageError(
            f"decode={decode!r} for all fields",
            fix="Give an operation of streamio.image, or a mapping {field: operation or function}",
        )
    if isinstance(decode, ImageOp) and not pictures:
        raise UsageError(f"decode={decode!r}, but no field is a picture", fix="Name the field: decode={'image': …}")
    return {
        f: _decoder(f, c, decode if decode is False or f in pictures else None, max_pixels, array_shapes.get(f))
        for f, c in codecs.items()
    }


def _decoder(
    field: str, codec: str, how: FieldDecode, max_pixels: int, array_shape: tuple[int, ...] | None
) -> FieldDecoder:
    if how is False:
        return FieldDecoder(field=field, codec=codec, raw=True, max_pixels=max_pixels)
    if isinstance(how, ImageOp):
        raw_picture = array_shape is not None and len(array_shape) == 3 and array_shape[2] in (1, 3, 4)
        if codec not in IMAGE_CODECS and not raw_picture:
            raise UsageError(f"decode gives {how!r} for the field '{field}', which is no picture")
        return FieldDecoder(field=field, codec=codec, op=how, max_pixels=max_pixels)
    if callable(how):
        return FieldDecoder(field=field, codec=codec, function=how, max_pixels=max_pixels)
    if how is not None and how is not True:
        raise UsageError(
            f"decode gives {how!r} for the field '{field}'",
            fix="Use an operation of streamio.image, a function of bytes, None (usual) or False (raw bytes)",
        )
    return FieldDecoder(field=field, codec=codec, max_pixels=max_pixels)


def decode_column(decoder: FieldDecoder, column: Column, rng: Rng, alloc: Alloc) -> tuple[Values, list[Failure]]:
    """The values of one field of a batch, and what failed (undefined in an array, None in a list)."""
    if isinstance(column, ArrayColumn):
        return _from_array(decoder, column.values, rng, alloc), []
    size = decoder.op.size if decoder.op is not None and decoder.is_image else None
    if size is None:
        return _decode_each(decoder, column.values, rng, [None] * len(column))
    pixels = alloc((len(column), *size, 3), np.dtype(np.uint8))
    return pixels, _decode_each(decoder, column.values, rng, list(pixels), required=True)[1]


def _from_array(decoder: FieldDecoder, values: NDArray[Any], rng: Rng, alloc: Alloc) -> Values:
    if decoder.function is not None:
        return [decoder.function(value.tobytes()) for value in values]
    op = decoder.op
    if op is None:
        return values
    if op.size is None:
        return [transform_image(picture, op, rng(i)) for i, picture in enumerate(values)]
    pixels = alloc((len(values), *op.size, values.shape[3]), values.dtype)
    for i, picture in enumerate(values):
        transform_image(picture, op, rng(i), out=pixels[i])
    return pixels


def _decode_each(
    decoder: FieldDecoder,
    items: Sequence[memoryview | NDArray[Any] | None],
    rng: Rng,
    outs: Sequence[NDArray[np.uint8] | None],
    required: bool = False,
) -> tuple[list[Any], list[Failure]]:
    """Item by item. `required`: a sample without the field is a failure, as there is a place to fill."""
    values: list[Any] = []
    failures: list[Failure] = []
    for i, (item, out) in enumerate(zip(items, outs, strict=True)):
        value = item
        try:
            if item is None and required:
                raise DecodeError("the sample has no such field", fix="Leave such samples out with where(…)")
            if isinstance(item, memoryview):
                value = decoder.decode(item, rng(i) if decoder.op is not None else None, out)
        except Exception as error:
            value = None
            failures.append(Failure(i, decoder.field, _as_decode_error(error, decoder)))
        values.append(value)
    return values, failures


def _as_decode_error(error: Exception, decoder: FieldDecoder) -> StreamioError:
    """Whatever a decoder raised, as an error that names the field."""
    if isinstance(error, StreamioError):
        error.where.setdefault("field", decoder.field)
        return error
    name = getattr(decoder.function, "__name__", decoder.codec)
    wrapped = DecodeError(f"{name} raised {type(error).__name__}: {error}", field=decoder.field)
    wrapped.__cause__ = error
    return wrapped
