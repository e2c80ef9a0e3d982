"""The signature file: a few lines of YAML that name a dataset's contents (``docs/formats/signature.md``).

Rule: a reader takes scalars as they are written, never as YAML would convert them: digits only, or digits around an
``e``, are a signature and no number. The writer quotes strings that are no plain words, so that any reader of YAML gets
strings. What is not understood is refused, but for unknown keys.

A file is told from data by how it begins: a signature has its ``format`` line where YAML allows it, behind nothing but
what may stand in front of it there: comments, a byte order mark, the marks of a document, other keys. A text or a
program that merely mentions the word is data; what begins as a signature is one, however damaged the rest.
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
VERSION = 1
"""Of the format (docs/formats/signature.md)."""
MOST_BYTES = 1 << 20
"""Of a signature file: what is larger is something else."""
LEAST_BLOCK_SIZE = 1 << 16
"""Bytes."""
MOST_BLOCK_SIZE = 1 << 62
"""Bytes: the largest power of two that a file's offset can hold."""

LOOK = 4096
"""Bytes at the beginning of a file that tell whether it is one."""

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
    """``signature`` in lower-case hexadecimal digits; counts of items (the root counts) and bytes; where it is from."""

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
    """Whether ``number`` of bytes may be a block's: a power of two, from 64 KiB to 4 EiB."""
    return LEAST_BLOCK_SIZE <= number <= MOST_BLOCK_SIZE and is_power_of_two(number)


def write_signature(path: Path, signature: Signature, umask: int | None = None, writer: str = "") -> None:
    """Writes ``path`` anew, durably, or leaves it as it was; ``umask`` and ``writer`` as for ``replacing``.

    Raises ``Refused`` if ``path`` is there and is no file, ``OSError`` for what the system refuses.
    """
    contents = dump(zip(_KEYS, (FORMAT, VERSION, *signature), strict=True), time="created")
    with replacing(path, umask, writer) as stream:
        stream.write(contents)


def read_signature(path: Path) -> Signature:
    """The signature in the file ``path``; raises ``Refused``, with one line, for everything that is wrong with it."""
    with refusing("signature file", path), opened_to_read(path) as stream:
        contents = stream.read(MOST_BYTES + 1)
        if len(contents) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
        return _signature(contents)


def opened_to_read(path: Path, buffering: int = -1) -> BinaryIO:
    """The file ``path``, which must be a regular one, open for reading; raises ``OSError``."""
    descriptor = open_to_read(os.fsencode(path), regular=True).descriptor
    return open(descriptor, "rb", buffering=buffering)


@contextmanager
def refusing(what: str, path: Path) -> Iterator[None]:
    """Raises ``Refused``, with one line, for what is wrong with the file that is read."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
        raise Refused(f"cannot read the {what} {shown(os.fsencode(path))}: {harmless(reason)}") from error


def _signature(contents: bytes) -> Signature:
    """The signature in the text ``contents``; raises ``ValueError``."""
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
    if key not in values:
        raise ValueError(f"it lacks the key {key}")
    value = values[key]
    if not isinstance(value, str):
        raise ValueError(f"{key} is not a single value")
    return str(value)  # and no Scalar: it is told to other ranks


def _number(values: dict[str, Value], key: str) -> int:
    text = _text(values, key)
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{key} is not a whole number in decimal digits")
    return int(text)


def begins_as_signature(beginning: bytes) -> bool:
    """Whether a file with the first ``LOOK`` bytes ``beginning`` says that it is a signature."""
    for line in beginning.removeprefix(_MARK).splitlines():
        if _FORMAT_LINE.fullmatch(line) or _IN_BRACES.fullmatch(line):
            return True
        if not _IN_FRONT.fullmatch(line):
            return False
    return False


def is_cut_signature(beginning: bytes) -> bool:
    """Whether it is a signature that ends within its first line; a shorter one can't be told from other data."""
    return len(beginning) >= _LEAST and _FIRST_LINE.startswith(beginning)
