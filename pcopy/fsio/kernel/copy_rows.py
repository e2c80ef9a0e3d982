"""Copies the rows of one batch, in plain Python, one after the other.

System calls per file: open, fstat, read, flistxattr (and a fgetxattr per name), fstat, close of the source; open,
write, fchown, fchmod, utimensat, close of the target. Nothing twice, nothing dropped. A file under a temporary name is
looked at with one fstat more; one that is synced with an fsync; one that replaces another with a rename and a stat.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from pcopy.fsio.attributes import NO_XATTRS, Applied, Xattrs, attributes_of, has_common_times, read_xattrs
from pcopy.fsio.close import has_late_times
from pcopy.fsio.contents import GENERATED
from pcopy.fsio.identity import mark_of
from pcopy.fsio.kernel.batches import SYNC, Copied, Copy, Digests, Plan
from pcopy.fsio.kernel.columns import Code, Marks, Verdicts, numbers, unpack_names
from pcopy.fsio.kernel.interface import SMALL_FILE, Settings
from pcopy.fsio.layout import PLAIN
from pcopy.fsio.new_file import NewFile
from pcopy.fsio.passage import write_all
from pcopy.fsio.patience import open_patiently
from pcopy.fsio.problem import Problem, changed
from pcopy.fsio.source import FLAGS, open_source, refuse_consumed
from pcopy.fsio.temporary import NEW, remove
from pcopy.libc import type_of_file_system

READ = FLAGS | os.O_NOATIME
FULL = (errno.ENOSPC, errno.EROFS)
_OF_NO_SIZE = 64 << 10
"""Bytes that are asked for of a file whose size is 0: /proc/kmsg refuses to return less than a line."""
_TAKEN = Problem("create", errno.EEXIST)
_NOTHING = Applied()

# Looked up once: these run a dozen times a file.
_open, _fstat, _read, _write, _close, _listxattr = os.open, os.fstat, os.read, os.write, os.close, os.listxattr
_chown, _chmod, _utime, _is_regular = os.chown, os.chmod, os.utime, stat.S_ISREG
_now = time.monotonic_ns
# Plain numbers: to look up a member of an enum takes longer than to compare it.
_NEW, _REPLACE, _TEMPORARY, _REFUSE = map(int, (Plan.NEW, Plan.REPLACE, Plan.TEMPORARY, Plan.REFUSE))
_AT_ONCE = {int(Plan.SKIP): Code.SKIPPED, int(Plan.CARE): Code.CARE}
_DONE = int(Code.DONE)


class Copying:
    """One batch under way; it ends once the target was full, or read-only, twice without a success in between."""

    def __init__(self, settings: Settings, batch: Copy, digest_size: int, result: Copied | None = None) -> None:
        """``result``: where other rows are told already."""
        self._batch = batch
        self._digest = settings.digest
        self._preserve = preserve = settings.preserve
        self._umask = settings.umask
        self._follow = settings.follow
        self._flags = READ & ~os.O_NOFOLLOW if settings.follow else READ
        keeps_all = preserve.mode and preserve.ownership and preserve.timestamps and preserve.chown == (-1, -1)
        is_plain = keeps_all and not batch.inherits and batch.recipe is PLAIN
        self._plain = is_plain and not (preserve.timestamps and has_late_times(batch.target))
        self._sparse = preserve.sparse
        self._full = 0
        number = len(batch)
        self._names = unpack_names(batch.names)
        self._new_names = unpack_names(batch.new_names) if batch.new_names else self._names
        self._temporaries = unpack_names(batch.temporaries) if batch.temporaries else [b""] * number
        self._versions, self._devices = batch.rows.versions(), batch.rows.device
        self.result = result or Copied(
            Verdicts(number), Digests.of(number, digest_size), numbers("Q", number), Marks(), {}
        )

    def run(self, start: int, end: int) -> None:
        """The rows from ``start`` up to ``end``, or until it is full."""
        verdicts, plans = self.result.verdicts, self._batch.plans
        codes, nanoseconds = verdicts.codes, verdicts.nanoseconds
        began = _now()
        for row in range(start, end):
            if self._full > 1:
                return
            plan = plans[row] & ~SYNC
            if plan in _AT_ONCE:
                codes[row] = _AT_ONCE[plan]
            elif plan == _REFUSE:
                verdicts.fail(row, _TAKEN)
            else:
                try:
                    codes[row] = self._copy(row, plan)
                    if codes[row] == _DONE:
                        self._full = 0
                except OSError as error:  # a bare one can come from closing the source only
                    verdicts.fail(row, Problem.of("close", error, on_source=True))
                    self._full += verdicts.codes[row] == Code.FAILED and error.errno in FULL
            ended = _now()
            nanoseconds[row] = ended - began
            began = ended

    @property
    def is_full(self) -> bool:
        return self._full > 1

    def _copy(self, row: int, plan: int) -> int:
        """One file. What is spelled out here rather than called is so because it runs for each of them."""
        batch, name = self._batch, self._names[row]
        try:
            refuse_consumed(batch.directory, name)
            reading = _open(name, self._flags, dir_fd=batch.directory)
        except OSError:
            # without O_NOATIME, and telling errors apart
            reading = open_source(batch.directory, name, follow=self._follow)
        operation = "fstat"
        try:
            status = _fstat(reading)
            version = status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
            if version != self._versions[row] or status.st_dev != self._devices[row] or not _is_regular(status.st_mode):
                return self._differs(row, status)
            _, size, mtime, ctime = version
            if size > SMALL_FILE or (self._sparse and status.st_blocks << 9 < size):
                return Code.CARE
            operation = "read"
            data = _read(reading, size + 1 if size else _OF_NO_SIZE)
            if len(data) != size:
                whole = _rest(reading, data, size)
                if whole is None:
                    return Code.CARE
                data = whole
            try:
                names = _listxattr(reading)
            except OSError:  # once more, patiently
                names = None
            xattrs = NO_XATTRS if names == [] else read_xattrs(reading, self._preserve, names)
            operation = "fstat"
            again = _fstat(reading)
            if again.st_ctime_ns != ctime or again.st_mtime_ns != mtime or again.st_size != size:
                raise changed("read", "the file changed while it was copied")
        except OSError as error:
            raise Problem.of(operation, error, on_source=True) from error
        finally:
            _close(reading)
        if (
            batch.plans[row] == _NEW
            and self._plain
            and not batch.identified
            and xattrs is NO_XATTRS
            and has_common_times(status.st_atime_ns, mtime)
        ):
            return self._make_plain(row, data, status)
        return self._make(row, plan, data, status, xattrs)

    def _differs(self, row: int, status: os.stat_result) -> int:
        """It is not what the plan was made from: another version, or another item, for which it raises ``Problem``."""
        is_same = status.st_ino == self._versions[row][0] and status.st_dev == self._devices[row]
        if not (is_same and _is_regular(status.st_mode)):
            raise changed("open", "another file has taken its name")
        return Code.ANEW

    def _make_plain(self, row: int, data: bytes, status: os.stat_result) -> int:
        """As ``_make``, for nearly all files, to which nothing happens; with all others ``NewFile`` goes on."""
        directory, name = self._batch.target, self._new_names[row]
        try:
            writing = open_patiently(name, NEW, 0o600, dir_fd=directory)
        except OSError as error:
            return self._refused(row, _NEW, Problem.of("create", error))
        try:
            try:
                put = _write(writing, data) if data else 0
            except OSError as error:
                raise Problem.of("write", error) from error
            try:
                is_dressed = put == len(data)
                if is_dressed:
                    _chown(writing, status.st_uid, status.st_gid)
                    _chmod(writing, status.st_mode & 0o7777)
                    _utime(writing, ns=(status.st_atime_ns, status.st_mtime_ns))
            except OSError:
                is_dressed = self._plain = False
        except BaseException:
            with NewFile(directory, name, writing):
                raise
        if not is_dressed:
            return self._fill(NewFile(directory, name, writing), row, _NEW, data, put, status, NO_XATTRS)
        try:
            _close(writing)
        except OSError as error:
            remove(directory, name)
            raise Problem.of("close", error) from error
        verdicts = self.result.verdicts
        verdicts.bytes[row] = put
        verdicts.moved += put
        if self._digest is not None:
            self.result.digests[row] = self._digest(data)
        return _DONE

    def _make(self, row: int, plan: int, data: bytes, status: os.stat_result, xattrs: Xattrs) -> int:
        """The copy: contents, metadata, its name; or nothing is left of it. Raises ``Problem``."""
        made_as = self._new_names[row] if plan == _NEW else self._temporaries[row]
        try:
            new = NewFile.at(self._batch.target, made_as, self._batch.recipe)
        except Problem as problem:
            return self._refused(row, plan, problem)
        return self._fill(new, row, plan, data, 0, status, xattrs)

    def _refused(self, row: int, plan: int, problem: Problem) -> int:
        """The file could not be created. Raises ``Problem``, unless it is to be decided anew."""
        if plan != _NEW or problem.errno != errno.EEXIST:
            raise problem
        self.result.verdicts.set(row, Code.ANEW, _TAKEN)
        return Code.ANEW

    def _fill(
        self, new: NewFile, row: int, plan: int, data: bytes, put: int, status: os.stat_result, xattrs: Xattrs
    ) -> int:
        """All that is missing of a ``new`` file into which ``put`` bytes have been written. Raises ``Problem``."""
        result = self.result
        sync = bool(self._batch.plans[row] & SYNC)
        with new:
            try:
                if data and not put:
                    put = _write(new.descriptor, data)
                if put != len(data):
                    write_all(new.descriptor, memoryview(data)[put:], put)
                applied = self._dress(new, status, xattrs)
                if plan != _NEW or self._batch.identified:
                    result.made[row] = new.status.st_ino
                    if plan != _REPLACE:
                        result.marks[row] = mark_of(new.descriptor, made=True)
            except OSError as error:
                raise Problem.of("write", error) from error
            if plan == _REPLACE:
                new.commit(self._new_names[row], sync=sync)
            else:
                new.keep(sync=sync)
        result.verdicts.bytes[row] = len(data)
        result.verdicts.moved += len(data)
        if self._digest is not None:
            result.digests[row] = self._digest(data)
        if new.shortcoming is not None:  # better a file with wrong metadata, and told so, than none
            raise new.shortcoming
        if applied != _NOTHING:
            result.applied[row] = applied
        return _DONE

    def _dress(self, new: NewFile, status: os.stat_result, xattrs: Xattrs) -> Applied:
        """Gives the file its metadata; what fails is its ``shortcoming``."""
        times = status.st_atime_ns, status.st_mtime_ns
        if self._plain and xattrs is NO_XATTRS and has_common_times(*times):
            try:
                _chown(new.descriptor, status.st_uid, status.st_gid)
                _chmod(new.descriptor, status.st_mode & 0o7777)
                _utime(new.descriptor, ns=times)
                return _NOTHING
            except OSError:  # once more, with care: what is no error, and which operation was it?
                self._plain = False
        attributes = attributes_of(status, xattrs)
        return new.dress(attributes, self._preserve, self._umask, inherits=self._batch.inherits)


def is_unchanged(one: os.stat_result, other: os.stat_result) -> bool:
    """Has the open file not changed in between?"""
    return (
        one.st_ctime_ns == other.st_ctime_ns and one.st_mtime_ns == other.st_mtime_ns and one.st_size == other.st_size
    )


def _rest(reading: int, data: bytes, size: int) -> bytes | None:
    """All of a file of which one read gave another number of bytes than its size; raises ``Problem`` and ``OSError``.

    A file of size 0 may well have contents (/proc): it is read to its end, unless that is too far for memory (None). So
    may files that are generated as they are read have another size (None). Others have changed.
    """
    if size and len(data) > size:
        raise changed("read", "the file grew while it was copied")
    parts = [data]
    got = len(data)
    while data:
        data = os.read(reading, 1 << 20)
        parts.append(data)
        got += len(data)
        if got > SMALL_FILE:
            return None
    whole = b"".join(parts)
    if size and len(whole) != size:
        if type_of_file_system(reading) in GENERATED:
            return None
        raise changed("read", f"the file ended after {len(whole)} of {size} bytes")
    return whole
