"""Conversion of batches about members of tar archives (``pcopy.fsio.backend.member_batches``) to C structures for the C
backend.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable
from struct import Struct
from typing import Any

from pcopy.fsio.backend import _native
from pcopy.fsio.backend.batches import MEMBER_ROW_FORMAT, FileOperationBatch
from pcopy.fsio.backend.columns import CREATION_COLUMNS, BatchOutcomeColumns, column_of_zeros
from pcopy.fsio.backend.interface import BackendSettings
from pcopy.fsio.backend.member_batches import (
    UNPACKED_DIRECTORY_COLUMNS,
    DescribeMembersBatch,
    DescribeMembersResult,
    ReadTarMembersBatch,
    ReadTarMembersResult,
    UnpackDirectoriesBatch,
    UnpackDirectoriesResult,
)
from pcopy.fsio.backend.native_batches import (
    OWNER_STRUCT,
    NativeBatch,
    mark_deferred_rows_for_slow_path,
    native_batch_flags,
    raise_unexpected_deferral,
)
from pcopy.fsio.backend.native_walk import NativeWalkBatch
from pcopy.fsio.close import is_mtime_set_on_close
from pcopy.fsio.preserve import CAP_CHOWN, CAP_DAC_OVERRIDE, has_capability

_ffi, _lib = _native.ffi, _native.lib

_RUN_STRUCT = Struct("=i5IQ")
"""Format of the C structure ``pk_run`` (native/backend.h): a row of a ``ReadTarMembersBatch``."""


class NativeDescribeMembersBatch(NativeWalkBatch[DescribeMembersResult]):
    """A batch that describes subtrees as members of an archive (``DescribeMembersBatch``), as a C structure."""

    def __init__(self, settings: BackendSettings, batch: DescribeMembersBatch) -> None:
        super().__init__(_lib.PK_DESCRIBE, batch, DescribeMembersResult)
        self._path_prefix = _ffi.new("char[]", batch.path_prefix)
        self._piece_limits = batch.members_per_piece, batch.bytes_per_piece
        tree, to = self.tree, self.batch
        tree.max_file_bytes, tree.user = batch.max_file_bytes, os.geteuid()
        tree.flags = (_lib.PK_POWERFUL if batch.reads_all else 0) | (_lib.PK_APART if batch.is_apart else 0)
        to.flags, to.prefixes = native_batch_flags(settings), self._path_prefix
        owners = b"".join([OWNER_STRUCT.pack(*ids, 0, b"") for ids in batch.owners])
        to.owners, to.owners_number = self.column_pointer("pk_owner[]", owners), len(batch.owners)

    def fill_in_batch_result(self) -> None:
        super().fill_in_batch_result()
        result, text_size = self.walk_result, _ffi.new("size_t *")
        number = _lib.pk_size_of_described(self.batch, text_size)
        members, text = _ffi.new("pk_member[]", number), _ffi.new("char[]", text_size[0])
        pieces = _ffi.new("pk_piece[]", number)
        _lib.pk_copy_described(self.batch, members, text)
        divided = _lib.pk_divide_described(self.batch, members, text, pieces, *self._piece_limits)
        result.rows, result.names = _ffi.buffer(members)[:], _ffi.buffer(text)[:]
        result.packed_pieces = _ffi.buffer(pieces, divided * _ffi.sizeof("pk_piece"))[:]


class NativeReadTarMembersBatch(NativeBatch):
    """A batch that reads members of an archive (``ReadTarMembersBatch``), as a C structure."""

    def __init__(self, batch: ReadTarMembersBatch) -> None:
        rows = b"".join([rows for *_, rows in batch.runs])
        codes = bytearray(len(rows) // MEMBER_ROW_FORMAT.size)
        result = ReadTarMembersResult(BatchOutcomeColumns(len(batch)), codes)
        super().__init__(_lib.PK_MEMBERS, batch, result, raise_unexpected_deferral)
        names = b"".join([names for _, _, _, names, _ in batch.runs])
        runs, prefixes, offsets = bytearray(), bytearray(), array("Q", [0])
        first = names_at = 0
        for directory, number, prefix, some, packed in batch.runs:
            if some.count(b"\0") != number or len(packed) != number * MEMBER_ROW_FORMAT.size or some[-1:] not in b"\0":
                raise ValueError("there is not one name for each member")
            others_may = _can_others_write(directory)
            runs += _RUN_STRUCT.pack(directory, first, number, len(prefixes), len(prefix), others_may, names_at)
            prefixes += prefix
            first, names_at = first + number, names_at + len(some)
            offsets.append(offsets[-1] + sum(_bytes_in_archive(packed)))
        if offsets[-1] > len(batch.buffer):
            raise ValueError("the buffer is too small for all members")
        to = self.batch
        owners = b"".join([OWNER_STRUCT.pack(*ids, total, end) for ids, (end, total) in batch.owner_fields.items()])
        to.owners, to.owners_number = self.column_pointer("pk_owner[]", owners), len(batch.owner_fields)
        to.members = self.column_pointer("pk_member[]", rows)
        to.runs = self.column_pointer("pk_run[]", runs)
        to.paths = self.column_pointer("char[]", names)
        to.prefixes = self.column_pointer("char[]", prefixes or b"\0")
        to.pax = self.column_pointer("uint8_t[512]", batch.pax_header)
        to.arena = self.column_pointer("uint8_t[]", batch.buffer)
        to.offsets = self.column_pointer("uint64_t[]", offsets)
        to.outcomes = self.column_pointer("uint8_t[]", codes)

    def fill_in_batch_result(self) -> None:
        mark_deferred_rows_for_slow_path(self.result.verdicts.codes)


class NativeUnpackDirectoriesBatch(NativeBatch):
    """A batch that unpacks directories and the small files in them (``UnpackDirectoriesBatch``), as a C structure."""

    def __init__(self, settings: BackendSettings, batch: UnpackDirectoriesBatch) -> None:
        number, files = len(batch.flags), len(batch.offsets)
        # The batch has one row. C stores the outcomes of files in the columns of the verdicts, too.
        self._unpack_result = UnpackDirectoriesResult(BatchOutcomeColumns(max(1, files)))
        super().__init__(_lib.PK_UNPACK, batch, self._unpack_result, raise_unexpected_deferral)
        to = self.batch
        self.set_column_pointers(to.wanted, batch.directories, UNPACKED_DIRECTORY_COLUMNS, number)
        self.set_column_pointers(to.given, batch.files, CREATION_COLUMNS, files)
        if sum(batch.directories.links) != files:
            raise ValueError("the directories do not have as many files as the batch")
        for packed, count in ((batch.packed_paths, number), (batch.packed_names, files)):
            if packed.count(b"\0") != count or packed[-1:] not in b"\0":
                raise ValueError("there is not one path for each directory, and one name for each file")
        if max(map(int.__add__, batch.offsets, batch.files.size), default=0) > len(batch.contents):
            raise ValueError("the contents of a file end outside the buffer")
        to.rows, to.finished, to.umask = 1, number, settings.umask
        to.plans = self.column_pointer("uint8_t[]", batch.flags)
        to.prefixes = self.column_pointer("char[]", batch.packed_paths)
        to.paths = self.column_pointer("char[]", batch.packed_names)
        to.arena = self.column_pointer("uint8_t[]", batch.contents)
        to.offsets = self.column_pointer("uint64_t[]", batch.offsets)
        self._codes = bytearray(number + files)
        to.outcomes = self.column_pointer("uint8_t[]", self._codes)
        self._unpack_result.unprepared = column_of_zeros("Q", number)
        to.made = self.column_pointer("uint64_t[]", self._unpack_result.unprepared)
        to.flags = native_batch_flags(settings)
        to.flags |= 0 if has_capability(CAP_CHOWN) else _lib.PK_EXCUSED
        to.flags |= _lib.PK_LATE if is_mtime_set_on_close.get(batch.device) else 0
        to.tree = self._tree = _ffi.new("pk_tree *")
        self._tree.target_device, self._tree.user = batch.device, os.geteuid()
        self._tree.flags = _lib.PK_POWERFUL if has_capability(CAP_DAC_OVERRIDE) else 0
        self._tree.deadline = max(0, int(batch.deadline * 1e9))

    def fill_in_batch_result(self) -> None:
        number = self.batch.finished
        self._unpack_result.directory_codes = bytes(self._codes[:number])
        self._unpack_result.file_codes = bytes(self._codes[number:])


def _can_others_write(directory: int) -> bool:
    """Return True if another user may create or replace names in the open ``directory``, or if that cannot be found
    out.
    """
    try:
        status = os.fstat(directory)
    except OSError:
        return True
    return status.st_uid != os.geteuid() or bool(status.st_mode & 0o022)


def _bytes_in_archive(packed: bytes) -> Iterable[int]:
    """Return the bytes in the archive of each member in ``packed`` (``MEMBER_ROW_FORMAT``)."""
    unit = MEMBER_ROW_FORMAT.size // 4
    return memoryview(packed).cast("I")[unit - 1 :: unit]


def native_member_batch(settings: BackendSettings, batch: FileOperationBatch[Any]) -> NativeBatch:
    """Return an object that has a batch about members of an archive as a C structure, and its result."""
    if isinstance(batch, DescribeMembersBatch):
        return NativeDescribeMembersBatch(settings, batch)
    if isinstance(batch, UnpackDirectoriesBatch):
        return NativeUnpackDirectoriesBatch(settings, batch)
    assert isinstance(batch, ReadTarMembersBatch)
    return NativeReadTarMembersBatch(batch)
