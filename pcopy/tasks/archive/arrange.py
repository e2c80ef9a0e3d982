"""Layout of an archive: the offset of each piece, which rank 0 computes from the sizes that all ranks report.

Each rank owns the members of some directories, and divides them into pieces. Rank 0 sorts all pieces by the key of
their first member, which is the order of the archive, and sends the offsets back. It holds one record for each piece,
and spills them to a spool if they are many.
"""

from __future__ import annotations

import marshal
from array import array
from collections.abc import Iterator
from itertools import islice

from pcopy.archive.index import MOST_POINTS
from pcopy.archive.member import BLOCK, RECORD, filled_up
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of
from pcopy.signature.sorting import ExternalSorter
from pcopy.tasks.archive.archive_file import ArchiveFile, stop
from pcopy.tasks.archive.described import described_in
from pcopy.tasks.archive.frames import FRAME_BYTES, Frames
from pcopy.tasks.archive.gather import Laid
from pcopy.tasks.archive.made import PieceRecords, digest_of
from pcopy.tasks.archive.pieces import PIECE_BYTES, PIECE_MEMBERS, pieces
from pcopy.tasks.archive.plain_files import opened
from pcopy.tasks.archive.write_chunks import WriteChunk, chunks_of
from pcopy.tasks.archive.write_members import WriteMembers
from pcopy.tasks.base.kind import Kind, Note, Steps
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import Result

POINTS_APART = 1 << 20
"""Smallest distance, in bytes, between two offsets in the index."""

AT_ONCE = 1024
"""Number of pieces that one note describes."""


class TellPieces(Note, code=134, doing="laying out members", is_note=False):
    """Task of each rank: divide the members that it owns into pieces, and report these to rank 0."""

    def run(self, rank: Rank, result: Result) -> Steps:
        found = pieces(rank.own(Laid).members.sorted(), across=bool(rank.options.compress_as))
        while some := list(islice(found, AT_ONCE)):
            sizes = array("Q", [piece.size for piece in some]).tobytes()
            digests = b"".join(digest_of(map(opened, piece.values)) for piece in some) if rank.options.resumes else b""
            keys = marshal.dumps([piece.key for piece in some])
            result.spawn(PiecesNote(rank.number, keys, sizes, digests), owner=0)
            yield None


class PiecesNote(Note, code=135, doing="recording pieces"):
    """Note to rank 0 that describes some pieces of the rank ``teller``.

    Fields:
      teller: the number of the rank that sends it.
      keys: the keys of the first members, packed.
      sizes: the bytes of the pieces in the archive, 8 bytes for each.
      digests: digests of the descriptions of their members, one behind the other; empty unless an interrupted run may
          have written some pieces.
    """

    teller: int
    keys: bytes
    sizes: bytes
    digests: bytes

    def run(self, rank: Rank, result: Result) -> None:
        placement = rank.own(Placement)
        owner, digest_size = self.teller.to_bytes(4, "big"), len(self.digests) // (len(self.sizes) // 8)
        for number, (key, length) in enumerate(zip(marshal.loads(self.keys), array("Q", self.sizes), strict=True)):
            digest = self.digests[number * digest_size : (number + 1) * digest_size]
            placement.found.add(key, owner + length.to_bytes(8, "big") + digest)


class Placement:
    """The layout of the archive, on rank 0: all pieces, and the offsets of members that go into the index."""

    def __init__(self, rank: Rank) -> None:
        self.found = ExternalSorter(rank.open_spool)
        self.size = 0
        """Bytes of the archive; if it is compressed, before compression."""
        self.end = 0
        """The offset at which the last member ends."""
        self.points = array("Q")
        """Offsets of some members, in increasing order, for the index."""
        self._apart = POINTS_APART
        self.there: tuple[int, int] | None = None
        """How many pieces an interrupted run has already written, and how many there are; None if the job does not
        resume one."""

    def add_point(self, offset: int) -> None:
        """Add the ``offset`` of a member, which is greater than all earlier ones, unless it is too close to the last
        one.

        Readers accept at most ``MOST_POINTS`` offsets in an index. In a larger archive every second offset is dropped,
        and the least distance is doubled.
        """
        if self.points and offset - self.points[-1] < self._apart:
            return
        if len(self.points) == MOST_POINTS:
            self.points = self.points[::2]
            self._apart *= 2
        self.points.append(offset)

    def close(self) -> None:
        """Close the sorter and its spool."""
        self.found.close()


class PlacePieces(Note, code=136, doing="laying out the archive", is_note=False):
    """Task of rank 0: create the file, compute where each piece begins, and send each rank the offsets of its pieces.

    The offsets come in the order in which that rank has reported its pieces.
    """

    def run(self, rank: Rank, result: Result) -> Steps:
        layout = rank.own(Placement)
        try:
            if not rank.options.dry_run:
                _make(rank, layout)
        except Problem as problem:
            stop(rank, "made", problem)
            return
        offsets: list[array[int]] = [array("Q") for _ in range(rank.size)]
        at = 0
        for number, (_, value) in enumerate(layout.found.sorted()):
            owner, size = int.from_bytes(value[:4], "big"), int.from_bytes(value[4:12], "big")
            offsets[owner].append(at)
            layout.add_point(at)
            at += size
            if len(offsets[owner]) >= AT_ONCE:
                result.spawn(OffsetsNote(offsets[owner].tobytes(), False), owner=owner)
                offsets[owner] = array("Q")
            if number % AT_ONCE == AT_ONCE - 1:
                yield None
        layout.found.close()
        layout.end = at
        layout.size = filled_up(at + 2 * BLOCK, RECORD)
        try:
            if not (rank.options.compress_as or rank.options.dry_run):
                _set_end(rank, layout)
        except Problem as problem:
            stop(rank, "made", problem)
            return
        for owner, rest in enumerate(offsets):
            result.spawn(OffsetsNote(rest.tobytes(), True), owner=owner)


def _make(rank: Rank, layout: Placement) -> None:
    """Create the archive, or take up the one of an interrupted run. Raise ``Problem`` if that fails."""
    archive = rank.own(ArchiveFile)
    if archive.make(go_on=rank.options.resumes):
        _go_on(rank, layout)
    elif rank.options.resumes or archive.has_replaced:
        rank.own(PieceRecords).remove()


def _set_end(rank: Rank, layout: Placement) -> None:
    """Set the size of an archive that is not compressed, and clear the bytes behind the last member.

    Raise ``Problem`` if that fails.
    """
    archive = rank.own(ArchiveFile)
    archive.end_at(layout.size)
    if rank.own(PieceRecords).goes_on:
        archive.clear(layout.end, layout.size - layout.end)


def _go_on(rank: Rank, layout: Placement) -> None:
    """Find out which pieces an interrupted run has already written. Raise ``Problem`` if its records cannot be read."""
    made = rank.own(PieceRecords)

    def piece_keys() -> Iterator[tuple[bytes, int]]:
        """Yield the key of each piece, and the offset at which the piece ends (before compression)."""
        at = 0
        for _, value in layout.found.sorted():
            key, at = made.key(at, value[12:]), at + int.from_bytes(value[4:12], "big")
            yield key, at

    if not rank.options.compress_as:
        size = status_of(rank.own(ArchiveFile).descriptor).st_size  # it may have been truncated since
        layout.there = made.begin(key if end <= size else b"" for key, end in piece_keys())
        return
    frames = rank.own(Frames)
    layout.there = made.begin((key for key, _ in piece_keys()), frames.follow)
    rank.own(ArchiveFile).end_at(frames.at)


class OffsetsNote(Kind, code=137, doing="starting to write members", is_note=False):
    """Task that gives a rank the offsets of its next pieces, 8 bytes each.

    If ``last`` is true, the rank knows all of its offsets, and the tasks that write the pieces are spawned.
    """

    offsets: bytes
    last: bool

    def about(self) -> None:
        return None

    def run(self, rank: Rank, result: Result) -> None:
        offsets = rank.own(Offsets).known
        offsets.extend(array("Q", self.offsets))
        if self.last and rank.options.compress_as and not rank.options.dry_run:
            rank.own(Frames).deal(TasksOfFrames(rank, offsets), result)
        elif self.last:
            cost = PIECE_BYTES // 4 + PIECE_MEMBERS * CALL_COST // 4
            result.spawn_each(_writes(rank, offsets), cost, expands=False)


class Offsets:
    """The offsets of the pieces of this rank, in the order in which it has reported the pieces."""

    def __init__(self, rank: Rank) -> None:
        self.known = array("Q")
        """Offsets in bytes; complete after the last ``OffsetsNote``."""


def _writes(rank: Rank, offsets: array[int]) -> Iterator[WriteMembers]:
    """Yield the tasks that write the pieces of this rank; each task writes several pieces if they are small."""
    found = pieces(rank.own(Laid).members.sorted(), across=bool(rank.options.compress_as))
    some: list[tuple[int, int, list[bytes]]] = []
    members = size = 0
    for offset, piece in zip(offsets, found, strict=True):
        some.append((offset, piece.size, piece.values))
        members, size = members + piece.members, size + piece.size
        if members >= PIECE_MEMBERS or size >= PIECE_BYTES:
            yield WriteMembers(marshal.dumps(some), -1)
            some, members, size = [], 0, 0
    if some:
        yield WriteMembers(marshal.dumps(some), -1)


class TasksOfFrames:
    """Generator of the tasks that make the numbered frames of a compressed archive, in the order of the frames.

    One task makes a frame of one piece, or of one part of a large file.
    """

    def __init__(self, rank: Rank, offsets: array[int]) -> None:
        self._rank = rank
        self._pieces = zip(offsets, pieces(rank.own(Laid).members.sorted(), across=True), strict=True)
        self._chunks: Iterator[WriteChunk] = iter(())
        self._number = -1

    def next(self, result: Result) -> WriteMembers | WriteChunk | None:
        """Return the task for the next frame; None after the last one."""
        self._number += 1
        if (chunk := next(self._chunks, None)) is not None:
            return chunk
        if (placed := next(self._pieces, None)) is None:
            return None
        offset, piece = placed
        first = piece.runs[0]
        if piece.size <= FRAME_BYTES or len(piece.runs) > 1 or not isinstance(first, bytes):
            return WriteMembers(marshal.dumps([(offset, piece.size, piece.values)]), self._number)
        made = self._rank.own(PieceRecords)
        key = made.key(offset, digest_of([first])) if made.is_kept else b""
        described = described_in(first)
        self._chunks = chunks_of(self._rank, result, described, first, offset, number=self._number, piece=key)
        return next(self._chunks)
