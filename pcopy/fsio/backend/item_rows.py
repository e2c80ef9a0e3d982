"""Processes the batches ``ListNamesBatch``, ``StatNamesBatch``, ``ReadSmallFilesBatch``, ``RemoveItemsBatch`` and
``CompareXattrsBatch`` in the Python backend.

Rows (items) are processed one after the other. System calls per item:

- ``StatNamesBatch``: stat.
- ``ReadSmallFilesBatch``: open, fstat, read, close; for a source one more fstat, for a copy fadvise64.
- ``RemoveItemsBatch``: stat and unlink or rmdir.
"""

from __future__ import annotations

import os
import stat
import time
from array import array
from functools import partial
from itertools import islice

from pcopy.fsio.backend.batches import (
    BatchResult,
    CompareXattrsBatch,
    Digests,
    ListNamesBatch,
    ListNamesResult,
    ReadSmallFilesBatch,
    ReadSmallFilesResult,
    RemoveItemsBatch,
    RemoveItemsResult,
    StatNamesBatch,
    StatNamesResult,
    SyncDirectoriesBatch,
)
from pcopy.fsio.backend.columns import (
    EARLIEST_TIME,
    LATEST_TIME,
    SIZE_COLUMN,
    TYPE_LETTERS,
    UNKNOWN_STATUS,
    VERSION_COLUMNS,
    BatchOutcomeColumns,
    ItemStatusColumns,
    OutcomeCode,
    pack_names,
    unpack_names,
)
from pcopy.fsio.backend.copy_rows import SOURCE_OPEN_FLAGS, is_file_unchanged
from pcopy.fsio.backend.interface import MAX_SMALL_FILE_BYTES, BackendSettings
from pcopy.fsio.close import closing_descriptor
from pcopy.fsio.directories import list_directory_entries
from pcopy.fsio.incomplete_mark import is_file_marked_incomplete
from pcopy.fsio.problem import Problem
from pcopy.fsio.retries import NOTHING_DONE_ERRNOS, TRANSIENT_ERRNOS, call_with_retries
from pcopy.fsio.source import check_reading_keeps_contents, open_item_to_read

_open, _fstat, _read, _close, _is_regular = os.open, os.fstat, os.read, os.close, stat.S_ISREG
_advise, _DONTNEED = os.posix_fadvise, os.POSIX_FADV_DONTNEED
_now = time.monotonic_ns


class ListNamesBatchProcessor:
    """A ``ListNamesBatch`` in progress: lists the next names of a directory. The directory is the only row of the
    batch.
    """

    is_target_full = False

    def __init__(self, batch: ListNamesBatch) -> None:
        self._batch = batch
        self._types: dict[bytes, int] | None = None
        self.result = ListNamesResult(BatchOutcomeColumns(1))

    def run(self, start: int, end: int) -> None:
        """List the next names of the directory, which is the only row; ``start`` and ``end`` are therefore ignored."""
        batch, result = self._batch, self.result
        began = _now()
        entries = batch.listing_state if batch.listing_state is not None else list_directory_entries(batch.directory)
        found: list[os.DirEntry[str]] = []
        result.verdicts.codes[0] = OutcomeCode.DONE
        try:
            found.extend(islice(entries, batch.max_names))  # keeps the entries that were read before an error
        except OSError as error:
            problem = error if isinstance(error, Problem) else Problem.from_error("readdir", error)
            code = OutcomeCode.SOURCE_FAILED if batch.on_source else OutcomeCode.FAILED
            result.verdicts.set_code_and_problem(0, code, problem)
        else:
            if len(found) == batch.max_names:
                result.next_batch = ListNamesBatch(
                    batch.directory, batch.max_names, batch.is_detailed, batch.on_source, entries
                )
        result.names = pack_names(os.fsencode(entry.name) for entry in found)
        result.name_count = len(found)
        if batch.is_detailed:
            result.kinds = bytes(map(self._item_type_letter_of_entry, found))
            result.inodes = array("Q", [entry.inode() for entry in found])
        result.verdicts.nanoseconds[0] = _now() - began

    def _item_type_letter_of_entry(self, entry: os.DirEntry[str]) -> int:
        """Return the letter, as of ``find -type``, of the type of a directory entry; ``?`` if the type cannot be found
        out.

        If the file system does not list types, the status of the item is read, which may fail.
        """
        try:
            if entry.is_file(follow_symlinks=False):
                return ord("f")
            if entry.is_dir(follow_symlinks=False):
                return ord("d")
            if entry.is_symlink():
                return ord("l")
        except OSError:
            return ord("?")
        try:
            return TYPE_LETTERS[stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode)]
        except (OSError, KeyError):  # for example, a directory that may be listed but not searched
            return self._item_type_letter_in_listing(os.fsencode(entry.name))

    def _item_type_letter_in_listing(self, name: bytes) -> int:
        """Return the letter, as of ``find -type``, of the type that getdents64(2) lists for ``name``; ``?`` if it lists
        none.

        This works for a directory that may be listed but not searched, where stat(2) fails. ``os.scandir`` does not
        expose the types of FIFOs, sockets and devices.
        """
        if self._types is None:
            from pcopy.fsio.nodes import proc_path_of_descriptor  # imported here because few listings need them
            from pcopy.libc import file_types_by_name

            try:
                with closing_descriptor(
                    open_item_to_read(None, proc_path_of_descriptor(self._batch.directory), follow=True)
                ) as directory:
                    self._types = file_types_by_name(directory)
            except OSError:
                self._types = {}
        return TYPE_LETTERS.get(self._types.get(name, 0), ord("?"))


class StatNamesBatchProcessor:
    """A ``StatNamesBatch`` in progress: reads the status of names in one directory."""

    is_target_full = False

    def __init__(self, batch: StatNamesBatch, result: StatNamesResult | None = None) -> None:
        """Prepare to read the status of the names of ``batch``.

        ``result`` is the result to fill in if the C backend has already processed other rows; None to create one.
        """
        self._batch = batch
        self._names = unpack_names(batch.names)
        self.result = result or StatNamesResult(
            BatchOutcomeColumns(len(batch)), ItemStatusColumns(len(batch), batch.mask)
        )

    def run(self, start: int, end: int) -> None:
        """Read the status of the names from ``start`` up to, but not including, ``end``."""
        directory, on_source, follow = self._batch.directory, self._batch.on_source, self._batch.follows_links
        verdicts, rows, stat_call = self.result.verdicts, self.result.rows, os.stat
        statuses: list[os.stat_result] = []
        began = _now()
        for row in range(start, end):
            try:
                status = stat_call(self._names[row], dir_fd=directory, follow_symlinks=follow)
                verdicts.codes[row] = OutcomeCode.DONE
            except OSError as first:
                try:
                    status = self._retry_stat(self._names[row], first)
                    verdicts.codes[row] = OutcomeCode.DONE
                except OSError as error:
                    code = OutcomeCode.SOURCE_FAILED if on_source else OutcomeCode.FAILED
                    verdicts.set_code_and_problem(row, code, Problem.from_error("stat", error))
                    status = UNKNOWN_STATUS
            statuses.append(status)
            ended = _now()
            verdicts.nanoseconds[row] = ended - began
            began = ended
        rows.set_statuses(start, statuses)

    def _retry_stat(self, name: bytes, first: OSError) -> os.stat_result:
        """Read the status of the source item ``name`` again after ``first``, the error of the first attempt, and return
        it; raise ``OSError`` if it fails again.

        ``first`` itself is raised if the item is not on the source side, or if the error is not transient.
        """
        if not self._batch.on_source or first.errno not in TRANSIENT_ERRNOS:
            raise first
        call = partial(os.stat, name, dir_fd=self._batch.directory, follow_symlinks=self._batch.follows_links)
        return call_with_retries(call)


class ReadSmallFilesBatchProcessor:
    """A ``ReadSmallFilesBatch`` in progress: reads small files and computes their digests."""

    is_target_full = False

    def __init__(
        self,
        settings: BackendSettings,
        batch: ReadSmallFilesBatch,
        digest_size: int,
        result: ReadSmallFilesResult | None = None,
    ) -> None:
        assert settings.digest is not None
        self._batch = batch
        self._digest = settings.digest
        self._flags = (
            SOURCE_OPEN_FLAGS & ~os.O_NOFOLLOW if settings.follows_links and not batch.are_copies else SOURCE_OPEN_FLAGS
        )
        number = len(batch)
        self._names = unpack_names(batch.names)
        self.result = result or ReadSmallFilesResult(
            BatchOutcomeColumns(number),
            ItemStatusColumns(number, VERSION_COLUMNS),
            Digests.all_zero_digests(number, digest_size),
        )

    def run(self, start: int, end: int) -> None:
        verdicts = self.result.verdicts
        statuses: list[os.stat_result] = []
        began = _now()
        for row in range(start, end):
            try:
                status = self._read_file(row)
            except OSError:
                status = None
            verdicts.codes[row] = OutcomeCode.SLOW_PATH if status is None else OutcomeCode.DONE
            statuses.append(UNKNOWN_STATUS if status is None else status)
            ended = _now()
            verdicts.nanoseconds[row] = ended - began
            began = ended
        self.result.observed.set_statuses(start, statuses)

    def _read_file(self, row: int) -> os.stat_result | None:
        """Read the file of this row, store its digest in the result, and return its status. Return None if the file
        must be read by a task, not in a batch. Raise ``OSError``.
        """
        copies = self._batch.are_copies
        check_reading_keeps_contents(self._batch.directory, self._names[row])
        reading = _open(self._names[row], self._flags, dir_fd=self._batch.directory)
        try:
            status = _fstat(reading)
            size = status.st_size
            if (
                size > MAX_SMALL_FILE_BYTES
                or not _is_regular(status.st_mode)
                or not EARLIEST_TIME < status.st_mtime_ns < LATEST_TIME
            ):
                return None
            if self._batch.excludes_half_written and is_file_marked_incomplete(reading):
                return None
            if copies:
                _advise(reading, 0, 0, _DONTNEED)
            data = _read(reading, size + 1)
            if len(data) != size or not (copies or is_file_unchanged(status, _fstat(reading))):
                return None
        finally:
            _close(reading)
        self.result.digests[row] = self._digest(data)
        self.result.verdicts.bytes[row] = size
        self.result.verdicts.moved += size
        return status


def sync_directories(batch: SyncDirectoriesBatch) -> BatchResult:
    """Sync each open directory of the batch with fsync(2), and return a verdict (success or error) for each."""
    verdicts = BatchOutcomeColumns(len(batch.directories))
    for row, directory in enumerate(batch.directories):
        began = _now()
        try:
            os.fsync(directory)
            verdicts.codes[row] = OutcomeCode.DONE
        except OSError as error:
            verdicts.set_problem_of_row(row, Problem.from_error("fsync", error))
        verdicts.nanoseconds[row] = _now() - began
    return BatchResult(verdicts)


class ChangeItemsBatchProcessor:
    """Base of the classes for batches in progress that change or remove existing items. If a change was interrupted by
    a signal or failed because too many files are open, it is tried again.
    """

    is_target_full = False
    result: BatchResult

    def run(self, start: int, end: int) -> None:
        verdicts = self.result.verdicts
        for row in range(start, end):
            began = _now()
            try:
                try:
                    verdicts.codes[row] = self._change_item(row)
                except Problem as problem:
                    if problem.errno not in NOTHING_DONE_ERRNOS:
                        raise
                    verdicts.codes[row] = call_with_retries(partial(self._change_item, row), NOTHING_DONE_ERRNOS)
            except Problem as problem:
                verdicts.set_problem_of_row(row, problem)
            verdicts.nanoseconds[row] = _now() - began

    def _change_item(self, row: int) -> OutcomeCode:
        """Change or remove one item, that of the given ``row``, and return the code of the outcome; raise ``Problem``
        if that fails.
        """
        raise NotImplementedError


class RemoveItemsBatchProcessor(ChangeItemsBatchProcessor):
    """A ``RemoveItemsBatch`` in progress: removes items that are not directories, and empty directories."""

    def __init__(self, batch: RemoveItemsBatch, result: RemoveItemsResult | None = None) -> None:
        self._batch = batch
        self._names = unpack_names(batch.names)
        self.result: RemoveItemsResult = result or RemoveItemsResult(
            BatchOutcomeColumns(len(batch)), ItemStatusColumns(len(batch), SIZE_COLUMN)
        )

    def _change_item(self, row: int) -> OutcomeCode:
        directory, name, rows = self._batch.directory, self._names[row], self._batch.rows
        operation = "stat"
        try:
            if rows.inode:
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if not rows.is_same_item(row, status):
                    return OutcomeCode.DECIDE_AGAIN
                self.result.observed.size[row] = status.st_size if _is_regular(status.st_mode) else 0
            if rows.mode and stat.S_ISDIR(rows.mode[row]):
                operation = "rmdir"
                os.rmdir(name, dir_fd=directory)
            else:
                operation = "unlink"
                os.unlink(name, dir_fd=directory)
        except OSError as error:
            raise Problem.from_error(operation, error) from error
        if self._batch.removal_counters is not None:
            self._batch.removal_counters[1] += 1
        return OutcomeCode.DONE


class CompareXattrsBatchProcessor:
    """A ``CompareXattrsBatch`` in progress: compares the extended attributes of sources with those
    of their targets.
    """

    is_target_full = False

    def __init__(self, settings: BackendSettings, batch: CompareXattrsBatch, result: BatchResult | None = None) -> None:
        self._settings = settings
        self._batch = batch
        self._names = unpack_names(batch.names)
        self._new_names = unpack_names(batch.new_names) if batch.new_names else self._names
        self.result = result or BatchResult(BatchOutcomeColumns(len(batch)))

    def run(self, start: int, end: int) -> None:
        """Compare the extended attributes of the items from ``start`` up to, but not including, ``end``.

        Items are named by paths below /proc/self/fd/N, because no call for extended attributes takes a directory
        descriptor and a name.
        """
        from pcopy.fsio.metadata_update import has_same_xattrs  # imported here because few jobs need it

        source, target = (b"/proc/self/fd/%d/" % each for each in (self._batch.directory, self._batch.target))
        verdicts, preserve, follow = self.result.verdicts, self._settings.preserve, self._settings.follows_links
        for row in range(start, end):
            began = _now()
            paths = source + self._names[row], target + self._new_names[row]
            try:
                same = has_same_xattrs(*paths, preserve, follow=follow)
            except OSError:
                same = False
            verdicts.codes[row] = OutcomeCode.DONE if same else OutcomeCode.SLOW_PATH
            verdicts.nanoseconds[row] = _now() - began
