"""How archives are compressed: each frame by itself, so that its bytes depend on its contents only."""

from __future__ import annotations

import sys

from pcopy.errors import Refused
from pcopy.fsio.seekable_zstd import compress_frame

LARGEST_BLOCK = 32 << 20
"""Bytes of a block of the signature that a frame can hold."""
LEVELS = {"zstd": 3, "gzip": 6}
"""As the programs of these names have them."""


def check_compression(how: str, block_size: int) -> None:
    """Raises ``Refused`` for what frames cannot hold, and ``ImportError`` if the library is not there."""
    if how and block_size > LARGEST_BLOCK:
        raise Refused("--block-size: blocks of up to 32M go with a compressed archive")
    if how == "zstd":
        import zstandard  # noqa: F401 (is it there?)


def compressed(data: bytes, how: str) -> bytes:
    """One frame, which depends on ``data`` only; raises ``ImportError`` where the library is not there."""
    if how == "zstd":
        return compress_frame(data, LEVELS[how])
    import gzip

    return gzip.compress(data, LEVELS[how], mtime=0)


def compressor(how: str) -> bytes:
    """What other bytes could come of: the level, and the version of what compresses."""
    if not how:
        return b""
    if how == "zstd":
        import zstandard

        version = f"{zstandard.ZSTD_VERSION} {zstandard.__version__}"
    else:
        import zlib

        version = f"{zlib.ZLIB_RUNTIME_VERSION} {sys.version}"  # Python writes the header
    return f"{how} {LEVELS[how]} {version}".encode()
