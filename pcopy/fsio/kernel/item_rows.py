"""The rows of the batches ``List``, ``Stat``, ``Read``, ``Remove`` and ``Compare`` in the Python backend.

Rows are processed one after the other. System calls per item:

- ``Stat``: stat.
- ``Read``: open, fstat, read, close; for a source one more fstat, for a copy fadvise64.
- ``Remove``: stat and unlink or rmdir.
"""

from __future__ import annotations

import os
import stat
import time
from array import array
from functools import partial
from itertools import islice

from pcopy.fsio.close import held_open
from pcopy.fsio.directories import list_entries
from pcopy.fsio.half_written import is_marked
from pcopy.fsio.kernel.batches import (
    Compare,
    Digests,
    Judged,
    List,
    Listed,
    Read,
    ReadBack,
    Remove,
    Removed,
    Stat,
    Stated,
    SyncDirectories,
)
from pcopy.fsio.kernel.columns import (
    FIRST,
    KINDS,
    LAST,
    SIZE,
    UNKNOWN,
    VERSION,
    Code,
    Rows,
    Verdicts,
    pack_names,
    unpack_names,
)
from pcopy.fsio.kernel.copy_rows import READ, is_unchanged
from pcopy.fsio.kernel.interface import SMALL_FILE, Settings
from pcopy.fsio.patience import INTERRUPTED, PASSING, patiently
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import open_to_read, refuse_consumed

_open, _fstat, _read, _close, _is_regular = os.open, os.fstat, os.read, os.close, stat.S_ISREG
_advise, _UNNEEDED = os.posix_fadvise, os.POSIX_FADV_DONTNEED
_now = time.monotonic_ns


class Listing:
    """A ``List`` batch in progress. It has one row: the next names of the directory."""

    is_full = False

    def __init__(self, batch: List) -> None:
        self._batch = batch
        self._types: dict[bytes, int] | None = None
        self.result = Listed(Verdicts(1))

    def run(self, start: int, end: int) -> None:
        """List the names; there is one row only."""
        batch, result = self._batch, self.result
        began = _now()
        entries = batch.going_on if batch.going_on is not None else list_entries(batch.directory)
        found: list[os.DirEntry[str]] = []
        result.verdicts.codes[0] = Code.DONE
        try:
            found.extend(islice(entries, batch.most))  # keeps the entries that were read before an error
        except OSError as error:
            problem = error if isinstance(error, Problem) else Problem.of("readdir", error)
            code = Code.UNREAD if batch.on_source else Code.FAILED
            result.verdicts.set(0, code, problem)
        else:
            if len(found) == batch.most:
                result.rest = List(batch.directory, batch.most, batch.detailed, batch.on_source, entries)
        result.names = pack_names(os.fsencode(entry.name) for entry in found)
        result.number = len(found)
        if batch.detailed:
            result.kinds = bytes(map(self._kind, found))
            result.inodes = array("Q", [entry.inode() for entry in found])
        result.verdicts.nanoseconds[0] = _now() - began

    def _kind(self, entry: os.DirEntry[str]) -> int:
        """Return the letter of the type of an entry, or ``?`` if it cannot be found out.

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
            return KINDS[stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode)]
        except (OSError, KeyError):  # for example, a directory that may be listed but not searched
            return self._listed_kind(os.fsencode(entry.name))

    def _listed_kind(self, name: bytes) -> int:
        """Return the letter of the type that getdents64(2) lists for a name, or ``?``.

        This works for a directory that may be listed but not searched, where stat(2) fails. ``os.scandir`` does not
        expose the types of FIFOs, sockets and devices.
        """
        if self._types is None:
            from pcopy.fsio.nodes import handle_of  # imported here because few listings need them
            from pcopy.libc import types_in

            try:
                with held_open(open_to_read(None, handle_of(self._batch.directory), follow=True)) as directory:
                    self._types = types_in(directory)
            except OSError:
                self._types = {}
        return KINDS.get(self._types.get(name, 0), ord("?"))


class Stating:
    """A ``Stat`` batch in progress."""

    is_full = False

    def __init__(self, batch: Stat, result: Stated | None = None) -> None:
        """Prepare the rows.

        ``result`` is the result to fill in if the C backend has already processed other rows; None to create one. The
        other classes of this module have the same parameter.
        """
        self._batch = batch
        self._names = unpack_names(batch.names)
        self.result = result or Stated(Verdicts(len(batch)), Rows(len(batch), batch.mask))

    def run(self, start: int, end: int) -> None:
        """Read the status of the names from ``start`` up to, but not including, ``end``."""
        directory, on_source, follow = self._batch.directory, self._batch.on_source, self._batch.follow
        verdicts, rows, stat_call = self.result.verdicts, self.result.rows, os.stat
        statuses: list[os.stat_result] = []
        began = _now()
        for row in range(start, end):
            try:
                status = stat_call(self._names[row], dir_fd=directory, follow_symlinks=follow)
                verdicts.codes[row] = Code.DONE
            except OSError as first:
                try:
                    status = self._again(self._names[row], first)
                    verdicts.codes[row] = Code.DONE
                except OSError as error:
                    code = Code.UNREAD if on_source else Code.FAILED
                    verdicts.set(row, code, Problem.of("stat", error))
                    status = UNKNOWN
            statuses.append(status)
            ended = _now()
            verdicts.nanoseconds[row] = ended - began
            began = ended
        rows.put(start, statuses)

    def _again(self, name: bytes, first: OSError) -> os.stat_result:
        """Read the status of a source item again after a transient error; raise ``OSError`` if it fails again.

        ``first`` is the first error. It is raised if the item is not on the source side, or if the error is not
        transient.
        """
        if not self._batch.on_source or first.errno not in PASSING:
            raise first
        call = partial(os.stat, name, dir_fd=self._batch.directory, follow_symlinks=self._batch.follow)
        return patiently(call)


class Reading:
    """A ``Read`` batch in progress: reads small files and computes their digests."""

    is_full = False

    def __init__(self, settings: Settings, batch: Read, digest_size: int, result: ReadBack | None = None) -> None:
        assert settings.digest is not None
        self._batch = batch
        self._digest = settings.digest
        self._flags = READ & ~os.O_NOFOLLOW if settings.follow and not batch.copies else READ
        number = len(batch)
        self._names = unpack_names(batch.names)
        self.result = result or ReadBack(Verdicts(number), Rows(number, VERSION), Digests.of(number, digest_size))

    def run(self, start: int, end: int) -> None:
        verdicts = self.result.verdicts
        statuses: list[os.stat_result] = []
        began = _now()
        for row in range(start, end):
            try:
                status = self._read(row)
            except OSError:
                status = None
            verdicts.codes[row] = Code.CARE if status is None else Code.DONE
            statuses.append(UNKNOWN if status is None else status)
            ended = _now()
            verdicts.nanoseconds[row] = ended - began
            began = ended
        self.result.seen.put(start, statuses)

    def _read(self, row: int) -> os.stat_result | None:
        """Read one file, set its digest, and return its status; return None if the slow path is needed. Raise
        ``OSError``."""
        copies = self._batch.copies
        refuse_consumed(self._batch.directory, self._names[row])
        reading = _open(self._names[row], self._flags, dir_fd=self._batch.directory)
        try:
            status = _fstat(reading)
            size = status.st_size
            if size > SMALL_FILE or not _is_regular(status.st_mode) or not FIRST < status.st_mtime_ns < LAST:
                return None
            if self._batch.whole and is_marked(reading):
                return None
            if copies:
                _advise(reading, 0, 0, _UNNEEDED)
            data = _read(reading, size + 1)
            if len(data) != size or not (copies or is_unchanged(status, _fstat(reading))):
                return None
        finally:
            _close(reading)
        self.result.digests[row] = self._digest(data)
        self.result.verdicts.bytes[row] = size
        self.result.verdicts.moved += size
        return status


def sync_directories(batch: SyncDirectories) -> Judged:
    """Sync all directories of the batch with fsync(2), and return their verdicts."""
    verdicts = Verdicts(len(batch.directories))
    for row, directory in enumerate(batch.directories):
        began = _now()
        try:
            os.fsync(directory)
            verdicts.codes[row] = Code.DONE
        except OSError as error:
            verdicts.fail(row, Problem.of("fsync", error))
        verdicts.nanoseconds[row] = _now() - began
    return Judged(verdicts)


class Changing:
    """Base of batches in progress that change existing items. A change that a signal interrupted is tried again."""

    is_full = False
    result: Judged

    def run(self, start: int, end: int) -> None:
        verdicts = self.result.verdicts
        for row in range(start, end):
            began = _now()
            try:
                try:
                    verdicts.codes[row] = self._change(row)
                except Problem as problem:
                    if problem.errno not in INTERRUPTED:
                        raise
                    verdicts.codes[row] = patiently(partial(self._change, row), INTERRUPTED)
            except Problem as problem:
                verdicts.fail(row, problem)
            verdicts.nanoseconds[row] = _now() - began

    def _change(self, row: int) -> Code:
        """Change one item and return its code; raise ``Problem`` if that fails."""
        raise NotImplementedError


class Removing(Changing):
    """A ``Remove`` batch in progress."""

    def __init__(self, batch: Remove, result: Removed | None = None) -> None:
        self._batch = batch
        self._names = unpack_names(batch.names)
        self.result: Removed = result or Removed(Verdicts(len(batch)), Rows(len(batch), SIZE))

    def _change(self, row: int) -> Code:
        directory, name, rows = self._batch.directory, self._names[row], self._batch.rows
        operation = "stat"
        try:
            if rows.inode:
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if not rows.is_item(row, status):
                    return Code.ANEW
                self.result.seen.size[row] = status.st_size if _is_regular(status.st_mode) else 0
            if rows.mode and stat.S_ISDIR(rows.mode[row]):
                operation = "rmdir"
                os.rmdir(name, dir_fd=directory)
            else:
                operation = "unlink"
                os.unlink(name, dir_fd=directory)
        except OSError as error:
            raise Problem.of(operation, error) from error
        if self._batch.gone is not None:
            self._batch.gone[1] += 1
        return Code.DONE


class Comparing:
    """A ``Compare`` batch in progress."""

    is_full = False

    def __init__(self, settings: Settings, batch: Compare, result: Judged | None = None) -> None:
        self._settings = settings
        self._batch = batch
        self._names = unpack_names(batch.names)
        self._new_names = unpack_names(batch.new_names) if batch.new_names else self._names
        self.result = result or Judged(Verdicts(len(batch)))

    def run(self, start: int, end: int) -> None:
        """Compare the extended attributes of the rows.

        Items are named by paths below /proc/self/fd/N, because no call for extended attributes takes a directory
        descriptor and a name.
        """
        from pcopy.fsio.mending import same_xattrs  # imported here because few jobs need it

        source, target = (b"/proc/self/fd/%d/" % each for each in (self._batch.directory, self._batch.target))
        verdicts, preserve, follow = self.result.verdicts, self._settings.preserve, self._settings.follow
        for row in range(start, end):
            began = _now()
            paths = source + self._names[row], target + self._new_names[row]
            try:
                same = same_xattrs(*paths, preserve, follow=follow)
            except OSError:
                same = False
            verdicts.codes[row] = Code.DONE if same else Code.CARE
            verdicts.nanoseconds[row] = _now() - began
