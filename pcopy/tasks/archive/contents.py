"""Random access to the contents of an archive, whether it is compressed or not.

A compressed archive can be read at any offset only if the offsets of its frames (parts that are compressed by
themselves) are known: for zstd from the seek table at its end, for gzip from the index, a file next to the archive.
Other compressed archives are one stream, which can only be read from its start (``pcopy.tasks.archive.one_stream``).
"""

from __future__ import annotations

import errno
import os
import stat
import zlib
from collections import OrderedDict
from contextlib import suppress
from functools import partial

from pcopy.archive.index import (
    INDEX_SUFFIX,
    MAX_COMPRESSED_PART_BYTES,
    MAX_GZIP_MEMBERS_IN_PART,
    ArchiveIndex,
    read_index,
)
from pcopy.archive.member import TAR_BLOCK_BYTES
from pcopy.errors import RequestRefused
from pcopy.fsio.named_file import UntrustedFileError, open_named_file_to_read
from pcopy.fsio.problem import PackedProblem, Problem, errors_as_problem, source_changed_problem
from pcopy.fsio.retries import call_with_retries
from pcopy.fsio.seekable_zstd import MAX_FRAME_SIZE, SeekTable, read_frame
from pcopy.fsio.source import status_of_open_item
from pcopy.tasks.archive.one_stream import compression_program_name, zlib_error_reason
from pcopy.text import printable_path, shell_quoted

_GUNZIP_INPUT_BYTES = 64 << 10
"""Bytes that are passed to zlib in one call. zlib copies what follows the end of a gzip member, so a large number would
cost time.
"""
MAX_CACHED_FRAMES = 3
"""Number of decompressed frames that stay in memory. The members of one directory stand close together in the archive,
so most of them are in the same few frames.
"""


class ArchiveNotSeekable(RequestRefused):
    """Refusal of a compressed archive that can only be read from its start to its end.

    Attributes: ``program`` is the program that has compressed the archive ("gzip" or "zstd"), ``why`` the reason why it
    cannot be read at any offset.
    """

    def __init__(self, text: str, program: str, why: str) -> None:
        """Initialise the exception with the message ``text`` for the user."""
        super().__init__(text)
        self.program, self.why = program, why


class ArchiveContents:
    """The contents of an open archive, decompressed if necessary."""

    def __init__(self, descriptor: int, path: bytes, tar: str = "tar -x") -> None:
        """Determine how the archive ``path``, open as ``descriptor``, is compressed.

        Raise ``ArchiveNotSeekable`` if gzip or zstd has compressed it as one stream, ``RequestRefused`` if another
        program has compressed it, and ``Problem`` if it cannot be read.

        Args:
            tar: command that reads the decompressed archive from a pipe, for the message of ``ArchiveNotSeekable``.
        """
        self._tar = tar
        self.descriptor = descriptor
        self._path = path
        self._table: SeekTable | None = None
        self._cached_frames: OrderedDict[int, bytes] = OrderedDict()
        self._read_frames = set[int]()
        """Numbers of the frames that were read completely, and so are not damaged."""
        self._damaged_frames = dict[int, PackedProblem]()
        """Errors of the damaged frames, by frame number, so that none is read again."""
        program = compression_program_name(self._read_file_range(0, TAR_BLOCK_BYTES))
        self._is_gzip = program == "gzip"
        self._size = size = status_of_open_item(descriptor, on_source=True).st_size
        if program == "zstd":
            self._table = SeekTable.read(descriptor, size)
            if self._table is None:
                raise self._not_seekable_error("zstd", "it has no seek table")
        elif self._is_gzip:
            self._table = self._seek_table_from_index()
        elif program:
            raise RequestRefused(self._advice_to_read_by_pipe(program, "ptar reads zstd and gzip"))

    @property
    def is_uncompressed(self) -> bool:
        """True if the archive is not compressed, so that offsets in its contents are offsets in its file."""
        return self._table is None

    @property
    def size(self) -> int:
        """Bytes of the contents: of a compressed archive after decompression."""
        return self._size if self._table is None else self._table.content_size

    def read(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes of the contents from ``offset`` on; fewer at the end of the archive
        (``pcopy.archive.reader.ReadFunction``).

        If a frame after the first one is damaged, only the bytes before it are returned. Raise ``Problem`` if the first
        frame cannot be read.
        """
        table = self._table
        if table is None:
            return self._read_file_range(offset, size)
        data = b""
        for number in table.frames_for_range(offset, size):
            begin = table.content_offsets[number]
            try:
                frame = self._frame_contents(table, number)
            except Problem:
                if data:
                    break
                raise
            data += frame[max(0, offset - begin) : offset + size - begin]
        return data

    def check_range_is_readable(self, offset: int, size: int) -> None:
        """Raise ``Problem`` if the archive ends within these bytes of its contents, or if a frame that holds any of
        them is damaged.

        Each frame is read only once. Nothing is read of an archive that is not compressed.
        """
        table = self._table
        if size and offset + size > self.size:
            raise source_changed_problem("read", "the archive ends here, within a member")
        if table is not None:
            for number in table.frames_for_range(offset, size):
                if number not in self._read_frames:
                    self._frame_contents(table, number)

    def _frame_contents(self, table: SeekTable, number: int) -> bytes:
        """Return the decompressed contents of the frame ``number``; they stay in memory until ``MAX_CACHED_FRAMES``
        other frames were read.

        ``table`` lists the offsets of all frames. Raise ``Problem`` if the frame cannot be read or is damaged.
        """
        frame = self._cached_frames.get(number)
        if frame is None:
            if number in self._damaged_frames:
                raise Problem.from_packed_tuple(self._damaged_frames[number])
            try:
                frame = (
                    self._gunzip_frame(table, number) if self._is_gzip else read_frame(self.descriptor, table, number)
                )
            except Problem as problem:
                if problem.errno == errno.EBADMSG:
                    self._damaged_frames[number] = problem.problem_as_tuple
                raise
            self._cached_frames[number] = frame
            self._read_frames.add(number)
            if len(self._cached_frames) > MAX_CACHED_FRAMES:
                self._cached_frames.popitem(last=False)
        return frame

    def _gunzip_frame(self, table: SeekTable, number: int) -> bytes:
        """Return the contents of the frame ``number`` of a gzip archive, which consists of one or more members of gzip.
        ``table`` lists the offsets of all frames. Raise ``Problem`` if the frame is damaged.
        """
        at, size = table.offsets[number], table.content_offsets[number + 1] - table.content_offsets[number]
        packed = self._read_file_range(at, table.offsets[number + 1] - at)
        try:
            data, is_whole = _decompress_gzip_members(packed, size)
        except zlib.error as error:
            raise _damaged_frame_problem(at, zlib_error_reason(error)) from error
        if len(data) != size or not is_whole:
            raise _damaged_frame_problem(at, "it does not hold as many bytes as the index says")
        return data

    def _read_file_range(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes of the file from ``offset`` on; fewer at its end, or before an error. Raise ``Problem``
        if nothing can be read.
        """
        with errors_as_problem("read", on_source=True):
            data = call_with_retries(partial(os.pread, self.descriptor, size, offset))
        with suppress(OSError):  # the bytes before the error are returned; the next call raises it
            while (
                data and len(data) < size and (more := os.pread(self.descriptor, size - len(data), offset + len(data)))
            ):
                data += more
        return data

    def read_index(self) -> ArchiveIndex | None:
        """Return the index, a file next to the archive that lists offsets of members and sizes of frames; None if there
        is none.

        Raise ``ValueError`` if the index is not trusted or does not belong to this archive, and ``Problem`` if the
        archive cannot be examined.
        """
        status = status_of_open_item(self.descriptor, on_source=True)
        try:
            descriptor = open_named_file_to_read(self._path + INDEX_SUFFIX, regular=True).descriptor
        except UntrustedFileError as error:
            raise ValueError(error.strerror) from None
        except OSError:
            return None
        try:
            index_status = os.fstat(descriptor)
            if not stat.S_ISREG(index_status.st_mode):
                raise ValueError("it is not a regular file")
            # In a directory like /tmp, any user could have created the file with the name of the index.
            if index_status.st_uid not in (status.st_uid, os.geteuid(), 0):
                raise ValueError("its owner must be you, root or the owner of the archive")
            with open(descriptor, "rb", closefd=False) as stream:
                contents = self._table.content_size if self._table else None if self._is_gzip else status.st_size
                return read_index(stream, status.st_size, status.st_mtime_ns, contents)
        except OSError as error:
            raise ValueError(error.strerror) from None
        finally:
            os.close(descriptor)

    def _seek_table_from_index(self) -> SeekTable:
        """Return a seek table with the frames that the index lists. Raise ``ArchiveNotSeekable`` if there is no
        usable index.
        """
        try:
            index = self.read_index()
        except ValueError as error:
            raise self._not_seekable_error(
                "gzip", f"its index {printable_path(self._path + INDEX_SUFFIX)} is not used: {error}"
            ) from None
        if index is None or not len(index.frames):
            raise self._not_seekable_error("gzip", "the archive has no index file that says where its parts are")
        if any(compressed > MAX_COMPRESSED_PART_BYTES or size > MAX_FRAME_SIZE for compressed, size in index.frames):
            raise self._not_seekable_error(
                "gzip", f"its parts are too large: at most {MAX_FRAME_SIZE:,} bytes of contents are allowed"
            )
        return SeekTable.from_frame_sizes(index.frames)

    def _not_seekable_error(self, program: str, why: str) -> ArchiveNotSeekable:
        """Return the exception for an archive that ``program`` has compressed as one stream. ``why`` is the reason why
        it cannot be read at any offset.
        """
        return ArchiveNotSeekable(self._advice_to_read_by_pipe(program, why), program, why)

    def _advice_to_read_by_pipe(self, program: str, why: str) -> str:
        """Return the message that says why an archive which ``program`` has compressed cannot be read, and how to read
        it by a pipe instead. ``why`` is the reason.
        """
        way = f"{program} -dc {shell_quoted(self._path)} | {self._tar}"
        return f"{printable_path(self._path)}: cannot be read at several offsets at once: {why}; use: {way}"


def _decompress_gzip_members(packed: bytes, size: int) -> tuple[bytes, bool]:
    """Decompress the members of gzip in ``packed``, but at most ``size`` + 1 bytes of contents. (One byte more than
    ``size``, the number that the index states, shows that the index is wrong.)

    Return these bytes, and True if ``packed`` consists of complete members of gzip and of nothing else. Raise
    ``zlib.error`` if the data are damaged.
    """
    data, at = bytearray(), 0
    for _ in range(MAX_GZIP_MEMBERS_IN_PART):
        unzip = zlib.decompressobj(wbits=31)
        while at < len(packed) and not unzip.eof and len(data) <= size:
            piece = packed[at : at + _GUNZIP_INPUT_BYTES]
            data += unzip.decompress(piece, size + 1 - len(data))
            at += len(piece) - len(unzip.unused_data) - len(unzip.unconsumed_tail)
        if not unzip.eof or at == len(packed) or len(data) > size:
            return bytes(data), unzip.eof and at == len(packed)
    return bytes(data), False


def _damaged_frame_problem(at: int, why: str) -> Problem:
    """Return the error for a damaged frame that begins at the offset ``at`` of the file. ``why`` is the reason."""
    text = f"the part that begins at byte {at} is damaged: {why}"
    return Problem("decompress", errno.EBADMSG, on_source=True, text=text)
