"""Extraction of a large member in parts, by all ranks in parallel, into a temporary file in the directory of its final
name.

The rank that has created the temporary file waits for all parts (``PartExtractedNote``), then applies the metadata and
renames the file. So no incomplete file ever has the final name.

A sparse member is extracted by one task. So is any member of an uncompressed archive if both the archive and the target
are on local file systems: there, several writers of one file would only wait for its lock
(``pcopy.fsio.copy_methods``).
"""

from __future__ import annotations

from contextlib import suppress

from pcopy.archive.member import FILE, ArchiveMember
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.attributes import can_inherit_acl
from pcopy.fsio.close import close_after_failure, close_after_write
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.new_file import NewFile
from pcopy.fsio.problem import PackedProblem, Problem
from pcopy.fsio.source import status_of_open_item
from pcopy.fsio.temporary import remove_item_if_present, reopen_temporary_file
from pcopy.fsio.throttle import throttled_steps
from pcopy.tasks.archive.extracting import MemberExtractor, copy_from_archive
from pcopy.tasks.archive.members_to_extract import MemberToExtract, directory_place_in_target
from pcopy.tasks.archive.open_archive import OpenedArchive
from pcopy.tasks.archive.replaced_items import note_existing_item
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import TaskKind, TaskSteps, TaskWithoutDirectory
from pcopy.tasks.base.ledger import CompletionLedger, ObjectAwaitingParts
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import RetryMode, TaskResult
from pcopy.tasks.base.storing import wait_for_data_stored, wait_until_file_is_stored
from pcopy.tasks.base.values import Place
from pcopy.tasks.files.existing import item_status_or_none


def should_extract_in_parts(rank: Rank, directory: int, member: ArchiveMember) -> bool:
    """Return True if ``member`` is to be extracted in parts into the open ``directory``: it is a large regular file
    without holes. Raise ``Problem`` if the archive or the directory cannot be examined.
    """
    if (
        rank.options.sequential
        or member.kind != FILE
        or member.extents is not None
        or not rank.is_processed_in_chunks(member.size)
    ):
        return False
    archive = rank.shared_instance(OpenedArchive).uncompressed_archive_descriptor
    sides = (archive, directory) if archive >= 0 else ()
    return not sides or not all(
        rank.mover.transfer_traits.transfer_traits_of_file_system(status_of_open_item(side).st_dev, side).is_local
        for side in sides
    )


def spawn_extract_parts(rank: Rank, result: TaskResult, directory: int, each: MemberToExtract) -> None:
    """Create the temporary file for the member ``each``, and spawn the tasks that extract its parts. Raise ``Problem``
    if that fails.
    """
    temporary, size = rank.temporary_names.next_name(), each.member.size
    rank.shared_instance(OpenedArchive).refuse_replacing_archive(item_status_or_none(directory, each.name))
    with NewFile.create(directory, temporary) as new:
        shown = new.allow_reopening_by_other_ranks(inherits_acl=True)
        made = new.file_identity(0)
        new.extend_to_size(size)
        new.close_without_removing()
    chunk = rank.chunk_size_of_file(size)
    rank.shared_instance(FilesBeingExtracted).open(
        temporary, FileBeingExtracted(each, temporary, made, shown), -(-size // chunk), result
    )
    for start in range(0, size, chunk):
        end = min(start + chunk, size)
        part = ExtractFilePart(each.path, each.name, temporary, made, size, each.data, start, end, rank.number, shown)
        result.spawn_task(part, end - start)


class ExtractFilePart(TaskKind, code=180, doing="unpacking a part of", is_note=False):
    """Task that extracts the bytes from ``start`` to ``end`` of a large file.

    Fields:
      path, name: directory (below the target) and final name of the file.
      temporary: the name of the temporary file, in the same directory.
      identity: the identity of the temporary file, to check that no other file has its name.
      size: the bytes of the whole file.
      data: the offset in the archive at which the contents of the file begin.
      start, end: the range of the part in the file.
      coordinator: the rank that has created the temporary file, and waits for the parts.
      shown: mode and owner that stat(2) shows for the temporary file, if its server has changed those that were set;
          else empty.
    """

    path: bytes
    name: bytes
    temporary: bytes
    identity: ItemIdentity
    size: int
    data: int
    start: int
    end: int
    coordinator: int
    shown: tuple[int, ...]

    def subject(self) -> tuple[Place, bytes]:
        return directory_place_in_target(self.path), self.name

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        failure: PackedProblem | None = None
        try:
            yield from self._extract(rank)
        except Problem as problem:
            failure = problem.problem_as_tuple
        result.spawn_task(PartExtractedNote(self.temporary, failure), owner=self.coordinator)

    def _extract(self, rank: Rank) -> TaskSteps:
        """Write the part into the temporary file. Raise ``Problem`` if that fails."""
        writing = reopen_temporary_file(
            rank.targets[0].open(self.path), self.temporary, self.identity, self.size, self.shown
        )
        try:
            length = self.end - self.start
            steps = copy_from_archive(
                rank.shared_instance(OpenedArchive), writing, self.data + self.start, self.start, length
            )
            for moved in throttled_steps(steps, rank.throttle):
                rank.counters[counts.MOVED] += moved
                yield None
            if (
                rank.options.sync and rank.hosts.host_count > 1
            ):  # the host that finishes the file cannot sync the page cache of this one
                yield from wait_for_data_stored(rank, writing)
        except BaseException:
            close_after_failure(writing)
            raise
        close_after_write(writing)


class PartExtractedNote(TaskWithoutDirectory, code=181, doing="recording a part of a file"):
    """Message to the rank that waits for the parts of the file ``temporary``: one part is written, or has failed
    (``problem``).
    """

    temporary: bytes
    problem: PackedProblem | None

    is_dropped_on_stop = True

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps | None:
        return rank.shared_instance(FilesBeingExtracted).count_part(self.temporary, self, result)


class FileBeingExtracted(NamedTuple):
    """A large ``member`` that is being extracted into the file ``temporary``, whose identity is ``identity``.

    ``shown`` are the mode and owner that stat(2) shows for that file, if its server has changed those that were set;
    else empty.
    """

    member: MemberToExtract
    temporary: bytes
    identity: ItemIdentity
    shown: tuple[int, ...]


class FilesBeingExtracted(CompletionLedger[bytes, FileBeingExtracted, PartExtractedNote]):
    """The large files whose parts this rank waits for, by the names of their temporary files."""

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        self._waiting_for_storage: dict[bytes, FileBeingExtracted] = {}
        """Files whose parts are all written, and which are being synced before they get their final names."""

    def record_part_result(self, awaited: ObjectAwaitingParts[FileBeingExtracted], note: PartExtractedNote) -> None:
        """Record the result of one part, which ``note`` contains, for the file ``awaited``. At the first failure, store
        its error and remove the temporary file, so that the remaining parts fail at once.
        """
        if note.problem is not None and awaited.problem is None:
            awaited.problem = Problem.from_packed_tuple(note.problem)
            self._remove_temporary_file(awaited.opened)  # so that the tasks for the remaining parts fail at once

    def complete_awaited_object(
        self, awaited: ObjectAwaitingParts[FileBeingExtracted], result: TaskResult
    ) -> TaskSteps:
        """After the last part of the file ``awaited``: give it its metadata and final name if all parts were written,
        or report it as failed.
        """
        file, member = awaited.opened, awaited.opened.member
        self._waiting_for_storage[file.temporary] = file
        try:
            if awaited.problem is not None:
                raise awaited.problem
            yield from self._finish_extracted_file(file, result)
        except Problem as problem:
            result.count_item_as_failed(
                directory_place_in_target(member.path), member.name, problem, member.member.size, retry=RetryMode.NEVER
            )
        del self._waiting_for_storage[file.temporary]

    def _finish_extracted_file(self, file: FileBeingExtracted, result: TaskResult) -> TaskSteps:
        """Apply the metadata to a complete file, and rename it to its final name. Raise ``Problem`` if that fails."""
        rank, member = self._rank, file.member
        directory = rank.targets[0].open(member.path)
        status = status_of_open_item(directory)
        inherits = bool(member.path) and can_inherit_acl(directory, status.st_uid)
        rank.detect_times_set_on_close(directory, status.st_dev, result.notices)
        extracting = MemberExtractor(rank, result, directory, member.path, inherits=inherits)
        with NewFile.from_file_of_other_task(directory, file.temporary, file.identity) as new:
            new.reopen(member.member.size, file.shown)
            yield from wait_until_file_is_stored(rank, new)
            present = item_status_or_none(directory, member.name)
            rank.shared_instance(OpenedArchive).refuse_replacing_archive(present)
            note_existing_item(rank, result, directory, member, present)
            applied = extracting.apply_metadata(new, member.member)
            new.commit(member.name, present, store=rank.options.sync)
        extracting.report_extracted(member, present, applied, new.metadata_problem)

    def _remove_temporary_file(self, file: FileBeingExtracted) -> None:
        """Remove the temporary file of a member. A failure is ignored."""
        with suppress(Problem):  # the directory was removed or replaced
            remove_item_if_present(self._rank.targets[0].open(file.member.path), file.temporary)

    def remove_unfinished_files(self) -> None:
        """Remove the temporary files of all unfinished members. This is called when the job ends before they are
        complete.
        """
        for file in (*(awaited.opened for awaited in self.awaited.values()), *self._waiting_for_storage.values()):
            self._remove_temporary_file(file)
        self.awaited.clear()
        self._waiting_for_storage.clear()
