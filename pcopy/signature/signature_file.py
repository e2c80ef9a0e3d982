"""The signature file: a few lines of YAML that identify the contents of a dataset (``docs/formats/signature.md``).

Rule: pcopy reads scalars as they are written, and does not convert them by the rules of YAML. For example, a signature
that consists of digits, or of digits around an ``e``, is not a number. pcopy quotes strings that another YAML reader
could convert. Unknown keys are ignored; everything else that is not understood is refused.

A file is recognised as a signature by its beginning: it must contain the line ``format: pcopy-signature``, preceded
only by comments, a byte order mark, document markers or other keys. A text or program that merely mentions these words
is no signature. A file that begins as a signature is one, even if the rest is damaged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from pcopy.errors import RequestRefused
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.named_file import open_named_file_to_read
from pcopy.signature.algorithms import ALGORITHM_NAMES, digest_algorithm_named
from pcopy.signature.plain_yaml import YamlValue, dump_yaml, load_yaml
from pcopy.signature.replacing import AnyPath, replacing_output_file
from pcopy.signature.tree import is_power_of_two
from pcopy.text import printable_path, printable_text

SIGNATURE_FORMAT = "pcopy-signature"
"""Value of the key ``format``."""
SIGNATURE_VERSION = 1
"""Version of the format (docs/formats/signature.md), which is written into each file. A file with another version is
refused.
"""
MAX_SIGNATURE_SIZE = 1 << 20
"""Maximum size of a signature file in bytes; a larger file is refused."""
MIN_BLOCK_SIZE = 1 << 16
"""Minimum block size in bytes."""
MAX_BLOCK_SIZE = 1 << 62
"""Maximum block size in bytes: the largest power of two that is a valid file offset."""

RECOGNITION_SIZE = 4096
"""Number of bytes at the beginning of a file that ``looks_like_signature`` examines."""

_NUMBER_KEYS = ("files", "directories", "symlinks", "special", "bytes")
_TEXT_KEYS = ("source", "created", "generator")
_KEYS = ("format", "version", "algorithm", "block_size", "signature", *_NUMBER_KEYS, *_TEXT_KEYS)
_NUMBER = re.compile(r"0|[1-9][0-9]{0,19}")

_FORMAT_PATTERN = rb"""["']?format["']?\s*:\s*["']?%b["']?""" % SIGNATURE_FORMAT.encode()
_FORMAT_LINE = re.compile(rb"[{,\s]*%b\s*(?:[,}#].*)?" % _FORMAT_PATTERN)
_FORMAT_IN_BRACES = re.compile(rb"\{.*[{,]\s*%b\s*[,}].*" % _FORMAT_PATTERN)
_MAY_PRECEDE_FORMAT = re.compile(rb"""\s*(?:[#%].*)?|---(?:\s.*)?|\{|[ ,].*|["']?[\w.-]+["']?\s*:(?:\s.*)?""")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_FIRST_LINE = b"format: %b" % SIGNATURE_FORMAT.encode()
_MIN_RECOGNISABLE = len(b"format: p")


class DatasetSignature(NamedTuple):
    """The contents of a signature file.

    Fields:
        algorithm: name of the digest algorithm.
        block_size: number of bytes of a block: the contents of a file are hashed block by block.
        signature: digest of the dataset, in lower-case hexadecimal digits.
        files, directories, symlinks, special: number of items of each type, including the top directory.
        bytes: sum of the sizes of all files, in bytes.
        source: path of the dataset; only for people.
        created: time of creation (UTC), as text; only for people.
        generator: name and version of the program that has written the file; only for people.
    """

    algorithm: str
    block_size: int
    signature: str
    files: int
    directories: int
    symlinks: int
    special: int
    bytes: int
    source: str
    created: str
    generator: str


def is_valid_block_size(number: int) -> bool:
    """Return True if ``number`` bytes is a valid block size: a power of two from 64 KiB to 4 EiB."""
    return MIN_BLOCK_SIZE <= number <= MAX_BLOCK_SIZE and is_power_of_two(number)


def write_signature(path: AnyPath, signature: DatasetSignature, umask: int | None = None, writer: str = "") -> None:
    """Write the file ``path`` completely and durably, or leave an existing one unchanged.

    Raise ``RequestRefused`` if ``path`` exists and is not a regular file, ``OSError`` for errors of the system.

    Args:
        path: path of the file.
        signature: contents of the file.
        umask: the new file has mode 0666 without these bits; None: the umask of the process.
        writer: name of the job, for the name of the temporary file; empty: none.
    """
    contents = dump_yaml(zip(_KEYS, (SIGNATURE_FORMAT, SIGNATURE_VERSION, *signature), strict=True), time_key="created")
    with replacing_output_file(path, umask, writer) as stream:
        stream.write(contents)


def read_signature(path: AnyPath) -> DatasetSignature:
    """Return the signature in the file ``path``. Raise ``RequestRefused``, with a text of one line, if the file cannot
    be read or is invalid.
    """
    with converting_file_errors_to_refusal("signature file", path), open_regular_file(path) as stream:
        contents = stream.read(MAX_SIGNATURE_SIZE + 1)
        if len(contents) > MAX_SIGNATURE_SIZE:
            raise ValueError(f"it has more than {MAX_SIGNATURE_SIZE} bytes, which is the limit")
        return _parse_signature(contents)


def open_regular_file(path: AnyPath, buffering: int = -1) -> BinaryIO:
    """Open the regular file ``path`` for reading; ``buffering`` is as in ``open``. Raise ``OSError`` if it is no
    regular file or cannot be opened.
    """
    descriptor = open_named_file_to_read(os.fsencode(path), regular=True).descriptor
    return open(descriptor, "rb", buffering=buffering)


@contextmanager
def converting_file_errors_to_refusal(description: str, path: AnyPath) -> Iterator[None]:
    """Context manager that converts ``OSError`` and ``ValueError`` of its block into a ``RequestRefused``. The text of
    that names the file by ``description`` ("signature file") and ``path``.
    """
    try:
        yield
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
        raise RequestRefused(
            f"cannot read {printable_path(os.fsencode(path))} as a {description}: {printable_text(reason)}",
            path=os.fsencode(path),
        ) from error


def _parse_signature(contents: bytes) -> DatasetSignature:
    """Return the signature in ``contents``, the bytes of a signature file. Raise ``ValueError`` if they are invalid."""
    values = load_yaml(contents)
    if _text_value_of_key(values, "format") != SIGNATURE_FORMAT:
        raise ValueError(f"its format is not {SIGNATURE_FORMAT}")
    version = _number_value_of_key(values, "version")
    if version > SIGNATURE_VERSION:
        raise ValueError(
            f"it has version {version} of the format, but this pcopy knows version {SIGNATURE_VERSION}: "
            "use a newer pcopy"
        )
    if version != SIGNATURE_VERSION:
        raise ValueError(f"there is no version {version} of the format")
    name = _text_value_of_key(values, "algorithm")
    if name not in ALGORITHM_NAMES:
        raise ValueError(f"its algorithm is none of {', '.join(ALGORITHM_NAMES)}")
    block_size = _number_value_of_key(values, "block_size")
    if not is_valid_block_size(block_size):
        raise ValueError(f"block_size is no power of two from {MIN_BLOCK_SIZE} to {MAX_BLOCK_SIZE}")
    digits, count = _text_value_of_key(values, "signature").lower(), 2 * digest_algorithm_named(name).digest_size
    if not re.fullmatch(f"[0-9a-f]{{{count}}}", digits):
        raise ValueError(f"signature does not consist of the {count} hexadecimal digits of {name}")
    numbers = [_number_value_of_key(values, key) for key in _NUMBER_KEYS]
    texts = [_text_value_of_key(values, key) if key in values else "" for key in _TEXT_KEYS]
    return DatasetSignature._make([name, block_size, digits, *numbers, *texts])


def _text_value_of_key(values: dict[str, YamlValue], key: str) -> str:
    """Return the value of ``key``, a string, from the parsed file ``values``. Raise ``ValueError`` if the key is
    missing or its value is not a string.
    """
    if key not in values:
        raise ValueError(f"it lacks the key {key}")
    value = values[key]
    if not isinstance(value, str):
        raise ValueError(f"{key} is not a single value, but a list or a mapping")
    return str(value)  # a plain string, not a ``YamlString``: it is sent to other ranks


def _number_value_of_key(values: dict[str, YamlValue], key: str) -> int:
    """Return the value of ``key``, a number, from the parsed file ``values``. Raise ``ValueError`` if the key is
    missing or its value is no number.
    """
    text = _text_value_of_key(values, key)
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{key} is not a whole number in decimal digits")
    return int(text)


def looks_like_signature(beginning: bytes) -> bool:
    """Return True if a file is a signature file. ``beginning`` is its first ``RECOGNITION_SIZE`` bytes. They must
    contain a line with ``format: pcopy-signature``, preceded only by what YAML allows there.
    """
    for line in beginning.removeprefix(_BYTE_ORDER_MARK).splitlines():
        if _FORMAT_LINE.fullmatch(line) or _FORMAT_IN_BRACES.fullmatch(line):
            return True
        if not _MAY_PRECEDE_FORMAT.fullmatch(line):
            return False
    return False


def is_truncated_signature(beginning: bytes) -> bool:
    """Return True if a file is a signature file that was truncated within its first line. ``beginning`` is all that the
    file contains.

    A file of fewer than ``_MIN_RECOGNISABLE`` bytes cannot be distinguished from other data.
    """
    return len(beginning) >= _MIN_RECOGNISABLE and _FIRST_LINE.startswith(beginning)
