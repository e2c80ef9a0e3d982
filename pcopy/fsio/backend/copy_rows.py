"""Copies the files of a ``CopySmallFilesBatch`` in the Python backend, one after the other.

System calls per file:

- source: open, fstat, read, flistxattr, a fgetxattr for each attribute name, fstat, close;
- target: open, write, fchown, fchmod, utimensat, close.

No call is made twice. A file under a temporary name costs one more fstat, a synced file an fsync, and a file that
replaces another one a rename and a stat.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from pcopy.fsio.attributes import (
    NO_XATTRS,
    CopiedXattrs,
    MetadataOutcome,
    are_times_portable,
    metadata_from_status_and_xattrs,
    read_xattrs,
)
from pcopy.fsio.backend.batches import SYNC_FILE_FLAG, CopyPlan, CopySmallFilesBatch, CopySmallFilesResult, Digests
from pcopy.fsio.backend.columns import (
    BatchOutcomeColumns,
    IdentityMarksByRow,
    OutcomeCode,
    column_of_zeros,
    unpack_names,
)
from pcopy.fsio.backend.interface import MAX_SMALL_FILE_BYTES, BackendSettings
from pcopy.fsio.close import must_set_times_after_close
from pcopy.fsio.contents import GENERATED_FILE_SYSTEM_TYPES
from pcopy.fsio.identity import identity_mark_of
from pcopy.fsio.layout import DEFAULT_LAYOUT_RECIPE
from pcopy.fsio.memory_copy import write_all
from pcopy.fsio.new_file import NewFile
from pcopy.fsio.problem import Problem, source_changed_problem
from pcopy.fsio.retries import open_with_retries
from pcopy.fsio.source import READ_FLAGS, check_reading_keeps_contents, open_source_file_to_read
from pcopy.fsio.temporary import CREATE_FLAGS, remove_item_if_present
from pcopy.libc import type_of_file_system

SOURCE_OPEN_FLAGS = READ_FLAGS | os.O_NOATIME
"""Flags of open(2) for a source file. O_NOATIME keeps its atime unchanged."""
TARGET_FULL_ERRNOS = (errno.ENOSPC, errno.EROFS)
"""Errors of a target file system that is full or read-only. Two of them, without a successful copy in between, end the
batch.
"""
_READ_BYTES_FOR_SIZE_ZERO = 64 << 10
"""Bytes to read from a file whose size is 0. /proc/kmsg refuses to read less than a line."""
_NAME_TAKEN_PROBLEM = Problem("create", errno.EEXIST)
_EMPTY_METADATA_OUTCOME = MetadataOutcome()

# Looked up once, for speed: each is called several times per file.
_open, _fstat, _read, _write, _close, _listxattr = os.open, os.fstat, os.read, os.write, os.close, os.listxattr
_chown, _chmod, _utime, _is_regular = os.chown, os.chmod, os.utime, stat.S_ISREG
_now = time.monotonic_ns
# Integers, because looking up a member of an enum takes longer than comparing it.
_NEW, _REPLACE, _TEMPORARY, _REFUSE = map(int, (CopyPlan.NEW, CopyPlan.REPLACE, CopyPlan.TEMPORARY, CopyPlan.REFUSE))
_CODES_WITHOUT_COPY = {int(CopyPlan.SKIP): OutcomeCode.SKIPPED, int(CopyPlan.SLOW_PATH): OutcomeCode.SLOW_PATH}
_DONE = int(OutcomeCode.DONE)


class CopySmallFilesBatchProcessor:
    """Copies the files of a ``CopySmallFilesBatch``, whose rows are files, one after the other.

    The batch ends early if the target was full or read-only for two files without a successful copy in between.
    """

    def __init__(
        self,
        settings: BackendSettings,
        batch: CopySmallFilesBatch,
        digest_size: int,
        result: CopySmallFilesResult | None = None,
    ) -> None:
        """Prepare the copies of the files of ``batch``.

        Args:
            settings: settings of the job.
            batch: the files to copy.
            digest_size: bytes of a digest.
            result: the result to fill in if the C backend has already processed other rows; None to create one.
        """
        self._batch = batch
        self._digest = settings.digest
        self._preserve = preserve = settings.preserve
        self._umask = settings.umask
        self._follow = settings.follows_links
        self._flags = SOURCE_OPEN_FLAGS & ~os.O_NOFOLLOW if settings.follows_links else SOURCE_OPEN_FLAGS
        keeps_all = preserve.mode and preserve.ownership and preserve.timestamps and preserve.chown == (-1, -1)
        is_simple = keeps_all and not batch.inherits_acl and batch.recipe is DEFAULT_LAYOUT_RECIPE
        self._can_use_fast_path = is_simple and not (preserve.timestamps and must_set_times_after_close(batch.target))
        self._excludes_sparse_files = preserve.sparse
        self._full_count = 0
        number = len(batch)
        self._names = unpack_names(batch.names)
        self._new_names = unpack_names(batch.new_names) if batch.new_names else self._names
        self._temporaries = unpack_names(batch.temporary_names) if batch.temporary_names else [b""] * number
        self._versions, self._devices = batch.rows.content_versions(), batch.rows.device
        self.result = result or CopySmallFilesResult(
            BatchOutcomeColumns(number),
            Digests.all_zero_digests(number, digest_size),
            column_of_zeros("Q", number),
            IdentityMarksByRow(),
            {},
        )

    def run(self, start: int, end: int) -> None:
        """Copy the files (rows) from the index ``start`` up to, but not including, ``end``; stop earlier if the target
        is full.
        """
        verdicts, plans = self.result.verdicts, self._batch.plans
        codes, nanoseconds = verdicts.codes, verdicts.nanoseconds
        began = _now()
        for row in range(start, end):
            if self._full_count > 1:
                return
            plan = plans[row] & ~SYNC_FILE_FLAG
            if plan in _CODES_WITHOUT_COPY:
                codes[row] = _CODES_WITHOUT_COPY[plan]
            elif plan == _REFUSE:
                verdicts.set_problem_of_row(row, _NAME_TAKEN_PROBLEM)
            else:
                try:
                    codes[row] = self._copy_file(row, plan)
                    if codes[row] == _DONE:
                        self._full_count = 0
                except OSError as error:  # all errors are a Problem, except one from closing the source
                    verdicts.set_problem_of_row(row, Problem.from_error("close", error, on_source=True))
                    self._full_count += verdicts.codes[row] == OutcomeCode.FAILED and error.errno in TARGET_FULL_ERRNOS
            ended = _now()
            nanoseconds[row] = ended - began
            began = ended

    @property
    def is_target_full(self) -> bool:
        """True if the target was full or read-only for two files without a successful copy in between."""
        return self._full_count > 1

    def _copy_file(self, row: int, plan: int) -> int:
        """Copy one file as ``plan``, a ``CopyPlan``, says, and return its ``OutcomeCode``.

        The body repeats code of other functions instead of calling them, for speed: it runs once for every small file.
        Raise ``OSError`` on failure.
        """
        batch, name = self._batch, self._names[row]
        try:
            check_reading_keeps_contents(batch.directory, name)
            reading = _open(name, self._flags, dir_fd=batch.directory)
        except OSError:
            # Open again, without O_NOATIME if that was refused, and with retries and exact errors.
            reading = open_source_file_to_read(batch.directory, name, follow=self._follow)
        operation = "fstat"
        try:
            status = _fstat(reading)
            version = status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
            if version != self._versions[row] or status.st_dev != self._devices[row] or not _is_regular(status.st_mode):
                return self._code_of_changed_source(row, status)
            _, size, mtime, ctime = version
            if size > MAX_SMALL_FILE_BYTES or (self._excludes_sparse_files and status.st_blocks << 9 < size):
                return OutcomeCode.SLOW_PATH
            operation = "read"
            data = _read(reading, size + 1 if size else _READ_BYTES_FOR_SIZE_ZERO)
            if len(data) != size:
                whole = _contents_after_first_read(reading, data, size)
                if whole is None:
                    return OutcomeCode.SLOW_PATH
                data = whole
            try:
                names = _listxattr(reading)
            except OSError:  # read_xattrs lists them again, with retries
                names = None
            xattrs = NO_XATTRS if names == [] else read_xattrs(reading, self._preserve, names)
            operation = "fstat"
            again = _fstat(reading)  # shows if the file was written to while it was read
            if again.st_ctime_ns != ctime or again.st_mtime_ns != mtime or again.st_size != size:
                raise source_changed_problem("read", "the file changed while it was copied")
        except OSError as error:
            raise Problem.from_error(operation, error, on_source=True) from error
        finally:
            _close(reading)
        if (
            batch.plans[row] == _NEW
            and self._can_use_fast_path
            and not batch.reports_identities
            and xattrs is NO_XATTRS
            and are_times_portable(status.st_atime_ns, mtime)
        ):
            return self._create_copy_in_few_calls(row, data, status)
        return self._create_copy(row, plan, data, status, xattrs)

    def _code_of_changed_source(self, row: int, status: os.stat_result) -> int:
        """Return ``DECIDE_AGAIN`` if the source of the row has changed since its copy was planned; raise ``Problem`` if
        another item has taken its name. ``status`` is the status of the item that was opened.
        """
        is_same = status.st_ino == self._versions[row][0] and status.st_dev == self._devices[row]
        if not (is_same and _is_regular(status.st_mode)):
            raise source_changed_problem("open", "another file has taken its name")
        return OutcomeCode.DECIDE_AGAIN

    def _create_copy_in_few_calls(self, row: int, data: bytes, status: os.stat_result) -> int:
        """Create the copy of a file without extended attributes and with usual times, in few system calls, and return
        its code. (``_create_copy`` creates all other copies.)

        If only the metadata cannot be set in this way, the file is completed with more system calls; if anything else
        fails, it is removed and ``Problem`` is raised.

        Args:
            row: the row of the file.
            data: the contents of the file.
            status: status of the source.
        """
        directory, name = self._batch.target, self._new_names[row]
        try:
            writing = open_with_retries(name, CREATE_FLAGS, 0o600, dir_fd=directory)
        except OSError as error:
            return self._handle_create_error(row, _NEW, Problem.from_error("create", error))
        try:
            try:
                written = _write(writing, data) if data else 0
            except OSError as error:
                raise Problem.from_error("write", error) from error
            try:
                has_metadata = written == len(data)
                if has_metadata:
                    # The owner is set first, because the operating system clears set-id bits when the owner changes.
                    _chown(writing, status.st_uid, status.st_gid)
                    _chmod(writing, status.st_mode & 0o7777)
                    _utime(writing, ns=(status.st_atime_ns, status.st_mtime_ns))
            except OSError:
                has_metadata = self._can_use_fast_path = False
        except BaseException:
            with NewFile(directory, name, writing):
                raise
        if not has_metadata:
            return self._complete_new_file(
                NewFile(directory, name, writing), row, _NEW, data, written, status, NO_XATTRS
            )
        try:
            _close(writing)
        except OSError as error:
            remove_item_if_present(directory, name)
            raise Problem.from_error("close", error) from error
        verdicts = self.result.verdicts
        verdicts.bytes[row] = written
        verdicts.moved += written
        if self._digest is not None:
            self.result.digests[row] = self._digest(data)
        return _DONE

    def _create_copy(self, row: int, plan: int, data: bytes, status: os.stat_result, xattrs: CopiedXattrs) -> int:
        """Create the copy under its final or temporary name, with contents and metadata, and return its code. Raise
        ``Problem`` if this fails; then nothing of the copy remains.

        Args:
            row: the row of the file.
            plan: its plan, a ``CopyPlan``.
            data: the contents of the file.
            status: status of the source.
            xattrs: extended attributes of the source.
        """
        made_as = self._new_names[row] if plan == _NEW else self._temporaries[row]
        try:
            new = NewFile.create(self._batch.target, made_as, self._batch.recipe)
        except Problem as problem:
            return self._handle_create_error(row, plan, problem)
        return self._complete_new_file(new, row, plan, data, 0, status, xattrs)

    def _handle_create_error(self, row: int, plan: int, problem: Problem) -> int:
        """Handle the error ``problem`` of a copy that could not be created.

        Return ``DECIDE_AGAIN`` if ``plan`` is ``NEW`` and the name exists: the caller then plans the copy of the file
        again. Otherwise raise ``problem``.
        """
        if plan != _NEW or problem.errno != errno.EEXIST:
            raise problem
        self.result.verdicts.set_code_and_problem(row, OutcomeCode.DECIDE_AGAIN, _NAME_TAKEN_PROBLEM)
        return OutcomeCode.DECIDE_AGAIN

    def _complete_new_file(
        self, new: NewFile, row: int, plan: int, data: bytes, written: int, status: os.stat_result, xattrs: CopiedXattrs
    ) -> int:
        """Write the remaining contents of a new file, apply metadata, close it or give it its name, and return its
        code.

        Args:
            new: the new file.
            row: its row.
            plan: its ``CopyPlan``.
            data: the whole contents.
            written: how many bytes of ``data`` have been written.
            status: status of the source.
            xattrs: extended attributes of the source.

        Raise ``Problem`` if this fails.
        """
        result = self.result
        sync = bool(self._batch.plans[row] & SYNC_FILE_FLAG)
        with new:
            try:
                if data and not written:
                    written = _write(new.descriptor, data)
                if written != len(data):
                    write_all(new.descriptor, memoryview(data)[written:], written)
                applied = self._apply_metadata(new, status, xattrs)
                if plan != _NEW or self._batch.reports_identities:
                    result.created_inodes[row] = new.status.st_ino
                    if plan != _REPLACE:
                        result.marks[row] = identity_mark_of(new.descriptor, created_by_job=True)
            except OSError as error:
                raise Problem.from_error("write", error) from error
            if plan == _REPLACE:
                new.commit(self._new_names[row], sync=sync)
            else:
                new.close_without_removing(sync=sync)
        result.verdicts.bytes[row] = len(data)
        result.verdicts.moved += len(data)
        if self._digest is not None:
            result.digests[row] = self._digest(data)
        # Keep a file with incomplete metadata, and report that: this is better than no file.
        if new.metadata_problem is not None:
            raise new.metadata_problem
        if applied != _EMPTY_METADATA_OUTCOME:
            result.metadata_outcomes[row] = applied
        return _DONE

    def _apply_metadata(self, new: NewFile, status: os.stat_result, xattrs: CopiedXattrs) -> MetadataOutcome:
        """Apply the metadata of the source (``status`` and ``xattrs``) to the new file, and return which ones were not
        set although that is no error. Errors are stored in ``new.metadata_problem`` and not raised.
        """
        times = status.st_atime_ns, status.st_mtime_ns
        if self._can_use_fast_path and xattrs is NO_XATTRS and are_times_portable(*times):
            try:
                _chown(new.descriptor, status.st_uid, status.st_gid)
                _chmod(new.descriptor, status.st_mode & 0o7777)
                _utime(new.descriptor, ns=times)
                return _EMPTY_METADATA_OUTCOME
            except OSError:  # the slow path below finds out which operation failed and whether that is an error
                self._can_use_fast_path = False
        attributes = metadata_from_status_and_xattrs(status, xattrs)
        return new.apply_metadata(attributes, self._preserve, self._umask, inherits_acl=self._batch.inherits_acl)


def is_file_unchanged(one: os.stat_result, other: os.stat_result) -> bool:
    """Return True if size, mtime and ctime are equal in ``one`` and ``other``, two statuses of a file that were read
    one after the other, so that the file did not change between them.
    """
    return (
        one.st_ctime_ns == other.st_ctime_ns and one.st_mtime_ns == other.st_mtime_ns and one.st_size == other.st_size
    )


def _contents_after_first_read(reading: int, data: bytes, size: int) -> bytes | None:
    """Return the whole contents of a file whose first read returned ``data``, fewer or more bytes than its st_size,
    ``size``.

    Files of size 0 may have contents (/proc). They are read to their end.

    Return None if the file must be copied by a task, not in a batch: the contents exceed ``MAX_SMALL_FILE_BYTES``, or
    the file system generates contents at each read, so that sizes do not match. Raise ``Problem`` if the file has
    changed, and ``OSError`` if reading fails.
    """
    if size and len(data) > size:
        raise source_changed_problem("read", "the file grew while it was copied")
    parts = [data]
    got = len(data)
    while data:
        data = os.read(reading, 1 << 20)
        parts.append(data)
        got += len(data)
        if got > MAX_SMALL_FILE_BYTES:
            return None
    whole = b"".join(parts)
    if size and len(whole) != size:
        if type_of_file_system(reading) in GENERATED_FILE_SYSTEM_TYPES:
            return None
        raise source_changed_problem("read", f"the file ended after {len(whole)} of {size} bytes")
    return whole
