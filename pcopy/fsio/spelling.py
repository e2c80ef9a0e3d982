"""Directories that take different names for one: they fold case, or normalise what Unicode writes in several ways.

Only the file system knows which names it takes for one. So pcopy looks up other spellings of a name in the directory.
Only if one of them leads to the same item, it reads the names of the directory: these tell how the item is spelled.
"""

from __future__ import annotations

import os
import unicodedata
from contextlib import suppress

from pcopy.fsio.close import entries_of
from pcopy.fsio.problem import failing
from pcopy.fsio.source import status_of


class Spellings:
    """Remembers the names of the directory that was read last: there may be many items to ask for."""

    def __init__(self) -> None:
        self._directory: tuple[int, int] | None = None
        self._names: frozenset[bytes] = frozenset()

    def others(self, directory: int, name: bytes, present: os.stat_result) -> list[bytes]:
        """The other names under which an item is listed that was found as ``name``; raises ``Problem``."""
        if not answers_to_another(directory, name, present):
            return []
        status = status_of(directory)
        identity = status.st_dev, status.st_ino
        if identity == self._directory and name in self._names:
            return []
        with failing("readdir"), entries_of(directory) as entries:
            self._names = frozenset(os.fsencode(entry.name) for entry in entries)
        self._directory = identity
        if name in self._names:
            return []
        folded = fold(name)
        return [other for other in self._names if fold(other) == folded and _leads_to(directory, other, present)]


def answers_to_another(directory: int, name: bytes, present: os.stat_result) -> bool:
    """Does another spelling of ``name`` lead to the same item?"""
    return any(_leads_to(directory, other, present) for other in _spellings(name))


def _leads_to(directory: int, name: bytes, present: os.stat_result) -> bool:
    """Return True if ``name`` is a name of the item ``present``; a listing may show another inode number for it."""
    with suppress(OSError):  # there is no such name
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        return (status.st_dev, status.st_ino) == (present.st_dev, present.st_ino)
    return False


def fold(name: bytes) -> bytes:
    """What names have in common that such a directory may take for one."""
    text = unicodedata.normalize("NFD", name.decode("utf-8", "surrogateescape")).casefold()
    return unicodedata.normalize("NFD", text).encode("utf-8", "surrogateescape")


def _spellings(name: bytes) -> set[bytes]:
    text = name.decode("utf-8", "surrogateescape")
    others = {text.swapcase(), unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text)} - {text}
    return {other.encode("utf-8", "surrogateescape") for other in others}
