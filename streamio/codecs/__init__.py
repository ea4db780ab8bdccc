"""Codecs: how a value becomes the bytes of a field and back. Importing this registers all of them."""
