"""Conversion of batches for the C backend: pointers to the columns of a batch and to those of its result.

For each type of batch, an object has the result that the C code fills in, and the Python code that processes the rows
that C defers, into the same result.
"""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Callable
from itertools import accumulate
from struct import Struct
from typing import Any

from pcopy.fsio.attributes import Applied
from pcopy.fsio.close import has_late_times
from pcopy.fsio.kernel import _native
from pcopy.fsio.kernel.batches import (
    Batch,
    Compare,
    Copied,
    Copy,
    Digests,
    FilesMade,
    Judged,
    Make,
    Mend,
    Mended,
    MendPlain,
    Read,
    ReadBack,
    Remove,
    Removed,
    Stat,
    Stated,
    Trial,
)
from pcopy.fsio.kernel.columns import (
    COLUMNS,
    DEVICE,
    GROUP,
    MADE,
    MODE,
    OPERATIONS,
    OWNER,
    SIZE,
    VERSION,
    Code,
    Marks,
    Rows,
    Verdicts,
    numbers,
)
from pcopy.fsio.kernel.copy_rows import Copying
from pcopy.fsio.kernel.directory_batches import MEMBER, Bare, Members
from pcopy.fsio.kernel.interface import SMALL_FILE, Settings
from pcopy.fsio.kernel.item_rows import Comparing, Reading, Removing, Stating
from pcopy.fsio.kernel.python import Work
from pcopy.fsio.layout import PLAIN
from pcopy.fsio.preserve import CAP_CHOWN, capable
from pcopy.fsio.problem import EXCHANGED, REPLACED

_ffi, _lib = _native.ffi, _native.lib

DEFERRED = int(_lib.PK_DEFERRED)
"""Code of a row that the C code has not processed."""

ALL_MODES = 4096
"""Number of possible values of the permission bits."""

_POINTERS = {"I": "uint32_t[]", "q": "int64_t[]", "Q": "uint64_t[]"}
_OWNER = Struct("=III356s")
"""Format of a ``pk_owner`` of kernel.h."""
_PLACE = Struct("=iIII")
"""Format of a ``pk_place`` of kernel.h."""
_WHOLE_AT = MEMBER.size // 4 - 1
"""Index of the last number in a row of ``Members``, counted in units of 4 bytes."""
_COLUMNS = [(name, _POINTERS[typecode], bit) for name, typecode, bit, _ in COLUMNS]


class InC:
    """A batch, converted to pointers for the C code.

    ``batch`` is a ``pk_batch`` of kernel.h. This object keeps the memory alive that it points to.
    """

    def __init__(self, kind: int, batch: Any, result: Judged, make_work: Callable[[], Work]) -> None:
        """Fill in what all batches have in common.

        Args:
            kind: type of the batch, a ``PK_`` constant of kernel.h.
            batch: the batch.
            result: the result to fill in.
            make_work: function that returns the Python code for the deferred rows.
        """
        self.batch: Any = _ffi.new("pk_batch *")
        self.result = result
        self.careful = make_work
        pointer, to, verdicts = _ffi.from_buffer, self.batch, result.verdicts
        to.kind = kind
        to.rows = self.number = len(verdicts.codes)
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
        self._kept: list[Any] = [codes, operations, errnos, sizes, nanoseconds, names]

    def pointer(self, kind: str, buffer: Any) -> Any:
        """Return a pointer to a column, which is kept alive; NULL if the column is empty."""
        if not buffer:
            return _ffi.NULL
        pointer = _ffi.from_buffer(kind, buffer)
        self._kept.append(pointer)
        return pointer

    def columns(self, to: Any, rows: Rows, needed: int = 0) -> None:
        """Set the pointers of a ``pk_columns`` to the columns of ``rows``.

        Raise ``ValueError`` if a column does not have all rows, or if one of the mask ``needed`` is missing: C would
        access memory outside the columns.
        """
        if needed & ~rows.mask:
            raise ValueError("a column that this batch needs is missing")
        for name, kind, bit in _COLUMNS:
            if rows.mask & bit and self.number:
                column: array[int] = getattr(rows, name)
                if len(column) != self.number:
                    raise ValueError(f"the column {name} has {len(column)} rows, unlike the batch")
                pointer = _ffi.from_buffer(kind, column)
                setattr(to, name, pointer)
                self._kept.append(pointer)

    def defer_all(self) -> None:
        """Defer all rows of this batch to the Python backend."""
        self.result.verdicts.codes[:] = bytes((DEFERRED,)) * len(self.result.verdicts)
        self.batch.rows = 0

    def finish(self) -> None:
        """Complete the result after the C code has processed its rows.

        It may be called again if an exception interrupts what follows it.
        """


class CopyInC(InC):
    """A ``Copy`` batch, converted to pointers for the C code."""

    def __init__(self, settings: Settings, batch: Copy, digest_size: int, *, has_digest: bool) -> None:
        number = len(batch.rows)
        made = numbers("Q", number)
        self._copied = Copied(Verdicts(number), Digests.of(number, digest_size), made, Marks(), {})
        super().__init__(_lib.PK_COPY, batch, self._copied, lambda: Copying(settings, batch, digest_size, self._copied))
        self._digest = settings.digest
        self._marks = bytearray()
        self._arena = bytearray()
        self._offsets: list[int] = []
        to = self.batch
        to.target = batch.target
        to.umask = settings.umask
        to.flags = flags_of(settings) | (_lib.PK_INHERITS if batch.inherits else 0)
        to.flags |= _lib.PK_IDENTIFY if batch.identified else 0
        to.flags |= _lib.PK_LATE if has_late_times(batch.target) else 0
        if batch.new_names:
            to.new_names, to.new_names_size = self.pointer("char[]", batch.new_names), len(batch.new_names)
        if batch.temporaries:
            to.temporaries, to.temporaries_size = self.pointer("char[]", batch.temporaries), len(batch.temporaries)
        to.plans = self.pointer("uint8_t[]", batch.plans)
        to.made = self.pointer("uint64_t[]", made)
        self.columns(to.given, batch.rows, VERSION | DEVICE)
        if len(batch.plans) != number:
            raise ValueError(f"there are {len(batch.plans)} plans for {number} rows: each row needs one")
        if batch.recipe is not PLAIN or settings.preserve.chown != (-1, -1):
            self.defer_all()
            return
        if batch.temporaries or batch.identified:
            self._marks = bytearray(number * _lib.PK_MARK)
            to.marks = self.pointer("uint8_t[]", self._marks)
        if self._digest is not None and has_digest:
            to.digests = self.pointer("uint8_t[]", self._copied.digests.data)
        elif self._digest is not None:
            self._take_contents(batch.rows.size)

    def _take_contents(self, sizes: array[int]) -> None:
        """Provide memory in which C leaves the contents of all files, because it has no library for the digest."""
        self._offsets = [0, *accumulate(min(size, SMALL_FILE) + 1 for size in sizes)]
        self._arena = bytearray(self._offsets[-1])
        self.batch.arena = self.pointer("uint8_t[]", self._arena)
        self.batch.offsets = self.pointer("uint64_t[]", array("Q", self._offsets))

    def finish(self) -> None:
        result = self._copied
        verdicts = result.verdicts
        if self._offsets:
            assert self._digest is not None
            contents = memoryview(self._arena)
            for row in verdicts.rows(Code.DONE):
                start = self._offsets[row]
                result.digests[row] = self._digest(contents[start : start + verdicts.bytes[row]])
        if self._marks:
            for row in verdicts.rows(Code.DONE):
                start = row * _lib.PK_MARK + 1
                if length := self._marks[start - 1]:
                    result.marks[row] = bytes(self._marks[start : start + length])
        for row in verdicts.rows(Code.FAILED):
            if verdicts.errnos[row] == errno.ESTALE and OPERATIONS[verdicts.operations[row]] == "rename":
                verdicts.texts[row] = "", REPLACED


class MendPlainInC(InC):
    """A ``MendPlain`` batch, converted to pointers for the C code."""

    def finish(self) -> None:
        verdicts = self.result.verdicts
        for row in verdicts.rows(Code.FAILED):
            # Only C detects this: unlike Python, it examines an item before it opens it.
            if verdicts.errnos[row] == errno.ESTALE:
                verdicts.texts[row] = "", EXCHANGED


class PlainInC(InC):
    """A batch whose deferred rows get the code ``CARE``: the caller processes them."""

    def __init__(self, settings: Settings, batch: Bare | Members) -> None:
        kind = _lib.PK_BARE if isinstance(batch, Bare) else _lib.PK_MEMBER
        super().__init__(kind, batch, Judged(Verdicts(len(batch))), _nothing_deferred)
        self.batch.flags = flags_of(settings)
        if isinstance(batch, Members):
            self._take(batch)

    def _take(self, batch: Members) -> None:
        """Set the pointers for ``Members``. Raise ``ValueError`` if C would access memory outside the buffers."""
        to = self.batch
        offsets = array("Q", accumulate(memoryview(batch.rows).cast("I")[_WHOLE_AT :: MEMBER.size // 4], initial=0))
        place, places, prefixes = array("I"), bytearray(), bytearray()
        for number, (directory, rows, prefix) in enumerate(batch.places):
            places += _PLACE.pack(directory, _others_may_write(directory), len(prefixes), len(prefix))
            prefixes += prefix
            place.extend([number] * rows)
        if offsets[-1] > len(batch.room) or len(place) != self.number:
            raise ValueError("the buffer is too small for all members, or rows do not belong to a directory")
        owners = b"".join([_OWNER.pack(*ids, total, end) for ids, (end, total) in batch.owners.items()])
        to.owners, to.owners_number = self.pointer("pk_owner[]", owners), len(batch.owners)
        to.members = self.pointer("pk_member[]", batch.rows)
        to.places = self.pointer("pk_place[]", places)
        to.place = self.pointer("uint32_t[]", place)
        to.prefixes = self.pointer("char[]", prefixes)
        to.pax = self.pointer("uint8_t[512]", batch.pax)
        to.arena = self.pointer("uint8_t[]", batch.room)
        to.offsets = self.pointer("uint64_t[]", offsets)

    def finish(self) -> None:
        give_back(self.result.verdicts.codes)


def _others_may_write(directory: int) -> bool:
    """Return True if another user may create or replace names in the directory, or if that cannot be found out."""
    try:
        status = os.fstat(directory)
    except OSError:
        return True
    return status.st_uid != os.geteuid() or bool(status.st_mode & 0o022)


def give_back(codes: bytearray) -> None:
    """Replace the code of deferred rows by ``CARE``: the caller processes these rows."""
    if DEFERRED in codes:
        codes[:] = codes.replace(bytes((DEFERRED,)), bytes((Code.CARE,)))


class MakeInC(InC):
    """A ``Make`` batch, converted to pointers for the C code."""

    def __init__(self, settings: Settings, batch: Make) -> None:
        from pcopy.fsio.kernel.make_rows import Making  # imported here because copies do not need it

        made = FilesMade(Verdicts(len(batch)), {})
        super().__init__(_lib.PK_MAKE, batch, made, lambda: Making(settings, batch, made))
        self._made = made
        to = self.batch
        self.columns(to.given, batch.rows, MADE)
        ends = map(int.__add__, batch.offsets, batch.rows.size)
        if len(batch.offsets) != len(batch) or max(ends, default=0) > len(batch.contents):
            raise ValueError("a row has no offset, or its contents end outside the buffer")
        to.arena, to.offsets = self.pointer("uint8_t[]", batch.contents), self.pointer("uint64_t[]", batch.offsets)
        to.umask = settings.umask
        to.flags = flags_of(settings) | (_lib.PK_INHERITS if batch.inherits else 0)
        to.flags |= 0 if capable(CAP_CHOWN) else _lib.PK_EXCUSED
        to.flags |= _lib.PK_LATE if has_late_times(batch.directory) else 0
        if settings.preserve.chown != (-1, -1):
            self.defer_all()

    def finish(self) -> None:
        """Record files whose owner could not be set: rows that are done and nevertheless have an errno."""
        verdicts = self.result.verdicts
        if errno.EPERM in verdicts.errnos:
            for row in verdicts.rows(Code.DONE):
                if verdicts.errnos[row]:
                    self._made.applied[row] = Applied(1)


def flags_of(settings: Settings) -> int:
    """Return the ``PK_`` flags of a batch that follow from the settings."""
    preserve = settings.preserve
    flags = _lib.PK_FOLLOW if settings.follow else 0
    flags |= _lib.PK_SPARSE if preserve.sparse else 0
    flags |= _lib.PK_OWNER if preserve.ownership else 0
    flags |= _lib.PK_MODE if preserve.mode else 0
    flags |= _lib.PK_XATTRS if preserve.xattr or preserve.acl else 0
    flags |= _lib.PK_ACLS if preserve.acl else 0
    return int(flags | (_lib.PK_TIMES if preserve.timestamps else 0))


def in_c(settings: Settings, batch: Batch[Any], digest_size: int, *, has_digest: bool) -> InC:
    """Return the batch, converted to pointers for the C code. Raise ``TypeError`` for an unsupported batch.

    Args:
        settings: settings of the job.
        batch: the batch.
        digest_size: bytes of a digest.
        has_digest: True if the C code computes digests.
    """
    match batch:
        case Copy():
            return CopyInC(settings, batch, digest_size, has_digest=has_digest)
        case Make():
            return MakeInC(settings, batch)
        case Stat():
            stated = Stated(Verdicts(len(batch)), Rows(len(batch), batch.mask))
            rows = InC(_lib.PK_STAT, batch, stated, lambda: Stating(batch, stated))
            rows.columns(rows.batch.found, stated.rows)
            rows.batch.flags = (_lib.PK_FOLLOW if batch.follow else 0) | (0 if batch.on_source else _lib.PK_COPIES)
        case Read():
            digests = Digests.of(len(batch), digest_size)
            read = ReadBack(Verdicts(len(batch)), Rows(len(batch), VERSION), digests)
            rows = InC(_lib.PK_READ, batch, read, lambda: Reading(settings, batch, digest_size, read))
            rows.columns(rows.batch.found, read.seen)
            rows.batch.digests = rows.pointer("uint8_t[]", digests.data)
            rows.batch.flags = _lib.PK_COPIES if batch.copies else _lib.PK_FOLLOW if settings.follow else 0
            rows.batch.flags |= _lib.PK_WHOLE if batch.whole else 0
            if not has_digest:
                rows.defer_all()
        case Remove():
            removed = Removed(Verdicts(len(batch)), Rows(len(batch), SIZE))
            rows = InC(_lib.PK_REMOVE, batch, removed, lambda: Removing(batch, removed))
            rows.columns(rows.batch.given, batch.rows)
            rows.columns(rows.batch.found, removed.seen)
            rows.batch.gone = rows.pointer("uint64_t[]", batch.gone)
        case Mend() | MendPlain():
            rows = _mending(batch)
        case Compare():
            rows = _comparing(settings, batch)
        case Trial():
            rows = _trying(batch)
        case _:
            raise TypeError(f"{type(batch).__name__}: the C backend does not support this batch")
    return rows


def _trying(batch: Trial) -> InC:
    """Return a ``Trial`` batch, converted to pointers for the C code."""
    tried = Judged(Verdicts(len(batch)))
    rows = InC(_lib.PK_TRY, batch, tried, _nothing_deferred)
    rows.batch.flags = int(batch.call)
    if batch.new_names:
        rows.batch.new_names = rows.pointer("char[]", batch.new_names)
        rows.batch.new_names_size = len(batch.new_names)
    return rows


def _nothing_deferred() -> Work:
    """Raise ``AssertionError``: the C code never leaves rows of this batch to the Python code."""
    raise AssertionError("the C code deferred a row of a batch that Python does not process")


def _mending(batch: Mend | MendPlain) -> InC:
    """Return a ``Mend`` or ``MendPlain`` batch, converted to pointers for the C code."""
    from pcopy.fsio.kernel.mend_rows import MendPlainRows, MendRows  # imported here because copies do not need it

    if isinstance(batch, Mend):
        mended = Judged(Verdicts(len(batch)))
        rows = InC(_lib.PK_MEND, batch, mended, lambda: MendRows(batch, mended))
        rows.columns(rows.batch.given, batch.rows, MODE)
        rows.columns(rows.batch.wanted, batch.wanted, MODE | OWNER | GROUP)
        if batch.acls is not None:
            rows.defer_all()
        return rows
    updated = Mended(Verdicts(len(batch)), Rows(len(batch), MODE | SIZE))
    rows = MendPlainInC(_lib.PK_MEND_PLAIN, batch, updated, lambda: MendPlainRows(batch, updated))
    rows.columns(rows.batch.given, batch.rows)
    rows.columns(rows.batch.found, updated.seen)
    rows.batch.uid, rows.batch.gid = batch.uid, batch.gid
    if len(batch.modes) != ALL_MODES:
        raise ValueError(f"there are {len(batch.modes)} modes, not one for each value of the permission bits")
    rows.batch.modes = rows.pointer("uint16_t[]", batch.modes)
    return rows


def _comparing(settings: Settings, batch: Compare) -> InC:
    """Return a ``Compare`` batch, converted to pointers for the C code."""
    judged = Judged(Verdicts(len(batch)))
    rows = InC(_lib.PK_SAME, batch, judged, lambda: Comparing(settings, batch, judged))
    rows.batch.target = batch.target
    if batch.new_names:
        rows.batch.new_names = rows.pointer("char[]", batch.new_names)
        rows.batch.new_names_size = len(batch.new_names)
    rows.batch.flags = flags_of(settings)
    return rows
