"""Conversion of batches whose rows are directories to C structures for the C backend. The batches are described in
``pcopy.fsio.backend.directory_batches``.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

from pcopy.fsio.backend import _native
from pcopy.fsio.backend.batches import (
    BatchResult,
    FileOperationBatch,
    NamesInDirectoryBatch,
    SyncDirectoriesBatch,
)
from pcopy.fsio.backend.columns import (
    ALL_COLUMNS,
    LINKS_COLUMN,
    SCAN_COLUMNS,
    BatchOutcomeColumns,
    ItemStatusColumns,
    OutcomeCode,
)
from pcopy.fsio.backend.directory_batches import (
    DIRECTORY_METADATA_COLUMNS,
    IS_NEW,
    IS_TOUCHED,
    IS_UNCHANGED,
    CopiedDirectories,
    DirectoryBatchSettings,
    EnterDirectoriesBatch,
    EnterDirectoriesResult,
    FinishDirectoriesBatch,
    FinishDirectoriesResult,
    PresentDirectoryStatus,
    ReportedFiles,
)
from pcopy.fsio.backend.interface import BackendSettings
from pcopy.fsio.backend.native_batches import (
    NativeBatch,
    mark_deferred_rows_for_slow_path,
    native_batch_flags,
    raise_unexpected_deferral,
    used_bytes,
)
from pcopy.fsio.close import is_mtime_set_on_close
from pcopy.fsio.preserve import CAP_CHOWN, CAP_DAC_OVERRIDE, has_capability

_ffi, _lib = _native.ffi, _native.lib

_COLUMNS_OF_REMAINING_ITEMS = ("mode", "links", "mtime", "ctime", "inode", "size", "device")
"""Columns that C returns for the items that remain to be processed in a directory."""
_COLUMN_TYPES = {name: (typecode, array(typecode).itemsize) for name, typecode, *_ in ALL_COLUMNS}
"""Type code of ``array``, and bytes per value, of each column, by its name."""
_NO_ROWS = ItemStatusColumns(0, SCAN_COLUMNS | LINKS_COLUMN)


class NativeDirectoriesBatch(NativeBatch):
    """Base of the classes for ``EnterDirectoriesBatch`` and ``FinishDirectoriesBatch`` batches as C structures.
    Directories that C defers get the code ``SLOW_PATH``: the caller processes them.
    """

    def __init__(
        self,
        kind: int,
        settings: BackendSettings,
        batch: EnterDirectoriesBatch | FinishDirectoriesBatch,
        result: BatchResult,
        target: int,
    ) -> None:
        super().__init__(kind, batch, result, raise_unexpected_deferral)
        self._tree = _batch_settings_struct(batch.settings)
        to = self.batch
        to.target = target
        to.umask = settings.umask
        to.flags = native_batch_flags(settings)
        to.tree = self._tree
        self._tree.filter = self.filter_pointer(batch.settings.filters)

    def fill_in_batch_result(self) -> None:
        mark_deferred_rows_for_slow_path(self.result.verdicts.codes)


class NativeEnterDirectoriesBatch(NativeDirectoriesBatch):
    """A batch that opens source directories and opens or creates their targets (``EnterDirectoriesBatch``), as a C
    structure with pointers to its columns.
    """

    def __init__(self, settings: BackendSettings, batch: EnterDirectoriesBatch) -> None:
        number = len(batch)
        self._enter_result = EnterDirectoriesResult(BatchOutcomeColumns(number), None, 0, 0, 0, 0, 0, [])
        super().__init__(_lib.PK_COPY_TREE, settings, batch, self._enter_result, batch.target)
        if len(batch.inodes) != number:
            raise ValueError(f"there are {len(batch.inodes)} inodes for {number} rows: each row needs one")
        self._directories: Any = _ffi.new("pk_directory[]", number)
        self.batch.directories = self._directories
        self._tree.depth, self._tree.deadline = batch.depth, max(0, int(batch.deadline * 1e9))
        self.batch.flags |= _lib.PK_LATE if is_mtime_set_on_close.get(batch.settings.target_device) else 0
        self.batch.given.inode = self.column_pointer("uint64_t[]", batch.inodes)

    def fill_in_batch_result(self) -> None:
        super().fill_in_batch_result()
        entered, directories = self._enter_result, self._directories
        done = int(OutcomeCode.DONE)
        entered.skipped = entered.skipped_bytes = entered.excluded = entered.below = entered.changed = 0
        if OutcomeCode.FAILED in entered.verdicts.codes:
            raise MemoryError
        unfinished = []
        for row, code in enumerate(entered.verdicts.codes):
            if code != done:
                continue
            found = directories[row]
            entered.reported += _reported_files(used_bytes(found.items))
            if not found.is_finished:
                unfinished.append(found)
                continue
            entered.skipped += found.skipped
            entered.skipped_bytes += found.skipped_bytes
            entered.excluded += found.excluded
            entered.below += found.finished
            entered.changed += found.is_changed + found.changed
        entered.unfinished = _entered_directories(unfinished) if unfinished else None


class NativeFinishDirectoriesBatch(NativeDirectoriesBatch):
    """A batch that sets the final metadata of directories (``FinishDirectoriesBatch``), as a C structure with pointers
    to its columns.
    """

    def __init__(self, settings: BackendSettings, batch: FinishDirectoriesBatch) -> None:
        number, rows = len(batch.created_by_job), batch.rows
        self._finish_result = FinishDirectoriesResult(BatchOutcomeColumns(len(batch)), b"")
        super().__init__(_lib.PK_FINISH, settings, batch, self._finish_result, batch.target)
        columns = rows.mode, rows.uid, rows.gid, rows.atime, rows.mtime, rows.inode, batch.sources
        paths, mark_offsets = batch.packed_paths.split(b"\0"), _mark_offsets(batch.marks)
        if not len(paths) == len(mark_offsets) == number or any(len(column) != number for column in columns):
            raise ValueError(f"there are {len(paths)} paths for {number} directories, or another number of values")
        to, given = self.batch, self.batch.given
        given.mode, given.uid, given.gid = (self.column_pointer("uint32_t[]", column) for column in columns[:3])
        given.atime, given.mtime = (self.column_pointer("int64_t[]", column) for column in columns[3:5])
        given.inode, to.wanted.inode = (self.column_pointer("uint64_t[]", column) for column in columns[5:])
        self._codes = bytearray(number)
        to.outcomes, to.finished = self.column_pointer("uint8_t[]", self._codes), number
        to.prefixes = self.column_pointer("char[]", batch.packed_paths + b"\0")
        to.marks = self.column_pointer("uint8_t[]", batch.marks)
        to.plans = self.column_pointer("uint8_t[]", batch.created_by_job)
        path_offsets = [*accumulate((len(path) + 1 for path in paths[:-1]), initial=0)]
        portion = self._tree.most = batch.directories_per_row
        starts = zip(path_offsets[::portion], mark_offsets[::portion], strict=True)
        to.offsets = self.column_pointer("uint64_t[]", array("Q", chain.from_iterable(starts)))

    def fill_in_batch_result(self) -> None:
        super().fill_in_batch_result()
        self._finish_result.codes = bytes(self._codes)


def _mark_offsets(marks: bytes) -> list[int]:
    """Return the offset of each mark in ``marks``, where each is preceded by its length in one byte."""
    offsets, at = [], 0
    while at < len(marks):
        offsets.append(at)
        at += 1 + marks[at]
    return offsets


class NativeSyncDirectoriesBatch(NativeBatch):
    """A batch that syncs open directories (``SyncDirectoriesBatch``), as a C structure with pointers to its columns. C
    leaves none of its rows to Python.
    """

    def __init__(self, batch: SyncDirectoriesBatch) -> None:
        number = len(batch.directories)
        rows = NamesInDirectoryBatch[BatchResult](batch.directories[0], b"/" * (number - 1))
        super().__init__(_lib.PK_SYNC, rows, BatchResult(BatchOutcomeColumns(number)), raise_unexpected_deferral)
        self.batch.synced = self.column_pointer("int32_t[]", array("i", batch.directories))


def native_directory_batch(settings: BackendSettings, batch: FileOperationBatch[Any]) -> NativeBatch:
    """Return an object that has a batch, whose rows are directories, as a C structure, and its result."""
    match batch:
        case EnterDirectoriesBatch():
            return NativeEnterDirectoriesBatch(settings, batch)
        case FinishDirectoriesBatch():
            return NativeFinishDirectoriesBatch(settings, batch)
    assert isinstance(batch, SyncDirectoriesBatch)
    return NativeSyncDirectoriesBatch(batch)


def _columns_from_c(found: Any, mask: int, names: Sequence[str]) -> ItemStatusColumns:
    """Return columns of the items in one directory, copied from C's memory.

    Args:
        found: C's structure with the items, a ``pk_directory``.
        mask: bits of the columns.
        names: names of the columns.
    """
    number, columns = found.left, found.rows
    rows = ItemStatusColumns.with_unset_columns(number, mask)
    for name in names:
        typecode, size = _COLUMN_TYPES[name]
        setattr(rows, name, array(typecode, _ffi.buffer(getattr(columns, name), number * size)[:]))
    return rows


def _batch_settings_struct(common: DirectoryBatchSettings) -> Any:
    """Return the settings ``common`` of a batch of directories as the C structure ``pk_tree``."""
    chosen = (
        (common.is_parent_new, _lib.PK_IN_NEW),
        (has_capability(CAP_DAC_OVERRIDE), _lib.PK_POWERFUL),
        (common.skips_matching_files, _lib.PK_COMPARE),
        (common.excludes_hard_links, _lib.PK_LINKS),
        (common.copies_small_files, _lib.PK_COPY_NEW),
        (has_capability(CAP_CHOWN), _lib.PK_GIVING),
        (common.is_resumed, _lib.PK_RESUMED),
        (common.recognises_own_directories, _lib.PK_OWN),
        (common.returns_complete_rows, _lib.PK_KEEP_ROWS),
        (common.reports_changes, _lib.PK_REPORT),
        (common.reports_all, _lib.PK_REPORT_ALL),
        (common.finishes_by_path, _lib.PK_BY_PATH),
    )
    tree = _ffi.new("pk_tree *")
    tree.source_device, tree.target_device = common.source_device, common.target_device
    tree.shunned_device, tree.shunned_inode = common.excluded_directory
    tree.touched, tree.window, tree.most = common.changed_since, common.modify_window, common.max_names
    tree.begun = common.directories_changed_since
    tree.user = os.geteuid()
    tree.flags = sum(flag for is_so, flag in chosen if is_so)
    return tree


def _remaining_items(found: Any) -> tuple[bytes, ItemStatusColumns]:
    """Return the names (joined by slashes) and the status of the items that remain in one directory. ``found`` is C's
    structure with them, a ``pk_directory``.
    """
    if not found.left:
        return b"", _NO_ROWS
    rows = _columns_from_c(found, SCAN_COLUMNS | LINKS_COLUMN, _COLUMNS_OF_REMAINING_ITEMS)
    return _ffi.buffer(found.names, found.names_size)[:], rows


def _copied_fields(typecode: str, *fields: str) -> tuple[str, list[slice]]:
    """Return ``typecode``, and where ``fields`` of C's structure ``pk_copied`` are in an array of these structures, in
    units of this type code of ``array``. Dots separate the names of a field of a structure within it.
    """
    unit = array(typecode).itemsize
    step = _ffi.sizeof("pk_copied") // unit
    return typecode, [slice(_ffi.offsetof("pk_copied", *field.split(".")) // unit, None, step) for field in fields]


_METADATA_NUMBERS = _copied_fields("I", "metadata.mode", "metadata.uid", "metadata.gid")
_METADATA_TIMES = _copied_fields("q", "metadata.atime", "metadata.mtime")
_INODES_AND_BYTES = _copied_fields("Q", "source", "target", "copied_bytes", "skipped_bytes")
_COUNTS_AND_FLAGS = _copied_fields(
    "I", "copied", "skipped", "excluded", "subdirectories", "finished", "changed", "remaining", "flags"
)


def _copied_columns(packed: bytes, fields: tuple[str, list[slice]]) -> list[array[int]]:
    """Return ``fields`` (``_copied_fields``) of the structures ``packed`` as columns."""
    typecode, places = fields
    numbers = memoryview(packed).cast(typecode)  # type: ignore[call-overload]
    return [array(typecode, numbers[place].tobytes()) for place in places]


def _metadata_columns(packed: bytes, number: int) -> ItemStatusColumns:
    """Return the metadata of the source directories in ``number`` structures ``pk_copied``, which are ``packed``."""
    metadata = ItemStatusColumns.with_unset_columns(number, DIRECTORY_METADATA_COLUMNS)
    metadata.mode, metadata.uid, metadata.gid = _copied_columns(packed, _METADATA_NUMBERS)
    metadata.atime, metadata.mtime = _copied_columns(packed, _METADATA_TIMES)
    return metadata


def _present_status(entry: Any) -> PresentDirectoryStatus:
    """Return the status that a target directory had before the job. ``entry`` is its ``pk_copied``."""
    present = entry.present
    return PresentDirectoryStatus(present.mode, present.uid, present.gid, present.mtime, entry.present_ctime)


def _entered_directories(rows: Sequence[Any]) -> CopiedDirectories:
    """Return the directories that some rows have entered. ``rows`` are C's structures with their results
    (``pk_directory``).
    """
    packed = b"".join([used_bytes(found.copies) for found in rows])
    entries, size = _ffi.from_buffer("pk_copied[]", packed), _ffi.sizeof("pk_copied")
    sources, targets, copied_bytes, skipped_bytes = _copied_columns(packed, _INODES_AND_BYTES)
    copied, skipped, excluded, *others = _copied_columns(packed, _COUNTS_AND_FLAGS)
    subdirectories, finished, changed, remaining, flags = others
    present = {
        number: _present_status(entries[number])
        for number, flag in enumerate(flags)
        if not flag & (IS_NEW | IS_UNCHANGED | IS_TOUCHED)
    }
    contents, not_entered, start = {}, {}, 0
    for found in rows:
        end = start + found.copies.size // size
        if found.partly.size:
            partly = _ffi.cast("pk_directory *", found.partly.at)
            numbers = (number for number in range(start, end) if remaining[number])
            contents.update({number: _remaining_items(partly[at]) for at, number in enumerate(numbers)})
        if found.frontier.left:
            not_entered.update(_directories_not_entered(found.frontier, start))
        start = end
    return CopiedDirectories(
        len(rows),
        b"".join([used_bytes(found.text) for found in rows]),
        _metadata_columns(packed, len(flags)),
        sources,
        targets,
        b"".join([used_bytes(found.marks) for found in rows]),
        copied,
        copied_bytes,
        skipped,
        skipped_bytes,
        excluded,
        subdirectories,
        finished,
        changed,
        remaining,
        flags,
        present,
        contents,
        not_entered,
    )


_REPORTED = struct.Struct("=4I")
"""The fields of C's structure ``pk_reported``."""


def _reported_files(packed: bytes) -> Iterator[ReportedFiles]:
    """Yield what a row has reported of the files of each directory (``pk_reported``)."""
    at = 0
    while at < len(packed):
        files, path_size, names_size, are_copied = _REPORTED.unpack_from(packed, at)
        sizes = path_size, names_size, 8 * files, 8 * files
        ends = [*accumulate(sizes, initial=at + _REPORTED.size)]
        yield ReportedFiles(bool(are_copied), *(packed[begin:end] for begin, end in pairwise(ends)))
        at = ends[-1]


def _directories_not_entered(frontier: Any, first: int) -> dict[int, list[tuple[bytes, int, int]]]:
    """Return name, inode number and letter of each directory that a row has not entered, by the number of its parent.
    ``first`` is the number of the directory of the row.
    """
    left: dict[int, list[tuple[bytes, int, int]]] = {}
    names, letters = used_bytes(frontier.left_names).split(b"/"), used_bytes(frontier.left_kinds)
    parents, inodes = array("I", used_bytes(frontier.left_parents)), array("Q", used_bytes(frontier.left_inodes))
    for parent, name, inode, letter in zip(parents, names, inodes, letters, strict=True):
        left.setdefault(first + parent, []).append((name, inode, letter))
    return left
