"""The threads of the C backend: their number, the work that they have done, and the rows that they are processing."""

from __future__ import annotations

import os
from _thread import allocate_lock
from typing import Any

from pcopy.fsio.kernel import _native
from pcopy.fsio.kernel.columns import OPERATIONS
from pcopy.fsio.kernel.interface import Doing, Load

_ffi, _lib = _native.ffi, _native.lib

MOST_THREADS = 64
"""Largest number of threads of one process, which is the size of a table in C."""

ROWS_OF_ONE = 8
"""Number of rows that may modify one directory at the same time, on one host.

The operating system makes the changes of one directory one after the other, so that more threads would only wait.
"""

LARGE_DIRECTORY = 128
"""Number of rows from which a batch may be part of a large directory in which other ranks of this host work, too."""


class NativePool:
    """The thread pool of the C backend, an implementation of ``pcopy.fsio.kernel.interface.Pool``."""

    def __init__(self, in_c: Any) -> None:
        """Create a pool without threads. ``in_c`` is the pointer that ``pk_open`` returned."""
        self.threads = 0
        self.may_begin = True
        """True if the first threads may be started now. False while a tally is filled, which no lock protects."""
        self._in_c = in_c
        self._share = ROWS_OF_ONE  # the part of ROWS_OF_ONE that this process may use in a large directory
        self._modifying = 0
        self._wanted = 0
        self._load = _ffi.new("pk_load *")
        self._doing = _ffi.new("pk_doing *")
        self._looking = allocate_lock()

    def want(self, threads: int) -> None:
        self._wanted = min(threads, MOST_THREADS)
        if self._wanted and (self.threads or self.may_begin):
            self.set(self._wanted)

    def limit(self, ranks: int, modifying: int) -> None:
        self._share = max(1, ROWS_OF_ONE // ranks)
        self._modifying = modifying

    def heed(self) -> None:
        """Apply the requested number of threads. The caller makes sure that no ticket is in progress."""
        if self._wanted != self.threads:
            self.set(self._wanted)

    def set(self, threads: int) -> None:
        """Set the number of threads immediately. If the system refuses threads, there are fewer in the end."""
        self.threads = self._wanted = int(_lib.pk_set_threads(self._in_c, threads, self._modifying))

    def at_once(self, rows: int) -> int:
        """Return how many rows of a batch of ``rows`` rows may modify its directory at the same time."""
        return ROWS_OF_ONE if rows < LARGE_DIRECTORY else self._share

    def load(self) -> Load:
        load = self._load
        _lib.pk_measure(self._in_c, load)
        return Load(load.busy / 1e9, load.wall / 1e9, load.processor / 1e9, load.operations)

    def oldest(self) -> Doing | None:
        with self._looking:  # another thread may call this while the pool is closed
            doing = self._doing
            if self._in_c is None or not _lib.pk_oldest(self._in_c, doing):
                return None
            path = os.path.join(_path_of(doing.directory), _ffi.string(doing.name))
            return Doing(doing.since / 1e9, OPERATIONS[doing.operation], path)

    def close(self) -> None:
        """Wait until all threads have ended, and release the C structures."""
        with self._looking:
            _lib.pk_close(self._in_c)
            self._in_c = None


def _path_of(directory: int) -> bytes:
    """Return the path of a directory without asking a file server; empty if the operating system does not know it."""
    try:
        return os.readlink(b"/proc/self/fd/%d" % directory)
    except OSError:
        return b""
