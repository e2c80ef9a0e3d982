"""The inner loops for small files in plain Python.

System calls per copied file: open, fstat, read, flistxattr (and a fgetxattr per name), fstat, close of the source;
open, write, fchown, fchmod, utimensat, close of the target. Nothing twice, nothing dropped. Per file that is read:
open, fstat, read, close; of a source fstat once more, of a copy fadvise64.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence

from pcopy.fsio.attributes import Applied, Attributes, apply_attributes, has_common_times, read_xattrs
from pcopy.fsio.data import write_all
from pcopy.fsio.kernel import CARE, SMALL_FILE, Copied, Read, Verdict
from pcopy.fsio.preserve import Preserve
from pcopy.fsio.problem import MetadataProblem, Problem, changed
from pcopy.fsio.source import FLAGS, open_source
from pcopy.fsio.temporary import remove

_READ = FLAGS | os.O_NOATIME
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

# Looked up once: these run a dozen times a file.
_NOTHING = Applied()
_open, _fstat, _read, _write, _close = os.open, os.fstat, os.read, os.write, os.close
_chown, _chmod, _utime, _is_regular = os.chown, os.chmod, os.utime, stat.S_ISREG
_advise, _UNNEEDED = os.posix_fadvise, os.POSIX_FADV_DONTNEED


class PythonKernel:
    """Fills ``pcopy.fsio.kernel.Kernel`` with Python's own system calls."""

    def __init__(
        self,
        preserve: Preserve,
        umask: int,
        *,
        follow: bool = False,
        digest: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """``follow``: names may be symbolic links to what was found. ``digest`` is taken of each file's contents."""
        self._digest = digest
        self._preserve = preserve
        self._umask = umask
        self._applied: list[tuple[bytes, Applied]] = []
        self._plain = preserve.mode and preserve.ownership and preserve.timestamps and preserve.chown == (-1, -1)
        self._follow = follow
        self._flags = _READ & ~os.O_NOFOLLOW if follow else _READ
        self._sparse = preserve.sparse
        self._made: Callable[[int], None] | None = None

    def drain(self) -> list[tuple[bytes, Applied]]:
        applied, self._applied = self._applied, []
        return applied

    def copy_new_files(
        self,
        source: int,
        target: int,
        names: Sequence[bytes],
        inodes: Sequence[int],
        device: int,
        *,
        inherits: bool,
        target_names: Sequence[bytes] | None = None,
        made: Callable[[int], None] | None = None,
    ) -> Iterator[Verdict]:
        self._made = made
        for name, inode, new_name in zip(names, inodes, target_names or names, strict=True):
            try:
                yield self._copy(source, target, name, new_name, inode, device, inherits)
            except OSError as error:  # a bare one can come from closing the source only
                yield Problem.of("close", error, on_source=True)

    def read_files(self, directory: int, names: Sequence[bytes], *, copies: bool = False) -> Iterator[Read | int]:
        digest = self._digest
        assert digest is not None
        for name in names:
            try:
                yield self._read(directory, name, digest, copies)
            except OSError:
                yield CARE

    def _read(self, directory: int, name: bytes, digest: Callable[[bytes], bytes], copy: bool) -> Read | int:
        reading = _open(name, _READ if copy else self._flags, dir_fd=directory)
        try:
            status = _fstat(reading)
            size = status.st_size
            if size > SMALL_FILE or not _is_regular(status.st_mode):
                return CARE
            if copy:
                _advise(reading, 0, 0, _UNNEEDED)
            data = _read(reading, size + 1)
            if len(data) != size or not (copy or _is_same(status, _fstat(reading))):
                return CARE
        finally:
            _close(reading)
        return status, digest(data)

    def _copy(
        self, source: int, target: int, name: bytes, new_name: bytes, inode: int, device: int, inherits: bool
    ) -> Copied | int:
        """One file. What is spelled out here rather than called is so because it runs for each of them."""
        try:
            reading = _open(name, self._flags, dir_fd=source)
        except OSError:
            reading = open_source(source, name, follow=self._follow)  # without O_NOATIME, and telling errors apart
        operation = "fstat"
        try:
            status = _fstat(reading)
            mode, size = status.st_mode, status.st_size
            if status.st_ino != inode or status.st_dev != device or not _is_regular(mode):
                raise changed("open", "another file has taken its name")
            if size > SMALL_FILE or (self._sparse and status.st_blocks << 9 < size):
                return CARE
            operation = "read"
            data = _read(reading, size + 1)
            if len(data) != size:
                whole = _rest(reading, data, size)
                if whole is None:
                    return CARE
                data = whole
            xattrs = read_xattrs(reading, self._preserve)
            operation = "fstat"
            if not _is_same(status, _fstat(reading)):
                raise changed("read", "the file changed while it was copied")
        except OSError as error:
            raise Problem.of(operation, error, on_source=True) from error
        finally:
            _close(reading)
        try:
            writing = _open(new_name, _NEW, 0o600, dir_fd=target)
        except FileExistsError:
            return CARE
        except OSError as error:
            raise Problem.of("create", error) from error
        operation = "write"
        applied = None
        try:
            try:
                put = _write(writing, data) if data else 0
                if put != len(data):
                    write_all(writing, memoryview(data)[put:], put)
                common = has_common_times(status.st_atime_ns, status.st_mtime_ns)
                if xattrs or inherits or not (self._plain and common):
                    applied = self._apply(writing, status, xattrs, inherits)
                else:
                    try:
                        _chown(writing, status.st_uid, status.st_gid)
                        _chmod(writing, mode & 0o7777)
                        _utime(writing, ns=(status.st_atime_ns, status.st_mtime_ns))
                    except OSError:  # once more, with care: what is no error, and which operation was it?
                        applied = self._apply(writing, status, xattrs, inherits)
                operation = "fstat"
                if self._made is not None:
                    self._made(writing)
                operation = "close"
            finally:
                _close(writing)
        except MetadataProblem:
            raise  # the contents are whole: better a file with wrong metadata, and told so, than none
        except OSError as error:
            remove(target, new_name)
            raise Problem.of(operation, error) from error
        if applied is not None and applied != _NOTHING:
            self._applied.append((name, applied))
        return status, len(data), self._digest(data) if self._digest else b""

    def _apply(
        self, writing: int, status: os.stat_result, xattrs: tuple[tuple[str, bytes], ...], inherits: bool
    ) -> Applied:
        attributes = Attributes(
            status.st_mode, status.st_uid, status.st_gid, status.st_atime_ns, status.st_mtime_ns, xattrs
        )
        return apply_attributes(writing, attributes, self._preserve, self._umask, inherits=inherits)


def _is_same(one: os.stat_result, other: os.stat_result) -> bool:
    """Has the open file not changed in between?"""
    return (
        one.st_ctime_ns == other.st_ctime_ns and one.st_mtime_ns == other.st_mtime_ns and one.st_size == other.st_size
    )


def _rest(reading: int, data: bytes, size: int) -> bytes | None:
    """All of a file of which one read gave another number of bytes than its size; raises ``Problem`` and ``OSError``.

    A file of size 0 may well have contents (/proc): it is read to its end, unless that is too far for memory (None).
    Others have changed.
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
        raise changed("read", f"the file ended after {len(whole)} of {size} bytes")
    return whole
