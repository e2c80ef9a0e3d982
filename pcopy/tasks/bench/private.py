"""The directory in which all is measured: rank 0 makes it, and removes it.

Rule: who may rename in the directory above can put another one in its place. So what is in it is removed by the
descriptor that was opened when it was made; and the name only if it still leads there.
"""

from __future__ import annotations

import errno
import os

from pcopy.fsio.close import held_open, let_go, names_in
from pcopy.fsio.patience import open_patiently
from pcopy.fsio.problem import Problem, failing

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_REPLACED = "something else was put in its place meanwhile"


def _empty(directory: int) -> None:
    """Remove everything in a directory. A listing may have a name twice. Raises ``OSError``."""
    for name in set(names_in(directory)):
        try:
            os.unlink(name, dir_fd=directory)
        except FileNotFoundError:
            continue
        except IsADirectoryError:
            with held_open(open_patiently(name, DIRECTORY, dir_fd=directory)) as below:
                _empty(below)
            os.rmdir(name, dir_fd=directory)


class Private:
    """It is there as soon as this is made; on rank 0."""

    def __init__(self, root: int, name: bytes) -> None:
        """In an open directory, which is the caller's. Raises ``Problem``."""
        self._name = name
        try:
            os.mkdir(name, 0o700, dir_fd=root)
        except OSError as error:
            text = "the file system may refuse names with a leading dot" if error.errno == errno.EINVAL else ""
            raise Problem("mkdir", error.errno or errno.EIO, text=text) from error
        with failing("open"):
            descriptor = open_patiently(name, DIRECTORY, dir_fd=root)
            if names_in(descriptor):
                let_go(descriptor)
                raise Problem("open", errno.ESTALE, text=_REPLACED)
        self.descriptor = descriptor
        self.inode = os.fstat(descriptor).st_ino
        self._root = os.dup(root)

    def remove(self) -> str:
        """Returns what there is to say of what is left, if anything is. May be called again."""
        if self.descriptor < 0:
            return ""
        try:
            _empty(self.descriptor)
            if os.fstat(self.descriptor).st_nlink and not self._is_named():
                return "was moved or replaced meanwhile; what was measured in it is removed: remove the empty directory"
            os.rmdir(self._name, dir_fd=self._root)
        except FileNotFoundError:  # somebody else has removed it
            pass
        except OSError as error:
            return f"could not be removed: {error.strerror}; remove it"
        self._close()
        return ""

    def _is_named(self) -> bool:
        try:
            there = os.stat(self._name, dir_fd=self._root, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(self.descriptor))

    def _close(self) -> None:
        let_go(self.descriptor)
        let_go(self._root)
        self.descriptor = -1


def open_private(root: int, name: bytes, inode: int) -> int:
    """What rank 0 has made, by its ``inode``; raises ``Problem``."""
    with failing("open"):
        descriptor = open_patiently(name, DIRECTORY, dir_fd=root)
        if os.fstat(descriptor).st_ino != inode:
            let_go(descriptor)
            raise Problem("open", errno.ESTALE, text=_REPLACED)
    return descriptor
