"""A preliminary walk on rank 0 before a job begins, up to a budget: is there enough space, do filters select anything?

It keeps nothing and leaves no trace: directories are opened without following symbolic links and with O_NOATIME. The
walk is incomplete where that is not permitted, or when the budget is used up.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator

from pcopy.fsio.retries import open_with_retries

MAX_ENTRIES = 100_000
"""Maximum number of entries that are examined. With the latency of a file server the time limit
ends the walk before.
"""

MAX_SECONDS = 1.0
"""Maximum number of seconds by which this may delay a job."""

_CLOCK_INTERVAL = 64
"""Number of entries after which the clock is read."""

_OPEN_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NOATIME | os.O_CLOEXEC

Selects = Callable[[bytes, os.stat_result], bool]
"""A function that returns True if the item with this path below the root, and this status, is selected; other
directories are not entered.
"""


def select_all(path: bytes, status: os.stat_result) -> bool:
    """Return True: select every item."""
    return True


class PreliminaryWalk:
    """One budget of entries and seconds for all trees that are walked with it."""

    def __init__(
        self,
        entries: int = MAX_ENTRIES,
        seconds: float = MAX_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._entries = entries
        self._clock = clock
        self._until = clock() + seconds
        self.is_complete = True
        """True if everything has been examined so far."""

    def selected_items(
        self, root: bytes, selects: Selects = select_all, *, one_file_system: bool = False
    ) -> Iterator[tuple[bytes, os.stat_result]]:
        """Yield path (below the directory ``root``) and status of all selected items, a directory before its contents.

        Args:
            one_file_system: True if file systems mounted below ``root`` are not entered.
        """
        opened = self._open(root, None)
        if opened is None:
            return
        pending = [(b"", self._budgeted_entries(opened), opened)]
        try:
            device = os.fstat(opened).st_dev
            while pending:
                above, entries, directory = pending[-1]
                entry = next(entries, None)
                if entry is None:
                    pending.pop()
                    os.close(directory)
                    continue
                name, status = entry
                path = above + name
                if not selects(path, status):
                    continue
                yield path, status
                if stat.S_ISDIR(status.st_mode) and not (one_file_system and status.st_dev != device):
                    opened = self._open(name, directory)
                    if opened is not None:
                        pending.append((path + b"/", self._budgeted_entries(opened), opened))
        finally:
            for *_, opened in pending:
                os.close(opened)

    def _open(self, name: bytes, parent: int | None) -> int | None:
        """Open a directory; return None, and record that the walk is incomplete, if that fails."""
        try:
            return open_with_retries(name, _OPEN_FLAGS, dir_fd=parent)
        except OSError:
            self.is_complete = False
            return None

    def _budgeted_entries(self, directory: int) -> Iterator[tuple[bytes, os.stat_result]]:
        """Yield the entries of an open directory while the budget lasts."""
        try:
            with os.scandir(directory) as entries:
                for number, entry in enumerate(entries):
                    is_late = not number % _CLOCK_INTERVAL and self._clock() > self._until
                    if not self._entries or is_late:
                        self.is_complete = False
                        return
                    self._entries -= 1
                    name = os.fsencode(entry.name)
                    yield name, os.stat(name, dir_fd=directory, follow_symlinks=False)
        except OSError:
            self.is_complete = False
