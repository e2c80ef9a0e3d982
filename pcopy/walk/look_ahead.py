"""Goes through a tree on rank 0 before a job begins, up to a budget: is there room for it, do filters select anything?

Nothing is kept of it, and no trace is left: directories are opened by their descriptors, following no link and without
a change of their access times. Where that can't be, and where the budget is used up, the walk is not complete.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator

from pcopy.fsio.patience import open_patiently

MOST_ENTRIES = 100_000
"""Entries that are looked at: with a server's latency the seconds end it before."""

MOST_SECONDS = 1.0
"""For which a job may be held up by this."""

_LOOKED = 64
"""Entries after each of which the clock is asked."""

_QUIETLY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NOATIME | os.O_CLOEXEC

Selects = Callable[[bytes, os.stat_result], bool]
"""Is the item with this path below the root, and this status, selected? A directory that is not is not entered."""


def everything(path: bytes, status: os.stat_result) -> bool:
    return True


class LookAhead:
    """One budget, for all trees that are gone through with it."""

    def __init__(
        self,
        entries: int = MOST_ENTRIES,
        seconds: float = MOST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._entries = entries
        self._clock = clock
        self._until = clock() + seconds
        self.is_complete = True
        """Has everything been seen?"""

    def items(
        self, root: bytes, selects: Selects = everything, *, one_file_system: bool = False
    ) -> Iterator[tuple[bytes, os.stat_result]]:
        """What is selected in the directory ``root``: paths below it, a directory before what is in it. With
        ``one_file_system`` what is mounted in it is not entered."""
        opened = self._open(root, None)
        if opened is None:
            return
        pending = [(b"", self._listed(opened), opened)]
        try:
            device = os.fstat(opened).st_dev
            while pending:
                above, entries, around = pending[-1]
                entry = next(entries, None)
                if entry is None:
                    pending.pop()
                    os.close(around)
                    continue
                name, status = entry
                path = above + name
                if not selects(path, status):
                    continue
                yield path, status
                if stat.S_ISDIR(status.st_mode) and not (one_file_system and status.st_dev != device):
                    opened = self._open(name, around)
                    if opened is not None:
                        pending.append((path + b"/", self._listed(opened), opened))
        finally:
            for *_, opened in pending:
                os.close(opened)

    def _open(self, name: bytes, around: int | None) -> int | None:
        try:
            return open_patiently(name, _QUIETLY, dir_fd=around)
        except OSError:
            self.is_complete = False
            return None

    def _listed(self, directory: int) -> Iterator[tuple[bytes, os.stat_result]]:
        """The entries of an open directory, as long as there is anything left of the budget."""
        try:
            with os.scandir(directory) as entries:
                for number, entry in enumerate(entries):
                    is_late = not number % _LOOKED and self._clock() > self._until
                    if not self._entries or is_late:
                        self.is_complete = False
                        return
                    self._entries -= 1
                    name = os.fsencode(entry.name)
                    yield name, os.stat(name, dir_fd=directory, follow_symlinks=False)
        except OSError:
            self.is_complete = False
