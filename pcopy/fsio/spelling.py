"""Directories that take different names for one: they fold case, or normalise what Unicode writes in several ways.

Which names they take for one is theirs to know. So a directory is asked for other spellings of a name; only where one
of them leads to the same item, its names are read, which tell how that item is spelled.
"""

from __future__ import annotations

import os
import unicodedata

from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of


class Spellings:
    """Remembers the names of the directory that was read last: there may be many items to ask for."""

    def __init__(self) -> None:
        self._directory: tuple[int, int] | None = None
        self._names: frozenset[bytes] = frozenset()

    def others(self, directory: int, name: bytes, present: os.stat_result) -> list[bytes]:
        """What the item is called that was found as ``name``, if it is called something else; raises ``Problem``."""
        if not _answers_to_another(directory, name, present):
            return []
        status = status_of(directory)
        identity = status.st_dev, status.st_ino
        if identity == self._directory and name in self._names:
            return []
        try:
            with os.scandir(directory) as entries:
                found = [(os.fsencode(entry.name), entry.inode()) for entry in entries]
        except OSError as error:
            raise Problem.of("readdir", error) from error
        self._directory, self._names = identity, frozenset(spelled for spelled, _ in found)
        return [] if name in self._names else [spelled for spelled, inode in found if inode == present.st_ino]


def _answers_to_another(directory: int, name: bytes, present: os.stat_result) -> bool:
    """Does another spelling of ``name`` lead to the same item?"""
    for other in _spellings(name):
        try:
            status = os.stat(other, dir_fd=directory, follow_symlinks=False)
        except OSError:  # it does not
            continue
        if (status.st_dev, status.st_ino) == (present.st_dev, present.st_ino):
            return True
    return False


def _spellings(name: bytes) -> set[bytes]:
    text = name.decode("utf-8", "surrogateescape")
    others = {text.swapcase(), unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text)} - {text}
    return {other.encode("utf-8", "surrogateescape") for other in others}
