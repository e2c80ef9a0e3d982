"""When an item was made, which nothing that is done to it later changes; not all file systems keep that."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache

_STATX_BYTES = 256
_STATX_BTIME = 0x800
_AT_SYMLINK_NOFOLLOW = 0x100
_AT_EMPTY_PATH = 0x1000
_BTIME = struct.Struct("=I76xqI")  # struct statx: stx_mask, and far behind it stx_btime


def birth_of(directory: int, name: bytes = b"") -> int:
    """When ``name`` in the directory (a descriptor), or without a name that itself, was made.

    In nanoseconds since 1970; 0 where nobody can tell.
    """
    import ctypes

    statx = _statx()
    if statx is None:
        return 0
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    failed = statx(directory, name, _AT_SYMLINK_NOFOLLOW | _AT_EMPTY_PATH, _STATX_BTIME, buffer)
    mask, seconds, nanoseconds = _BTIME.unpack_from(buffer.raw)
    return 0 if failed or not mask & _STATX_BTIME else seconds * 10**9 + nanoseconds


@cache
def _statx() -> Callable[..., int] | None:
    """statx(2); None with a C library from before 2018."""
    import ctypes

    return getattr(ctypes.CDLL(None), "statx", None)
