"""The private directory in which everything is measured. Rank 0 creates and removes it.

Rule: a user who may rename in the parent directory can put another directory in its place. So its contents are removed
through the descriptor that was opened at its creation, and its name only if it still refers to that directory.
"""

from __future__ import annotations

import errno
import os

from pcopy.fsio.close import close_ignoring_errors, closed_at_end, names_in_directory
from pcopy.fsio.problem import Problem, as_problem
from pcopy.fsio.retries import open_with_retries

OPEN_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags for opening a directory; not through a symbolic link."""
_REPLACED_TEXT = "something else was put in its place meanwhile"
"""Text of the error for a directory that is not the one that was created."""


def _remove_contents(directory: int) -> None:
    """Remove everything in a directory. A listing may have a name twice. Raise ``OSError``."""
    for name in set(names_in_directory(directory)):
        try:
            os.unlink(name, dir_fd=directory)
        except FileNotFoundError:
            continue
        except IsADirectoryError:
            with closed_at_end(open_with_retries(name, OPEN_DIRECTORY_FLAGS, dir_fd=directory)) as below:
                _remove_contents(below)
            os.rmdir(name, dir_fd=directory)


class PrivateDirectory:
    """The private directory on rank 0; it is created with this object."""

    def __init__(self, root: int, name: bytes) -> None:
        """Create the directory ``name`` in the open directory ``root``, which remains the caller's. Raise
        ``Problem``.
        """
        self._name = name
        try:
            os.mkdir(name, 0o700, dir_fd=root)
        except OSError as error:
            text = "the file system may refuse names with a leading dot" if error.errno == errno.EINVAL else ""
            raise Problem("mkdir", error.errno or errno.EIO, text=text) from error
        with as_problem("open"):
            descriptor = open_with_retries(name, OPEN_DIRECTORY_FLAGS, dir_fd=root)
            if names_in_directory(descriptor):
                close_ignoring_errors(descriptor)
                raise Problem("open", errno.ESTALE, text=_REPLACED_TEXT)
        self.descriptor = descriptor
        self.inode = os.fstat(descriptor).st_ino
        self._root = os.dup(root)

    def remove(self) -> str:
        """Remove the directory with its contents. Return a text about what remains, or "". May be called again."""
        if self.descriptor < 0:
            return ""
        try:
            _remove_contents(self.descriptor)
            if os.fstat(self.descriptor).st_nlink and not self._has_its_name():
                return "was moved or replaced meanwhile; what was measured in it is removed: remove the empty directory"
            os.rmdir(self._name, dir_fd=self._root)
        except FileNotFoundError:  # Another process has removed it.
            pass
        except OSError as error:
            return f"could not be removed: {error.strerror}; remove it yourself"
        self._close()
        return ""

    def _has_its_name(self) -> bool:
        """True if the name still refers to this directory."""
        try:
            status = os.stat(self._name, dir_fd=self._root, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(status, os.fstat(self.descriptor))

    def _close(self) -> None:
        close_ignoring_errors(self.descriptor)
        close_ignoring_errors(self._root)
        self.descriptor = -1


def open_private_directory(root: int, name: bytes, inode: int) -> int:
    """Return a descriptor of the directory that rank 0 has created, which is checked by its ``inode``. Raise
    ``Problem``.
    """
    with as_problem("open"):
        descriptor = open_with_retries(name, OPEN_DIRECTORY_FLAGS, dir_fd=root)
        if os.fstat(descriptor).st_ino != inode:
            close_ignoring_errors(descriptor)
            raise Problem("open", errno.ESTALE, text=_REPLACED_TEXT)
    return descriptor
