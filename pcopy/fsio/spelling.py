"""Finds other spellings of a name that lead to the same item, as on file systems that ignore case or Unicode
normalisation.

Only the file system knows which names it treats as equal. So pcopy looks up other spellings of a name in the directory.
Only if one of them leads to the same item, it lists the directory to find the spelling under which the item is stored.
"""

from __future__ import annotations

import os
import unicodedata
from contextlib import suppress

from pcopy.fsio.close import entries_of_open_directory
from pcopy.fsio.problem import errors_as_problem
from pcopy.fsio.source import status_of_open_item


class NameSpellingFinder:
    """Finds the spellings under which items are stored. The names of the directory that was listed last are cached,
    because many items may be looked up in it.
    """

    def __init__(self) -> None:
        self._directory: tuple[int, int] | None = None
        self._names: frozenset[bytes] = frozenset()

    def other_spellings(self, directory: int, name: bytes, present: os.stat_result) -> list[bytes]:
        """Return the other names under which an item is listed in the open ``directory``, if the item was found as
        ``name`` only because the file system ignores case or Unicode normalisation. Raise ``Problem``.

        The result is empty if the item is stored as ``name``. ``present`` is the status of the item.
        """
        if not has_other_spelling(directory, name, present):
            return []
        status = status_of_open_item(directory)
        identity = status.st_dev, status.st_ino
        if identity == self._directory and name in self._names:
            return []
        with errors_as_problem("readdir"), entries_of_open_directory(directory) as entries:
            self._names = frozenset(os.fsencode(entry.name) for entry in entries)
        self._directory = identity
        if name in self._names:
            return []
        folded = casefolded_name(name)
        return [
            other
            for other in self._names
            if casefolded_name(other) == folded and _is_name_of_item(directory, other, present)
        ]


def has_other_spelling(directory: int, name: bytes, present: os.stat_result) -> bool:
    """Return True if another spelling of ``name`` (in case or Unicode normalisation) leads to the same item of the open
    ``directory``, whose status is ``present``.
    """
    return any(_is_name_of_item(directory, other, present) for other in _possible_spellings(name))


def _is_name_of_item(directory: int, name: bytes, present: os.stat_result) -> bool:
    """Return True if ``name`` in the open ``directory`` leads to the item with the status ``present``.

    The name is looked up for this, because a directory listing may show another inode number for it.
    """
    with suppress(OSError):  # there is no such name
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        return (status.st_dev, status.st_ino) == (present.st_dev, present.st_ino)
    return False


def casefolded_name(name: bytes) -> bytes:
    """Return a folded form of ``name``. Names that a file system may treat as equal (in case or Unicode normalisation)
    have the same form.
    """
    text = unicodedata.normalize("NFD", name.decode("utf-8", "surrogateescape")).casefold()
    return unicodedata.normalize("NFD", text).encode("utf-8", "surrogateescape")


def _possible_spellings(name: bytes) -> set[bytes]:
    """Return other spellings of ``name``: with swapped case, and in the Unicode forms NFC and NFD."""
    text = name.decode("utf-8", "surrogateescape")
    spellings = {text.swapcase(), unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text)} - {text}
    return {other.encode("utf-8", "surrogateescape") for other in spellings}
