"""The contents of an archive, whether it is compressed or not, from any offset.

A compressed archive is read at many places at once, and so it has to tell where its parts are: by the table of zstd's
seekable format, or for gzip by the index beside it. Others are one stream (``pcopy.tasks.archive.one_stream``).
"""

from __future__ import annotations

import errno
import os
import stat
import zlib
from collections import OrderedDict
from contextlib import suppress
from functools import partial

from pcopy.archive.index import LARGEST_COMPRESSED, MOST_MEMBERS, SUFFIX, Index, unpacked
from pcopy.errors import Refused
from pcopy.fsio.named_file import NotTrusted, open_to_read
from pcopy.fsio.patience import patiently
from pcopy.fsio.problem import Plain, Problem, changed, failing
from pcopy.fsio.seekable_zstd import LARGEST_FRAME, SeekTable, read_frame
from pcopy.fsio.source import status_of
from pcopy.tasks.archive.one_stream import compressed_by, reason_of
from pcopy.text import for_shell, shown

_FED = 64 << 10
"""Bytes that are decompressed at once: what stands behind the end of a member is copied."""
KEPT = 3
"""Parts that are kept as they were unpacked: members of a directory stand beside each other."""


class OneStream(Refused):
    """An archive that ``program`` has written can be read from its beginning to its end only; ``why``."""

    def __init__(self, text: str, program: str, why: str) -> None:
        super().__init__(text)
        self.program, self.why = program, why


class ArchiveContents:
    """Of an archive that is open; raises ``Problem``, ``OneStream`` for one that gzip or zstd has compressed so, and
    ``Refused`` for one that is compressed in another way."""

    def __init__(self, descriptor: int, path: bytes, tar: str = "tar -x") -> None:
        """``tar``: the command that does the same behind the program that decompresses."""
        self._tar = tar
        self.descriptor = descriptor
        self._path = path
        self._table: SeekTable | None = None
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._read = set[int]()
        """The numbers of the parts that were read."""
        self._damaged = dict[int, Plain]()
        """Those of which the contents cannot be had."""
        program = compressed_by(self._pread(0, 6))
        self._is_gzip = program == "gzip"
        self._size = size = status_of(descriptor, on_source=True).st_size
        if program == "zstd":
            self._table = SeekTable.read(descriptor, size)
            if self._table is None:
                raise self._refusal("zstd", "it has no seek table")
        elif self._is_gzip:
            self._table = self._from_index()
        elif program:
            raise Refused(self._way(program, "ptar reads zstd and gzip"))

    @property
    def is_plain(self) -> bool:
        """Do offsets mean bytes of the file?"""
        return self._table is None

    @property
    def size(self) -> int:
        """Bytes of the archive; of a compressed one, decompressed."""
        return self._size if self._table is None else self._table.size

    def read(self, offset: int, size: int) -> bytes:
        """As ``pcopy.archive.reader.Read``. Of what cannot be read to its end it returns the beginning: only who reads
        from there is told."""
        table = self._table
        if table is None:
            return self._pread(offset, size)
        data = b""
        for number in table.frames_of(offset, size):
            begin = table.contents_at[number]
            try:
                frame = self._frame(table, number)
            except Problem:
                if data:
                    break
                raise
            data += frame[max(0, offset - begin) : offset + size - begin]
        return data

    def check(self, offset: int, size: int) -> None:
        """Raise ``Problem`` if the archive ends before the end of these bytes, or the parts that hold them are damaged.

        Each part is read once. In an archive that is not compressed, nothing is read.
        """
        table = self._table
        if size and offset + size > self.size:
            raise changed("read", "the archive ends here, in the middle")
        if table is not None:
            for number in table.frames_of(offset, size):
                if number not in self._read:
                    self._frame(table, number)

    def _frame(self, table: SeekTable, number: int) -> bytes:
        """The contents of a part, which is read again only if other parts were read since. Raises ``Problem``."""
        frame = self._kept.get(number)
        if frame is None:
            if number in self._damaged:
                raise Problem.from_plain(self._damaged[number])
            try:
                frame = self._gunzipped(table, number) if self._is_gzip else read_frame(self.descriptor, table, number)
            except Problem as problem:
                if problem.errno == errno.EBADMSG:
                    self._damaged[number] = problem.plain
                raise
            self._kept[number] = frame
            self._read.add(number)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return frame

    def _gunzipped(self, table: SeekTable, number: int) -> bytes:
        at, size = table.at[number], table.contents_at[number + 1] - table.contents_at[number]
        packed = self._pread(at, table.at[number + 1] - at)
        try:
            data, is_whole = _all_members(packed, size)
        except zlib.error as error:
            raise _damaged(at, reason_of(error)) from error
        if len(data) != size or not is_whole:
            raise _damaged(at, "it does not hold as many bytes as the index says")
        return data

    def _pread(self, offset: int, size: int) -> bytes:
        with failing("read", on_source=True):
            data = patiently(partial(os.pread, self.descriptor, size, offset))
        with suppress(OSError):
            while (
                data and len(data) < size and (more := os.pread(self.descriptor, size - len(data), offset + len(data)))
            ):
                data += more
        return data

    def index(self) -> Index | None:
        """The one beside it, if there is one; raises ``ValueError`` if it does not fit, and ``Problem``."""
        status = status_of(self.descriptor, on_source=True)
        try:
            beside = open_to_read(self._path + SUFFIX, regular=True).descriptor
        except NotTrusted as error:
            raise ValueError(error.strerror) from None
        except OSError:
            return None
        try:
            told = os.fstat(beside)
            if not stat.S_ISREG(told.st_mode):
                raise ValueError("it is no regular file")
            if told.st_uid not in (status.st_uid, os.geteuid(), 0):  # anybody may make one in a directory like /tmp
                raise ValueError("it belongs to somebody else than the archive")
            with open(beside, "rb", closefd=False) as stream:
                contents = self._table.size if self._table else None if self._is_gzip else status.st_size
                return unpacked(stream, status.st_size, status.st_mtime_ns, contents)
        except OSError as error:
            raise ValueError(error.strerror) from None
        finally:
            os.close(beside)

    def _from_index(self) -> SeekTable:
        try:
            index = self.index()
        except ValueError as error:
            raise self._refusal("gzip", f"its index {shown(self._path + SUFFIX)} is not used: {error}") from None
        if index is None or not len(index.frames):
            raise self._refusal("gzip", "there is no index beside it that tells where its parts are")
        if any(compressed > LARGEST_COMPRESSED or size > LARGEST_FRAME for compressed, size in index.frames):
            raise self._refusal("gzip", "its parts are too large")
        return SeekTable.of(index.frames)

    def _refusal(self, program: str, why: str) -> OneStream:
        return OneStream(self._way(program, why), program, why)

    def _way(self, program: str, why: str) -> str:
        way = f"{program} -dc {for_shell(self._path)} | {self._tar}"
        return f"{shown(self._path)}: cannot be read at many places at once: {why}; write {way}"


def _all_members(packed: bytes, size: int) -> tuple[bytes, bool]:
    """Return up to ``size`` + 1 bytes of contents of members of gzip, and whether ``packed`` is nothing but these.

    Raises ``zlib.error``.
    """
    data, at = bytearray(), 0
    for _ in range(MOST_MEMBERS):
        unzip = zlib.decompressobj(wbits=31)
        while at < len(packed) and not unzip.eof and len(data) <= size:
            piece = packed[at : at + _FED]
            data += unzip.decompress(piece, size + 1 - len(data))
            at += len(piece) - len(unzip.unused_data) - len(unzip.unconsumed_tail)
        if not unzip.eof or at == len(packed) or len(data) > size:
            return bytes(data), unzip.eof and at == len(packed)
    return bytes(data), False


def _damaged(at: int, why: str) -> Problem:
    text = f"the part that begins at byte {at} is damaged: {why}"
    return Problem("decompress", errno.EBADMSG, on_source=True, text=text)
