"""Syncing of the archive, after all of it was written."""

from __future__ import annotations

from pcopy.fsio.problem import Problem
from pcopy.tasks.archive.archive_file import ArchiveFile, stop
from pcopy.tasks.archive.made import PieceRecords
from pcopy.tasks.base.kind import Kind, Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.storing import data_stored


class SyncArchive(Kind, code=141, doing="syncing the archive", is_note=False):
    """Task of each rank: bring what it has written of the archive to stable storage."""

    def about(self) -> None:
        return None

    def run(self, rank: Rank, result: Result) -> Steps:
        archive = rank.own(ArchiveFile)
        rank.own(PieceRecords).forget()
        if archive.has_written:
            try:
                yield from data_stored(rank, archive.descriptor)
            except Problem as problem:
                stop(rank, "synced", problem)
