"""Syncing of an archive after all of it was written."""

from __future__ import annotations

from pcopy.fsio.problem import Problem
from pcopy.tasks.archive.archive_file import ArchiveFile, stop_job_on_archive_error
from pcopy.tasks.archive.written_records import PieceRecords
from pcopy.tasks.base.kind import TaskKind, TaskSteps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.storing import wait_for_data_stored


class SyncArchive(TaskKind, code=141, doing="syncing the archive", is_note=False):
    """Task of each rank: bring what it has written to the archive to stable storage."""

    def subject(self) -> None:
        return None

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        archive = rank.shared_instance(ArchiveFile)
        rank.shared_instance(PieceRecords).discard_new_records()
        if archive.has_written:
            try:
                yield from wait_for_data_stored(rank, archive.descriptor)
            except Problem as problem:
                stop_job_on_archive_error(rank, "synced", problem)
