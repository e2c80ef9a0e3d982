"""The threads of the C backend: their number, the work that they have done, and the rows that they are processing."""

from __future__ import annotations

import os
from _thread import allocate_lock
from typing import Any

from pcopy.fsio.backend import _native
from pcopy.fsio.backend.columns import OPERATION_NAMES
from pcopy.fsio.backend.interface import RowInProgress, ThreadPoolLoad

_ffi, _lib = _native.ffi, _native.lib

MAX_THREADS_OF_PROCESS = 64
"""Largest number of threads of one process: the size of the table ``workers`` in native/internal.h."""

MAX_MODIFYING_ROWS_PER_DIRECTORY = 8
"""Number of rows (operations on one item each) that may modify one directory at the same time, on one host.

The operating system changes the names in a directory one at a time, so that more threads would only wait.
"""

MIN_ROWS_OF_LARGE_DIRECTORY = 128
"""Number of rows from which on a batch counts as part of a large directory. Other ranks of this host may modify the
directory, too, so each rank uses its share of ``MAX_MODIFYING_ROWS_PER_DIRECTORY``.
"""


class NativeThreadPool:
    """The threads of the C backend: sets their number and reads what they do. It implements the protocol
    ``pcopy.fsio.backend.interface.ThreadPool``, which describes the methods that have no description here.
    """

    def __init__(self, in_c: Any) -> None:
        """Create a pool without threads. ``in_c`` is the C pointer to the backend that ``pk_open`` returned."""
        self.threads = 0
        self.can_start_threads = True
        """True if the first threads may be started now. False while C fills sums over columns (a tally), which no lock
        protects.
        """
        self._handle = in_c
        self._rows_in_large_directory = (
            MAX_MODIFYING_ROWS_PER_DIRECTORY  # this process's share of it in a large directory
        )
        self._modifying = 0
        self._requested_threads = 0
        self._load = _ffi.new("pk_load *")
        self._oldest_row = _ffi.new("pk_doing *")
        self._oldest_row_lock = allocate_lock()

    def request_threads(self, threads: int) -> None:
        self._requested_threads = min(threads, MAX_THREADS_OF_PROCESS)
        if self._requested_threads and (self.threads or self.can_start_threads):
            self.set_thread_count(self._requested_threads)

    def set_concurrency_limits(self, ranks: int, modifying: int) -> None:
        self._rows_in_large_directory = max(1, MAX_MODIFYING_ROWS_PER_DIRECTORY // ranks)
        self._modifying = modifying

    def apply_requested_thread_count(self) -> None:
        """Start or end threads so that their number is the one that ``request_threads`` requested. The caller makes
        sure that no ticket is in progress.
        """
        if self._requested_threads != self.threads:
            self.set_thread_count(self._requested_threads)

    def set_thread_count(self, threads: int) -> None:
        """Start or end threads immediately, so that there are ``threads``. If the system refuses threads, there are
        fewer in the end.
        """
        self.threads = self._requested_threads = int(_lib.pk_set_threads(self._handle, threads, self._modifying))

    def max_rows_modifying_directory(self, rows: int) -> int:
        """Return how many rows (items) of a batch with this number of ``rows`` may modify its directory at the same
        time.
        """
        return MAX_MODIFYING_ROWS_PER_DIRECTORY if rows < MIN_ROWS_OF_LARGE_DIRECTORY else self._rows_in_large_directory

    def thread_pool_load(self) -> ThreadPoolLoad:
        load = self._load
        _lib.pk_measure(self._handle, load)
        return ThreadPoolLoad(load.busy / 1e9, load.wall / 1e9, load.processor / 1e9, load.operations)

    def oldest_row_in_progress(self) -> RowInProgress | None:
        with self._oldest_row_lock:  # another thread may call this while the pool is closed
            doing = self._oldest_row
            if self._handle is None or not _lib.pk_oldest(self._handle, doing):
                return None
            path = os.path.join(_directory_path(doing.directory), _ffi.string(doing.name))
            return RowInProgress(doing.since / 1e9, OPERATION_NAMES[doing.operation], path)

    def close(self) -> None:
        """Wait until all threads have ended, and release the C structures."""
        with self._oldest_row_lock:
            _lib.pk_close(self._handle)
            self._handle = None


def _directory_path(directory: int) -> bytes:
    """Return the path of the open ``directory`` without a request to a file server; empty if the operating system does
    not know it.
    """
    try:
        return os.readlink(b"/proc/self/fd/%d" % directory)
    except OSError:
        return b""
