"""Telling a signature file from data, by how it begins.

Rule: a signature has its ``format`` line where YAML allows it, behind nothing but what may stand in front of it there:
comments, a byte order mark, the marks of a document, other keys. A text or a program that merely mentions the word is
data; what begins as a signature is one, however damaged the rest.
"""

from __future__ import annotations

import re

from pcopy.signature.manifest import MAGIC
from pcopy.signature.signature_file import FORMAT

LOOK = 4096
"""Bytes at the beginning of a file that tell what it is."""

_FORMAT = rb"""["']?format["']?\s*:\s*["']?%b["']?""" % FORMAT.encode()
_FORMAT_LINE = re.compile(rb"[{,\s]*%b\s*(?:[,}#].*)?" % _FORMAT)
_IN_BRACES = re.compile(rb"\{.*[{,]\s*%b\s*[,}].*" % _FORMAT)
_IN_FRONT = re.compile(rb"""\s*(?:[#%].*)?|---(?:\s.*)?|\{|[ ,].*|["']?[\w.-]+["']?\s*:(?:\s.*)?""")
_MARK = b"\xef\xbb\xbf"
_FIRST_LINE = b"format: %b" % FORMAT.encode()
_LEAST = len(b"format: p")


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


def begins_as_manifest(beginning: bytes) -> bool:
    """Whether it is a manifest, of whatever version."""
    return beginning.startswith(MAGIC)
