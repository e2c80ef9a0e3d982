"""Extraction of single members into one open directory, one by one.

This is the slow path, for members that ``make_simple_members`` cannot create in batches: files of any size, sparse
files, symbolic links, FIFOs and devices.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Generator, Iterator

from pcopy.archive.member import FILE, ArchiveMember
from pcopy.fsio.attributes import MetadataOutcome
from pcopy.fsio.backend.interface import MAX_SMALL_FILE_BYTES
from pcopy.fsio.memory_copy import write_all
from pcopy.fsio.new_file import NewFile, NewLinkOrSpecialFile
from pcopy.fsio.nodes import LinkOrSpecialFile
from pcopy.fsio.problem import Problem
from pcopy.fsio.throttle import throttled_steps
from pcopy.signature.items import FILE as FILE_TYPE
from pcopy.signature.items import type_byte
from pcopy.tasks.archive.members_to_extract import MemberToExtract, directory_place_in_target
from pcopy.tasks.archive.open_archive import OpenedArchive, ReadAheadBuffer, extracted_member_metadata, owner_id_lookup
from pcopy.tasks.archive.replaced_items import note_existing_item
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import TimedCopyAction
from pcopy.tasks.base.hashing import UNKNOWN_VERSION
from pcopy.tasks.base.job import ArchiveOptions
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.storing import wait_until_file_is_stored
from pcopy.tasks.base.values import ContentInfo
from pcopy.tasks.files.existing import item_status_or_none, mention_removal_in_problem, prepare_new_name

MAX_ONE_STEP_SIZE = MAX_SMALL_FILE_BYTES // 4
"""Largest size in bytes of a file that is extracted without a yield in between."""
_ZEROS = memoryview(bytes(1 << 20))
COPY_RANGE_SIZE = 8 << 20
"""Bytes that one call of copy_file_range(2) copies."""


class MemberExtractor:
    """Extracts members into one open ``directory``.

    Args:
      path: the path of the directory below the target.
      inherits: True if new items may inherit an ACL from the directory.
    """

    def __init__(self, rank: Rank, result: TaskResult, directory: int, path: bytes, *, inherits: bool) -> None:
        self._rank = rank
        self._result = result
        self._directory = directory
        self._place = directory_place_in_target(path)
        self._inherits = inherits
        self._archive = rank.shared_instance(OpenedArchive)
        self._ahead = ReadAheadBuffer(self._archive.read)
        self._lookup = owner_id_lookup(numeric=rank.program_options(ArchiveOptions).numeric_owner)

    def is_extracted_in_one_step(self, member: ArchiveMember) -> bool:
        """Return True if ``member`` is extracted without a yield.

        If a job stops, its tasks are dropped where they have yielded, and what a dropped task has created is not
        counted.
        """
        if self._rank.throttle.is_on:
            return False
        return member.kind != FILE or (member.extents is None and member.size <= MAX_ONE_STEP_SIZE)

    def extract_member(self, each: MemberToExtract) -> Generator[None, None, None]:
        """Extract the member ``each``, yielding from time to time if it is large. Raise ``Problem`` if that fails.

        The item does not exist after a failure, unless the text of the problem says so.
        """
        member = each.member
        new: NewFile
        if member.kind == FILE:
            new, present = self._create_file(each, fits_in_slice=self.is_extracted_in_one_step(member))
            with mention_removal_in_problem(self._rank, self._directory, each.name, present), new:
                in_order = self._rank.options.sequential
                steps = _write_contents(self._archive, self._ahead, each, new, in_order=in_order)
                for moved in throttled_steps(steps, self._rank.throttle):
                    self._rank.counters[counts.MOVED] += moved
                    if not self.is_extracted_in_one_step(member):
                        yield None
                applied = self.apply_metadata(new, member)
                yield from wait_until_file_is_stored(self._rank, new)
                self._give_final_name(new, each.name, present)
        else:
            node = LinkOrSpecialFile(
                _status_after_extraction(member), extracted_member_metadata(self._lookup, member), member.link
            )
            present = item_status_or_none(self._directory, each.name)
            self._archive.refuse_replacing_archive(present)
            note_existing_item(self._rank, self._result, self._directory, each, present)
            name = each.name if present is None else prepare_new_name(self._rank, self._directory, each.name, present)
            new = NewLinkOrSpecialFile.create_link_or_special_file(self._directory, name, node, is_temporary=True)
            with new:
                applied = self.apply_metadata(new, member)
                self._give_final_name(new, each.name, present)
        self.report_extracted(each, present, applied, new.metadata_problem)

    def _create_file(self, each: MemberToExtract, *, fits_in_slice: bool) -> tuple[NewFile, os.stat_result | None]:
        """Create a file for the member ``each``. Return the file, and the status of the existing item that it
        will replace, or None.

        The file is created under its final name if that is free and the member is small (``is_extracted_in_one_step``),
        or if the target file system cannot rename. Otherwise it is created under a temporary name in the same
        directory.
        """
        name = each.name
        if fits_in_slice:
            try:
                return NewFile.create(self._directory, name), None
            except Problem as problem:
                if problem.errno != errno.EEXIST:
                    raise
        present = item_status_or_none(self._directory, name)
        self._archive.refuse_replacing_archive(present)
        note_existing_item(self._rank, self._result, self._directory, each, present)
        return NewFile.create(self._directory, prepare_new_name(self._rank, self._directory, name, present)), present

    def _give_final_name(self, new: NewFile, name: bytes, present: os.stat_result | None) -> None:
        """Rename ``new``, a complete file or node, to its final ``name``, unless it has it already. ``present`` is the
        status of the item that is replaced, or None.
        """
        if new.original_name == name:
            new.close_without_removing()
        else:
            new.commit(name, present, store=self._rank.options.sync)

    def apply_metadata(self, new: NewFile, member: ArchiveMember) -> MetadataOutcome:
        """Apply the metadata of ``member`` to ``new``; return what could not be applied. Raise ``Problem`` if the
        member must fail for that.
        """
        options = self._rank.options
        attributes = extracted_member_metadata(self._lookup, member)
        return new.apply_metadata(attributes, options.preserve, options.umask, inherits_acl=self._inherits)

    def report_extracted(
        self,
        each: MemberToExtract,
        present: os.stat_result | None,
        applied: MetadataOutcome,
        metadata_problem: Problem | None,
    ) -> None:
        """Count the member ``each`` as extracted, with the metadata that were applied (``applied``). ``present`` is the
        status of the item that it has replaced, or None. Raise ``Problem`` if the item exists, but lacks metadata
        (``metadata_problem``) or contents.
        """
        result, member, place = self._result, each.member, self._place
        if metadata_problem is not None:
            text = "it was extracted without this metadata; its mode may be narrower than in the archive"
            raise Problem(metadata_problem.operation, metadata_problem.errno or 0, text=text)
        if each.problem_text:
            raise Problem("extract", 0, text=f"it was extracted, but {each.problem_text}")
        if applied.excused or applied.notices or applied.unsupported:
            result.record_applied_metadata(place, each.name, applied)
        kind = FILE_TYPE if member.kind == FILE else type_byte(member.st_mode)
        result.count_copied_item(
            place,
            each.name,
            ContentInfo(kind, member.size, b"", UNKNOWN_VERSION),
            is_only_name=False,
            how=TimedCopyAction.action_given_existing_item(present),
        )


def _status_after_extraction(member: ArchiveMember) -> os.stat_result:
    """Return a status that is made of the fields of ``member``, as stat(2) would show the item after its extraction."""
    fields = (member.st_mode, 0, 0, 1, member.uid, member.gid, 0, 0, 0, 0)
    return os.stat_result(fields, {"st_rdev": member.device})


def _write_contents(
    archive: OpenedArchive, ahead: ReadAheadBuffer, each: MemberToExtract, new: NewFile, *, in_order: bool = False
) -> Iterator[int]:
    """Generator: write the contents of the member ``each`` into the empty file ``new``; yield the number of bytes that
    each step has moved. Raise ``Problem`` if that fails.

    Args:
        archive: the archive; large contents are copied from it directly.
        ahead: reads small contents from the archive, several adjacent members at a time.
        in_order: write from the start to the end, with zeros for holes; some file systems can do nothing else.
    """
    member, at, target = each.member, each.data, new.descriptor
    if member.extents is None and member.size <= MAX_ONE_STEP_SIZE:
        if member.size:
            data = ahead.read(at, member.size)
            write_all(target, data if len(data) == member.size else archive.read_exactly(at, member.size), 0)
            yield member.size
        return
    if member.extents is not None and not in_order:
        new.extend_to_size(member.size)
    end = 0
    for offset, length in ((0, member.size),) if member.extents is None else member.extents:
        if in_order:
            yield from _write_zeros(target, end, offset)
        yield from copy_from_archive(archive, target, at, offset, length)
        at, end = at + length, offset + length
    if in_order:
        yield from _write_zeros(target, end, member.size)


def _write_zeros(target: int, start: int, end: int) -> Iterator[int]:
    """Write zeros to the open file ``target`` from the offset ``start`` to ``end``; yield the number of bytes of each
    step.
    """
    for at in range(start, end, len(_ZEROS)):
        piece = _ZEROS[: end - at]
        write_all(target, piece, at)
        yield len(piece)


def copy_from_archive(archive: OpenedArchive, target: int, at: int, offset: int, length: int) -> Iterator[int]:
    """Copy ``length`` bytes from the offset ``at`` of the archive to the offset ``offset`` of the open file ``target``.

    Yield the number of bytes that each step has moved. Raise ``Problem`` if that fails.
    """
    source = archive.uncompressed_archive_descriptor
    while length and source >= 0:
        try:
            moved = os.copy_file_range(source, target, min(COPY_RANGE_SIZE, length), at, offset)
        except OSError:  # read and write below succeed, or show which side fails
            break
        if not moved:
            break
        at, offset, length = at + moved, offset + moved, length - moved
        yield moved
    while length:
        data = archive.read_exactly(at, min(1 << 20, length))
        write_all(target, memoryview(data), offset)
        at, offset, length = at + len(data), offset + len(data), length - len(data)
        yield len(data)
