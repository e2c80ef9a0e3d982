"""The signature file: a few lines of YAML that identify the contents of a dataset (``docs/formats/signature.md``).

Rule: a reader takes scalars as they are written, never as YAML would convert them. For example, a signature that
consists of digits, or of digits around an ``e``, is not a number. The writer quotes strings that are not plain words,
so that any YAML reader gets strings. Unknown keys are ignored; everything else that is not understood is refused.

A file is recognised as a signature by its beginning. It has the ``format`` line in a place where YAML allows it,
preceded only by comments, a byte order mark, document markers or other keys. A text or program that merely mentions the
word is data. A file that begins as a signature is one, even if the rest is damaged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from pcopy.errors import Refused
from pcopy.fsio.named_file import open_to_read
from pcopy.named import NamedTuple
from pcopy.signature.algorithms import ALGORITHMS, algorithm
from pcopy.signature.plain_yaml import Value, dump, load
from pcopy.signature.replacing import Path, replacing
from pcopy.signature.tree import is_power_of_two
from pcopy.text import harmless, shown

FORMAT = "pcopy-signature"
"""Value of the key ``format``."""
VERSION = 1
"""Version of the format (docs/formats/signature.md)."""
MOST_BYTES = 1 << 20
"""Maximum bytes of a signature file; a larger file is not one."""
LEAST_BLOCK_SIZE = 1 << 16
"""Minimum block size in bytes."""
MOST_BLOCK_SIZE = 1 << 62
"""Maximum block size in bytes: the largest power of two that a file offset can hold."""

LOOK = 4096
"""Bytes at the beginning of a file by which a signature is recognised."""

_NUMBERS = ("files", "directories", "symlinks", "special", "bytes")
_TEXTS = ("source", "created", "generator")
_KEYS = ("format", "version", "algorithm", "block_size", "signature", *_NUMBERS, *_TEXTS)
_NUMBER = re.compile(r"0|[1-9][0-9]{0,19}")

_FORMAT = rb"""["']?format["']?\s*:\s*["']?%b["']?""" % FORMAT.encode()
_FORMAT_LINE = re.compile(rb"[{,\s]*%b\s*(?:[,}#].*)?" % _FORMAT)
_IN_BRACES = re.compile(rb"\{.*[{,]\s*%b\s*[,}].*" % _FORMAT)
_IN_FRONT = re.compile(rb"""\s*(?:[#%].*)?|---(?:\s.*)?|\{|[ ,].*|["']?[\w.-]+["']?\s*:(?:\s.*)?""")
_MARK = b"\xef\xbb\xbf"
_FIRST_LINE = b"format: %b" % FORMAT.encode()
_LEAST = len(b"format: p")


class Signature(NamedTuple):
    """The contents of a signature file.

    Fields:
        algorithm: name of the digest algorithm.
        block_size: bytes of a block.
        signature: digest of the dataset, in lower-case hexadecimal digits.
        files, directories, symlinks, special: number of items of each type; the root counts.
        bytes: size of all files.
        source: description of the dataset's origin.
        created: time of creation (UTC).
        generator: program that has written the file.
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


def is_block_size(number: int) -> bool:
    """Return True if ``number`` bytes is a valid block size: a power of two from 64 KiB to 4 EiB."""
    return LEAST_BLOCK_SIZE <= number <= MOST_BLOCK_SIZE and is_power_of_two(number)


def write_signature(path: Path, signature: Signature, umask: int | None = None, writer: str = "") -> None:
    """Write the file ``path`` completely and durably, or leave an existing one unchanged.

    ``umask`` and ``writer`` are described at ``output_file``. Raise ``Refused`` if ``path`` exists and is not a regular
    file, ``OSError`` for errors of the system.
    """
    contents = dump(zip(_KEYS, (FORMAT, VERSION, *signature), strict=True), time="created")
    with replacing(path, umask, writer) as stream:
        stream.write(contents)


def read_signature(path: Path) -> Signature:
    """Return the signature in the file ``path``. Raise ``Refused``, with one line, for every error in it."""
    with refusing("signature file", path), opened_to_read(path) as stream:
        contents = stream.read(MOST_BYTES + 1)
        if len(contents) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
        return _signature(contents)


def opened_to_read(path: Path, buffering: int = -1) -> BinaryIO:
    """Open the regular file ``path`` for reading. Raise ``OSError``."""
    descriptor = open_to_read(os.fsencode(path), regular=True).descriptor
    return open(descriptor, "rb", buffering=buffering)


@contextmanager
def refusing(description: str, path: Path) -> Iterator[None]:
    """Turn an error of the block into ``Refused``, whose message names the file by ``description`` and ``path``."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
        raise Refused(f"cannot read the {description} {shown(os.fsencode(path))}: {harmless(reason)}") from error


def _signature(contents: bytes) -> Signature:
    """Return the signature in the text ``contents``. Raise ``ValueError``."""
    values = load(contents)
    if _text(values, "format") != FORMAT:
        raise ValueError(f"its format is not {FORMAT}")
    version = _number(values, "version")
    if version > VERSION:
        raise ValueError(f"it has version {version} of the format, and this pcopy knows {VERSION}: use a newer one")
    if version != VERSION:
        raise ValueError(f"there is no version {version} of the format")
    name = _text(values, "algorithm")
    if name not in ALGORITHMS:
        raise ValueError(f"its algorithm is none of {', '.join(ALGORITHMS)}")
    block_size = _number(values, "block_size")
    if not is_block_size(block_size):
        raise ValueError(f"block_size is no power of two from {LEAST_BLOCK_SIZE} to {MOST_BLOCK_SIZE}")
    digits, count = _text(values, "signature").lower(), 2 * algorithm(name).size
    if not re.fullmatch(f"[0-9a-f]{{{count}}}", digits):
        raise ValueError(f"signature does not consist of the {count} hexadecimal digits of {name}")
    numbers = [_number(values, key) for key in _NUMBERS]
    texts = [_text(values, key) if key in values else "" for key in _TEXTS]
    return Signature._make([name, block_size, digits, *numbers, *texts])


def _text(values: dict[str, Value], key: str) -> str:
    """Return the string value of ``key``. Raise ``ValueError``."""
    if key not in values:
        raise ValueError(f"it lacks the key {key}")
    value = values[key]
    if not isinstance(value, str):
        raise ValueError(f"{key} is not a single value")
    return str(value)  # a plain string, not a Scalar: it is sent to other ranks


def _number(values: dict[str, Value], key: str) -> int:
    """Return the value of ``key`` as a number. Raise ``ValueError``."""
    text = _text(values, key)
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{key} is not a whole number in decimal digits")
    return int(text)


def begins_as_signature(beginning: bytes) -> bool:
    """Return True if ``beginning``, the first ``RECOGNITION_SIZE`` bytes of a file, declares that it is a signature."""
    for line in beginning.removeprefix(_MARK).splitlines():
        if _FORMAT_LINE.fullmatch(line) or _IN_BRACES.fullmatch(line):
            return True
        if not _IN_FRONT.fullmatch(line):
            return False
    return False


def is_cut_signature(beginning: bytes) -> bool:
    """Return True if a file that consists of ``beginning`` is a signature truncated within its first line.

    A still shorter file cannot be distinguished from other data.
    """
    return len(beginning) >= _LEAST and _FIRST_LINE.startswith(beginning)
