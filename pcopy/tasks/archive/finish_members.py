"""Metadata that extracted directories get at the end of the job.

If a directory got its final mode before everything in it was extracted, it might not be writable; and its mtime would
change with each item that is created in it. Some directories are complete earlier, and get their metadata then
(``pcopy.tasks.archive.small_directories``).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from pcopy.archive.member import path_order_key
from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.attributes import apply_item_metadata, can_inherit_acl
from pcopy.fsio.backend.columns import (
    EARLIEST_TIME,
    INODE_COLUMN,
    LATEST_TIME,
    ItemStatusColumns,
    OutcomeCode,
    column_of_zeros,
)
from pcopy.fsio.backend.directory_batches import (
    DIRECTORY_METADATA_COLUMNS,
    DirectoryBatchSettings,
    FinishDirectoriesBatch,
)
from pcopy.fsio.nodes import call_with_descriptor_or_path
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of_open_item
from pcopy.tasks.archive.members_to_extract import MemberToExtract, directory_place_in_target
from pcopy.tasks.archive.open_archive import extracted_member_metadata, owner_id_lookup
from pcopy.tasks.archive.phases import FINISH
from pcopy.tasks.base import counts
from pcopy.tasks.base.job import ArchiveOptions
from pcopy.tasks.base.kind import TaskKind, TaskSteps, TaskWithoutDirectory
from pcopy.tasks.base.rank import CALL_COST, Rank, SetSharedByTasks
from pcopy.tasks.base.result import RetryMode, TaskResult
from pcopy.tasks.directories.finish_dirs import DIRECTORIES_PER_ROW
from pcopy.tasks.directories.scan_dir import can_enter_with_mode


def spawn_directory_finish_tasks(rank: Rank, result: TaskResult, members: Iterable[MemberToExtract]) -> None:
    """Spawn the tasks that give directories their metadata at the end of the job. ``members`` are the directories.

    If this process cannot enter a directory with its final mode, the directory gets its metadata last of all
    (``ExtractedDirectoryToFinishLastNote``), so that directories below it can still be reached.
    """
    lookup, values = owner_id_lookup(numeric=rank.program_options(ArchiveOptions).numeric_owner), list[bytes]()
    for member in members:
        if can_enter_with_mode(extracted_member_metadata(lookup, member.member)):
            values.append(member.pack_as_bytes())
        else:
            result.count(counts.FOR_SEAL)
            result.spawn_task(ExtractedDirectoryToFinishLastNote(member.pack_as_bytes()), owner=0)
    if values:
        result.spawn_task(FinishExtractedDirectories(tuple(values)), len(values) * CALL_COST, phase=FINISH)


class FinishExtractedDirectories(TaskKind, code=191, doing="finishing", is_note=False):
    """Task that gives extracted directories their metadata. ``values`` are the directories, as packed
    ``MemberToExtract``.
    """

    values: tuple[bytes, ...]

    def subject(self) -> None:
        return None

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        members = sorted(map(MemberToExtract.unpack, self.values), key=lambda member: path_order_key(member.path))
        simple = [each for each in members if _is_simple(each)] if rank.backend.has_directory_batches else []
        finished = set[bytes]()
        if simple:
            codes = yield from _finish_simple_directories(rank, simple)
            finished = {each.path for each, code in zip(simple, codes, strict=True) if code == OutcomeCode.DONE}
        for each in members:
            if each.path not in finished:
                finish_extracted_directory(rank, result, each)


def _is_simple(each: MemberToExtract) -> bool:
    """Return True if the backend may apply the metadata of the directory ``each``."""
    member = each.member
    return bool(each.path) and not (each.problem_text or member.xattrs) and EARLIEST_TIME < member.mtime < LATEST_TIME


def _finish_simple_directories(rank: Rank, members: list[MemberToExtract]) -> TicketGenerator[bytes]:
    """Let the backend apply the metadata of the directories ``members``, which are sorted by path. Return a code for
    each: ``OutcomeCode.DONE``, or 0 if the slow path has to apply them.
    """
    try:
        root = rank.targets[0].open(b"")
        device = status_of_open_item(root).st_dev
    except Problem:  # the slow path meets the error again, and reports it
        return bytes(len(members))
    lookup = owner_id_lookup(numeric=rank.program_options(ArchiveOptions).numeric_owner)
    wanted, number = [extracted_member_metadata(lookup, each.member) for each in members], len(members)
    rows = ItemStatusColumns(number, DIRECTORY_METADATA_COLUMNS | INODE_COLUMN)
    for name, typecode in (("mode", "I"), ("uid", "I"), ("gid", "I"), ("atime", "q"), ("mtime", "q")):
        setattr(rows, name, array(typecode, [getattr(each, name) for each in wanted]))
    batch = FinishDirectoriesBatch(
        directory=root,
        target=root,
        sources=column_of_zeros("Q", number),
        packed_paths=b"\0".join([each.path for each in members]),
        rows=rows,
        marks=bytes(number),
        created_by_job=b"\1" * number,
        settings=DirectoryBatchSettings(device, device, finishes_by_path=True),
        directories_per_row=DIRECTORIES_PER_ROW if rank.backend.runs_in_poll else 1,
    )
    finished = yield from rank.execute_batch(batch)
    return finished.codes


class ExtractedDirectoryToFinishLastNote(TaskWithoutDirectory, code=149, doing="finishing"):
    """Message to rank 0 about a directory that this process can no longer enter once it has its final metadata. Rank 0
    stores it until the end of the job.

    ``value`` is the directory, a packed ``MemberToExtract``. If ``value`` is empty, the end has come: rank 0 gives all
    stored directories their metadata, the deepest first.
    """

    value: bytes

    def run(self, rank: Rank, result: TaskResult) -> None:
        sealed = rank.shared_instance(ExtractedDirectoriesToFinishLast)
        if self.value:
            sealed.add(self.value)
            return
        for member in sorted(map(MemberToExtract.unpack, sealed), key=lambda member: -member.path.count(b"/")):
            finish_extracted_directory(rank, result, member)


class ExtractedDirectoriesToFinishLast(SetSharedByTasks[bytes]):
    """The directories to which rank 0 gives their metadata last, as packed ``MemberToExtract``."""


def finish_extracted_directory(rank: Rank, result: TaskResult, member: MemberToExtract) -> None:
    """Give the directory ``member`` its metadata. If that fails, it counts as failed and no longer as extracted."""
    place, options = directory_place_in_target(member.path), rank.options
    is_numeric = rank.program_options(ArchiveOptions).numeric_owner
    attributes = extracted_member_metadata(owner_id_lookup(numeric=is_numeric), member.member)
    try:
        directory = rank.targets[0].open(member.path)
        status = status_of_open_item(directory)
        inherits = can_inherit_acl(directory, status.st_uid)
        preserve, umask = options.preserve, options.umask
        applied = call_with_descriptor_or_path(
            directory, lambda handle: apply_item_metadata(handle, attributes, preserve, umask, inherits_acl=inherits)
        )
        if member.problem_text:
            raise Problem("extract", 0, text=f"it was extracted, but {member.problem_text}")
    except Problem as problem:
        result.count(counts.DIRECTORIES, -1)
        result.count_item_as_failed(place, b"", problem, retry=RetryMode.NEVER)
        return
    if applied.excused or applied.notices or applied.unsupported:
        result.record_applied_metadata(place, b"", applied)
