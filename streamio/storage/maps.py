"""Files as memory: mapped to be read, without a file descriptor that stays open.

The `mmap` of Python and the `memmap` of numpy keep one for each map, and a process may have few, 1,024 or less. The
system needs none, so thousands of shards can be open.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FAILED = ctypes.c_void_p(-1).value


def map_file(path: str | os.PathLike[str]) -> NDArray[np.uint8]:
    """The bytes of a file, as `map_descriptor` gives them."""
    with open(path, "rb", buffering=0) as file:
        return map_descriptor(file.fileno(), os.fstat(file.fileno()).st_size)


def map_descriptor(fd: int, size: int) -> NDArray[np.uint8]:
    """The first `size` bytes of an open file, uint8 (size,), read-only. The descriptor may be closed then.

    The map goes with the last view of it. Raises OSError. Reading behind the end of the file kills the process.
    """
    if size == 0:
        return np.empty(0, np.uint8)
    if _libc is None:
        return np.frombuffer(mmap.mmap(fd, size, access=mmap.ACCESS_READ), np.uint8)
    return np.asarray(_Map(fd, size))


def _posix() -> Any:
    """The C library, where it is known to have `mmap` as POSIX says; else None."""
    if os.name != "posix" or ctypes.sizeof(ctypes.c_long) != 8:  # off_t is a long where that has 64 bits
        return None
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return library


_libc = _posix()


class _Map:
    """What the arrays over a map hold on to."""

    def __init__(self, fd: int, size: int) -> None:
        self._size = 0  # nothing to be given back yet
        self._start = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if self._start == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._size = size
        self.__array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (self._start, True), "version": 3}

    def __del__(self, library: Any = _libc) -> None:  # as the interpreter ends, names of this module may be gone
        if self._size:
            library.munmap(self._start, self._size)
