"""Frames of a compressed archive: all ranks compress them, and they stand in the archive in the order of their
contents.

The offset of a frame is known only after the lengths of all earlier frames are known. So rank 0 hands out the tasks
that make frames in the order of the archive. A rank that has made a frame reports its length to rank 0 (``FrameNote``),
gets another task, and later receives the offset of the frame. Until then it holds the frame in memory, or in a spool if
it holds many. Few frames wait at any time, so an interrupted run has written nearly all the frames that it has made.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import BinaryIO, Protocol

from pcopy.archive.member import BLOCK, RECORD, rounded_up
from pcopy.fsio.problem import Problem
from pcopy.fsio.seekable_zstd import Frame, packed_seek_table
from pcopy.tasks.archive.archive_file import ArchiveFile
from pcopy.tasks.archive.compression import compressed_frame
from pcopy.tasks.archive.written_records import PieceRecord, PieceRecords, stop_writing
from pcopy.tasks.base.kind import Note, TaskKind
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult

FRAME_BYTES = 8 << 20
"""Bytes of a large file that form a frame; members that are larger form frames of their own."""
MAX_HELD_BYTES = 64 << 20
"""Bytes of frames that a rank holds in memory; further ones go to a spool."""
TASKS_AHEAD = 4
"""Number of tasks that make frames which a rank has at a time, so that it need not wait for the next one."""


def frame_chunk_size(rank: Rank) -> int:
    """Return the bytes of a large file that form a frame: a multiple of the block size of the signature."""
    return max(FRAME_BYTES, rank.options.block_size if rank.has_digests else 0)


class FrameTasks(Protocol):
    """Interface of a generator of the tasks that make the frames of an archive, in the order of the frames."""

    def next_task(self, result: TaskResult) -> TaskKind | None:
        """Return the task for the next frame; None after the last one."""


class FrameWriter:
    """The frames that this rank has made and not yet written; on rank 0 also the offsets of all frames.

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
        self._tasks: FrameTasks | None = None
        self.placed_frames: list[Frame] = []
        self.next_offset = 0
        """The offset of the next frame that is placed."""

    def take_up_written(self, records: Iterable[PieceRecord]) -> list[PieceRecord]:
        """Take up frames that an interrupted run has written, on rank 0.

        Those of ``records`` are taken whose frames stand directly behind the frames that are placed so far, and within
        the archive. They count as placed from now on, and are returned. Raise ``Problem`` if the size of the archive
        cannot be determined.
        """
        found = []
        for record in sorted(records, key=itemgetter(3)):
            at, length, size = record[3]
            if at == self.next_offset and at + length <= self._rank.instance(ArchiveFile).size:
                self.placed_frames.append(Frame(length, size))
                self.next_offset += length
                found.append(record)
        return found

    def hand_out_first_tasks(self, tasks: FrameTasks, result: TaskResult) -> None:
        """Give each rank its first ``AHEAD`` tasks, on rank 0.

        Rank 0 itself gets one only: notes to it wait until its current task ends.
        """
        self._tasks = tasks
        for turn in range(TASKS_AHEAD):
            for rank in range(1 if turn else 0, self._rank.size):
                self._hand_out_task(rank, result)

    def _hand_out_task(self, rank: int, result: TaskResult) -> None:
        """Give the rank number ``rank`` the next task, if there is one."""
        task = self._tasks.next_task(result) if self._tasks is not None else None
        if task is not None:
            result.spawn(task, owner=rank)

    def report_written(self, number: int, result: TaskResult) -> None:
        """Report to rank 0 that an interrupted run has already written the frame ``number``."""
        result.spawn(FrameNote(number, 0, 0, -1, self._rank.number), owner=0)

    def add_frame(
        self, number: int, data: bytes, record: tuple[bytes, bytes, bytes] | None, result: TaskResult
    ) -> None:
        """Compress ``data`` as the frame ``number``, hold it, and report its length to rank 0.

        ``record`` is recorded (``PieceRecords.add``) after the frame is written, unless it is None. May raise
        ``OSError`` if the spool cannot be written.
        """
        frame = compressed_frame(data, self._rank.options.compress_as)
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
        result.spawn(FrameNote(number, len(frame), len(data), -1, self._rank.number), owner=0)

    def write_frame(self, note: FrameNote) -> None:
        """Write the frame whose offset the ``note`` from rank 0 contains. Raise ``Problem`` if that fails."""
        frame = self._held_frames.pop(note.number)
        if isinstance(frame, tuple):
            assert self._spool is not None
            self._spool.seek(frame[0])
            frame = self._spool.read(frame[1])
        else:
            self._held_bytes -= len(frame)
        self._rank.instance(ArchiveFile).write(frame, note.offset)
        if (record := self._unrecorded.pop(note.number, None)) is not None:
            self._rank.instance(PieceRecords).add_record(*record, (note.offset, note.compressed, note.size))

    def handle_report(self, note: FrameNote, result: TaskResult) -> None:
        """Handle a report to rank 0: send all offsets that are known by now to the ranks that hold these frames."""
        self._hand_out_task(note.maker, result)
        if note.compressed:
            self._reported[note.number] = note.compressed, note.size, note.maker
        while (known := self._reported.pop(len(self.placed_frames), None)) is not None:
            length, size, sender = known
            result.spawn(FrameNote(len(self.placed_frames), length, size, self.next_offset, sender), owner=sender)
            self.placed_frames.append(Frame(length, size))
            self.next_offset += length

    def write_archive_end(self, end: int, trailer: bytes) -> None:
        """Write the end of the archive on rank 0, after all frames were written.

        It consists of the two blocks of zeros of tar, the ``trailer``, and the seek table for zstd. Raise ``Problem``
        if that fails.

        Args:
          end: bytes of all members before compression.
        """
        archive, method = self._rank.instance(ArchiveFile), self._rank.options.compress_as
        last = bytes(rounded_up(end + 2 * BLOCK, RECORD) - end) + trailer
        frame = compressed_frame(last, method)
        self.placed_frames.append(Frame(len(frame), len(last)))
        archive.write(frame + (packed_seek_table(self.placed_frames) if method == "zstd" else b""), self.next_offset)
        self.next_offset += len(frame)

    def close(self) -> None:
        """Close the spool."""
        if self._spool is not None:
            self._spool.close()


class FrameNote(Note, code=131, doing="placing parts of the archive"):
    """Report to rank 0 about a frame, or the answer of rank 0.

    Fields:
      number: the number of the frame.
      compressed: its bytes in the archive; 0 if an interrupted run has already written it.
      size: the bytes of its contents.
      offset: -1 in a report to rank 0; in the answer the offset of the frame in the archive.
      maker: the rank that has made the frame.
    """

    number: int
    compressed: int
    size: int
    offset: int
    maker: int

    def run(self, rank: Rank, result: TaskResult) -> None:
        frames = rank.instance(FrameWriter)
        if self.offset < 0:
            frames.handle_report(self, result)
            return
        try:
            frames.write_frame(self)
        except Problem as problem:
            stop_writing(rank, problem)
