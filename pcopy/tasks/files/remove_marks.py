"""``RemoveIncompleteMarks`` removes the marks of files that were overwritten (``--inplace``), once their contents are
on stable storage. A mark says that a file is incomplete (``pcopy.fsio.incomplete_mark``).

The task runs in LINK. It is recorded together with the end of the task that wrote the files. So however an earlier run
has ended, a resumed job recognises incomplete files by their marks.
"""

from __future__ import annotations

from pcopy.fsio.backend.columns import unpack_names
from pcopy.fsio.in_place import mark_file_complete
from pcopy.fsio.problem import Problem
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import DirectoryTask, TaskSteps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import unpack_numbers
from pcopy.tasks.files.existing import target_status


class RemoveIncompleteMarks(DirectoryTask, code=17, doing="syncing overwritten files of", is_note=False):
    """Task that syncs files of one directory that were overwritten completely (``--inplace``), and then removes the
    marks which say that they are incomplete.

    Fields:
        names: names of the files, joined by slashes.
        inodes: their inode numbers, packed.
        lacks_metadata: True if the metadata of these files could not be set; they were counted as failed already.
    """

    names: bytes
    inodes: bytes
    lacks_metadata: bool = False

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Process the files one by one. A file that cannot be brought to stable storage was counted as copied; that
        count is taken back, and the file counts as failed.
        """
        place = self.place
        for name, inode in zip(unpack_names(self.names), unpack_numbers(self.inodes), strict=True):
            try:
                target = rank.open_target_directory(place)
                mark_file_complete(target, rank.target_name(place, name), inode, rank.job.name, sync=rank.options.sync)
            except Problem as problem:
                if self.lacks_metadata:
                    result.warn_about_item(
                        place,
                        name,
                        f"the mark that the file is incomplete cannot be removed: {problem.operation}: "
                        f"{problem.strerror}",
                    )
                    continue
                present = target_status(rank, place, name)
                size = present.st_size if present is not None else 0
                result.count(counts.FILES, -1)
                result.count(counts.BYTES, -size)
                result.count_item_as_failed(place, name, problem, size, may_exist=True)
            yield None
