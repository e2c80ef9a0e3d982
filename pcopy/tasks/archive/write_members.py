"""Writing of pieces into the archive. The contents of large files are left to ``WriteChunk``.

The layout was made from the files as they were found. If a file has changed since, as many bytes are written as its
header states, with zeros for what is missing, and the file is reported as failed. So the archive is well-formed in any
case.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterator, Sequence

from pcopy.archive.headers import header_of, stored_size
from pcopy.archive.member import FILE, filled_up
from pcopy.fsio.problem import Problem
from pcopy.tasks.archive.archive_file import ArchiveFile
from pcopy.tasks.archive.described import described_in, size_in
from pcopy.tasks.archive.foresee import foresee_archived
from pcopy.tasks.archive.frames import Frames
from pcopy.tasks.archive.made import PieceRecords, digest_of, stop_writing
from pcopy.tasks.archive.piece_writer import ArchivedPlain, PieceWriter, PlacedPiece, place_of
from pcopy.tasks.archive.plain_files import opened
from pcopy.tasks.archive.write_chunks import begin_chunks
from pcopy.tasks.base.kind import Kind, Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import Place

BUFFER = 1 << 20
"""Bytes that are collected for one write."""


class WriteMembers(Kind, code=138, doing="writing members", is_note=False):
    """Task that writes some pieces.

    ``pieces`` is packed: for each piece its offset in the archive, its size, and the values of records (``Described``
    or ``PlainFiles``). In a compressed archive a task has one piece, which becomes the frame ``number``; otherwise
    ``number`` is -1.
    """

    pieces: bytes
    number: int

    def about(self) -> tuple[Place, bytes]:
        first = opened(marshal.loads(self.pieces)[0][2][0])
        described = described_in(first) if isinstance(first, bytes) else first.described(0)
        return place_of(described), described.name

    def run(self, rank: Rank, result: Result) -> Steps:
        writer = PieceWriter(rank, result)
        packed: list[tuple[int, int, list[bytes]]] = marshal.loads(self.pieces)
        pieces = [PlacedPiece(offset, size, [opened(value) for value in values]) for offset, size, values in packed]
        try:
            if rank.options.dry_run:
                foresee_archived(writer, pieces)
            else:
                yield from self._make(rank, result, writer, pieces)
        except Problem as problem:
            stop_writing(rank, problem)
            return
        writer.end()

    def _make(self, rank: Rank, result: Result, writer: PieceWriter, pieces: Sequence[PlacedPiece]) -> Steps:
        """Write the pieces that an interrupted run has not written. Raise ``Problem`` if that fails."""
        missing = [*self._missing(rank, result, writer, pieces)]
        plain = yield from writer.plain(piece for piece, _ in missing)
        writes = self._write if self.number < 0 else self._compress
        for piece, key in missing:
            yield from writes(rank, result, writer, piece, key, plain)
        if self.number >= 0 and not missing:
            rank.own(Frames).is_there(self.number, result)

    def _compress(
        self,
        rank: Rank,
        result: Result,
        writer: PieceWriter,
        piece: PlacedPiece,
        key: bytes,
        plain: Iterator[ArchivedPlain],
    ) -> Steps:
        """Read the members of a piece, and hand them over as a frame. ``plain`` provides the simple files."""
        writer.digests = []
        members = list[bytes | memoryview]()
        for run in piece.runs:
            if isinstance(run, bytes):
                members += writer.member(described_in(run))
            else:
                written = next(plain)
                writer.digests += written.digests
                members.append(written.data)
            yield None
        data = b"".join(members)
        piece.check(rank, len(data))
        digests = writer.all_digests
        record = (key, b"", digests) if key and digests is not None else None
        rank.own(Frames).hand_over(self.number, data, record, result)

    def _missing(
        self, rank: Rank, result: Result, writer: PieceWriter, pieces: Sequence[PlacedPiece]
    ) -> Iterator[tuple[PlacedPiece, bytes]]:
        """Yield the pieces that must be written, each with its key, which is empty if nothing is recorded."""
        made = rank.own(PieceRecords)
        for piece in pieces:
            key = made.key(piece.offset, digest_of(piece.runs)) if made.is_kept else b""
            digests = made.find(key, b"", writer.digest_bytes(piece.runs)) if made.goes_on else None
            if digests is None:
                yield piece, key
            else:
                self._take(rank, result, writer, piece, key, digests)

    def _take(
        self, rank: Rank, result: Result, writer: PieceWriter, piece: PlacedPiece, key: bytes, digests: bytes
    ) -> None:
        """Count the members of a piece that an interrupted run has written; ``digests`` are those of its files."""
        at, rest = piece.offset, memoryview(digests)
        unit = rank.hashing.algorithm.size if rank.digests else 0
        for run in piece.runs:
            if not isinstance(run, bytes):
                writer.plain_are_there(run, [bytes(rest[unit * row : unit * (row + 1)]) for row in range(len(run))])
                at, rest = at + run.offsets[-1], rest[unit * len(run) :]
                continue
            described = described_in(run)
            member = described.member
            if writer.is_large(member):
                begin_chunks(rank, result, described, run, at + len(header_of(member)), piece=key)
            elif member.kind == FILE and member.size:
                writer.archived(described, bytes(rest[:unit]))
                rest = rest[unit:]
            else:
                writer.other(described)
            at += size_in(run)

    def _write(
        self,
        rank: Rank,
        result: Result,
        writer: PieceWriter,
        piece: PlacedPiece,
        key: bytes,
        plain: Iterator[ArchivedPlain],
    ) -> Steps:
        """Write a piece into an archive that is not compressed. ``plain`` provides the simple files."""
        archive, made = rank.own(ArchiveFile), rank.own(PieceRecords)
        writer.digests = []
        gathered: list[bytes | memoryview] = []
        start = at = piece.offset
        for run in piece.runs:
            if not isinstance(run, bytes):
                written = next(plain)
                writer.digests += written.digests
                parts: Sequence[bytes | memoryview] = [written.data]
            else:
                described = described_in(run)
                member = described.member
                if writer.is_large(member):
                    header = header_of(member)
                    at += len(header)
                    begin_chunks(rank, result, described, run, at, piece=key)
                    archive.write_all([*gathered, header], start)
                    end, gathered = at + stored_size(member), []
                    start = at = at + filled_up(stored_size(member))
                    if made.goes_on and at > end:
                        archive.write(bytes(at - end), end)
                    continue
                parts = writer.member(described)
            gathered += parts
            at += sum(map(len, parts))
            if at - start >= BUFFER:
                archive.write_all(gathered, start)
                gathered, start = [], at
                yield None
        archive.write_all(gathered, start)
        piece.check(rank, at - piece.offset)
        if made.is_kept and (digests := writer.all_digests) is not None:
            made.add(key, b"", digests)
