"""Writing of the contents of large files, and of sparse ones, into the archive, in parts.

The rank that has written the header of a file waits until all its parts are written (``ChunkWrittenNote``); then it
knows whether the file is complete.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Generator, Iterator
from functools import partial

from pcopy.archive.headers import member_header, stored_content_size
from pcopy.archive.member import DIRECTORY, ArchiveMember, rounded_up_to_multiple
from pcopy.fsio.close import close_after_read
from pcopy.fsio.contents import borrowed_buffer, early_end_of_file_problem
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.problem import PackedProblem, Problem, errors_as_problem
from pcopy.fsio.retries import call_with_retries
from pcopy.fsio.source import open_source_file_to_read
from pcopy.fsio.throttle import throttled_steps
from pcopy.signature.items import FILE
from pcopy.signature.tree import ContentHasher
from pcopy.tasks.archive.archive_file import ArchiveFile
from pcopy.tasks.archive.descriptions import ItemToArchive, check_matches_description, unpack_item_to_archive
from pcopy.tasks.archive.frames import ArchiveFrameWriter, frame_content_size
from pcopy.tasks.archive.incomplete_files import IncompleteFileNote
from pcopy.tasks.archive.written_records import PieceRecords, stop_after_write_failure
from pcopy.tasks.base import counts
from pcopy.tasks.base.hashing import UNKNOWN_VERSION
from pcopy.tasks.base.kind import TaskKind, TaskSteps, TaskWithoutDirectory
from pcopy.tasks.base.ledger import CompletionLedger, ObjectAwaitingParts
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import RetryMode, TaskResult
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, ContentInfo, Place

COPY_RANGE_SIZE = 8 << 20
"""Bytes that one call of copy_file_range(2) copies."""
_NONE = ItemIdentity(-1, -1)
_PART_IDENTIFICATION = struct.Struct(">QQQ")
"""Packed identification of a part: offset of the contents of the file in the archive, start and end of the part in the
file.
"""


def spawn_chunks(
    rank: Rank, result: TaskResult, described: ItemToArchive, value: bytes, at: int, *, piece: bytes = b""
) -> None:
    """Spawn the tasks that write the contents of the file ``described``, on any ranks.

    Args:
        value: the value of a record that holds ``described``.
        at: the offset of the contents in the archive.
        piece: the key of the piece (members that one task writes) that the member belongs to; empty if no progress is
            recorded.
    """
    for task in chunk_tasks(rank, result, described, value, at, piece=piece):
        result.spawn_task(task, task.end - task.start)


def chunk_tasks(
    rank: Rank,
    result: TaskResult,
    described: ItemToArchive,
    value: bytes,
    at: int,
    *,
    number: int = -1,
    piece: bytes = b"",
) -> Iterator[WriteChunk]:
    """Generator: yield the tasks that write the contents of the file ``described``. From the first ``next`` on, this
    rank waits for the end of these tasks, and then counts the file.

    Args:
        value: the value of a record that holds ``described``.
        at: the offset of the contents in the archive.
        number: in a compressed archive the number of the frame of the first part, which also contains the header;
            otherwise -1.
        piece: the key of the piece that the member belongs to; empty if no progress is recorded.
    """
    parts = part_ranges(rank, described.member, is_framed=number >= 0)
    rank.shared_instance(FilesBeingArchived).open(
        at, FileBeingArchived(described, [b""] * len(parts)), len(parts), result
    )
    for part, (start, end) in enumerate(parts):
        frame = number + part if number >= 0 else -1
        yield WriteChunk(value, at, start, end, part, rank.number, frame, piece)


def part_ranges(rank: Rank, member: ArchiveMember, *, is_framed: bool) -> list[tuple[int, int]]:
    """Return start and end, in bytes, of each part into which a file is divided. ``is_framed`` is True for a compressed
    archive, in which each part is a frame.

    A sparse file is divided into parts with equal amounts of data, because holes take no time. But if digests are
    computed, it is divided by its size as other files are, because each digest must cover the same number of bytes.
    """
    is_sparse = member.extents is not None and not rank.computes_digests
    size = stored_content_size(member) if is_sparse else member.size
    chunk = (
        frame_content_size(rank)
        if is_framed
        else rank.chunk_size_of_file(size)
        if rank.is_processed_in_chunks(size)
        else max(1, size)
    )
    if not is_sparse or member.extents is None:
        return [(start, min(start + chunk, size)) for start in range(0, max(1, size), chunk)]
    parts, start, room = list[tuple[int, int]](), 0, chunk
    for first, length in member.extents:
        at, end = first, first + length
        while end - at > room:
            at += room
            parts.append((start, at))
            start, room = at, chunk
        room -= end - at
    return [*parts, (start, member.size)]


def stored_extents(member: ArchiveMember, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the ranges of data between ``start`` and ``end`` of a file.

    Each consists of its start and end in the file, and its offset in the contents that the archive stores, which
    exclude holes.
    """
    if member.extents is None:
        if start < end:
            yield start, end, start
        return
    numbers = memoryview(member.extents.numbers)
    firsts, lengths = numbers[::2], numbers[1::2]
    before = max(0, bisect_right(firsts, start) - 1)
    at = sum(lengths[:before])
    for row in range(before, len(firsts)):
        first, length = firsts[row], lengths[row]
        if first >= end:
            return
        begins, ends = max(first, start), min(first + length, end)
        if begins < ends:
            yield begins, ends, at + begins - first
        at += length


class WriteChunk(TaskKind, code=139, doing="writing a part of", is_note=False):
    """Task that writes a part of a file into the archive.

    Fields:
      value: the value of a record that holds the ``ItemToArchive`` of the file.
      at: the offset of the contents in the archive.
      start, end: the range of the part in the file.
      part: the number of the part.
      coordinator: the rank that waits for the parts.
      number: in a compressed archive the number of the frame that the part becomes; otherwise -1. The frame of the
          first part also contains the header, that of the last part the padding to a multiple of 512 bytes.
      piece: the key of the piece that the member belongs to; empty if no progress is recorded.
    """

    value: bytes
    at: int
    start: int
    end: int
    part: int
    coordinator: int
    number: int
    piece: bytes

    def subject(self) -> tuple[Place, bytes]:
        described = unpack_item_to_archive(self.value)
        return Place(described.root, described.path, _NONE, NO_DIRECTORY_IDENTITY, False, False), described.name

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        described, problem, root, existing_root = unpack_item_to_archive(self.value), None, b"", None
        archive = rank.shared_instance(ArchiveFile) if self.number < 0 else FrameBuffer(described, self.start, self.end)
        made, part = rank.shared_instance(PieceRecords), _PART_IDENTIFICATION.pack(self.at, self.start, self.end)
        try:
            existing_root = self._digest_of_part_written_earlier(rank, made, part)
            if existing_root is None:
                if made.has_earlier_records and isinstance(archive, ArchiveFile):
                    self._fill_part_with_zeros(archive, described.member)
                root = yield from self._write_part(rank, archive, described)
                if self.piece and isinstance(archive, ArchiveFile):
                    made.add_record(self.piece, part, root)
            else:
                root = existing_root
        except Problem as met:
            if not met.on_source:
                stop_after_write_failure(rank, met)
            problem = met.problem_as_tuple
        if existing_root is not None and self.number >= 0:
            rank.shared_instance(ArchiveFrameWriter).report_written_frame(self.number, result)
        elif isinstance(archive, FrameBuffer):
            record = (self.piece, part, root) if self.piece and problem is None else None
            rank.shared_instance(ArchiveFrameWriter).add_frame(self.number, archive.frame_contents(), record, result)
        result.spawn_task(ChunkWrittenNote(self.at, self.part, problem, root), owner=self.coordinator)

    def _digest_of_part_written_earlier(self, rank: Rank, made: PieceRecords, part: bytes) -> bytes | None:
        """Return the digest of the part (its content root) if an interrupted run has written the part, as the records
        ``made`` show; None otherwise. ``part`` identifies the part in these records.
        """
        if not (self.piece and made.has_earlier_records):
            return None
        return made.digests_of_written_part(
            self.piece, part, rank.job_item_hasher.algorithm.digest_size if rank.computes_digests else 0
        )

    def _write_part(
        self, rank: Rank, archive: ArchiveFile | FrameBuffer, described: ItemToArchive
    ) -> Generator[None, None, bytes]:
        """Write the part. Return its digest (content root), or empty bytes if digests are not computed.

        Raise ``Problem`` if that fails, or if the file has changed.
        """
        hasher = rank.new_hasher()
        directory = rank.sources[described.root].open(described.path)
        reading = open_source_file_to_read(directory, described.name)
        try:
            check_matches_description(rank, described, reading)
            for moved in throttled_steps(self._copy_part(reading, archive, described, hasher), rank.throttle):
                rank.counters[counts.MOVED] += moved
                yield None
            check_matches_description(rank, described, reading)
        finally:
            close_after_read(reading)
        return hasher.root() if hasher is not None else b""

    def _fill_part_with_zeros(self, archive: ArchiveFile, member: ArchiveMember) -> None:
        """Fill the part with zeros in the archive, in case an interrupted run has written some of it.

        If the file cannot be read, these zeros remain. Raise ``Problem`` if the archive cannot be written.
        """
        for start, end, at in stored_extents(member, self.start, self.end):
            archive.clear_range(self.at + at, end - start)

    def _copy_part(
        self, reading: int, archive: ArchiveFile | FrameBuffer, described: ItemToArchive, hasher: ContentHasher | None
    ) -> Iterator[int]:
        """Generator: copy the part from the open file ``reading`` into ``archive``; yield the number of bytes that each
        step has moved. ``hasher`` (unless None) gets the bytes, too. Holes are not written, only digested.
        """
        position = self.start
        for start, end, at in stored_extents(described.member, self.start, self.end):
            if hasher is not None:
                hasher.add_zero_bytes(start - position)
            yield from _copy_range(reading, archive, start, end, self.at + at, hasher)
            position = end
        if hasher is not None:
            hasher.add_zero_bytes(self.end - position)


def _copy_range(
    reading: int, archive: ArchiveFile | FrameBuffer, start: int, end: int, at: int, hasher: ContentHasher | None
) -> Iterator[int]:
    """Generator: copy the bytes from ``start`` to ``end`` of the open file ``reading`` to the offset ``at`` of the
    archive, and pass them to ``hasher`` unless it is None.

    Yield the number of bytes of each step. Raise ``Problem`` if that fails.
    """
    if hasher is None and isinstance(archive, ArchiveFile):
        target = archive.descriptor
        archive.has_written = True
        while start < end:
            try:
                moved = os.copy_file_range(reading, target, min(COPY_RANGE_SIZE, end - start), start, at)
            except OSError:  # read and write below succeed, or show which side fails
                break
            if not moved:
                break
            start, at = start + moved, at + moved
            yield moved
    if start == end:
        return
    with borrowed_buffer() as buffer:
        while start < end:
            with errors_as_problem("read", on_source=True):
                got = call_with_retries(partial(os.preadv, reading, [buffer[: end - start]], start))
            if not got:
                raise early_end_of_file_problem("read", start, True)
            if hasher is not None:
                hasher.update(buffer[:got])
            archive.write(buffer[:got], at)
            start, at = start + got, at + got
            yield got


class FrameBuffer:
    """The contents of a frame, in memory: a part of a large file, with the header of the file if it is the first part,
    and with its padding if it is the last.
    """

    def __init__(self, described: ItemToArchive, start: int, end: int) -> None:
        member = described.member
        self._parts: list[bytes] = [member_header(member)] if not start else []
        self._size = sum(after - first for first, after, _ in stored_extents(member, start, end))
        self._padding = (
            rounded_up_to_multiple(stored_content_size(member)) - stored_content_size(member)
            if end == member.size
            else 0
        )
        self._received = 0

    def write(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Append ``data``. ``offset`` is not used, because data are written in their order."""
        self._parts.append(bytes(data))
        self._received += len(data)

    def frame_contents(self) -> bytes:
        """Return the contents of the frame, with zeros in place of what was not written."""
        return b"".join((*self._parts, bytes(self._size - self._received + self._padding)))


class FileBeingArchived:
    """A file whose parts are being written. ``roots`` are the digests (content roots) of its parts; empty for a part
    that is not done.
    """

    def __init__(self, described: ItemToArchive, roots: list[bytes]) -> None:
        self.described = described
        self.roots = roots


class ChunkWrittenNote(TaskWithoutDirectory, code=140, doing="recording a part of a file"):
    """Message to the rank that waits for the parts of the file whose contents begin at the offset ``at`` of the
    archive: the part number ``part`` is written, or has failed (``problem``). ``root`` is its digest.
    """

    at: int
    part: int
    problem: PackedProblem | None
    root: bytes

    def run(self, rank: Rank, result: TaskResult) -> None:
        rank.shared_instance(FilesBeingArchived).count_part(self.at, self, result)


class FilesBeingArchived(CompletionLedger[int, FileBeingArchived, ChunkWrittenNote]):
    """The files whose parts this rank waits for, by the offsets of their contents in the archive."""

    def record_part_result(self, awaited: ObjectAwaitingParts[FileBeingArchived], note: ChunkWrittenNote) -> None:
        """Record the result of one part, which ``note`` contains, for the file ``awaited``: its digest, and its error
        if no other part has failed before.
        """
        awaited.opened.roots[note.part] = note.root
        if note.problem is not None and awaited.problem is None:
            awaited.problem = Problem.from_packed_tuple(note.problem)

    def complete_awaited_object(self, awaited: ObjectAwaitingParts[FileBeingArchived], result: TaskResult) -> None:
        """After the last part of the file ``awaited``: count the file as archived, or as failed if any part has
        failed.
        """
        described, rank = awaited.opened.described, self._rank
        size = described.member.size
        place = Place(described.root, described.path, _NONE, NO_DIRECTORY_IDENTITY, False, False)
        if awaited.problem is not None:
            report_incomplete_file(result, place, described, awaited.problem)
            return
        if report_missing_metadata(result, place, described):
            return
        digest = rank.job_item_hasher.digest_of_chunks(size, awaited.opened.roots) if rank.computes_digests else b""
        report_archived_item(result, place, described, ContentInfo(FILE, size, digest, UNKNOWN_VERSION))


def report_missing_metadata(result: TaskResult, place: Place, described: ItemToArchive) -> bool:
    """If the archive holds the item without some of its metadata, count the item as failed and return True. Otherwise
    return False.

    A directory was already counted as copied when it was scanned; that is undone.
    """
    if described.metadata_problem is None:
        return False
    member = described.member
    if member.kind == DIRECTORY:
        result.count(counts.DIRECTORIES, -1)
    problem = Problem.from_packed_tuple(described.metadata_problem)
    result.count_item_as_failed(place, described.name, problem, member.size, retry=RetryMode.NEVER)
    return True


def report_archived_item(result: TaskResult, place: Place, described: ItemToArchive, known: ContentInfo) -> None:
    """Count an item as archived, and add it under all names of its inode to the signature. ``known`` are its type, size
    and digest.
    """
    result.count_copied_item(place, described.name, known, is_only_name=False)
    for path, name in described.names:
        result.collect_digest(place._replace(path=path), name, known, counts.HARDLINKS, verify=False)


def report_incomplete_file(result: TaskResult, place: Place, described: ItemToArchive, problem: Problem) -> None:
    """Count an item whose contents cannot be read as failed, and add it to the list of incomplete files.

    Its header is in the archive already, so zeros take the place of its contents.
    """
    result.count_item_as_failed(place, described.name, problem, described.member.size, retry=RetryMode.NEVER)
    result.spawn_task(IncompleteFileNote(described.member.name), owner=0)
