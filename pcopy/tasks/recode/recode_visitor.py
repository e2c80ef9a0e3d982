"""The visitor of a copy that compresses or decompresses. The name of a file decides whether it is recoded (compressed
or decompressed) or copied unchanged.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from pcopy.fsio.backend.columns import pack_names
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.recoded_names import recoded_file_name
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, Item, Place
from pcopy.tasks.copying import MAX_BATCH_BYTES, MAX_BATCH_FILES, CopyVisitor
from pcopy.tasks.copying import make_visitor as visitor_of_copy
from pcopy.tasks.recode.recode_file import RecodeFile
from pcopy.tasks.recode.recode_files import RecodeFiles
from pcopy.walk.visitor import DirectoryVisitor, FoundItems


class RecodeVisitor(CopyVisitor):
    """Visitor that spawns tasks which recode files, and tasks which copy all others.

    Each name of an inode with several hard links becomes a separate file, because one name may be recoded and another
    not.
    """

    def __init__(self, rank: Rank, result: TaskResult, place: Place, attempt: int) -> None:
        super().__init__(rank, result, place, attempt)
        self.separates_linked = False

    def visit_small_files(self, found: FoundItems, rows: Sequence[int]) -> None:
        recoded, others = self._split_into_recoded_and_copied(found, rows)
        if others:
            super().visit_small_files(found, others)
        start = size = 0
        for number, row in enumerate(recoded, 1):
            size += found.rows.size[row]
            if number - start >= MAX_BATCH_FILES or size >= MAX_BATCH_BYTES or number == len(recoded):
                self._spawn_recoding_task(found, recoded[start:number], size)
                start, size = number, 0

    def visit_large_files(self, found: FoundItems, rows: Sequence[int]) -> None:
        recoded, others = self._split_into_recoded_and_copied(found, rows)
        if others:
            super().visit_large_files(found, others)
        for row in recoded:
            name, size = found.names[row], found.rows.size[row]
            mount = self._mount_code_of_file(name, found.rows.device[row])
            self._found_bytes += size
            item = Item(mount, found.rows.inode[row], size, ((self._place, name),), self._attempt)
            self._result.spawn_task(RecodeFile(item), size)

    def _spawn_recoding_task(self, found: FoundItems, rows: Sequence[int], size: int) -> None:
        """Spawn the task that recodes the small files in ``rows``, which have ``size`` bytes together."""
        inodes, sizes = (array("Q", map(column.__getitem__, rows)) for column in (found.rows.inode, found.rows.size))
        names = pack_names(map(found.names.__getitem__, rows))
        self._found_bytes += size
        task = RecodeFiles(self._place, names, inodes.tobytes(), sizes.tobytes(), self._attempt)
        self._result.spawn_task(task, size + len(rows) * CALL_COST)

    def _split_into_recoded_and_copied(self, found: FoundItems, rows: Sequence[int]) -> tuple[list[int], list[int]]:
        """Divide the files in ``rows`` into two lists of rows: those that are recoded (compressed or decompressed), and
        those that are copied unchanged. Warn about files with several hard links.
        """
        options, names, links = self._rank.copy_options, found.names, found.rows.links
        recoded: list[int] = []
        others: list[int] = []
        for row in rows:
            (others if recoded_file_name(options, names[row]) is None else recoded).append(row)
            if links[row] > 1:
                self._result.warn_once(
                    self._place, names[row], "it has several hard links: each of its names becomes a separate file"
                )
        return recoded, others


def recode_visitor_of_directory(rank: Rank, result: TaskResult, place: Place, attempt: int) -> DirectoryVisitor:
    """Return the visitor of the directory ``place``, for a job that recodes files. A directory without a target is
    visited as in a copy.
    """
    if place.target_id == NO_DIRECTORY_IDENTITY:
        return visitor_of_copy(rank, result, place, attempt)
    return RecodeVisitor(rank, result, place, attempt)
