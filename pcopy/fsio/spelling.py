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
            found = [(os.fsencode(entry.name), entry.inode()) for entry in entries]
        self._directory, self._names = identity, frozenset(spelled for spelled, _ in found)
        return [] if name in self._names else [spelled for spelled, inode in found if inode == present.st_ino]


def answers_to_another(directory: int, name: bytes, present: os.stat_result) -> bool:
    """Does another spelling of ``name`` lead to the same item?"""
    for other in _spellings(name):
        with suppress(OSError):  # it does not
            status = os.stat(other, dir_fd=directory, follow_symlinks=False)
            if (status.st_dev, status.st_ino) == (present.st_dev, present.st_ino):
                return True
    return False


def fold(name: bytes) -> bytes:
    """What names have in common that such a directory may take for one."""
    text = unicodedata.normalize("NFD", name.decode("utf-8", "surrogateescape")).casefold()
    return unicodedata.normalize("NFD", text).encode("utf-8", "surrogateescape")


def _spellings(name: bytes) -> set[bytes]:
    text = name.decode("utf-8", "surrogateescape")
    others = {text.swapcase(), unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text)} - {text}
    return {other.encode("utf-8", "surrogateescape") for other in others}
