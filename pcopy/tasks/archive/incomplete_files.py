"""Files whose contents could not be read after their headers were written. Rank 0 lists them in the trailer, behind the
last member of the archive.
"""

from __future__ import annotations

from pcopy.archive.incomplete import MAX_TRAILER_NAME_BYTES, NAME_OVERHEAD_BYTES, NamesOfIncompleteFiles
from pcopy.tasks.base.kind import TaskWithoutDirectory
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
        ``MAX_TRAILER_NAME_BYTES``, only record that there are more.
        """
        self._bytes += len(name) + NAME_OVERHEAD_BYTES
        if self._bytes > MAX_TRAILER_NAME_BYTES:
            self._has_more = True
        else:
            self._names.add(name)

    @property
    def trailer_names(self) -> NamesOfIncompleteFiles:
        """The names for the trailer, and whether there are more."""
        return NamesOfIncompleteFiles(self._names, self._has_more)


class IncompleteFileNote(TaskWithoutDirectory, code=189, doing="listing incomplete files"):
    """Message to rank 0: the contents of the member called ``name`` are incomplete."""

    name: bytes

    def run(self, rank: Rank, result: TaskResult) -> None:
        rank.shared_instance(IncompleteFiles).add(self.name)
