"""Detection of directories where files can only be written sequentially, by one process, and under their final names.

S3 mounts and other file systems over object stores cannot rename, refuse names with a leading dot, or accept writes
only at the end of a new file. But pcopy normally renames temporary files to their final names, and lets several ranks
write to one large file.

``examine_supported_operations`` finds out whether that is possible in a directory: it creates, writes, renames and
removes one small file. It is called once for a destination, and only on file systems that are not known to support all
of this (``pcopy.fsio.copy_methods``).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.close import close_after_failure, closing_descriptor, is_mtime_set_on_close
from pcopy.fsio.problem import Problem
from pcopy.fsio.retries import open_with_retries
from pcopy.fsio.server import determine_if_close_sets_mtime
from pcopy.fsio.temporary import CREATE_FLAGS, TEMPORARY_NAME_PREFIX, remove_item_if_present
from pcopy.text import printable_path

_UNSUPPORTED_ERRNOS = {
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.EPERM,
    errno.EACCES,
    errno.EINVAL,
    errno.ESPIPE,
    errno.EXDEV,
}
"""Errors which mean that the file system does not support the operation.

Other errors, such as a full disk, do not show whether the operation is supported.
"""

_Finding = TypeVar("_Finding")
_NAME_REFUSAL_ERRNOS = _UNSUPPORTED_ERRNOS | {errno.ENOENT, errno.EIO}
"""Errors of open(2) with which a file system may refuse a name with a leading dot."""
_LAST_BYTE_OFFSET = 1 << 16
"""Offset of the last byte of the test file, which is written before the first one."""


TEST_FILE_NAME = TEMPORARY_NAME_PREFIX + b"examination"
"""Name of the test file.

The name is the same each time, so that test files do not accumulate where files cannot be removed. A test file without
a leading dot has a random name instead, because a fixed one could be the name of a file of the user.
"""


class DirectoryExamination(NamedTuple):
    """Result of examining whether files can be created, renamed and written in any order in a directory.

    Fields:
        unsupported: text such as "cannot rename files (Function not implemented)" for the operation that is not
            possible in the directory; empty if all are possible.
        leftover_path: path of a test file that could not be removed; empty if there is none.
    """

    unsupported: str = ""
    leftover_path: str = ""

    @property
    def reason_renaming_is_impossible(self) -> str:
        """Reason, for a message, why finished files cannot be renamed here; empty if they can."""
        leftover_note = f" ({self.leftover_path} is left there)" if self.leftover_path else ""
        return f"the file system {self.unsupported}{leftover_note}" if self.unsupported else ""


def examine_supported_operations(path: bytes, *, writes: bool = True) -> DirectoryExamination:
    """Find out, with a test file, whether an operation that pcopy needs (create, write in any order, rename, remove) is
    impossible in the directory ``path``, and return the result. Also find out whether closing a file changes its times
    there.

    The latter is recorded by ``pcopy.fsio.server.determine_if_close_sets_mtime``. The test is made in the parent
    directory, if that is on the same file system and writable, so that the ctime of ``path`` remains unchanged if there
    is nothing to copy. An operation for which the test has no result, for example on a full disk, is assumed to be
    possible: the copy reports the error. No exception is raised.

    ``writes``: also test whether a file can be written in any order.
    """
    return _call_in_test_directory(path, partial(_examine_open_directory, writes=writes)) or DirectoryExamination()


def examine_times_after_close(path: bytes) -> None:
    """Find out, with a test file, whether closing a file changes its times in the directory ``path``. The result is
    recorded by ``pcopy.fsio.server.determine_if_close_sets_mtime``. No exception is raised.
    """
    _call_in_test_directory(path, _determine_if_close_sets_mtime)


def _call_in_test_directory(path: bytes, find_out: Callable[[int], _Finding | None]) -> _Finding | None:
    """Call ``find_out`` with the descriptor of a directory in which a test file may be created, and return its result.
    The parent directory of ``path`` is tried first, if it is on the same file system; if ``find_out`` returns None,
    ``path`` itself is tried.

    Return None if neither has a result. The directory gets its modification time back, even if an operation fails
    later.
    """
    for place in (os.path.join(path, b".."), path):
        with (
            suppress(OSError),
            closing_descriptor(open_with_retries(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as directory,
        ):
            status = os.fstat(directory)
            if status.st_dev != os.stat(path).st_dev:
                continue
            result = find_out(directory)
            with suppress(OSError):
                if os.fstat(directory).st_mtime_ns != status.st_mtime_ns:
                    os.utime(directory, ns=(status.st_atime_ns, status.st_mtime_ns))
            if result is not None:
                return result
    return None


def _determine_if_close_sets_mtime(directory: int) -> bool | None:
    """Find out, with a test file in an open directory, whether closing a file changes its times. Return True if the
    result is known then; None if not, so that the caller tries another directory.
    """
    device = os.fstat(directory).st_dev
    if device not in is_mtime_set_on_close:
        with suppress(Problem):  # the test file cannot be removed: the first rank to copy here reports that error
            determine_if_close_sets_mtime(directory, device, _random_test_file_name())
    return device in is_mtime_set_on_close or None


def _random_test_file_name() -> bytes:
    """Return a random name for a test file."""
    return b"%b-%b" % (TEST_FILE_NAME, os.urandom(5).hex().encode())


def _examine_open_directory(directory: int, *, writes: bool) -> DirectoryExamination | None:
    """Find out which operation is impossible in an open directory, and whether closing a file changes its times there.
    Return None if no file can be created in the directory. ``writes``: also test whether a file can be written in any
    order.
    """
    result = _try_file_operations(directory, TEST_FILE_NAME, writes=writes)
    if result is None:  # another job examines the directory at the same time
        result = _try_file_operations(directory, _random_test_file_name(), writes=writes)
    if result is not None and not result.unsupported:  # otherwise closing is assumed to change the times
        _determine_if_close_sets_mtime(directory)
    return result


def _try_file_operations(directory: int, name: bytes, *, writes: bool) -> DirectoryExamination | None:
    """Create, write, rename and remove the test file ``name`` in an open directory; return which of these is not
    possible. ``writes``: also test whether the file can be written in any order.

    Return None if the file could not be created, or if another job has removed it.
    """
    try:
        descriptor = _create_test_file(directory, name)
    except Problem as problem:
        return DirectoryExamination(_unsupported_text("cannot remove files", problem), _test_file_path(directory, name))
    except FileExistsError:
        return None
    except OSError as error:
        return _examine_refusal_of_dot_name(directory, error)
    lacking, renamed = _try_writing_test_file(descriptor, writes=writes), name + b"-renamed"
    if not lacking:
        try:
            os.rename(name, renamed, src_dir_fd=directory, dst_dir_fd=directory)
            name = renamed
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in _UNSUPPORTED_ERRNOS:
                lacking = _unsupported_text("cannot rename files", error)
    return _remove_test_file(directory, name, lacking)


def _examine_refusal_of_dot_name(directory: int, refused: OSError) -> DirectoryExamination | None:
    """Find out why a test file whose name has a leading dot was refused with the error ``refused``: create a file
    without a leading dot in an open directory. If that is possible, return the result that names with a leading dot are
    refused; else return None.
    """
    name, lacking = (
        _random_test_file_name().removeprefix(b"."),
        _unsupported_text("refuses names with a leading dot", refused),
    )
    if refused.errno not in _NAME_REFUSAL_ERRNOS:
        return None
    try:
        close_after_failure(open_with_retries(name, CREATE_FLAGS, 0o600, dir_fd=directory))
    except OSError:
        return None
    return _remove_test_file(directory, name, lacking)


def _remove_test_file(directory: int, name: bytes, lacking: str) -> DirectoryExamination:
    """Remove the test file ``name`` from an open directory, and return the result of the examination. ``lacking``
    describes the operation that was found to be impossible; empty if none was.
    """
    try:
        remove_item_if_present(directory, name)
    except Problem as problem:
        return DirectoryExamination(
            lacking or _unsupported_text("cannot remove files", problem), _test_file_path(directory, name)
        )
    return DirectoryExamination(lacking)


def _test_file_path(directory: int, name: bytes) -> str:
    """Return the path of ``name`` in the open directory, for a message."""
    return printable_path(os.path.join(os.readlink(b"/proc/self/fd/%d" % directory), name))


def _create_test_file(directory: int, name: bytes) -> int:
    """Create the test file ``name`` in an open directory, and return its descriptor. If a killed process has left such
    a file behind, remove that first.

    Raise ``OSError``; raise ``Problem`` if the old file cannot be removed.
    """
    with suppress(FileExistsError):
        return open_with_retries(name, CREATE_FLAGS, 0o600, dir_fd=directory)
    remove_item_if_present(directory, name)
    return open_with_retries(name, CREATE_FLAGS, 0o600, dir_fd=directory)


def _try_writing_test_file(descriptor: int, *, writes: bool) -> str:
    """Write to the open test file ``descriptor``, and close it. Return the description of an operation that is not
    possible; empty if all are. ``writes``: write the last byte before the first, to test whether the file can be
    written in any order.
    """
    try:
        try:
            if writes:
                os.ftruncate(descriptor, _LAST_BYTE_OFFSET + 1)
                os.pwrite(descriptor, b"1", _LAST_BYTE_OFFSET)
            os.pwrite(descriptor, b"0", 0)
        except OSError:
            close_after_failure(descriptor)
            raise
        os.close(descriptor)  # some file systems report only here what they do not support
    except OSError as error:
        if error.errno in _UNSUPPORTED_ERRNOS:
            return _unsupported_text("accepts writes only in order, to new files", error)
    return ""


def _unsupported_text(operation: str, error: OSError) -> str:
    """Return a description of the impossible operation ``operation`` with the reason, such as "cannot rename files
    (Function not implemented)".
    """
    return f"{operation} ({error.strerror})"
