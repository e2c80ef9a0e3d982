"""Files whose contents could not be read after their headers were written. Rank 0 lists them in the trailer, behind the
last member of the archive.
"""

from __future__ import annotations

from pcopy.archive.incomplete import MOST_NAME_BYTES, OVERHEAD, IncompleteNames
from pcopy.tasks.base.kind import Note
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult


class IncompleteFiles:
    """On rank 0: the names of the incomplete files."""

    def __init__(self, rank: Rank) -> None:
        self._names = set[bytes]()
        self._bytes = 0
        self._has_more = False

    def add(self, name: bytes) -> None:
        """Add ``name``, the name that an incomplete file has in the archive. If all names would take more than
        ``MOST_NAME_BYTES``, only record that there are more.
        """
        self._bytes += len(name) + OVERHEAD
        if self._bytes > MOST_NAME_BYTES:
            self._has_more = True
        else:
            self._names.add(name)

    @property
    def listed(self) -> IncompleteNames:
        """The names for the trailer, and whether there are more."""
        return IncompleteNames(self._names, self._has_more)


class IncompleteFile(Note, code=189, doing="listing incomplete files"):
    """Message to rank 0: the contents of the member called ``name`` are incomplete."""

    name: bytes

    def run(self, rank: Rank, result: TaskResult) -> None:
        rank.instance(IncompleteFiles).add(self.name)
