"""The private directory in which pdbench measures everything. Rank 0 creates and removes it.

Rule: a user who may rename in the parent directory can put another directory in its place. So its contents are removed
through the descriptor that was opened when it was created, and its name only if that still refers to this directory.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from pcopy.fsio.close import close_ignoring_errors, closing_descriptor, names_in_directory
from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.fsio.retries import open_with_retries

OPEN_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags for opening a directory, without following a symbolic link."""
_REPLACED_TEXT = "another directory has taken its name since pdbench created it"
"""Error text for a directory that has the name of the private directory, but is not the one that rank 0 has created."""


def _remove_contents(directory: int) -> None:
    """Remove everything in an open directory. Raise ``OSError`` if that fails.

    A listing may contain a name twice, and a name may have vanished; both are no errors. A listing may also end early:
    the directory is listed again until nothing is found any more.
    """
    is_removed = True
    while is_removed:
        is_removed = False
        for name in set(names_in_directory(directory)):
            with suppress(FileNotFoundError):
                _remove_item(directory, name)
                is_removed = True


def _remove_item(directory: int, name: bytes) -> None:
    """Remove an item of an open directory, with everything in it. Raise ``OSError`` if that fails."""
    try:
        os.unlink(name, dir_fd=directory)
    except IsADirectoryError:
        with closing_descriptor(open_with_retries(name, OPEN_DIRECTORY_FLAGS, dir_fd=directory)) as below:
            _remove_contents(below)
        os.rmdir(name, dir_fd=directory)


class PrivateDirectory:
    """The private directory, as rank 0 has it: created with this object, and removed by ``remove``."""

    def __init__(self, root: int, name: bytes) -> None:
        """Create the directory ``name`` in the open directory ``root``, which the caller closes. Raise ``Problem`` if
        that fails.
        """
        self._name = name
        try:
            os.mkdir(name, 0o700, dir_fd=root)
        except OSError as error:
            text = "the file system may refuse names with a leading dot" if error.errno == errno.EINVAL else ""
            raise Problem("mkdir", error.errno or errno.EIO, text=text) from error
        with errors_as_problem("open"):
            descriptor = open_with_retries(name, OPEN_DIRECTORY_FLAGS, dir_fd=root)
            if names_in_directory(descriptor):
                close_ignoring_errors(descriptor)
                raise Problem("open", errno.ESTALE, text=_REPLACED_TEXT)
        self.descriptor = descriptor
        self.inode = os.fstat(descriptor).st_ino
        self._root = os.dup(root)

    def remove(self) -> str:
        """Remove the directory with its contents. Return a message about what remains, or "" if nothing does. May be
        called again.
        """
        if self.descriptor < 0:
            return ""
        try:
            _remove_contents(self.descriptor)
            if os.fstat(self.descriptor).st_nlink and not self._is_still_at_its_name():
                return "was moved or replaced meanwhile; what was measured in it is removed: remove the empty directory"
            os.rmdir(self._name, dir_fd=self._root)
        except FileNotFoundError:  # Another process has removed the directory.
            pass
        except OSError as error:
            return f"could not be removed: {error.strerror}; remove it yourself"
        self._close()
        return ""

    def _is_still_at_its_name(self) -> bool:
        """Return True if the name in the parent directory still refers to this directory, so that it may be removed by
        name.
        """
        try:
            status = os.stat(self._name, dir_fd=self._root, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(status, os.fstat(self.descriptor))

    def _close(self) -> None:
        """Close both descriptors."""
        close_ignoring_errors(self.descriptor)
        close_ignoring_errors(self._root)
        self.descriptor = -1


def open_private_directory(root: int, name: bytes, inode: int) -> int:
    """Return a descriptor of the private directory ``name`` in ``root``, which rank 0 has created. Raise ``Problem`` if
    it cannot be opened, or does not have this ``inode`` number.
    """
    with errors_as_problem("open"):
        descriptor = open_with_retries(name, OPEN_DIRECTORY_FLAGS, dir_fd=root)
        if os.fstat(descriptor).st_ino != inode:
            close_ignoring_errors(descriptor)
            raise Problem("open", errno.ESTALE, text=_REPLACED_TEXT)
    return descriptor
