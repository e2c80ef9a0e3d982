"""Reading of small files, which become members of the pieces of an archive (a piece: consecutive members that one task
writes).

The backend reads simple files (``pcopy.tasks.archive.simple_files``) in batches; other files are read one by one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence

from pcopy.archive.headers import (
    member_header,
    pax_mtime_header_block,
    stored_content_size,
    trailing_file_header_fields,
)
from pcopy.archive.member import DIRECTORY, FILE, HARD_LINK_MEMBER, ArchiveMember, rounded_up_to_multiple
from pcopy.engine.ticket import TicketGenerator
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.columns import OutcomeCode
from pcopy.fsio.backend.interface import MAX_SMALL_FILE_BYTES
from pcopy.fsio.backend.member_batches import ReadTarMembersBatch
from pcopy.fsio.contents import contents_of_pseudo_file
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.problem import Problem, source_changed_problem
from pcopy.fsio.retries import open_with_retries
from pcopy.fsio.source import READ_FLAGS, open_source_file_to_read
from pcopy.signature.items import DIRECTORY as DIRECTORY_TYPE
from pcopy.signature.items import FILE as FILE_TYPE
from pcopy.signature.items import special_file_digest, symlink_digest, type_byte
from pcopy.tasks.archive.descriptions import ItemToArchive, check_matches_description, unpack_item_to_archive
from pcopy.tasks.archive.simple_files import SimpleFiles
from pcopy.tasks.archive.write_chunks import report_archived_item, report_incomplete_file, report_missing_metadata
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import HARD_LINK_TYPE_BYTE, ItemAction
from pcopy.tasks.base.hashing import UNKNOWN_VERSION
from pcopy.tasks.base.job import ArchiveOptions
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, ContentInfo, Place

_MAX_DIRECTORIES = 8
"""Largest number of directories from which files are read in one batch. It must be less than the number of directories
that a task keeps open (``pcopy.fsio.directories.OPEN_DIRECTORIES_PER_TASK``).
"""
_NONE = ItemIdentity(-1, -1)
_NOATIME_FLAGS = READ_FLAGS | os.O_NOATIME
"""Flags of open(2) by which a file is read without a change of its atime. Only the owner of the file may use them."""


class PieceAtOffset(NamedTuple):
    """A piece of the archive (consecutive members that one task writes), of ``size`` bytes from ``offset`` on, both
    before compression.

    ``runs`` are its members in their order. An element is either a ``SimpleFiles`` or ``TreeMembers`` object, which
    holds many members, or one packed ``ItemToArchive``.
    """

    offset: int
    size: int
    runs: list[bytes | SimpleFiles]

    def check_final_size(self, rank: Rank, size: int) -> None:
        """Stop the job unless the piece really takes as many bytes as its offset was computed for. ``size`` is the real
        number.

        A difference would be a bug in pcopy.
        """
        if size != self.size:
            rank.request_stop(f"internal error: a piece of the archive has {size:,} bytes; {self.size:,} were expected")


class ArchivedSimpleFiles(NamedTuple):
    """Simple files that were read, as they go into the archive.

    ``data`` are their headers and contents. ``digests`` are the digests of the files, or None for a file that has
    failed; empty if digests are not computed.
    """

    data: memoryview
    digests: list[bytes | None]


class PieceMemberReader:
    """Reads the files of one task that writes pieces, and counts what was archived.

    Small files are read here; large ones are left to ``WriteChunk``. ``digests`` are the digests of the files that were
    read, or None for a file that has failed.
    """

    def __init__(self, rank: Rank, result: TaskResult) -> None:
        self._rank = rank
        self._result = result
        self._reports_each = result.item_recorder.is_recording or rank.collects_signature_entries
        self._is_compressed = bool(rank.program_options(ArchiveOptions).compress_as)
        self._place = Place(-1, b"", _NONE, NO_DIRECTORY_IDENTITY, False, False)
        self._directory = -1
        self._files = self._bytes = self._links = self._moved = 0
        self.digests: list[bytes | None] = []

    def is_large_member(self, member: ArchiveMember) -> bool:
        """Return True if the contents of ``member`` are left to ``WriteChunk``.

        In a compressed archive they never are: the frame of a piece holds all contents.
        """
        is_small = self._is_compressed or (
            stored_content_size(member) <= MAX_SMALL_FILE_BYTES and member.extents is None
        )
        return member.kind == FILE and not is_small

    @property
    def all_digests(self) -> bytes | None:
        """The digests of all files, one behind the other; None if any file has failed."""
        return None if None in self.digests else b"".join(digest for digest in self.digests if digest)

    def expected_size_of_digests(self, runs: Sequence[bytes | SimpleFiles]) -> int:
        """Return how many bytes the digests of all files among the members ``runs`` take together, if no file has
        failed.
        """
        if not self._rank.computes_digests:
            return 0
        small = 0
        for run in runs:
            if isinstance(run, bytes):
                member = unpack_item_to_archive(run).member
                small += member.kind == FILE and member.size > 0 and not self.is_large_member(member)
            else:
                small += len(run)
        return small * self._rank.job_item_hasher.algorithm.digest_size

    def report_counts(self) -> None:
        """Add the numbers that this object has counted to the result of the task, and so to the counters of the job."""
        if not self._reports_each:
            self._result.count(counts.FILES, self._files)
            self._result.count(counts.BYTES, self._bytes)
            self._result.count(counts.HARDLINKS, self._links)
        self._rank.counters[counts.MOVED] += self._moved

    def member_header_and_contents(self, described: ItemToArchive) -> list[bytes]:
        """Return the header of a member, and its contents if it has any, as they go into the archive."""
        header = member_header(described.member)
        if described.member.kind == FILE and described.member.size:
            return [header, self.read_small_file(described)]
        self.count_member_without_contents(described)
        return [header]

    def read_small_file(self, described: ItemToArchive) -> bytes:
        """Return the contents of a small file, padded with zeros to a multiple of 512 bytes.

        If the file has changed or cannot be read to its end, it is reported as failed, and zeros stand for what is
        missing.
        """
        size, stored, data = described.member.size, stored_content_size(described.member), bytearray()
        try:
            self._append_file_contents(described, data)
        except Problem as problem:
            report_incomplete_file(self._result, self._place_of_parent_directory(described), described, problem)
            self.digests.append(None)
        else:
            self._moved += size
            digest = self._file_digest(described, bytes(data)) if self._rank.computes_digests else b""
            self.digests.append(digest)
            self.count_archived_file(described, digest)
        return bytes(data).ljust(rounded_up_to_multiple(stored), b"\0")

    def count_archived_file(self, described: ItemToArchive, digest: bytes) -> None:
        """Count a small file as archived, or as failed if the archive lacks some of its metadata. ``digest`` is that of
        its contents, if digests are computed.
        """
        if report_missing_metadata(self._result, self._place_of_parent_directory(described), described):
            return
        self._bytes += described.member.size
        if self._reports_each:
            self._report_archived(described, digest)
        else:
            self._files += 1

    def _file_digest(self, described: ItemToArchive, data: bytes) -> bytes:
        """Return the digest of a file. ``data`` are its contents without the holes."""
        member, hashing = described.member, self._rank.job_item_hasher
        if member.extents is None:
            return hashing.digest_of_data(data)
        hasher, at, position = hashing.new_hasher(), 0, 0
        for start, length in member.extents:
            hasher.add_zero_bytes(start - position)
            hasher.update(data[at : at + length])
            at, position = at + length, start + length
        hasher.add_zero_bytes(member.size - position)
        return hashing.digest_of_file(hasher)

    def _append_file_contents(self, described: ItemToArchive, data: bytearray) -> None:
        """Append the contents of a file to ``data``, as far as they can be read.

        Raise ``Problem`` if the file cannot be read, or has changed since it was described.
        """
        size, name = described.member.size, described.name
        self._open_directory(described)
        try:
            descriptor = open_with_retries(name, _NOATIME_FLAGS, dir_fd=self._directory)
        except OSError:
            descriptor = open_source_file_to_read(self._directory, name)
        try:
            check_matches_description(self._rank, described, descriptor)  # reading might change another item
            extents = ((0, size),) if described.member.extents is None else described.member.extents
            size = stored_content_size(described.member)
            for start, length in extents:
                if not _append_contents(descriptor, start, length, data):
                    break
            if check_matches_description(
                self._rank, described, descriptor
            ):  # a generated file (/proc) may return different data for reads of another size
                os.lseek(descriptor, 0, os.SEEK_SET)
                data[:] = contents_of_pseudo_file(descriptor, os.fstat(descriptor).st_size)
            if len(data) != size:
                del data[size:]
                raise source_changed_problem("read", "the file changed while it was archived")
        except OSError as error:
            raise Problem.from_error("read", error, on_source=True) from error
        finally:
            os.close(descriptor)

    def _open_directory(self, described: ItemToArchive) -> None:
        """Open the directory of the item ``described``, unless it is open already. Raise ``Problem`` if that fails."""
        if (described.root, described.path) != self._place.key or self._directory < 0:
            self._directory = -1
            self._directory = self._rank.sources[described.root].open(described.path)
            self._place = parent_place_without_inode(described)

    def read_simple_files(self, pieces: Iterable[PieceAtOffset]) -> TicketGenerator[Iterator[ArchivedSimpleFiles]]:
        """Read all simple files in ``pieces``; return an iterator over the headers and contents that were read, in the
        order of the files.

        The backend reads them; files that it cannot read are read one by one.
        """
        all_files = [run for piece in pieces for run in piece.runs if not isinstance(run, bytes)]
        made: list[ArchivedSimpleFiles] = []
        for start in range(0, len(all_files), _MAX_DIRECTORIES):
            some = all_files[start : start + _MAX_DIRECTORIES]
            whole = bytearray(sum(files.offsets[-1] for files in some))
            done = yield from self._read_with_backend(some, whole)
            room, at, row = memoryview(whole), 0, 0
            for files in some:
                part = room[at : (at := at + files.offsets[-1])]
                digests = self._complete_simple_files(files, part, done[row : (row := row + len(files))])
                made.append(ArchivedSimpleFiles(part, digests))
        return iter(made)

    def _complete_simple_files(
        self, files: SimpleFiles, room: memoryview, codes: bytes | bytearray
    ) -> list[bytes | None]:
        """Finish the reading of ``files`` after a call of the backend: count those that the backend has read into
        ``room``, and read the others into it, one by one. Return the digests of all; empty if they are not needed.

        Args:
            room: memory for the headers and contents of these files.
            codes: the result of the backend for each file (``OutcomeCode``).
        """
        sizes, offsets = files.sizes, files.offsets
        if not self._reports_each and codes.count(OutcomeCode.DONE) == len(files):
            self._files += files.file_count
            read = sum(sizes)
            self._bytes += read
            self._moved += read
            return []
        hashing = self._rank.job_item_hasher if self._rank.computes_digests else None
        digests: list[bytes | None] = []
        for row, code in enumerate(codes):
            start = offsets[row + 1] - rounded_up_to_multiple(sizes[row])
            if code != OutcomeCode.DONE:
                self.digests = []
                room[offsets[row] : offsets[row + 1]] = b"".join(
                    self.member_header_and_contents(files.file_description_in_row(row))
                )
                digests += self.digests if sizes[row] or hashing is None else [hashing.digest_of_data(b"")]
                continue
            digest = hashing.digest_of_data(bytes(room[start : start + sizes[row]])) if hashing is not None else b""
            digests.append(digest)
            self._moved += sizes[row]
            self._count_member(files.file_description_in_row(row), digest)
        return digests

    def _count_member(self, described: ItemToArchive, digest: bytes) -> None:
        """Count a member that is a file or a directory as archived. ``digest`` is that of a file, if digests are
        computed.
        """
        if described.member.kind == DIRECTORY:
            self.count_member_without_contents(described)
        else:
            self.count_archived_file(described, digest)

    def count_simple_files_written_earlier(self, files: SimpleFiles, digests: Sequence[bytes]) -> None:
        """Count simple files that an interrupted run has already written. ``digests`` are the recorded digests of these
        files.
        """
        if self._reports_each:
            for row, digest in enumerate(digests):
                self._count_member(files.file_description_in_row(row), digest)
            return
        self._files += files.file_count
        self._bytes += sum(files.sizes)

    def _read_with_backend(self, some: Sequence[SimpleFiles], room: bytearray) -> TicketGenerator[bytes | bytearray]:
        """Let the backend read the headers and contents of the simple files ``some`` into the memory ``room``. Return
        the result for each file (``OutcomeCode``).

        A file whose result is not ``DONE`` must be read in another way.
        """
        if self._rank.throttle.is_on:
            yield from self._rank.throttle.charge_limits_and_wait(sum(sum(files.sizes) for files in some))
        undone = bytes(sum(map(len, some)))
        if not self._rank.backend.has_directory_batches:
            return undone
        try:
            runs = [run for files in some for run in self._runs_of_batch(files)]
        except Problem:
            return undone  # each file meets the error when it is read, and reports it
        owners = {ids: trailing_file_header_fields(*names) for files in some for ids, names in files.owners.items()}
        read = yield from self._rank.execute_batch(ReadTarMembersBatch(runs, room, owners, pax_mtime_header_block()))
        return read.member_codes

    def _runs_of_batch(self, files: SimpleFiles) -> list[tuple[int, int, bytes, bytes, bytes]]:
        """Return ``files`` as rows of a batch: one row, or one for each file, so that several threads read them. Raise
        ``Problem`` if their directory cannot be opened.
        """
        directory = self._rank.sources[files.root].open(files.path)
        if self._rank.backend.runs_in_poll:
            return [(directory, len(files), files.prefix, files.zero_ended_names, files.rows)]
        parts = [files.rows_in_range(row, row + 1) for row in range(len(files))]
        return [(directory, 1, part.prefix, part.zero_ended_names, part.rows) for part in parts]

    def _place_of_parent_directory(self, described: ItemToArchive) -> Place:
        """Return the ``Place`` (position in the tree) of the directory that contains the item ``described``."""
        if (described.root, described.path) != self._place.key:
            return parent_place_without_inode(described)
        return self._place

    def count_member_without_contents(self, described: ItemToArchive) -> None:
        """Count a member that has no contents. A directory was counted when it was scanned, so only its missing
        metadata are reported.
        """
        member = described.member
        if member.kind == DIRECTORY:
            if self._rank.options.itemize:
                self._result.item_recorder.record_item_outcome(
                    ItemAction.COPY, self._place_of_parent_directory(described), described.name, DIRECTORY_TYPE
                )
            report_missing_metadata(self._result, self._place_of_parent_directory(described), described)
            return
        if member.kind == HARD_LINK_MEMBER:
            if self._reports_each:
                self._result.item_recorder.record_item_outcome(
                    ItemAction.COPY, self._place_of_parent_directory(described), described.name, HARD_LINK_TYPE_BYTE
                )
                self._result.count(counts.HARDLINKS)
            else:
                self._links += 1
            return
        if report_missing_metadata(self._result, self._place_of_parent_directory(described), described):
            return
        if member.kind == FILE:
            if self._reports_each:
                self._report_archived(
                    described, self._rank.job_item_hasher.digest_of_data(b"") if self._rank.computes_digests else b""
                )
            else:
                self._files += 1
            return
        digest = special_or_symlink_digest(self._rank, member) if self._rank.computes_digests else b""
        self._report_archived(described, digest)

    def _report_archived(self, described: ItemToArchive, digest: bytes) -> None:
        """Count and report an item as archived. ``digest`` is the digest of the item, for the signature."""
        member = described.member
        kind = FILE_TYPE if member.kind == FILE else type_byte(member.st_mode)
        report_archived_item(
            self._result,
            self._place_of_parent_directory(described),
            described,
            ContentInfo(kind, member.size, digest, UNKNOWN_VERSION),
        )


def _append_contents(descriptor: int, start: int, length: int, data: bytearray) -> bool:
    """Append ``length`` bytes of the open file, from the offset ``start`` on, to ``data``. Return False if the file
    ends before. Raise ``OSError`` if it cannot be read.
    """
    end = start + length
    while start < end and (more := os.pread(descriptor, end - start, start)):
        data += more
        start += len(more)
    return start == end


def special_or_symlink_digest(rank: Rank, member: ArchiveMember) -> bytes:
    """Return the digest of a symbolic link, FIFO or device."""
    algorithm = rank.job_item_hasher.algorithm
    if stat.S_ISLNK(member.st_mode):
        return symlink_digest(algorithm, member.link)
    return special_file_digest(algorithm, member.st_mode, member.device)


def parent_place_without_inode(described: ItemToArchive) -> Place:
    """Return the ``Place`` (position in the tree) of the directory of an item. It contains no inode number, so whatever
    directory has this path is used.
    """
    return Place(described.root, described.path, _NONE, NO_DIRECTORY_IDENTITY, False, False)
