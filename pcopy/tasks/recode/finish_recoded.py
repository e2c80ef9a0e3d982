"""Completion of a large file that was recoded in parts: after the last part it gets its seek table, metadata and name.

To recode a file is to compress or to decompress it while it is copied.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Generator

from pcopy.fsio.attributes import read_item_metadata
from pcopy.fsio.data import set_file_size
from pcopy.fsio.memory_copy import write_all
from pcopy.fsio.new_file import NewFile
from pcopy.fsio.problem import Problem
from pcopy.fsio.seekable_zstd import ZstdFrame, packed_seek_table
from pcopy.fsio.source import check_file_is_unchanged
from pcopy.fsio.temporary import run_and_rank_in_temporary_name
from pcopy.signature.items import FILE
from pcopy.tasks.base.actions import TimedCopyAction
from pcopy.tasks.base.attempts import fail_or_retry
from pcopy.tasks.base.kind import TaskKind, TaskSteps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.storing import wait_until_file_is_stored
from pcopy.tasks.base.values import ChunkedFile, ContentInfo, Place
from pcopy.tasks.files.finish_file import LargeFileOpenings, remove_temporary_file
from pcopy.tasks.files.layouts import count_files_with_layout, target_layout_policy
from pcopy.tasks.recode.recode_target import commit_recoded_file, open_checked_source_of_item, target_of_recoded_file


class RecodedFileTask(TaskKind):
    """Base class of the tasks that concern a large ``file`` which is recoded (compressed or decompressed) in parts.

    Until the file is finished, its temporary file has ``temporary_size`` bytes.
    """

    file: ChunkedFile
    temporary_size: int

    def subject(self) -> tuple[Place, bytes]:
        """Return the directory and the name of the file."""
        return self.file.item.names[0]

    @property
    def attempt(self) -> int:
        """The number of the attempt to copy the file, counted from 0."""
        return self.file.item.attempt

    def has_temporary_file_of_this_run(self, rank: Rank) -> bool:
        """Return True if this run has created the temporary file, and not an earlier one."""
        return run_and_rank_in_temporary_name(self.file.temporary)[0] == rank.job.run


class FinishRecodedFile(RecodedFileTask, code=176, doing="finishing", is_note=True):
    """Task that finishes a large file after all its parts were written.

    Fields:
      frames: only for compression: for each frame its bytes in the new file and in the source, packed.
      digest: the digest of the source; empty if digests are not computed.
    """

    frames: bytes
    digest: bytes

    is_dropped_on_stop = True

    def remove_temporary_files(self, rank: Rank, since: int) -> None:
        """Remove the temporary file, if the run number ``since`` of the job or a later one has created it. This is
        called when the job stops and keeps nothing for a resume. (Each resume is a new run.)
        """
        if run_and_rank_in_temporary_name(self.file.temporary)[0] >= since:
            remove_temporary_file(rank, self.file)

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Finish the file and count it. The task yields only to wait for stable storage.

        The file fails if the source has changed since its parts were read.
        """
        file, (place, name) = self.file, self.file.item.names[0]
        now = time.monotonic_ns()
        took = now - rank.shared_instance(LargeFileOpenings).pop(file.temporary, (now, 0))[0]
        try:
            replaced = yield from _finish_file(self, rank, result)
        except Problem as problem:
            report_recoding_failure(rank, result, file, problem)
            return
        known = ContentInfo(FILE, file.version.size, self.digest, file.version)
        result.count_copied_item(place, name, known, how=TimedCopyAction.action_given_existing_item(replaced, took))


def report_recoding_failure(rank: Rank, result: TaskResult, file: ChunkedFile, problem: Problem) -> None:
    """Report that a file could not be recoded (compressed or decompressed); or spawn a task that tries it again, if it
    has not failed too often.

    If an earlier run of the job has created its temporary file, this failure does not count as an attempt, because that
    file may have been changed since.
    """
    item = file.item
    attempt = 0 if run_and_rank_in_temporary_name(file.temporary)[0] < rank.job.run else item.attempt
    fail_or_retry(result, item.place, item.name, problem, attempt, item.size)


def _finish_file(task: FinishRecodedFile, rank: Rank, result: TaskResult) -> Generator[None, None, object]:
    """Write the seek table, apply the metadata and rename the file. Return the item that it has replaced, or None.

    Raise ``Problem`` if that fails.
    """
    file, item = task.file, task.file.item
    with (
        open_checked_source_of_item(rank, item) as (reading, status),
        NewFile.from_file_of_other_task(rank.open_target_directory(item.place), file.temporary, file.identity) as new,
    ):
        check_file_is_unchanged(reading, file.version)
        goal = target_of_recoded_file(rank, item)
        if goal.present is not None:
            goal.present.refuse_name_collision()
        new.reopen(task.temporary_size, file.server_status)
        if rank.copy_options.compress:
            numbers = array("Q", task.frames)
            end, table = sum(numbers[::2]), packed_seek_table([*map(ZstdFrame, numbers[::2], numbers[1::2])])
            write_all(new.descriptor, table, end)
            set_file_size(new.descriptor, end + len(table))
        recipe = goal.layout_recipe(reading, status)
        layout = target_layout_policy(rank, item.place).layout_description_of_file(
            new.descriptor, recipe, goal.target_directory
        )
        attributes = read_item_metadata(reading, status, rank.options.preserve)
        if not rank.syncs_each_file(item.place):
            yield from wait_until_file_is_stored(rank, new)
        commit_recoded_file(result, goal, item, new, status, attributes)
    if layout:
        count_files_with_layout(rank, result, layout)
    return goal.present
