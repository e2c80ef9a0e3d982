"""Conversion of batches to C structures for the C backend: pointers to the columns of a batch and of its result.

For each type of batch there is a class. Its objects have the result, which the C code fills in, and create the Python
object that processes the rows (items) which C defers, and stores them in the same result.
"""

from __future__ import annotations

import errno
from array import array
from collections.abc import Callable
from itertools import accumulate
from struct import Struct
from typing import Any

from pcopy.fsio.attributes import MetadataOutcome
from pcopy.fsio.backend import _native
from pcopy.fsio.backend.batches import (
    BatchFilters,
    BatchResult,
    BenchmarkCallsBatch,
    CompareXattrsBatch,
    CopySmallFilesBatch,
    CopySmallFilesResult,
    CreateSmallFilesBatch,
    CreateSmallFilesResult,
    Digests,
    FileOperationBatch,
    FindItemsWithoutXattrsBatch,
    ItemCounts,
    ReadSmallFilesBatch,
    ReadSmallFilesResult,
    RemoveItemsBatch,
    RemoveItemsResult,
    SetMetadataBatch,
    SetUniformMetadataBatch,
    SetUniformMetadataResult,
    StatNamesBatch,
    StatNamesResult,
)
from pcopy.fsio.backend.columns import (
    ALL_COLUMNS,
    CREATION_COLUMNS,
    DEVICE_COLUMN,
    GROUP_COLUMN,
    MODE_COLUMN,
    OPERATION_NAMES,
    OWNER_COLUMN,
    SIZE_COLUMN,
    VERSION_COLUMNS,
    BatchOutcomeColumns,
    IdentityMarksByRow,
    ItemStatusColumns,
    OutcomeCode,
    column_of_zeros,
)
from pcopy.fsio.backend.copy_rows import CopySmallFilesBatchProcessor
from pcopy.fsio.backend.interface import MAX_SMALL_FILE_BYTES, BackendSettings
from pcopy.fsio.backend.item_rows import (
    CompareXattrsBatchProcessor,
    ReadSmallFilesBatchProcessor,
    RemoveItemsBatchProcessor,
    StatNamesBatchProcessor,
)
from pcopy.fsio.backend.python import BatchProcessor
from pcopy.fsio.close import must_set_times_after_close
from pcopy.fsio.layout import DEFAULT_LAYOUT_RECIPE
from pcopy.fsio.preserve import CAP_CHOWN, has_capability
from pcopy.fsio.problem import EXCHANGED_TEXT, REPLACED_TEXT

_ffi, _lib = _native.ffi, _native.lib

DEFERRED_CODE = int(_lib.PK_DEFERRED)
"""Code of a row that the C code has not processed and not changed: Python has to process it, or the caller by the slow
path.
"""

PERMISSION_VALUE_COUNT = 4096
"""Number of possible values of the permission bits, with set-id and sticky bits: length of a table of new modes."""

POINTER_TYPES = {"I": "uint32_t[]", "q": "int64_t[]", "Q": "uint64_t[]"}
"""Types of the C pointers to columns, by the type code of their arrays."""
OWNER_STRUCT = Struct("=III356s")
"""Format of the C structure ``pk_owner`` (native/backend.h): part of a tar header for one owner."""
_COLUMNS = [(name, POINTER_TYPES[typecode], bit) for name, typecode, bit, _ in ALL_COLUMNS]


class NativeBatch:
    """A batch as a C structure, and its result.

    ``batch`` is a ``pk_batch`` of backend.h, with pointers to the columns. This object keeps the memory alive to which
    they point.
    """

    def __init__(self, kind: int, batch: Any, result: BatchResult, make_work: Callable[[], BatchProcessor]) -> None:
        """Fill in the fields of the C structure that all types of batches have.

        Args:
            kind: type of the batch, a constant of backend.h such as PK_COPY.
            batch: the batch.
            result: the result to fill in.
            make_work: function that returns the Python object which processes the rows that C defers.
        """
        self.batch: Any = _ffi.new("pk_batch *")
        self.result = result
        self.make_row_processor = make_work
        pointer, to, verdicts = _ffi.from_buffer, self.batch, result.verdicts
        to.kind = kind
        to.rows = self.row_count = len(verdicts.codes)
        to.directory = to.target = batch.directory
        given = to.verdicts
        given.codes = codes = pointer("uint8_t[]", verdicts.codes)
        given.operations = operations = pointer("uint8_t[]", verdicts.operations)
        given.errnos = errnos = pointer("int32_t[]", verdicts.errnos)
        given.bytes = sizes = pointer("uint64_t[]", verdicts.bytes)
        given.nanoseconds = nanoseconds = pointer("uint64_t[]", verdicts.nanoseconds)
        to.names = names = pointer("char[]", batch.names)
        to.names_size = len(batch.names)
        # cffi structures do not keep alive the buffers that they point to.
        self._kept_alive: list[Any] = [codes, operations, errnos, sizes, nanoseconds, names]

    def column_pointer(self, kind: str, buffer: Any) -> Any:
        """Return a C pointer to ``buffer``, a column, which this object keeps alive; NULL if the column is empty.
        ``kind`` is the C type, such as "uint8_t[]".
        """
        if not buffer:
            return _ffi.NULL
        pointer = _ffi.from_buffer(kind, buffer)
        self._kept_alive.append(pointer)
        return pointer

    def filter_pointer(self, filters: BatchFilters | None) -> Any:
        """Return a C pointer to the filters, which this object keeps alive; NULL if there are none."""
        if filters is None:
            return _ffi.NULL
        packed = _ffi.new("pk_filter *")
        self._kept_alive.append(packed)
        packed.rules, packed.size = self.column_pointer("uint8_t[]", filters.rules), len(filters.rules)
        packed.above = self.column_pointer("char[]", filters.above + b"\0")
        packed.after, packed.before, packed.larger, packed.smaller = filters[2:]
        return packed

    def set_column_pointers(
        self, to: Any, rows: ItemStatusColumns, needed: int = 0, row_count: int | None = None
    ) -> None:
        """Set the pointers in ``to``, a C structure ``pk_columns``, to the columns of ``rows``. Each must have
        ``row_count`` rows; if that is None, as many as the batch.

        Raise ``ValueError`` if a column has another length, or if a column in the mask ``needed`` is missing: C would
        access memory outside the columns.
        """
        number = self.row_count if row_count is None else row_count
        if needed & ~rows.mask:
            raise ValueError("a column that this batch needs is missing")
        for name, kind, bit in _COLUMNS:
            if rows.mask & bit and number:
                column: array[int] = getattr(rows, name)
                if len(column) != number:
                    raise ValueError(f"the column {name} has {len(column)} rows, and not {number}")
                pointer = _ffi.from_buffer(kind, column)
                setattr(to, name, pointer)
                self._kept_alive.append(pointer)

    def defer_all_rows(self) -> None:
        """Leave all rows (items) of this batch to Python, so that C processes none."""
        self.result.verdicts.codes[:] = bytes((DEFERRED_CODE,)) * len(self.result.verdicts)
        self.batch.rows = 0

    def fill_in_batch_result(self) -> None:
        """Complete the result after the C code has processed its rows, with everything that C does not write into the
        columns.

        This may be called twice, if an exception is raised after the first call.
        """


class NativeCopySmallFilesBatch(NativeBatch):
    """A batch that copies small files (``CopySmallFilesBatch``), as a C structure with pointers to its columns."""

    def __init__(
        self, settings: BackendSettings, batch: CopySmallFilesBatch, digest_size: int, *, has_digest: bool
    ) -> None:
        number = len(batch.rows)
        made = column_of_zeros("Q", number)
        result = self._copy_result = CopySmallFilesResult(
            BatchOutcomeColumns(number), Digests.all_zero_digests(number, digest_size), made, IdentityMarksByRow(), {}
        )
        # A function that refers to this object would keep it alive until Python's garbage collection, which is rare.
        super().__init__(
            _lib.PK_COPY, batch, result, lambda: CopySmallFilesBatchProcessor(settings, batch, digest_size, result)
        )
        self._digest = settings.digest
        self._marks = bytearray()
        self._contents_buffer = bytearray()
        self._offsets: list[int] = []
        to = self.batch
        to.target = batch.target
        to.umask = settings.umask
        to.flags = native_batch_flags(settings) | (_lib.PK_INHERITS if batch.inherits_acl else 0)
        to.flags |= _lib.PK_IDENTIFY if batch.reports_identities else 0
        to.flags |= _lib.PK_LATE if must_set_times_after_close(batch.target) else 0
        if batch.new_names:
            to.new_names, to.new_names_size = self.column_pointer("char[]", batch.new_names), len(batch.new_names)
        if batch.temporary_names:
            to.temporaries, to.temporaries_size = (
                self.column_pointer("char[]", batch.temporary_names),
                len(batch.temporary_names),
            )
        to.plans = self.column_pointer("uint8_t[]", batch.plans)
        to.made = self.column_pointer("uint64_t[]", made)
        self.set_column_pointers(to.given, batch.rows, VERSION_COLUMNS | DEVICE_COLUMN)
        if len(batch.plans) != number:
            raise ValueError(f"there are {len(batch.plans)} plans for {number} rows: each row needs one")
        if batch.recipe is not DEFAULT_LAYOUT_RECIPE or settings.preserve.chown != (-1, -1):
            self.defer_all_rows()
            return
        if batch.temporary_names or batch.reports_identities:
            self._marks = bytearray(number * _lib.PK_MARK)
            to.marks = self.column_pointer("uint8_t[]", self._marks)
        if self._digest is not None and has_digest:
            to.digests = self.column_pointer("uint8_t[]", self._copy_result.digests.data)
        elif self._digest is not None:
            self._provide_contents_buffer(batch.rows.size)

    def _provide_contents_buffer(self, sizes: array[int]) -> None:
        """Provide memory in which C stores the contents of all files, so that Python can compute their digests: C has
        no library for this digest. ``sizes`` are the sizes of the files in bytes.
        """
        self._offsets = [0, *accumulate(min(size, MAX_SMALL_FILE_BYTES) + 1 for size in sizes)]
        self._contents_buffer = bytearray(self._offsets[-1])
        self.batch.arena = self.column_pointer("uint8_t[]", self._contents_buffer)
        self.batch.offsets = self.column_pointer("uint64_t[]", array("Q", self._offsets))

    def fill_in_batch_result(self) -> None:
        result = self._copy_result
        verdicts = result.verdicts
        if self._offsets:
            assert self._digest is not None
            contents = memoryview(self._contents_buffer)
            for row in verdicts.rows_with_code(OutcomeCode.DONE):
                start = self._offsets[row]
                result.digests[row] = self._digest(contents[start : start + verdicts.bytes[row]])
        if self._marks:
            for row in verdicts.rows_with_code(OutcomeCode.DONE):
                start = row * _lib.PK_MARK + 1
                if length := self._marks[start - 1]:
                    result.marks[row] = bytes(self._marks[start : start + length])
        for row in verdicts.rows_with_code(OutcomeCode.FAILED):
            if verdicts.errnos[row] == errno.ESTALE and OPERATION_NAMES[verdicts.operations[row]] == "rename":
                verdicts.texts[row] = "", REPLACED_TEXT


class NativeSetUniformMetadataBatch(NativeBatch):
    """A batch that gives many items the same owner and group (``SetUniformMetadataBatch``), as a C structure."""

    def fill_in_batch_result(self) -> None:
        verdicts = self.result.verdicts
        for row in verdicts.rows_with_code(OutcomeCode.FAILED):
            # Only C detects this: unlike Python, it examines an item before it opens it.
            if verdicts.errnos[row] == errno.ESTALE:
                verdicts.texts[row] = "", EXCHANGED_TEXT


class NativeBatchWithoutFallback(NativeBatch):
    """Base of batches, as C structures, for which there is no Python code: rows (items) that C defers get the code
    ``SLOW_PATH``, and the caller processes these items.
    """

    def __init__(self, settings: BackendSettings, batch: FindItemsWithoutXattrsBatch) -> None:
        super().__init__(_lib.PK_BARE, batch, BatchResult(BatchOutcomeColumns(len(batch))), raise_unexpected_deferral)
        self.batch.flags = native_batch_flags(settings)

    def fill_in_batch_result(self) -> None:
        mark_deferred_rows_for_slow_path(self.result.verdicts.codes)


def mark_deferred_rows_for_slow_path(codes: bytearray) -> None:
    """Replace the code of the rows that C has deferred by ``SLOW_PATH`` in ``codes``: the caller of the backend
    processes these items.
    """
    if DEFERRED_CODE in codes:
        codes[:] = codes.replace(bytes((DEFERRED_CODE,)), bytes((OutcomeCode.SLOW_PATH,)))


class NativeCreateSmallFilesBatch(NativeBatch):
    """A batch that creates small files from memory (``CreateSmallFilesBatch``), as a C structure."""

    def __init__(self, settings: BackendSettings, batch: CreateSmallFilesBatch) -> None:
        from pcopy.fsio.backend.create_rows import (
            CreateSmallFilesBatchProcessor,  # imported here because copies do not need it
        )

        made = CreateSmallFilesResult(BatchOutcomeColumns(len(batch)), {})
        super().__init__(_lib.PK_MAKE, batch, made, lambda: CreateSmallFilesBatchProcessor(settings, batch, made))
        self._create_result = made
        to = self.batch
        self.set_column_pointers(to.given, batch.rows, CREATION_COLUMNS)
        ends = map(int.__add__, batch.offsets, batch.rows.size)
        if len(batch.offsets) != len(batch) or max(ends, default=0) > len(batch.contents):
            raise ValueError("a row has no offset, or its contents end outside the buffer")
        to.arena, to.offsets = (
            self.column_pointer("uint8_t[]", batch.contents),
            self.column_pointer("uint64_t[]", batch.offsets),
        )
        to.umask = settings.umask
        to.flags = native_batch_flags(settings) | (_lib.PK_INHERITS if batch.inherits_acl else 0)
        to.flags |= 0 if has_capability(CAP_CHOWN) else _lib.PK_EXCUSED
        to.flags |= _lib.PK_LATE if must_set_times_after_close(batch.directory) else 0
        if settings.preserve.chown != (-1, -1):
            self.defer_all_rows()

    def fill_in_batch_result(self) -> None:
        """Record which files were created without their owner, because it could not be set: their rows are done and
        nevertheless have an errno.
        """
        verdicts = self.result.verdicts
        if errno.EPERM in verdicts.errnos:
            for row in verdicts.rows_with_code(OutcomeCode.DONE):
                if verdicts.errnos[row]:
                    self._create_result.metadata_outcomes[row] = MetadataOutcome(1)


def native_batch_flags(settings: BackendSettings) -> int:
    """Return the flags of a ``pk_batch`` (a batch as a C structure) that follow from ``settings``: which metadata are
    copied, and if links are followed.
    """
    preserve = settings.preserve
    flags = _lib.PK_FOLLOW if settings.follows_links else 0
    flags |= _lib.PK_SPARSE if preserve.sparse else 0
    flags |= _lib.PK_OWNER if preserve.ownership else 0
    flags |= _lib.PK_MODE if preserve.mode else 0
    flags |= _lib.PK_XATTRS if preserve.xattr or preserve.acl else 0
    flags |= _lib.PK_ACLS if preserve.acl else 0
    return int(flags | (_lib.PK_TIMES if preserve.timestamps else 0))


def native_batch(
    settings: BackendSettings, batch: FileOperationBatch[Any], digest_size: int, *, has_digest: bool
) -> NativeBatch:
    """Return an object that has the batch as a C structure (``pk_batch``) and its result. Raise ``TypeError`` for a
    type of batch that C does not support.

    Args:
        settings: settings of the job.
        batch: the batch.
        digest_size: bytes of a digest.
        has_digest: True if the C code can compute the digests.
    """
    match batch:
        case CopySmallFilesBatch():
            return NativeCopySmallFilesBatch(settings, batch, digest_size, has_digest=has_digest)
        case CreateSmallFilesBatch():
            return NativeCreateSmallFilesBatch(settings, batch)
        case StatNamesBatch():
            stated = StatNamesResult(BatchOutcomeColumns(len(batch)), ItemStatusColumns(len(batch), batch.mask))
            rows = NativeBatch(_lib.PK_STAT, batch, stated, lambda: StatNamesBatchProcessor(batch, stated))
            rows.set_column_pointers(rows.batch.found, stated.rows)
            rows.batch.flags = (_lib.PK_FOLLOW if batch.follows_links else 0) | (
                0 if batch.on_source else _lib.PK_COPIES
            )
        case ReadSmallFilesBatch():
            digests = Digests.all_zero_digests(len(batch), digest_size)
            read = ReadSmallFilesResult(
                BatchOutcomeColumns(len(batch)), ItemStatusColumns(len(batch), VERSION_COLUMNS), digests
            )
            rows = NativeBatch(
                _lib.PK_READ, batch, read, lambda: ReadSmallFilesBatchProcessor(settings, batch, digest_size, read)
            )
            rows.set_column_pointers(rows.batch.found, read.observed)
            rows.batch.digests = rows.column_pointer("uint8_t[]", digests.data)
            rows.batch.flags = _lib.PK_COPIES if batch.are_copies else _lib.PK_FOLLOW if settings.follows_links else 0
            rows.batch.flags |= _lib.PK_WHOLE if batch.excludes_half_written else 0
            if not has_digest:
                rows.defer_all_rows()
        case RemoveItemsBatch():
            removed = RemoveItemsResult(BatchOutcomeColumns(len(batch)), ItemStatusColumns(len(batch), SIZE_COLUMN))
            rows = NativeBatch(_lib.PK_REMOVE, batch, removed, lambda: RemoveItemsBatchProcessor(batch, removed))
            rows.set_column_pointers(rows.batch.given, batch.rows)
            rows.set_column_pointers(rows.batch.found, removed.observed)
            rows.batch.removed = rows.column_pointer("uint64_t[]", batch.removal_counters)
        case SetMetadataBatch() | SetUniformMetadataBatch():
            rows = _native_set_metadata_batch(batch)
        case CompareXattrsBatch():
            rows = _native_compare_batch(settings, batch)
        case BenchmarkCallsBatch():
            rows = _native_benchmark_batch(batch)
        case _:
            raise TypeError(f"{type(batch).__name__}: the C backend does not support this batch")
    return rows


def _native_benchmark_batch(batch: BenchmarkCallsBatch) -> NativeBatch:
    """Return an object that has ``batch``, whose system calls pdbench measures, as a C structure (``pk_batch``), and
    its result.
    """
    tried = BatchResult(BatchOutcomeColumns(len(batch)))
    rows = NativeBatch(_lib.PK_TRY, batch, tried, raise_unexpected_deferral)
    rows.batch.flags = int(batch.operation)
    if batch.new_names:
        rows.batch.new_names = rows.column_pointer("char[]", batch.new_names)
        rows.batch.new_names_size = len(batch.new_names)
    return rows


def raise_unexpected_deferral() -> BatchProcessor:
    """Raise ``AssertionError``: the C code has left rows of the batch to Python, which cannot process this batch.

    Batches that Python can process have a function here that returns a processor.
    """
    raise AssertionError("the C code deferred a row of a batch that Python does not process")


def _native_set_metadata_batch(batch: SetMetadataBatch | SetUniformMetadataBatch) -> NativeBatch:
    """Return an object that has ``batch``, which sets owners and modes of items, as a C structure (``pk_batch``), and
    its result.
    """
    from pcopy.fsio.backend.metadata_rows import (  # imported here because copies do not need it
        SetMetadataBatchProcessor,
        SetUniformMetadataBatchProcessor,
    )

    if isinstance(batch, SetMetadataBatch):
        batch_result = BatchResult(BatchOutcomeColumns(len(batch)))
        rows = NativeBatch(_lib.PK_UPDATE, batch, batch_result, lambda: SetMetadataBatchProcessor(batch, batch_result))
        rows.set_column_pointers(rows.batch.given, batch.rows, MODE_COLUMN)
        rows.set_column_pointers(rows.batch.wanted, batch.wanted, MODE_COLUMN | OWNER_COLUMN | GROUP_COLUMN)
        if batch.acls is not None:
            rows.defer_all_rows()
        return rows
    updated = SetUniformMetadataResult(
        BatchOutcomeColumns(len(batch)), ItemStatusColumns(len(batch), MODE_COLUMN | SIZE_COLUMN)
    )
    rows = NativeSetUniformMetadataBatch(
        _lib.PK_UPDATE_UNIFORM, batch, updated, lambda: SetUniformMetadataBatchProcessor(batch, updated)
    )
    rows.set_column_pointers(rows.batch.given, batch.rows)
    rows.set_column_pointers(rows.batch.found, updated.observed)
    rows.batch.uid, rows.batch.gid = batch.uid, batch.gid
    if len(batch.modes) != PERMISSION_VALUE_COUNT:
        raise ValueError(f"there are {len(batch.modes)} modes, not one for each value of the permission bits")
    rows.batch.modes = rows.column_pointer("uint16_t[]", batch.modes)
    return rows


def _native_compare_batch(settings: BackendSettings, batch: CompareXattrsBatch) -> NativeBatch:
    """Return an object that has ``batch``, which compares extended attributes, as a C structure (``pk_batch``), and its
    result.
    """
    judged = BatchResult(BatchOutcomeColumns(len(batch)))
    rows = NativeBatch(_lib.PK_SAME, batch, judged, lambda: CompareXattrsBatchProcessor(settings, batch, judged))
    rows.batch.target = batch.target
    if batch.new_names:
        rows.batch.new_names = rows.column_pointer("char[]", batch.new_names)
        rows.batch.new_names_size = len(batch.new_names)
    rows.batch.flags = native_batch_flags(settings)
    return rows


def summed_item_counts(sums: Any) -> ItemCounts:
    """Return the sum of the counts of all rows (``pk_sums``)."""
    numbers, width = array("Q", _ffi.buffer(sums)[:]), len(ItemCounts._fields)
    return ItemCounts(*(sum(numbers[column::width]) for column in range(width)))


def used_bytes(memory: Any) -> bytes:
    """Return the bytes in a ``pk_memory``."""
    return bytes(_ffi.buffer(memory.at, memory.size)) if memory.size else b""
