"""Carries out a ``TrialCalls`` batch, by which pdbench measures a file system, in the Python backend. Each row is one
system call with one name, or open and close of a file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from pcopy.fsio.backend.batches import BatchResult, TrialCalls, TrialOperation
from pcopy.fsio.backend.columns import RowCode, Verdicts, unpack_names
from pcopy.fsio.problem import Problem

_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_OPERATIONS = {
    TrialOperation.CREATE: "create",
    TrialOperation.STAT: "stat",
    TrialOperation.OPEN: "open",
    TrialOperation.RENAME: "rename",
    TrialOperation.UNLINK: "unlink",
}


class TrialRows:
    """A ``TrialCalls`` batch in progress: makes one system call for each name, so that pdbench can measure a file
    system.
    """

    is_target_full = False

    def __init__(self, batch: TrialCalls) -> None:
        self.result = BatchResult(Verdicts(len(batch)))
        self._operation = _OPERATIONS[batch.operation]
        self._names = unpack_names(batch.names, len(batch))
        self._new_names = batch.new_names.split(b"/") if batch.new_names else self._names
        self._call = _call_functions(batch.directory)[batch.operation]

    def run(self, start: int, end: int) -> None:
        verdicts = self.result.verdicts
        for row in range(start, end):
            began = time.monotonic_ns()
            try:
                self._call(self._names[row], self._new_names[row])
                verdicts.codes[row] = RowCode.DONE
            except OSError as error:
                verdicts.set_code_and_problem(row, RowCode.FAILED, Problem.from_error(self._operation, error))
            verdicts.nanoseconds[row] = time.monotonic_ns() - began


def _call_functions(directory: int) -> dict[TrialOperation, Callable[[bytes, bytes], object]]:
    """Return the functions that make the system calls to measure, by operation. Each takes a name in the open
    ``directory`` and a new name, which only a rename uses.
    """

    def opened(name: bytes, flags: int) -> None:
        os.close(os.open(name, flags | _FLAGS, 0o600, dir_fd=directory))

    return {
        TrialOperation.CREATE: lambda name, _: opened(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL),
        TrialOperation.STAT: lambda name, _: os.stat(name, dir_fd=directory, follow_symlinks=False),
        TrialOperation.OPEN: lambda name, _: opened(name, os.O_RDONLY),
        TrialOperation.RENAME: lambda name, new: os.rename(name, new, src_dir_fd=directory, dst_dir_fd=directory),
        TrialOperation.UNLINK: lambda name, _: os.unlink(name, dir_fd=directory),
    }
