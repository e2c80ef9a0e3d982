"""Frames of a compressed archive: they are made in any order, and stand in the order of what is in them.

Whoever has made a frame tells rank 0 how long it is (``FrameNote``), and hears where it belongs once the lengths of all
frames before it are known. A rank holds some frames in memory meanwhile, and puts more of them into a spool.
"""

from __future__ import annotations

from typing import BinaryIO

from pcopy.archive.member import BLOCK, RECORD, filled_up
from pcopy.errors import Refused
from pcopy.fsio.problem import Problem
from pcopy.fsio.seekable_zstd import Frame, compress_frame, seek_table
from pcopy.tasks.archive.archive_file import ArchiveFile
from pcopy.tasks.base.kind import Note
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result

FRAME_BYTES = 8 << 20
"""Bytes of a large file that make a frame; a member that is larger makes frames of its own."""
LARGEST_BLOCK = 32 << 20
"""Bytes of a block of the signature that a frame can hold."""
MOST_HELD = 64 << 20
"""Bytes of frames that a rank holds in memory; what is more waits in a spool."""
LEVELS = {"zstd": 3, "gzip": 6}
"""As the programs of these names have them."""


def compressed(data: bytes, how: str) -> bytes:
    """One frame, which depends on ``data`` only; raises ``ImportError`` where the library is not there."""
    if how == "zstd":
        return compress_frame(data, LEVELS[how])
    import gzip

    return gzip.compress(data, LEVELS[how], mtime=0)


def frame_chunk(rank: Rank) -> int:
    """Bytes of a large file that make a frame: whole blocks of the signature."""
    return max(FRAME_BYTES, rank.options.block_size if rank.digests else 0)


class Frames:
    """Those that this rank has made, and that wait; on rank 0 also where all belong."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._held: dict[int, bytes | tuple[int, int]] = {}
        self._held_bytes = 0
        self._spool: BinaryIO | None = None
        self._told: dict[int, tuple[int, int, int]] = {}
        self.placed: list[Frame] = []
        self.at = 0
        """Where the next frame belongs."""

    def hand_over(self, number: int, data: bytes, result: Result) -> None:
        """The frame ``number`` holds ``data``; may raise ``OSError`` from a spool."""
        frame = compressed(data, self._rank.options.compress_as)
        if self._held_bytes + len(frame) > MOST_HELD:
            if self._spool is None:
                self._spool = self._rank.open_spool()
            self._held[number] = self._spool.seek(0, 2), len(frame)
            self._spool.write(frame)
        else:
            self._held[number] = frame
            self._held_bytes += len(frame)
        result.spawn(FrameNote(number, len(frame), len(data), -1, self._rank.number), owner=0)

    def write(self, number: int, offset: int) -> None:
        """Raises ``Problem``."""
        frame = self._held.pop(number)
        if isinstance(frame, tuple):
            assert self._spool is not None
            self._spool.seek(frame[0])
            frame = self._spool.read(frame[1])
        else:
            self._held_bytes -= len(frame)
        self._rank.own(ArchiveFile).write(frame, offset)

    def told(self, note: FrameNote, result: Result) -> None:
        """On rank 0: all frames whose place is known by now are told it."""
        self._told[note.number] = note.compressed, note.size, note.teller
        while (told := self._told.pop(len(self.placed), None)) is not None:
            length, size, teller = told
            result.spawn(FrameNote(len(self.placed), length, size, self.at, teller), owner=teller)
            self.placed.append(Frame(length, size))
            self.at += length

    def end(self, end: int) -> None:
        """On rank 0, when all are written, ``end`` bytes of members: what ends an archive follows. Raises
        ``Problem``."""
        archive, how = self._rank.own(ArchiveFile), self._rank.options.compress_as
        zeros = bytes(filled_up(end + 2 * BLOCK, RECORD) - end)
        frame = compressed(zeros, how)
        self.placed.append(Frame(len(frame), len(zeros)))
        archive.write(frame + (seek_table(self.placed) if how == "zstd" else b""), self.at)
        self.at += len(frame)

    def close(self) -> None:
        if self._spool is not None:
            self._spool.close()


class FrameNote(Note, code=131, doing="placing parts of the archive"):
    """The frame ``number`` has ``compressed`` bytes, which hold ``size``. Without an ``offset`` (-1) the rank
    ``teller`` tells rank 0; else it is told where the frame belongs."""

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
            frames.write(self.number, self.offset)
        except Problem as problem:
            rank.stop(f"the archive cannot be written: {problem.operation}: {problem.strerror}")


def check_compression(how: str, block_size: int) -> None:
    """Raises ``Refused`` for what frames cannot hold, and ``ImportError`` if the library is not there."""
    if how and block_size > LARGEST_BLOCK:
        raise Refused("--block-size: blocks of up to 32M go with a compressed archive")
    if how == "zstd":
        import zstandard  # noqa: F401 (is it there?)
