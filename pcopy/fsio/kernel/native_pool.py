"""The threads of the kernel in C: how many there are, what they have done, and what they are doing."""

from __future__ import annotations

import os
from _thread import allocate_lock
from typing import Any

from pcopy.fsio.kernel import _native
from pcopy.fsio.kernel.columns import OPERATIONS
from pcopy.fsio.kernel.interface import Doing, Load

_ffi, _lib = _native.ffi, _native.lib

MOST_THREADS = 64
"""Threads of one process at most; C has room for so many."""

ROWS_OF_ONE = 8
"""Rows that change one directory at a time, on one host: its kernel does these one after the other, so that more would
only wait."""

LARGE_DIRECTORY = 128
"""Rows from which a batch may be a part of a directory in which other ranks of the host work, too."""


class NativePool:
    """Fills ``pcopy.fsio.kernel.interface.Pool``."""

    def __init__(self, in_c: Any) -> None:
        """``in_c`` is what pk_open(3) has returned."""
        self.threads = 0
        self.may_begin = True
        """May the first ones begin now? Not while a tally is filled, which nothing guards."""
        self._in_c = in_c
        self._share = ROWS_OF_ONE  # this process's part of them
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
        """No ticket is under way: what is wanted takes effect."""
        if self._wanted != self.threads:
            self.set(self._wanted)

    def set(self, threads: int) -> None:
        """At once; there may be fewer in the end."""
        self.threads = self._wanted = int(_lib.pk_set_threads(self._in_c, threads, self._modifying))

    def at_once(self, rows: int) -> int:
        """Rows of a batch of so many ``rows`` that may change its directory at a time."""
        return ROWS_OF_ONE if rows < LARGE_DIRECTORY else self._share

    def load(self) -> Load:
        load = self._load
        _lib.pk_measure(self._in_c, load)
        return Load(load.busy / 1e9, load.wall / 1e9, load.processor / 1e9, load.operations)

    def oldest(self) -> Doing | None:
        with self._looking:
            doing = self._doing
            if self._in_c is None or not _lib.pk_oldest(self._in_c, doing):
                return None
            path = os.path.join(_path_of(doing.directory), _ffi.string(doing.name))
            return Doing(doing.since / 1e9, OPERATIONS[doing.operation], path)

    def close(self) -> None:
        """Waits until the threads have ended."""
        with self._looking:
            _lib.pk_close(self._in_c)
            self._in_c = None


def _path_of(directory: int) -> bytes:
    """As the system knows it, which asks no file server for that."""
    try:
        return os.readlink(b"/proc/self/fd/%d" % directory)
    except OSError:
        return b""
