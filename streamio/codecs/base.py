"""What a codec is, and the registry that finds one by field name.

A field is named as in WebDataset, by a file extension: `jpg`, `cls`, `seg.png`. What comes after the last
dot, in lower case, decides the codec. A field without a known extension is bytes.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

Scalar: TypeAlias = int | float | bool
Data: TypeAlias = bytes | memoryview


class Codec(Protocol):
    """Turns a value into the bytes of a field and back. Stateless; used from any thread.

    `name` is what the manifest says; `extensions` are in lower case without a dot, the first one is what a
    new field of this kind is given.
    """

    @property
    def name(self) -> str: ...

    @property
    def extensions(self) -> tuple[str, ...]: ...

    def encode(self, value: Any) -> bytes:
        """The bytes to store. Raises UsageError, naming the type, for a value that it cannot store."""
        ...

    def decode(self, data: Data) -> Any:
        """The value. Raises DecodeError with what was found; callers add shard, row, key and field."""
        ...

    def peek(self, data: Data) -> dict[str, Scalar]:
        """Small facts for the shard's columns, from as few bytes as can be.

        The key "" is the value itself (numbers); other keys are joined to the field's name: `width` of the
        field `jpg` becomes the column `jpg.width`. Never raises: what cannot be read gives {}.
        """
        ...


class BytesCodec:
    """Bytes as they are: for everything that streamio does not know, and for what it never unpickles."""

    name = "bytes"
    extensions = ("bin",)

    def encode(self, value: Any) -> bytes:
        return bytes(value)

    def decode(self, data: Data) -> bytes:
        return bytes(data)

    def peek(self, data: Data) -> dict[str, Scalar]:
        return {}


BYTES: Codec = BytesCodec()
_by_extension: dict[str, Codec] = {}
_by_name: dict[str, Codec] = {}


def register(codec: Codec) -> None:
    """Make a codec known under its name and extensions; a later one replaces an earlier one."""
    _by_name[codec.name] = codec
    for extension in codec.extensions:
        _by_extension[extension] = codec


def codec_for(field: str) -> Codec:
    """The codec of a field or file extension: `codec_for("seg.PNG")` is that of `png`."""
    return _by_extension.get(field.rpartition(".")[2].lower(), BYTES)


def codec_named(name: str) -> Codec:
    """The codec that a manifest names. Raises KeyError for one that this version does not know."""
    return _by_name[name]


register(BYTES)
