"""Columns -> values. What does not decode is handed back as a failure, not raised: the caller has the policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamio.batching.resizing import best_resize
from streamio.codecs import BYTES, IMAGES, Known, codec_named, decode_image, transform_image
from streamio.errors import DecodeError, StreamioError, UsageError
from streamio.image import ImageOp
from streamio.shards.manifest import FieldSpec
from streamio.types import Alloc, ArrayColumn, Column, NullableColumn

IMAGE_CODECS = frozenset(codec.name for codec in IMAGES)
NUMBER_CODECS = frozenset({"int", "float", "bool"})
_ARRAY_CODECS = IMAGE_CODECS | NUMBER_CODECS | {"npy"}

_FIX_LACKING = (
    "Say what becomes of such samples with missing={field: …}, leave them out with where(…), or the field with "
    "fields=…; a transform gets None for it"
)

Values: TypeAlias = NDArray[Any] | list[Any]
"""One field of a batch: an array (n, …) where all values came into one, else a list of n."""

Columns: TypeAlias = dict[str, Values]
"""The fields of a batch, by name."""

Rng: TypeAlias = "Callable[[int], np.random.Generator]"  # in quotes: who asks numpy for `random` loads it, 6 ms
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
    is_picture: see the function of this name.
    op:         decode-time operation of pictures.
    function:   the user's, from the raw bytes to any value.
    raw:        hand over bytes.
    fill:       gives the value of a sample without the field.
    required:   a sample without the field is a failure, whatever comes after.
    max_pixels: pictures with more are refused before they are decoded.
    """

    field: str
    codec: str
    is_picture: bool
    op: ImageOp | None = None
    function: Callable[[bytes], Any] | None = None
    raw: bool = False
    fill: Callable[[], Any] | None = None
    required: bool = False
    max_pixels: int

    @property
    def fills_array(self) -> bool:
        """Whether its values are joined to one array, in which a sample without the field would leave a hole."""
        return self.codec in _ARRAY_CODECS and not self.raw and self.function is None

    def value_bytes(self, spec: FieldSpec) -> int:
        """About how much memory one value takes; 1 MB for a picture of unknown size, 1 KB for unknown others."""
        if self.op is not None and self.op.size is not None:
            return 3 * self.op.size[0] * self.op.size[1]
        if spec.dtype is not None and spec.shape is not None:
            return np.dtype(spec.dtype).itemsize * int(np.prod(spec.shape))
        return 1_000_000 if self.is_picture and not self.raw else 1000

    def decode(
        self,
        data: memoryview,
        rng: np.random.Generator | None,
        out: NDArray[np.uint8] | None,
        known: Known | None = None,
    ) -> Any:
        """One value from its bytes; pictures go into `out` where it is given. known: see `decode_image`."""
        if self.raw:
            return bytes(data)
        if self.function is not None:
            return self.function(bytes(data))
        if self.codec in IMAGE_CODECS:
            return decode_image(
                data, self.op, rng, out=out, max_pixels=self.max_pixels, resize=best_resize(), known=known
            )
        return codec_named(self.codec).decode(data)


def make_decoders(
    specs: Mapping[str, FieldSpec], decode: FieldDecode | Mapping[str, FieldDecode], max_pixels: int
) -> dict[str, FieldDecoder]:
    """A decoder for each field, from what the user said for all of them or for some by name.

    specs: the fields that will be read. An operation for all fields goes to the pictures only. Raises
    UsageError for fields that are not there and for operations on what is no picture.
    """
    if isinstance(decode, Mapping):
        unknown = sorted(set(decode) - set(specs))
        if unknown:
            raise UsageError(
                f"decode names the fields {', '.join(unknown)}",
                fix=f"The fields that are read: {', '.join(specs)}",
            )
        return {field: _decoder(field, spec, decode.get(field), max_pixels) for field, spec in specs.items()}
    if decode is False:
        return {field: _decoder(field, spec, False, max_pixels) for field, spec in specs.items()}
    if decode is not None and not isinstance(decode, ImageOp):
        raise UsageError(
            f"decode={decode!r} for all fields",
            fix="Give an operation of streamio.image, or a mapping {field: operation or function}",
        )
    if decode is not None and not any(map(is_picture, specs.values())):
        raise UsageError(f"decode={decode!r}, but none of the fields {', '.join(specs)} is a picture")
    return {
        field: _decoder(field, spec, decode if is_picture(spec) else None, max_pixels)
        for field, spec in specs.items()
    }


def is_picture(spec: FieldSpec) -> bool:
    """Pictures are encoded files, and uint8 arrays of one shape (height, width, 1, 3 or 4)."""
    if spec.codec in IMAGE_CODECS:
        return True
    return spec.dtype == "|u1" and spec.shape is not None and len(spec.shape) == 3 and spec.shape[2] in (1, 3, 4)


def channels_last(shape: Sequence[int]) -> bool | None:
    """Whether pictures are (…, H, W, C) and not (…, C, H, W), by channels being 4 at most, and sides more. None
    where it cannot be told."""
    last, first = shape[-1] <= 4, shape[-3] <= 4
    return None if last == first else last


def _decoder(field: str, spec: FieldSpec, how: FieldDecode, max_pixels: int) -> FieldDecoder:
    plain = FieldDecoder(field=field, codec=spec.codec, is_picture=is_picture(spec), max_pixels=max_pixels)
    if how is None or how is True:
        return plain
    if how is False:
        return replace(plain, raw=True)
    if isinstance(how, ImageOp):
        if not plain.is_picture:
            raise UsageError(f"decode gives {how!r} for the field '{field}', which is no picture")
        return replace(plain, op=how)
    if not callable(how):
        raise UsageError(
            f"decode gives {how!r} for the field '{field}'",
            fix="Use an operation of streamio.image, a function of bytes, None (usual) or False (raw bytes)",
        )
    if spec.shape is not None or spec.codec in NUMBER_CODECS:
        raise UsageError(
            f"decode gives a function for the field '{field}', which holds numbers and not bytes",
            fix="There is nothing to decode; change values in transform=",
        )
    return replace(plain, function=how)


def decode_column(
    decoder: FieldDecoder, column: Column, rng: Rng, alloc: Alloc, *, joined: bool
) -> tuple[Values, list[Failure]]:
    """The values of one field of a batch, and what failed (undefined in an array, None in a list).

    joined: the values will be joined field by field, so a sample without one is a failure where the others make
            an array; else it is None.
    """
    if isinstance(column, ArrayColumn):
        return _from_array(decoder.op, column.values, rng, alloc), []
    if isinstance(column, NullableColumn):
        return _from_nullable(decoder, column, joined)
    size = decoder.op.size if decoder.op is not None else None
    if size is None:
        required = joined and decoder.fills_array
        return decode_each(decoder, column.values, rng, [None] * len(column), required)
    pixels = alloc((len(column), *size, 3), np.dtype(np.uint8))
    return pixels, decode_each(decoder, column.values, rng, list(pixels), True)[1]


def _from_array(op: ImageOp | None, values: NDArray[Any], rng: Rng, alloc: Alloc) -> Values:
    if op is None:
        return values
    if op.size is None:
        return [transform_image(picture, op, rng(i), resize=best_resize()) for i, picture in enumerate(values)]
    pixels = alloc((len(values), *op.size, values.shape[3]), values.dtype)
    for i, picture in enumerate(values):
        transform_image(picture, op, rng(i), out=pixels[i], resize=best_resize())
    return pixels


def _from_nullable(decoder: FieldDecoder, column: NullableColumn, joined: bool) -> tuple[Values, list[Failure]]:
    lacking = np.flatnonzero(column.lacking)
    if decoder.fill is not None:
        column.values[lacking] = decoder.fill()
        return column.values, []
    if not joined and not decoder.required:
        values: list[Any] = list(column.values)
        for i in lacking.tolist():
            values[i] = None
        return values, []
    return column.values, [Failure(i, decoder.field, _lacks(decoder)) for i in lacking.tolist()]


def _lacks(decoder: FieldDecoder) -> DecodeError:
    return DecodeError("the sample has no such field, others have", fix=_FIX_LACKING, field=decoder.field)


def decode_each(
    decoder: FieldDecoder,
    items: Sequence[memoryview | NDArray[Any] | None],
    rng: Rng,
    outs: Sequence[NDArray[np.uint8] | None],
    required: bool,
    known: Callable[[int], Known] | None = None,
) -> tuple[list[Any], list[Failure]]:
    """Item by item. required: a sample without the field is a failure. known: of the item at this index."""
    kinds = set(map(type, items))
    as_they_are = memoryview not in kinds and not any(issubclass(kind, StreamioError) for kind in kinds)
    if as_they_are and (NoneType not in kinds or not (decoder.fill or decoder.required or required)):
        return list(items), []
    if kinds == {memoryview} and (decoder.raw or (decoder.codec == BYTES.name and decoder.function is None)):
        return list(map(bytes, items)), []  # type: ignore[arg-type]
    values: list[Any] = []
    failures: list[Failure] = []
    for i, (item, out) in enumerate(zip(items, outs, strict=True)):
        value = item
        try:
            if isinstance(item, StreamioError):
                raise item
            if item is None and decoder.fill is not None:
                value = decoder.fill()
                if out is not None:
                    out[...] = value
            elif item is None and (required or decoder.required):
                raise _lacks(decoder)
            if isinstance(item, memoryview):
                value = decoder.decode(
                    item, rng(i) if decoder.op is not None else None, out, None if known is None else known(i)
                )
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
