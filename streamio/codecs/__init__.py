"""Codecs: how a value becomes the bytes of a field and back. Importing this registers all of them."""

from streamio.codecs.arrays import ARRAYS, NpyHeader, as_array, is_array, npy_header, npy_header_bytes
from streamio.codecs.base import BYTES, Codec, Data, Scalar, codec_for, codec_named, register
from streamio.codecs.naming import encode_field, stored_name
from streamio.codecs.pixels import BACKENDS, MAX_PIXELS, Known, Pixels, Resize, decode_image, transform_image
from streamio.codecs.raster import IMAGES, ImageCodec, encode_image, is_image_field
from streamio.codecs.recode import recode
from streamio.codecs.text import TEXTS

for _codec in (*IMAGES, *ARRAYS, *TEXTS):
    register(_codec)

__all__ = [
    "BACKENDS",
    "BYTES",
    "IMAGES",
    "MAX_PIXELS",
    "Codec",
    "Data",
    "ImageCodec",
    "Known",
    "NpyHeader",
    "Pixels",
    "Resize",
    "Scalar",
    "as_array",
    "codec_for",
    "codec_named",
    "decode_image",
    "encode_field",
    "encode_image",
    "is_array",
    "is_image_field",
    "npy_header",
    "npy_header_bytes",
    "recode",
    "register",
    "stored_name",
    "transform_image",
]
