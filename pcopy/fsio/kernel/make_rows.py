"""Makes the files of a batch from memory, in plain Python, one after the other."""

from __future__ import annotations

import errno
import time

from pcopy.fsio.attributes import Applied, Attributes
from pcopy.fsio.kernel.batches import FilesMade, Make
from pcopy.fsio.kernel.columns import Code, Verdicts, unpack_names
from pcopy.fsio.kernel.interface import Settings
from pcopy.fsio.new_file import NewFile
from pcopy.fsio.passage import write_all
from pcopy.fsio.problem import Problem

_NOTHING = Applied()


class Making:
    is_full = False

    def __init__(self, settings: Settings, batch: Make, result: FilesMade | None = None) -> None:
        """``result``: where other rows are told already."""
        self._batch = batch
        self._preserve, self._umask = settings.preserve, settings.umask
        self._names = unpack_names(batch.names, len(batch))
        self._contents = memoryview(batch.contents)
        self.result = result or FilesMade(Verdicts(len(batch)), {})

    def run(self, start: int, end: int) -> None:
        verdicts = self.result.verdicts
        for row in range(start, end):
            began = time.monotonic_ns()
            try:
                self._make(row)
                verdicts.codes[row] = Code.DONE
            except Problem as problem:
                is_taken = (problem.operation, problem.errno) == ("create", errno.EEXIST)
                verdicts.set(row, Code.ANEW, problem) if is_taken else verdicts.fail(row, problem)
            verdicts.nanoseconds[row] = time.monotonic_ns() - began

    def _make(self, row: int) -> None:
        """Raises ``Problem``; nothing of it is there then, but for a ``MetadataProblem``."""
        batch, verdicts = self._batch, self.result.verdicts
        rows, at = batch.rows, batch.offsets[row]
        size, mtime = rows.size[row], rows.mtime[row]
        with NewFile.at(batch.directory, self._names[row]) as new:
            write_all(new.descriptor, self._contents[at : at + size], 0)
            attributes = Attributes(rows.mode[row], rows.uid[row], rows.gid[row], mtime, mtime)
            applied = new.dress(attributes, self._preserve, self._umask, inherits=batch.inherits)
            new.keep()
        verdicts.bytes[row] = size
        verdicts.moved += size
        if new.shortcoming is not None:  # better a file with wrong metadata, and told so, than none
            raise new.shortcoming
        if applied != _NOTHING:
            self.result.applied[row] = applied
