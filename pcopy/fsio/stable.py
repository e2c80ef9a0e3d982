"""Brings whole file systems to stable storage."""

from __future__ import annotations

import ctypes
import errno
import os

from pcopy.fsio.problem import Problem


def sync_file_system(descriptor: int) -> None:
    """syncfs(2) for the file system of ``descriptor``; raises ``Problem``, also for what it could not write earlier.

    Since Linux 5.8 it reports each failed write-back once per open file description that was open at the time.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(ctypes.c_int(descriptor)) != 0:
        number = ctypes.get_errno() or errno.EIO
        raise Problem("syncfs", number, text=os.strerror(number))


class Storage:
    """The file systems that a rank writes to, each open on its own: so each failed write-back is reported here too."""

    def __init__(self) -> None:
        self._descriptors: dict[int, int] = {}

    def add(self, directory: int, device: int) -> None:
        """Before anything is written to ``device``, on which the open ``directory`` lies; raises ``Problem``."""
        if device not in self._descriptors:
            try:
                self._descriptors[device] = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
            except OSError as error:
                raise Problem.of("open", error) from error

    def sync(self) -> None:
        """All of them; raises ``Problem`` for the first that fails, after the others."""
        problem: Problem | None = None
        for descriptor in tuple(self._descriptors.values()):
            try:
                sync_file_system(descriptor)
            except Problem as error:
                problem = problem or error
        if problem is not None:
            raise problem

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])
