"""What a field is called in the shards, and its value as bytes.

A field with a known extension keeps its name (`jpg`, `cls`, `seg.png`). Others get the extension that says
what they are, so that any tool can read them:

    array, typed numpy number, tensor    x -> x.npy        text          x -> x.txt
    int                                  x -> x.int        dict, list    x -> x.json
    float                                x -> x.float      bytes         x -> x
    bool                                 x -> x.bool

The manifest keeps both names, so users see only `x`.
"""

from __future__ import annotations

from typing import Any

from streamio.codecs.arrays import NPY, is_array
from streamio.codecs.base import BYTES, Codec, codec_for
from streamio.codecs.text import BOOL, FLOAT, INT, JSON, TEXT
from streamio.errors import UsageError, where

# bool before int, of which it is a kind.
_BY_TYPE: tuple[tuple[type | tuple[type, ...], Codec], ...] = (
    (bool, BOOL),
    (int, INT),
    (float, FLOAT),
    (str, TEXT),
    ((dict, list, tuple), JSON),
)


def stored_name(field: str, value: object) -> str:
    """The name of a field in the shards, given one of its values.

    Raises UsageError for a value of a kind that has no place in a shard (None, sets, any object).
    """
    if isinstance(value, bytes | bytearray | memoryview) or codec_for(field) is not BYTES:
        return field
    if is_array(value) and not isinstance(value, str):
        return f"{field}.{NPY.extensions[0]}"
    for kinds, codec in _BY_TYPE:
        if isinstance(value, kinds):
            return f"{field}.{codec.extensions[0]}"
    hint = "Leave the field out of samples that have no value" if value is None else _KINDS
    raise UsageError(f"a value of type {type(value).__name__} cannot be stored", fix=hint, field=field)


def encode_field(stored: str, value: Any) -> bytes:
    """The bytes of a value in a field of this stored name. Bytes pass as they are, whatever the name.

    Raises UsageError, naming field and type, for a value that the field cannot hold.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    codec = codec_for(stored)
    if codec is BYTES:
        raise UsageError(f"{type(value).__name__} in a field of bytes", fix=_KINDS, field=stored)
    with where(field=stored):
        return codec.encode(value)


_KINDS = "Fields hold bytes, arrays, text, numbers, dicts and lists; pictures go into fields jpg or png"
