"""Layout of an archive: the offset of each piece. Rank 0 computes it from the sizes that all ranks report. A piece
consists of consecutive members that one task writes.

Each rank owns the members of some directories, and divides them into pieces. Rank 0 sorts all pieces by the key of
their first member, which is the order of the archive, and sends the offsets back. Rank 0 stores one record for each
piece, in a temporary file if there are many.
"""

from __future__ import annotations

import marshal
from array import array
from collections.abc import Iterator

from pcopy.archive.index import MAX_INDEX_OFFSETS
from pcopy.archive.member import TAR_BLOCK_BYTES, TAR_RECORD_BYTES, rounded_up_to_multiple
from pcopy.engine.messages import length_of_common_prefix
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of_open_item
from pcopy.signature.sorting import ExternalSorter
from pcopy.tasks.archive.archive_file import ArchiveFile, stop_job_on_archive_error
from pcopy.tasks.archive.descriptions import unpack_item_to_archive
from pcopy.tasks.archive.frames import FRAME_BYTES, ArchiveFrameWriter
from pcopy.tasks.archive.member_records import MembersToLayOut
from pcopy.tasks.archive.pieces import PIECE_BYTES, PIECE_MEMBERS, archive_pieces_of_records
from pcopy.tasks.archive.simple_files import holds_several_members
from pcopy.tasks.archive.tree_members import unpack_members
from pcopy.tasks.archive.write_chunks import WriteChunk, chunk_tasks
from pcopy.tasks.archive.write_members import WriteMembers
from pcopy.tasks.archive.written_records import PieceRecords, digest_of_descriptions
from pcopy.tasks.base.job import ArchiveOptions
from pcopy.tasks.base.kind import TaskKind, TaskSteps, TaskWithoutDirectory
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import TaskResult

MIN_OFFSET_DISTANCE = 1 << 20
"""Smallest distance, in bytes, between two offsets in the index of the archive."""

PIECE_SORT_MEMORY_BYTES = 8 << 20
"""Bytes of memory in which rank 0 sorts the pieces of all ranks. If they take more, they are in a temporary file."""

PIECES_PER_NOTE = 1024
"""Largest number of pieces that one message describes."""

_KEY_BYTES_PER_NOTE = 256 << 10
"""Bytes of keys, as they are sent, at which a message about pieces is full: keys of deep directories are long."""

_MEMBER_BYTES_PER_TASK = 64 << 10
"""Bytes of packed members at which a task that writes pieces is full: names in deep directories are long."""


class ReportPieces(TaskWithoutDirectory, code=134, doing="laying out members", is_note=False):
    """Task of each rank: divide the members that it owns into pieces (consecutive members that one task writes), and
    report the sizes of the next of these to rank 0. The messages of a task are in memory until it ends, so another task
    reports the rest.
    """

    def run(self, rank: Rank, result: TaskResult) -> None:
        keys, sizes, digests, key_bytes = list[tuple[int, bytes]](), array("Q"), b"", 0
        before = b""
        for piece in rank.shared_instance(UnreportedPieces).pieces:
            common = length_of_common_prefix(before, piece.key)
            keys.append((common, piece.key[common:]))
            before = piece.key
            sizes.append(piece.size)
            if rank.program_options(ArchiveOptions).resumes:
                digests += digest_of_descriptions(map(unpack_members, piece.packed_members))
            key_bytes += len(piece.key) - common
            if len(keys) >= PIECES_PER_NOTE or key_bytes >= _KEY_BYTES_PER_NOTE:
                result.spawn_task(ReportPieces(), owner=rank.number)
                break
        if keys:
            note = ArchivePiecesNote(rank.number, marshal.dumps(keys), sizes.tobytes(), digests)
            result.spawn_task(note, owner=0)


class UnreportedPieces:
    """The ``pieces`` (consecutive members that one task writes) that a rank has not reported to rank 0 yet."""

    def __init__(self, rank: Rank) -> None:
        self.pieces = archive_pieces_of_records(
            rank.shared_instance(MembersToLayOut).members.sorted(),
            spans_directories=bool(rank.program_options(ArchiveOptions).compress_as),
        )


class ArchivePiecesNote(TaskWithoutDirectory, code=135, doing="recording pieces"):
    """Message to rank 0 that describes some pieces (consecutive members that one task writes) of the rank ``sender``.

    Fields:
      sender: the number of the rank that sends it.
      keys: the key of the first member of each piece, packed: the number of bytes at its beginning that it has in
          common with the key before, and the rest.
      sizes: the bytes of each piece in the archive, as numbers of 8 bytes.
      digests: a digest of the descriptions of the members of each piece, one behind the other; empty unless an
          interrupted run may have written some pieces.
    """

    sender: int
    keys: bytes
    sizes: bytes
    digests: bytes

    def run(self, rank: Rank, result: TaskResult) -> None:
        placement = rank.shared_instance(ArchiveLayout)
        owner, digest_size = self.sender.to_bytes(4, "big"), len(self.digests) // (len(self.sizes) // 8)
        key = b""
        for number, ((common, rest), length) in enumerate(
            zip(marshal.loads(self.keys), array("Q", self.sizes), strict=True)
        ):
            key = key[:common] + rest
            digest = self.digests[number * digest_size : (number + 1) * digest_size]
            placement.pieces.add(key, owner + length.to_bytes(8, "big") + digest)


class ArchiveLayout:
    """On rank 0: all pieces of the archive (a piece: consecutive members that one task writes) in their order, and the
    offsets of members that go into the index.
    """

    def __init__(self, rank: Rank) -> None:
        self.pieces = ExternalSorter(rank.open_spool, PIECE_SORT_MEMORY_BYTES)
        self.size = 0
        """Bytes of the whole archive; of a compressed one, before compression."""
        self.members_end = 0
        """The offset at which the last member ends; zeros follow it."""
        self.index_offsets = array("Q")
        """Offsets of some members, in increasing order, that go into the index."""
        self._min_distance = MIN_OFFSET_DISTANCE
        self.already_written: tuple[int, int] | None = None
        """How many pieces an interrupted run has already written, and how many there are in total; None if the job does
        not resume such a run.
        """

    def add_index_offset(self, offset: int) -> None:
        """Add the offset of a member to those that the index of the archive will list, unless it is too close to the
        last one. ``offset`` is greater than all earlier ones.

        Readers accept at most ``MAX_INDEX_OFFSETS`` offsets in an index. If there would be more, every second one is
        dropped, and the least distance is doubled.
        """
        if self.index_offsets and offset - self.index_offsets[-1] < self._min_distance:
            return
        if len(self.index_offsets) == MAX_INDEX_OFFSETS:
            self.index_offsets = self.index_offsets[::2]
            self._min_distance *= 2
        self.index_offsets.append(offset)

    def close(self) -> None:
        """Close the sorter and its temporary file."""
        self.pieces.close()


class LayOutPieces(TaskWithoutDirectory, code=136, doing="laying out the archive", is_note=False):
    """Task of rank 0: create the file, compute where each piece begins, and send each rank the offsets of its pieces.

    The offsets are sent in the order in which the rank has reported its pieces.
    """

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        layout = rank.shared_instance(ArchiveLayout)
        try:
            if not rank.options.dry_run:
                _create_archive(rank, layout)
        except Problem as problem:
            stop_job_on_archive_error(rank, "made", problem)
            return
        offsets: list[array[int]] = [array("Q") for _ in range(rank.size)]
        at = 0
        for number, (_, value) in enumerate(layout.pieces.sorted()):
            owner, size = int.from_bytes(value[:4], "big"), int.from_bytes(value[4:12], "big")
            offsets[owner].append(at)
            layout.add_index_offset(at)
            at += size
            if len(offsets[owner]) >= PIECES_PER_NOTE:
                result.spawn_task(PieceOffsetsNote(offsets[owner].tobytes(), False), owner=owner)
                offsets[owner] = array("Q")
            if number % PIECES_PER_NOTE == PIECES_PER_NOTE - 1:
                yield None
        layout.pieces.close()
        layout.members_end = at
        layout.size = rounded_up_to_multiple(at + 2 * TAR_BLOCK_BYTES, TAR_RECORD_BYTES)
        try:
            if not (rank.program_options(ArchiveOptions).compress_as or rank.options.dry_run):
                _set_archive_size(rank, layout)
        except Problem as problem:
            stop_job_on_archive_error(rank, "made", problem)
            return
        for owner, rest in enumerate(offsets):
            result.spawn_task(PieceOffsetsNote(rest.tobytes(), True), owner=owner)


def _create_archive(rank: Rank, layout: ArchiveLayout) -> None:
    """Create the archive with the layout that was computed, or open the one of an interrupted run and find out which
    pieces it contains. Raise ``Problem`` if that fails.
    """
    archive = rank.shared_instance(ArchiveFile)
    if archive.create(resume=rank.program_options(ArchiveOptions).resumes):
        _take_up_earlier_pieces(rank, layout)
    elif rank.program_options(ArchiveOptions).resumes or archive.has_replaced_unfinished:
        rank.shared_instance(PieceRecords).remove_record_files()


def _set_archive_size(rank: Rank, layout: ArchiveLayout) -> None:
    """Set the size of an uncompressed archive, and make the bytes behind the last member read as zeros.

    Raise ``Problem`` if that fails.
    """
    archive = rank.shared_instance(ArchiveFile)
    archive.truncate_or_extend(layout.size)
    if rank.shared_instance(PieceRecords).has_earlier_records:
        archive.clear_range(layout.members_end, layout.size - layout.members_end)


def _take_up_earlier_pieces(rank: Rank, layout: ArchiveLayout) -> None:
    """For a resumed run, on rank 0: find out which pieces an interrupted run has already written, so that they are not
    written again. Raise ``Problem`` if the records of that run cannot be read.
    """
    made = rank.shared_instance(PieceRecords)

    def piece_keys() -> Iterator[tuple[bytes, int]]:
        """Generator: yield the key of each piece of the archive, and the offset at which the piece ends (before
        compression).
        """
        at = 0
        for _, value in layout.pieces.sorted():
            key, at = made.piece_key(at, value[12:]), at + int.from_bytes(value[4:12], "big")
            yield key, at

    if not rank.program_options(ArchiveOptions).compress_as:
        size = status_of_open_item(
            rank.shared_instance(ArchiveFile).descriptor
        ).st_size  # the archive may have been truncated since
        layout.already_written = made.adopt_earlier_records(key if end <= size else b"" for key, end in piece_keys())
        return
    frames = rank.shared_instance(ArchiveFrameWriter)
    layout.already_written = made.adopt_earlier_records((key for key, _ in piece_keys()), frames.adopt_written_frames)
    rank.shared_instance(ArchiveFile).truncate_or_extend(frames.next_offset)


class PieceOffsetsNote(TaskKind, code=137, doing="starting to write members", is_note=False):
    """Message from rank 0 to a rank: the offsets of the next pieces that it must write, as numbers of 8 bytes.

    If ``is_last`` is true, the rank now has all of its offsets, and spawns the tasks that write the pieces.
    """

    offsets: bytes
    is_last: bool

    def subject(self) -> None:
        return None

    def run(self, rank: Rank, result: TaskResult) -> None:
        offsets = rank.shared_instance(PieceOffsets).offsets
        offsets.extend(array("Q", self.offsets))
        if self.is_last and rank.program_options(ArchiveOptions).compress_as and not rank.options.dry_run:
            rank.shared_instance(ArchiveFrameWriter).hand_out_first_tasks(PieceFrameTasks(rank, offsets), result)
        elif self.is_last:
            cost = PIECE_BYTES // 4 + PIECE_MEMBERS * CALL_COST // 4
            result.spawn_tasks_lazily(_piece_write_tasks(rank, offsets), cost, expands=False)


class PieceOffsets:
    """The offsets in the archive at which this rank must write its pieces, in the order in which it has reported the
    pieces.
    """

    def __init__(self, rank: Rank) -> None:
        self.offsets = array("Q")
        """Offsets in the archive, in bytes; all are known after the last ``PieceOffsetsNote``."""


def _piece_write_tasks(rank: Rank, offsets: array[int]) -> Iterator[WriteMembers]:
    """Generator: yield the tasks that write the pieces of this rank at their ``offsets``; a task writes several pieces
    if they are small.
    """
    found = archive_pieces_of_records(
        rank.shared_instance(MembersToLayOut).members.sorted(),
        spans_directories=bool(rank.program_options(ArchiveOptions).compress_as),
    )
    some: list[tuple[int, int, list[bytes]]] = []
    members = size = packed = 0
    for offset, piece in zip(offsets, found, strict=True):
        some.append((offset, piece.size, piece.packed_members))
        members, size, packed = members + piece.members, size + piece.size, packed + sum(map(len, some[-1][2]))
        if members >= PIECE_MEMBERS or size >= PIECE_BYTES or packed >= _MEMBER_BYTES_PER_TASK:
            yield WriteMembers(marshal.dumps(some), -1)
            some, members, size, packed = [], 0, 0, 0
    if some:
        yield WriteMembers(marshal.dumps(some), -1)


class PieceFrameTasks:
    """Returns, one after the other, the tasks that make the frames of a compressed archive. The frames are numbered in
    the order of the archive.

    One task makes a frame of one piece, or of one part of a large file.
    """

    def __init__(self, rank: Rank, offsets: array[int]) -> None:
        self._rank = rank
        self._pieces = zip(
            offsets,
            archive_pieces_of_records(rank.shared_instance(MembersToLayOut).members.sorted(), spans_directories=True),
            strict=True,
        )
        self._chunks: Iterator[WriteChunk] = iter(())
        self._number = -1

    def next_task(self, result: TaskResult) -> WriteMembers | WriteChunk | None:
        """Return the task for the next frame; None after the last one."""
        self._number += 1
        if (chunk := next(self._chunks, None)) is not None:
            return chunk
        if (placed := next(self._pieces, None)) is None:
            return None
        offset, piece = placed
        first = piece.runs[0]
        if (
            piece.size <= FRAME_BYTES
            or len(piece.runs) > 1
            or not isinstance(first, bytes)
            or holds_several_members(first)
        ):
            return WriteMembers(marshal.dumps([(offset, piece.size, piece.packed_members)]), self._number)
        made = self._rank.shared_instance(PieceRecords)
        key = made.piece_key(offset, digest_of_descriptions([first])) if made.is_enabled else b""
        described = unpack_item_to_archive(first)
        self._chunks = chunk_tasks(self._rank, result, described, first, offset, number=self._number, piece=key)
        return next(self._chunks)
