"""Unmark: files that were written over (``--inplace``) lose their marks, once their contents are on stable storage.

The task runs in LINK, and is recorded together with the end of the task that has filled the files. So however a run has
ended, a resumed job knows unfinished files by their marks.
"""

from __future__ import annotations

from pcopy.fsio.in_place import unmark
from pcopy.fsio.kernel.columns import unpack_names
from pcopy.fsio.problem import Problem
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import OfPlace, Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import unpack_numbers
from pcopy.tasks.files.existing import status_there


class Unmark(OfPlace, code=17, doing="syncing what was written over in", is_note=False):
    """Files of one directory that were written over and are whole: safe on storage they lose their marks.

    They have ``failed`` if they lack metadata.
    """

    names: bytes
    inodes: bytes
    failed: bool = False

    def run(self, rank: Rank, result: Result) -> Steps:
        """One after the other. What can't be brought to storage has failed, though it has been counted as copied."""
        place = self.place
        for name, inode in zip(unpack_names(self.names), unpack_numbers(self.inodes), strict=True):
            try:
                target = rank.open_target(place)
                unmark(target, rank.new_name(place, name), inode, rank.job.name, sync=rank.options.sync)
            except Problem as problem:
                if self.failed:
                    result.warn(place, name, f"it keeps its mark: {problem.operation}: {problem.strerror}")
                    continue
                present = status_there(rank, place, name)
                size = present.st_size if present is not None else 0
                result.count(counts.FILES, -1)
                result.count(counts.BYTES, -size)
                result.fail(place, name, problem, size, touched=True)
            yield None
