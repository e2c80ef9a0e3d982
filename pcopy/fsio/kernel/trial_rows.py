"""The rows of a ``Trial`` batch in the Python backend: each is one system call, or open and close for a file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from pcopy.fsio.kernel.batches import Call, Judged, Trial
from pcopy.fsio.kernel.columns import Code, Verdicts, unpack_names
from pcopy.fsio.problem import Problem

_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_OPERATIONS = {
    Call.CREATE: "create",
    Call.STAT: "stat",
    Call.OPEN: "open",
    Call.RENAME: "rename",
    Call.UNLINK: "unlink",
}


class Trying:
    """A ``Trial`` batch in progress."""

    is_full = False

    def __init__(self, batch: Trial) -> None:
        self.result = Judged(Verdicts(len(batch)))
        self._operation = _OPERATIONS[batch.call]
        self._names = unpack_names(batch.names, len(batch))
        self._new_names = batch.new_names.split(b"/") if batch.new_names else self._names
        self._call = _calls(batch.directory)[batch.call]

    def run(self, start: int, end: int) -> None:
        verdicts = self.result.verdicts
        for row in range(start, end):
            began = time.monotonic_ns()
            try:
                self._call(self._names[row], self._new_names[row])
                verdicts.codes[row] = Code.DONE
            except OSError as error:
                verdicts.set(row, Code.FAILED, Problem.of(self._operation, error))
            verdicts.nanoseconds[row] = time.monotonic_ns() - began


def _calls(directory: int) -> dict[Call, Callable[[bytes, bytes], object]]:
    """Return, for each operation, a function that carries it out in ``directory``, given a name and a new name."""

    def opened(name: bytes, flags: int) -> None:
        os.close(os.open(name, flags | _FLAGS, 0o600, dir_fd=directory))

    return {
        Call.CREATE: lambda name, _: opened(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL),
        Call.STAT: lambda name, _: os.stat(name, dir_fd=directory, follow_symlinks=False),
        Call.OPEN: lambda name, _: opened(name, os.O_RDONLY),
        Call.RENAME: lambda name, new: os.rename(name, new, src_dir_fd=directory, dst_dir_fd=directory),
        Call.UNLINK: lambda name, _: os.unlink(name, dir_fd=directory),
    }
