"""A walk of the source on rank 0 before a job begins. It ends after a limited number of entries and a limited time. Its
result shows whether the destination has enough space, and whether filters select anything.

The walk changes nothing, not even access times: directories are opened with O_NOATIME, and symbolic links are not
followed. The walk is incomplete if O_NOATIME is not permitted for a directory, or if a limit is reached.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator

from pcopy.fsio.retries import open_with_retries

MAX_WALKED_ENTRIES = 100_000
"""Maximum number of entries that the preliminary walk of the source examines. It matters for fast local file systems;
with the latency of a file server, ``MAX_WALK_SECONDS`` ends the walk earlier.
"""

MAX_WALK_SECONDS = 1.0
"""Maximum duration of the preliminary walk of the source in seconds, since the walk delays the job."""

_CLOCK_INTERVAL = 64
"""Number of entries of a walk after which the clock is read, to end the walk in time."""

_OPEN_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NOATIME | os.O_CLOEXEC

SelectsItem = Callable[[bytes, os.stat_result], bool]
"""A function that gets the path of an item below the root, and its status. It returns True if the item is selected. A
directory that is not selected is not entered.
"""


def select_every_item(path: bytes, status: os.stat_result) -> bool:
    """Return True for every item. Used if there are no filters."""
    return True


class PreliminaryWalk:
    """Walks trees of the source before a job begins, with a common limit of entries and seconds. Shows whether the
    destination has enough space, and whether filters select anything.
    """

    def __init__(
        self,
        entries: int = MAX_WALKED_ENTRIES,
        seconds: float = MAX_WALK_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._entries = entries
        self._clock = clock
        self._until = clock() + seconds
        self.is_complete = True
        """True if no limit and no error has ended the walk so far: all trees were examined completely."""

    def selected_items(
        self, root: bytes, selects: SelectsItem = select_every_item, *, one_file_system: bool = False
    ) -> Iterator[tuple[bytes, os.stat_result]]:
        """Yield path (below the directory ``root``) and status of all selected items, a directory before its contents.

        Args:
            selects: returns True for an item (path and status) that is selected; other directories are not entered.
            one_file_system: True if file systems mounted below ``root`` are not entered.
        """
        opened = self._open_directory(root, None)
        if opened is None:
            return
        pending = [(b"", self._entries_within_limits(opened), opened)]
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
                    opened = self._open_directory(name, directory)
                    if opened is not None:
                        pending.append((path + b"/", self._entries_within_limits(opened), opened))
        finally:
            for *_, opened in pending:
                os.close(opened)

    def _open_directory(self, name: bytes, parent: int | None) -> int | None:
        """Return the descriptor of the directory ``name`` in the open directory ``parent``. If it cannot be opened,
        record that the walk is incomplete, and return None.
        """
        try:
            return open_with_retries(name, _OPEN_FLAGS, dir_fd=parent)
        except OSError:
            self.is_complete = False
            return None

    def _entries_within_limits(self, directory: int) -> Iterator[tuple[bytes, os.stat_result]]:
        """Yield (name, status) for the entries of an open directory until the limit of entries or seconds of the walk
        is reached.
        """
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
