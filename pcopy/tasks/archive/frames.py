"""Frames of a compressed archive. All ranks compress frames; the frames stand in the archive in the order of their
contents.

The offset of a frame is known only after the lengths of all earlier frames are known. So rank 0 creates the tasks that
make frames in the order of the archive. A rank that has made a frame reports its length to rank 0
(``ArchiveFrameNote``), gets another task, and later receives the offset of the frame. Until then it keeps the frame in
memory, or in a temporary file if it keeps many. Few frames wait at any time, so an interrupted run has written nearly
all the frames that it has made.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import BinaryIO, Protocol

from pcopy.archive.member import TAR_BLOCK_BYTES, TAR_RECORD_BYTES, rounded_up_to_multiple
from pcopy.fsio.problem import Problem
from pcopy.fsio.seekable_zstd import ZstdFrame, packed_seek_table
from pcopy.tasks.archive.archive_file import ArchiveFile
from pcopy.tasks.archive.compression import compressed_frame
from pcopy.tasks.archive.written_records import PieceRecord, PieceRecords, stop_after_write_failure
from pcopy.tasks.base.job import ArchiveOptions
from pcopy.tasks.base.kind import TaskKind, TaskWithoutDirectory
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult

FRAME_BYTES = 8 << 20
"""Bytes of a large file that form a frame. A member with more bytes is divided into several frames, which hold nothing
else.
"""
MAX_HELD_BYTES = 64 << 20
"""Bytes of frames that a rank keeps in memory until their offsets are known; further frames go to a temporary file."""
FRAME_TASKS_PER_RANK = 4
"""Number of tasks that make frames which each rank has at a time, so that it need not wait for rank 0 before the next
one.
"""


def frame_content_size(rank: Rank) -> int:
    """Return how many bytes of a large file form a frame, which is compressed by itself. If digests are computed, a
    frame holds at least one block of the signature.
    """
    return max(FRAME_BYTES, rank.options.block_size if rank.computes_digests else 0)


class FrameTaskSource(Protocol):
    """Protocol of an object that returns, one after the other, the tasks that make the frames of an archive, in the
    order of the frames.
    """

    def next_task(self, result: TaskResult) -> TaskKind | None:
        """Return the task for the next frame; None after the last one."""


class ArchiveFrameWriter:
    """The frames (parts of a compressed archive) that this rank has made and not yet written; on rank 0 also the
    offsets of all frames.

    Attributes:
      placed_frames: on rank 0, the sizes of the frames whose offsets are known, from the first one on.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._held_frames: dict[int, bytes | tuple[int, int]] = {}
        self._held_bytes = 0
        self._spool: BinaryIO | None = None
        self._unrecorded: dict[int, tuple[bytes, bytes, bytes]] = {}
        self._reported: dict[int, tuple[int, int, int]] = {}
        self._tasks: FrameTaskSource | None = None
        self.placed_frames: list[ZstdFrame] = []
        self.next_offset = 0
        """On rank 0: the offset in the archive, in bytes, at which the next frame will stand."""

    def adopt_written_frames(self, records: Iterable[PieceRecord]) -> list[PieceRecord]:
        """On rank 0: use frames that an interrupted run has written.

        A frame in ``records`` is used if it stands directly behind the frames that are placed so far, and within the
        archive. It counts as placed from now on. Return the records of the frames that are used. Raise ``Problem`` if
        the size of the archive cannot be determined.
        """
        found = []
        for record in sorted(records, key=itemgetter(3)):
            at, length, size = record[3]
            if at == self.next_offset and at + length <= self._rank.shared_instance(ArchiveFile).size:
                self.placed_frames.append(ZstdFrame(length, size))
                self.next_offset += length
                found.append(record)
        return found

    def hand_out_first_tasks(self, tasks: FrameTaskSource, result: TaskResult) -> None:
        """On rank 0: give each rank its first ``FRAME_TASKS_PER_RANK`` tasks.

        Rank 0 itself gets only one, because messages to it wait until its current task ends.
        """
        self._tasks = tasks
        for turn in range(FRAME_TASKS_PER_RANK):
            for rank in range(1 if turn else 0, self._rank.size):
                self._hand_out_task(rank, result)

    def _hand_out_task(self, rank: int, result: TaskResult) -> None:
        """Give the rank number ``rank`` the next task, if there is one left."""
        task = self._tasks.next_task(result) if self._tasks is not None else None
        if task is not None:
            result.spawn_task(task, owner=rank)

    def report_written_frame(self, number: int, result: TaskResult) -> None:
        """Report to rank 0 that the frame ``number`` need not be made, because an interrupted run has already written
        it.
        """
        result.spawn_task(ArchiveFrameNote(number, 0, 0, -1, self._rank.number), owner=0)

    def add_frame(
        self, number: int, data: bytes, record: tuple[bytes, bytes, bytes] | None, result: TaskResult
    ) -> None:
        """Compress ``data`` as the frame ``number``, keep it, and report its length to rank 0.

        ``record`` is what ``PieceRecords`` records after the frame is written, so that a resumed run need not write it
        again: the key of the piece, the part of the piece, and the digests. None: nothing. May raise ``OSError`` if the
        temporary file cannot be written.
        """
        frame = compressed_frame(data, self._rank.program_options(ArchiveOptions).compress_as)
        if self._held_bytes + len(frame) > MAX_HELD_BYTES:
            if self._spool is None:
                self._spool = self._rank.open_spool()
            self._held_frames[number] = self._spool.seek(0, 2), len(frame)
            self._spool.write(frame)
        else:
            self._held_frames[number] = frame
            self._held_bytes += len(frame)
        if record is not None:
            self._unrecorded[number] = record
        result.spawn_task(ArchiveFrameNote(number, len(frame), len(data), -1, self._rank.number), owner=0)

    def write_held_frame(self, note: ArchiveFrameNote) -> None:
        """Write a frame that this rank has kept into the archive. The ``note`` from rank 0 contains its number and
        offset. Raise ``Problem`` if that fails.
        """
        frame = self._held_frames.pop(note.number)
        if isinstance(frame, tuple):
            assert self._spool is not None
            self._spool.seek(frame[0])
            frame = self._spool.read(frame[1])
        else:
            self._held_bytes -= len(frame)
        self._rank.shared_instance(ArchiveFile).write(frame, note.offset)
        if (record := self._unrecorded.pop(note.number, None)) is not None:
            self._rank.shared_instance(PieceRecords).add_record(*record, (note.offset, note.compressed, note.size))

    def handle_frame_report(self, note: ArchiveFrameNote, result: TaskResult) -> None:
        """On rank 0: handle the message ``note`` of a rank that has made a frame. Give that rank another task, and send
        all offsets that are known by now to the ranks that have these frames.
        """
        self._hand_out_task(note.maker, result)
        if note.compressed:
            self._reported[note.number] = note.compressed, note.size, note.maker
        while (known := self._reported.pop(len(self.placed_frames), None)) is not None:
            length, size, sender = known
            result.spawn_task(
                ArchiveFrameNote(len(self.placed_frames), length, size, self.next_offset, sender), owner=sender
            )
            self.placed_frames.append(ZstdFrame(length, size))
            self.next_offset += length

    def write_archive_end(self, end: int, trailer: bytes) -> None:
        """Write the end of the archive on rank 0, after all frames were written.

        The end consists of the two blocks of zeros of tar, the ``trailer`` (a list of incomplete files), and for zstd
        the seek table. Raise ``Problem`` if that fails.

        Args:
            end: bytes of all members before compression.
        """
        archive, method = (
            self._rank.shared_instance(ArchiveFile),
            self._rank.program_options(ArchiveOptions).compress_as,
        )
        last = bytes(rounded_up_to_multiple(end + 2 * TAR_BLOCK_BYTES, TAR_RECORD_BYTES) - end) + trailer
        frame = compressed_frame(last, method)
        self.placed_frames.append(ZstdFrame(len(frame), len(last)))
        archive.write(frame + (packed_seek_table(self.placed_frames) if method == "zstd" else b""), self.next_offset)
        self.next_offset += len(frame)

    def close(self) -> None:
        """Close the temporary file."""
        if self._spool is not None:
            self._spool.close()


class ArchiveFrameNote(TaskWithoutDirectory, code=131, doing="placing parts of the archive"):
    """Message to rank 0 about a frame (a part of a compressed archive) that a rank has made, or the reply of rank 0
    with the offset of that frame.

    Fields:
      number: the number of the frame.
      compressed: its bytes in the archive; 0 if an interrupted run has already written it.
      size: the bytes of its contents.
      offset: -1 in a report to rank 0; in the reply the offset of the frame in the archive.
      maker: the rank that has made the frame.
    """

    number: int
    compressed: int
    size: int
    offset: int
    maker: int

    def run(self, rank: Rank, result: TaskResult) -> None:
        frames = rank.shared_instance(ArchiveFrameWriter)
        if self.offset < 0:
            frames.handle_frame_report(self, result)
            return
        try:
            frames.write_held_frame(self)
        except Problem as problem:
            stop_after_write_failure(rank, problem)
