"""A file as memory: its bytes, no descriptor, and gone with the last view."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from streamio.storage.maps import map_descriptor, map_file


def is_mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


def test_a_map_has_the_bytes_of_the_file_and_no_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "file"
    data = os.urandom(100_001)
    path.write_bytes(data)
    files = len(os.listdir("/proc/self/fd"))
    mapped = map_file(path)
    assert mapped.tobytes() == data and mapped.dtype == np.uint8
    assert len(os.listdir("/proc/self/fd")) == files
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 1


def test_it_lives_as_long_as_the_last_view(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)))
    mapped = map_file(path)
    path.unlink()
    view, raw = mapped[10:20][::2], mapped.data[30:32]
    del mapped
    assert view.tolist() == [10, 12, 14, 16, 18] and is_mapped(path)
    del view
    assert bytes(raw) == b"\x1e\x1f" and is_mapped(path)
    del raw
    gc.collect()
    assert not is_mapped(path)


def test_an_empty_file_is_an_empty_array(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert map_file(tmp_path / "file").shape == (0,)


def test_what_cannot_be_mapped_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        map_file(tmp_path / "none")
    reader, writer = os.pipe()
    with pytest.raises(OSError, match=r"\[Errno \d+\]"):
        map_descriptor(reader, 10)
    os.close(reader), os.close(writer)
