"""Compression of archives. An archive consists of frames (or members of gzip), each of which is compressed by itself,
so that its bytes depend only on its own contents.
"""

from __future__ import annotations

import sys

from pcopy.errors import RequestRefused
from pcopy.fsio.seekable_zstd import compress_frame

MAX_COMPRESSED_BLOCK_SIZE = 32 << 20
"""Largest ``--block-size`` in bytes for a compressed archive. A larger one is refused: a frame must hold a whole block
of the signature.
"""
COMPRESSION_LEVELS = {"zstd": 3, "gzip": 6}
"""Compression levels by method. They are the default levels of the programs zstd and gzip."""


def check_compression(method: str, block_size: int) -> None:
    """Check that an archive can be compressed by ``method`` ("zstd", "gzip", or "" for no compression).

    Raise ``RequestRefused`` if ``block_size`` (in bytes) is too large for a frame, and ``ImportError`` if the Python
    module for zstd is not installed.
    """
    if method and block_size > MAX_COMPRESSED_BLOCK_SIZE:
        raise RequestRefused("--block-size: a compressed archive allows blocks of at most 32M")
    if method == "zstd":
        import zstandard  # noqa: F401 (raises ImportError if it is not installed)


def compressed_frame(data: bytes, method: str) -> bytes:
    """Return ``data`` compressed by ``method`` ("zstd" or "gzip"): one frame of zstd, or one member of gzip.

    Equal data give equal bytes. Raise ``ImportError`` if the Python module for zstd is not installed.
    """
    if method == "zstd":
        return compress_frame(data, COMPRESSION_LEVELS[method])
    import gzip

    return gzip.compress(data, COMPRESSION_LEVELS[method], mtime=0)


def compressor_version(method: str) -> bytes:
    """Return a text that names the method, its level, and the version of the compression library; empty for no
    compression.

    If this text and the data are equal, the compressed bytes are equal, too.
    """
    if not method:
        return b""
    if method == "zstd":
        import zstandard

        version = f"{zstandard.ZSTD_VERSION} {zstandard.__version__}"
    else:
        import zlib

        version = f"{zlib.ZLIB_RUNTIME_VERSION} {sys.version}"  # Python writes the header of gzip, zlib the rest
    return f"{method} {COMPRESSION_LEVELS[method]} {version}".encode()
