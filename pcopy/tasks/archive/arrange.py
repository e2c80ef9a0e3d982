"""Where each member goes: owners of directories tell rank 0 how large their pieces are, and it tells where these begin.

Rank 0 sorts pieces by the key of their first member, which is the order of the archive. It holds one record a piece, in
a spool if they are many.
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
"""Bytes between two offsets of the index, at least."""

AT_ONCE = 1024
"""Pieces that are told at once."""


class TellPieces(Note, code=134, doing="laying out members", is_note=False):
    """Each rank tells rank 0 of its pieces."""

    def run(self, rank: Rank, result: Result) -> Steps:
        found = pieces(rank.own(Laid).members.sorted(), across=bool(rank.options.compress_as))
        while some := list(islice(found, AT_ONCE)):
            sizes = array("Q", [piece.size for piece in some]).tobytes()
            digests = b"".join(digest_of(map(opened, piece.values)) for piece in some) if rank.options.resumes else b""
            keys = marshal.dumps([piece.key for piece in some])
            result.spawn(PiecesNote(rank.number, keys, sizes, digests), owner=0)
            yield None


class PiecesNote(Note, code=135, doing="noting pieces"):
    """Of the rank ``teller``: the keys of their first members, packed, their sizes, 8 bytes each, and if an interrupted
    run may have left some of them, the digests of what is in them."""

    teller: int
    keys: bytes
    sizes: bytes
    digests: bytes

    def run(self, rank: Rank, result: Result) -> None:
        layout = rank.own(Placement)
        owner, size = self.teller.to_bytes(4, "big"), len(self.digests) // (len(self.sizes) // 8)
        for number, (key, length) in enumerate(zip(marshal.loads(self.keys), array("Q", self.sizes), strict=True)):
            digest = self.digests[number * size : (number + 1) * size]
            layout.found.add(key, owner + length.to_bytes(8, "big") + digest)


class Placement:
    """On rank 0: all pieces, and where members may be found later."""

    def __init__(self, rank: Rank) -> None:
        self.found = ExternalSorter(rank.open_spool)
        self.size = 0
        """Of the archive; of a compressed one, before that."""
        self.end = 0
        """Where the last member ends."""
        self.points = array("Q")
        """Offsets of members, some of all: the index holds them."""
        self._apart = POINTS_APART
        self.there: tuple[int, int] | None = None
        """If the job goes on: how many pieces an interrupted run has left, and of how many."""

    def add_point(self, offset: int) -> None:
        """Add the offset of a member, greater than all before, unless it is close to the last one.

        Readers of an index accept ``MOST_POINTS`` offsets: in larger archives these are further apart.
        """
        if self.points and offset - self.points[-1] < self._apart:
            return
        if len(self.points) == MOST_POINTS:
            self.points = self.points[::2]
            self._apart *= 2
        self.points.append(offset)

    def close(self) -> None:
        self.found.close()


class PlacePieces(Note, code=136, doing="laying out the archive", is_note=False):
    """Rank 0 tells each rank where its pieces begin, in the order in which it has told of them; makes the file."""

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
    """Raises ``Problem``."""
    archive = rank.own(ArchiveFile)
    if archive.make(go_on=rank.options.resumes):
        _go_on(rank, layout)
    elif rank.options.resumes or archive.has_replaced:
        rank.own(PieceRecords).remove()


def _set_end(rank: Rank, layout: Placement) -> None:
    """Raises ``Problem``."""
    archive = rank.own(ArchiveFile)
    archive.end_at(layout.size)
    if rank.own(PieceRecords).goes_on:
        archive.clear(layout.end, layout.size - layout.end)


def _go_on(rank: Rank, layout: Placement) -> None:
    """Counts on what an interrupted run has left; raises ``Problem``."""
    made = rank.own(PieceRecords)

    def pieces_there() -> Iterator[tuple[bytes, int]]:
        """Their keys, and where they end before they are compressed."""
        at = 0
        for _, value in layout.found.sorted():
            key, at = made.key(at, value[12:]), at + int.from_bytes(value[4:12], "big")
            yield key, at

    if not rank.options.compress_as:
        size = status_of(rank.own(ArchiveFile).descriptor).st_size  # somebody may have cut it off
        layout.there = made.begin(key if end <= size else b"" for key, end in pieces_there())
        return
    frames = rank.own(Frames)
    layout.there = made.begin((key for key, _ in pieces_there()), frames.follow)
    rank.own(ArchiveFile).end_at(frames.at)


class OffsetsNote(Kind, code=137, doing="beginning to write members", is_note=False):
    """Where the next pieces of this rank begin, 8 bytes each; ``last`` if that was all: then they are written."""

    offsets: bytes
    last: bool

    def about(self) -> None:
        return None

    def run(self, rank: Rank, result: Result) -> None:
        own = rank.own(Offsets).known
        own.extend(array("Q", self.offsets))
        if self.last and rank.options.compress_as and not rank.options.dry_run:
            rank.own(Frames).deal(TasksOfFrames(rank, own), result)
        elif self.last:
            cost = PIECE_BYTES // 4 + PIECE_MEMBERS * CALL_COST // 4
            result.spawn_each(_writes(rank, own), cost, expands=False)


class Offsets:
    """Where this rank's pieces begin, in order."""

    def __init__(self, rank: Rank) -> None:
        self.known = array("Q")


def _writes(rank: Rank, offsets: array[int]) -> Iterator[WriteMembers]:
    """A task writes several small pieces, or tells of them if nothing is to be made."""
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
    """Of a compressed archive, whose frames are numbered: a task makes one of a piece, or of a part of a large file."""

    def __init__(self, rank: Rank, offsets: array[int]) -> None:
        self._rank = rank
        self._pieces = zip(offsets, pieces(rank.own(Laid).members.sorted(), across=True), strict=True)
        self._chunks: Iterator[WriteChunk] = iter(())
        self._number = -1

    def next(self, result: Result) -> WriteMembers | WriteChunk | None:
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
