"""Writing of pieces into the archive (a piece: consecutive members that one task writes). The contents of large files
are left to ``WriteChunk``.

The offsets of all members were computed from the sizes that the scan found. If a file has changed since, as many bytes
are written as its header states, with zeros for what is missing, and the file is reported as failed. So the archive is
well-formed in any case.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterator, Sequence

from pcopy.archive.headers import member_header, stored_content_size
from pcopy.archive.member import FILE, rounded_up_to_multiple
from pcopy.fsio.problem import Problem
from pcopy.tasks.archive.archive_file import ArchiveFile
from pcopy.tasks.archive.descriptions import size_of_record_in_archive, unpack_item_to_archive
from pcopy.tasks.archive.forecast import preview_archived_members
from pcopy.tasks.archive.frames import ArchiveFrameWriter
from pcopy.tasks.archive.piece_writer import (
    ArchivedSimpleFiles,
    PieceAtOffset,
    PieceMemberReader,
    parent_place_without_inode,
)
from pcopy.tasks.archive.tree_members import unpack_members
from pcopy.tasks.archive.write_chunks import spawn_chunks
from pcopy.tasks.archive.written_records import PieceRecords, digest_of_descriptions, stop_after_write_failure
from pcopy.tasks.base.kind import TaskKind, TaskSteps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import Place

WRITE_SIZE = 1 << 20
"""Bytes that are collected before they are written with one system call."""


class WriteMembers(TaskKind, code=138, doing="writing members", is_note=False):
    """Task that writes some pieces (consecutive members) into the archive.

    ``pieces`` is packed: for each piece its offset in the archive, its size in bytes, and its members as values of
    records (``ItemToArchive``, ``SimpleFiles`` or ``TreeMembers``). In a compressed archive a task has only one piece,
    which becomes the frame ``number``; otherwise ``number`` is -1.
    """

    pieces: bytes
    number: int

    def subject(self) -> tuple[Place, bytes]:
        first = unpack_members(marshal.loads(self.pieces)[0][2][0])
        described = unpack_item_to_archive(first) if isinstance(first, bytes) else first.file_description_in_row(0)
        return parent_place_without_inode(described), described.name

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        writer = PieceMemberReader(rank, result)
        packed: list[tuple[int, int, list[bytes]]] = marshal.loads(self.pieces)
        pieces = [
            PieceAtOffset(offset, size, [unpack_members(value) for value in values]) for offset, size, values in packed
        ]
        try:
            if rank.options.dry_run:
                preview_archived_members(writer, pieces)
            else:
                yield from self._write_missing_pieces(rank, result, writer, pieces)
        except Problem as problem:
            stop_after_write_failure(rank, problem)
            return
        writer.report_counts()

    def _write_missing_pieces(
        self, rank: Rank, result: TaskResult, writer: PieceMemberReader, pieces: Sequence[PieceAtOffset]
    ) -> TaskSteps:
        """Write those ``pieces`` that an interrupted run has not written, and count the members of all pieces.
        ``writer`` reads the files. Raise ``Problem`` if that fails.
        """
        missing = [*self._pieces_to_write(rank, result, writer, pieces)]
        simple = yield from writer.read_simple_files(piece for piece, _ in missing)
        writes = self._write_piece if self.number < 0 else self._compress_piece
        for piece, key in missing:
            yield from writes(rank, result, writer, piece, key, simple)
        if self.number >= 0 and not missing:
            rank.shared_instance(ArchiveFrameWriter).report_written_frame(self.number, result)

    def _compress_piece(
        self,
        rank: Rank,
        result: TaskResult,
        writer: PieceMemberReader,
        piece: PieceAtOffset,
        key: bytes,
        simple: Iterator[ArchivedSimpleFiles],
    ) -> TaskSteps:
        """Read the members of ``piece``, and pass them to the ``ArchiveFrameWriter`` as one frame of a compressed
        archive.

        Args:
            writer: reads the files.
            key: the key of the piece; empty if no progress is recorded.
            simple: yields the simple files of the piece, which were read before.
        """
        writer.digests = []
        members = list[bytes | memoryview]()
        for run in piece.runs:
            if isinstance(run, bytes):
                members += writer.member_header_and_contents(unpack_item_to_archive(run))
            else:
                written = next(simple)
                writer.digests += written.digests
                members.append(written.data)
            yield None
        data = b"".join(members)
        piece.check_final_size(rank, len(data))
        digests = writer.all_digests
        record = (key, b"", digests) if key and digests is not None else None
        rank.shared_instance(ArchiveFrameWriter).add_frame(self.number, data, record, result)

    def _pieces_to_write(
        self, rank: Rank, result: TaskResult, writer: PieceMemberReader, pieces: Sequence[PieceAtOffset]
    ) -> Iterator[tuple[PieceAtOffset, bytes]]:
        """Generator: yield those of ``pieces`` that must be written, each with its key (empty if no progress is
        recorded). Count the members of the others, which an interrupted run has written. ``writer`` counts them.
        """
        made = rank.shared_instance(PieceRecords)
        for piece in pieces:
            key = made.piece_key(piece.offset, digest_of_descriptions(piece.runs)) if made.is_enabled else b""
            digests = (
                made.digests_of_written_part(key, b"", writer.expected_size_of_digests(piece.runs))
                if made.has_earlier_records
                else None
            )
            if digests is None:
                yield piece, key
            else:
                self._count_written_piece(rank, result, writer, piece, key, digests)

    def _count_written_piece(
        self,
        rank: Rank,
        result: TaskResult,
        writer: PieceMemberReader,
        piece: PieceAtOffset,
        key: bytes,
        digests: bytes,
    ) -> None:
        """Count the members of a ``piece`` that an interrupted run has written. The contents of large files are left to
        other tasks.

        Args:
            key: the key of the piece; empty if no progress is recorded.
            digests: the recorded digests of its small files, one behind the other.
        """
        at, rest = piece.offset, memoryview(digests)
        unit = rank.job_item_hasher.algorithm.digest_size if rank.computes_digests else 0
        for run in piece.runs:
            if not isinstance(run, bytes):
                writer.count_simple_files_written_earlier(
                    run, [bytes(rest[unit * row : unit * (row + 1)]) for row in range(len(run))]
                )
                at, rest = at + run.offsets[-1], rest[unit * len(run) :]
                continue
            described = unpack_item_to_archive(run)
            member = described.member
            if writer.is_large_member(member):
                spawn_chunks(rank, result, described, run, at + len(member_header(member)), piece=key)
            elif member.kind == FILE and member.size:
                writer.count_archived_file(described, bytes(rest[:unit]))
                rest = rest[unit:]
            else:
                writer.count_member_without_contents(described)
            at += size_of_record_in_archive(run)

    def _write_piece(
        self,
        rank: Rank,
        result: TaskResult,
        writer: PieceMemberReader,
        piece: PieceAtOffset,
        key: bytes,
        simple: Iterator[ArchivedSimpleFiles],
    ) -> TaskSteps:
        """Read the members of ``piece``, and write them into an archive that is not compressed.

        Args:
            writer: reads the files.
            key: the key of the piece; empty if no progress is recorded.
            simple: yields the simple files of the piece, which were read before.
        """
        archive, made = rank.shared_instance(ArchiveFile), rank.shared_instance(PieceRecords)
        writer.digests = []
        gathered: list[bytes | memoryview] = []
        start = at = piece.offset
        for run in piece.runs:
            if not isinstance(run, bytes):
                written = next(simple)
                writer.digests += written.digests
                parts: Sequence[bytes | memoryview] = [written.data]
            else:
                described = unpack_item_to_archive(run)
                member = described.member
                if writer.is_large_member(member):
                    header = member_header(member)
                    at += len(header)
                    spawn_chunks(rank, result, described, run, at, piece=key)
                    archive.write_parts([*gathered, header], start)
                    end, gathered = at + stored_content_size(member), []
                    start = at = at + rounded_up_to_multiple(stored_content_size(member))
                    if made.has_earlier_records and at > end:
                        archive.write(bytes(at - end), end)
                    continue
                parts = writer.member_header_and_contents(described)
            gathered += parts
            at += sum(map(len, parts))
            if at - start >= WRITE_SIZE:
                archive.write_parts(gathered, start)
                gathered, start = [], at
                yield None
        archive.write_parts(gathered, start)
        piece.check_final_size(rank, at - piece.offset)
        if made.is_enabled and (digests := writer.all_digests) is not None:
            made.add_record(key, b"", digests)
