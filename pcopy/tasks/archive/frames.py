"""Frames of a compressed archive: all ranks make them, and they stand in the order of what is in them.

Rank 0 deals out the tasks that make them, in that order. Whoever has made a frame tells it how long that is
(``FrameNote``), gets another task, and hears where the frame belongs once the lengths of all before it are known. A
rank holds some frames in memory meanwhile, and puts more of them into a spool. Few frames wait so at any time, and an
interrupted run leaves nearly all that it has made.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import BinaryIO, Protocol

from pcopy.archive.member import BLOCK, RECORD, filled_up
from pcopy.fsio.problem import Problem
from pcopy.fsio.seekable_zstd import Frame, seek_table
from pcopy.tasks.archive.archive_file import ArchiveFile
from pcopy.tasks.archive.compression import compressed
from pcopy.tasks.archive.made import PieceRecords, Record, stop_writing
from pcopy.tasks.base.kind import Kind, Note
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result

FRAME_BYTES = 8 << 20
"""Bytes of a large file that make a frame; a member that is larger makes frames of its own."""
MOST_HELD = 64 << 20
"""Bytes of frames that a rank holds in memory; what is more waits in a spool."""
AHEAD = 4
"""Frames that a rank is to make at a time: the next ones are with it before it has to ask."""


def frame_chunk(rank: Rank) -> int:
    """Bytes of a large file that make a frame: whole blocks of the signature."""
    return max(FRAME_BYTES, rank.options.block_size if rank.digests else 0)


class FrameTasks(Protocol):
    """What makes the frames of an archive, in their order."""

    def next(self, result: Result) -> Kind | None:
        """None after the last one."""


class Frames:
    """Those that this rank has made, and that wait; on rank 0 also where all belong."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._held: dict[int, bytes | tuple[int, int]] = {}
        self._held_bytes = 0
        self._spool: BinaryIO | None = None
        self._unrecorded: dict[int, tuple[bytes, bytes, bytes]] = {}
        self._told: dict[int, tuple[int, int, int]] = {}
        self._tasks: FrameTasks | None = None
        self.placed: list[Frame] = []
        self.at = 0
        """Where the next frame belongs."""

    def follow(self, records: Iterable[Record]) -> list[Record]:
        """On rank 0: some of these frames, which an interrupted run has left, stand right behind what is placed. They
        count as placed from now on, and are returned. Raises ``Problem``."""
        found = []
        for record in sorted(records, key=itemgetter(3)):
            at, length, size = record[3]
            if at == self.at and at + length <= self._rank.own(ArchiveFile).size:
                self.placed.append(Frame(length, size))
                self.at += length
                found.append(record)
        return found

    def deal(self, tasks: FrameTasks, result: Result) -> None:
        """On rank 0: each rank gets its first ones. Notes of this one wait behind what it has got."""
        self._tasks = tasks
        for turn in range(AHEAD):
            for rank in range(1 if turn else 0, self._rank.size):
                self._deal_to(rank, result)

    def _deal_to(self, rank: int, result: Result) -> None:
        task = self._tasks.next(result) if self._tasks is not None else None
        if task is not None:
            result.spawn(task, owner=rank)

    def is_there(self, number: int, result: Result) -> None:
        """An interrupted run has left the frame ``number``."""
        result.spawn(FrameNote(number, 0, 0, -1, self._rank.number), owner=0)

    def hand_over(self, number: int, data: bytes, record: tuple[bytes, bytes, bytes] | None, result: Result) -> None:
        """The frame ``number`` holds ``data``; ``record`` that once it is written, if there is one. May raise
        ``OSError`` from a spool."""
        frame = compressed(data, self._rank.options.compress_as)
        if self._held_bytes + len(frame) > MOST_HELD:
            if self._spool is None:
                self._spool = self._rank.open_spool()
            self._held[number] = self._spool.seek(0, 2), len(frame)
            self._spool.write(frame)
        else:
            self._held[number] = frame
            self._held_bytes += len(frame)
        if record is not None:
            self._unrecorded[number] = record
        result.spawn(FrameNote(number, len(frame), len(data), -1, self._rank.number), owner=0)

    def write(self, note: FrameNote) -> None:
        """Raises ``Problem``."""
        frame = self._held.pop(note.number)
        if isinstance(frame, tuple):
            assert self._spool is not None
            self._spool.seek(frame[0])
            frame = self._spool.read(frame[1])
        else:
            self._held_bytes -= len(frame)
        self._rank.own(ArchiveFile).write(frame, note.offset)
        if (record := self._unrecorded.pop(note.number, None)) is not None:
            self._rank.own(PieceRecords).add(*record, (note.offset, note.compressed, note.size))

    def told(self, note: FrameNote, result: Result) -> None:
        """On rank 0: all frames whose place is known by now are told it."""
        self._deal_to(note.teller, result)
        if note.compressed:
            self._told[note.number] = note.compressed, note.size, note.teller
        while (told := self._told.pop(len(self.placed), None)) is not None:
            length, size, teller = told
            result.spawn(FrameNote(len(self.placed), length, size, self.at, teller), owner=teller)
            self.placed.append(Frame(length, size))
            self.at += length

    def end(self, end: int, trailer: bytes) -> None:
        """On rank 0, when all are written, ``end`` bytes of members: what ends an archive follows, and the ``trailer``.

        Raises ``Problem``.
        """
        archive, how = self._rank.own(ArchiveFile), self._rank.options.compress_as
        last = bytes(filled_up(end + 2 * BLOCK, RECORD) - end) + trailer
        frame = compressed(last, how)
        self.placed.append(Frame(len(frame), len(last)))
        archive.write(frame + (seek_table(self.placed) if how == "zstd" else b""), self.at)
        self.at += len(frame)

    def close(self) -> None:
        if self._spool is not None:
            self._spool.close()


class FrameNote(Note, code=131, doing="placing parts of the archive"):
    """The frame ``number`` has ``compressed`` bytes, which hold ``size``; 0 if an interrupted run has left it. Without
    an ``offset`` (-1) the rank ``teller`` tells rank 0; else it is told where the frame belongs."""

    number: int
    compressed: int
    size: int
    offset: int
    teller: int

    def run(self, rank: Rank, result: Result) -> None:
        frames = rank.own(Frames)
        if self.offset < 0:
            frames.told(self, result)
            return
        try:
            frames.write(self)
        except Problem as problem:
            stop_writing(rank, problem)
