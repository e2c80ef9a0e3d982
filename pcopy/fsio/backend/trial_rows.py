"""Carries out a ``BenchmarkCallsBatch``, by which pdbench measures a file system, in the Python backend. Each row
is one system call with one name, or open and close of a file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from pcopy.fsio.backend.batches import BatchResult, BenchmarkCallsBatch, BenchmarkOperation
from pcopy.fsio.backend.columns import BatchOutcomeColumns, OutcomeCode, unpack_names
from pcopy.fsio.problem import Problem

_OPEN_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_OPERATION_NAMES = {
    BenchmarkOperation.CREATE: "create",
    BenchmarkOperation.STAT: "stat",
    BenchmarkOperation.OPEN: "open",
    BenchmarkOperation.RENAME: "rename",
    BenchmarkOperation.UNLINK: "unlink",
}


class BenchmarkCallsBatchProcessor:
    """A ``BenchmarkCallsBatch`` in progress: makes one system call for each name, so that pdbench can measure a
    file system.
    """

    is_target_full = False

    def __init__(self, batch: BenchmarkCallsBatch) -> None:
        self.result = BatchResult(BatchOutcomeColumns(len(batch)))
        self._operation = _OPERATION_NAMES[batch.operation]
        self._names = unpack_names(batch.names, len(batch))
        self._new_names = batch.new_names.split(b"/") if batch.new_names else self._names
        self._call = _system_call_functions(batch.directory)[batch.operation]

    def run(self, start: int, end: int) -> None:
        verdicts = self.result.verdicts
        for row in range(start, end):
            began = time.monotonic_ns()
            try:
                self._call(self._names[row], self._new_names[row])
                verdicts.codes[row] = OutcomeCode.DONE
            except OSError as error:
                verdicts.set_code_and_problem(row, OutcomeCode.FAILED, Problem.from_error(self._operation, error))
            verdicts.nanoseconds[row] = time.monotonic_ns() - began


def _system_call_functions(directory: int) -> dict[BenchmarkOperation, Callable[[bytes, bytes], object]]:
    """Return the functions that make the system calls to measure, by operation. Each takes a name in the open
    ``directory`` and a new name, which only a rename uses.
    """

    def opened(name: bytes, flags: int) -> None:
        os.close(os.open(name, flags | _OPEN_FLAGS, 0o600, dir_fd=directory))

    return {
        BenchmarkOperation.CREATE: lambda name, _: opened(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL),
        BenchmarkOperation.STAT: lambda name, _: os.stat(name, dir_fd=directory, follow_symlinks=False),
        BenchmarkOperation.OPEN: lambda name, _: opened(name, os.O_RDONLY),
        BenchmarkOperation.RENAME: lambda name, new: os.rename(name, new, src_dir_fd=directory, dst_dir_fd=directory),
        BenchmarkOperation.UNLINK: lambda name, _: os.unlink(name, dir_fd=directory),
    }
