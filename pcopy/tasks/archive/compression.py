"""Compression of archives. An archive consists of frames (or members of gzip), each of which is compressed by itself,
so that its bytes depend only on its own contents.
"""

from __future__ import annotations

import os
import sys

from pcopy.errors import RequestRefused, path_refused
from pcopy.fsio.seekable_zstd import compress_frame
from pcopy.text import printable_path, shell_quoted

MAX_COMPRESSED_BLOCK_SIZE = 32 << 20
"""Largest ``--block-size`` in bytes for a compressed archive. A larger one is refused: a frame must hold a whole block
of the signature.
"""
COMPRESSION_LEVELS = {"zstd": 3, "gzip": 6}
"""Compression levels by method. They are the default levels of the programs zstd and gzip."""
_COMPRESSION_BY_SUFFIX = {
    **dict.fromkeys((b".gz", b".tgz", b".taz"), "gzip"),
    **dict.fromkeys((b".zst", b".tzst"), "zstd"),
    **dict.fromkeys((b".xz", b".txz"), "xz"),
    **dict.fromkeys((b".bz2", b".tbz", b".tbz2", b".tz2"), "bzip2"),
    **dict.fromkeys((b".lz4", b".tlz4"), "lz4"),
    **dict.fromkeys((b".lzma", b".tlz"), "lzma"),
    b".lz": "lzip",
    b".lzo": "lzop",
    **dict.fromkeys((b".Z", b".taZ", b".tZ"), "compress"),
}
"""The compression that each suffix of an archive's name stands for."""
_OTHER_FORMATS = ("zip", "7z", "rar", "cpio", "jar", "iso")
"""Formats of archives, with the suffix of the same name, that are not tar: such a name would mislead other programs."""


def compression_by_name(path: bytes) -> str:
    """Return the compression that the suffix of ``path`` stands for: a key of ``COMPRESSION_LEVELS``, another program,
    or another format of archives; empty if the suffix stands for none.
    """
    suffix = os.path.splitext(path)[1]
    name = os.fsdecode(suffix[1:]).lower()
    return name if name in _OTHER_FORMATS else _COMPRESSION_BY_SUFFIX.get(suffix, "")


def compression_chosen_by_name(path: bytes) -> str:
    """Return the compression of a new archive ``path`` whose name chooses it: a key of ``COMPRESSION_LEVELS``, or empty
    for none. Raise ``RequestRefused`` if ptar does not have the format or compression that the name stands for.
    """
    method = compression_by_name(path)
    if not method or method in COMPRESSION_LEVELS:
        return method
    stem = os.path.splitext(path)[0].removesuffix(b".tar") + b".tar"
    if method in _OTHER_FORMATS:
        tar = printable_path(stem)
        raise path_refused(path, f"ptar writes tar files: name it {tar}, {tar}.gz or {tar}.zst")
    raise path_refused(
        path,
        f"ptar does not compress with {method}: name the archive {printable_path(stem)}.zst, or "
        f"{printable_path(stem)} and run {method} {shell_quoted(stem)} afterwards",
    )


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
