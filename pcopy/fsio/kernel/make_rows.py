"""The rows of a ``Make`` batch in the Python backend: creates files from memory, one after the other."""

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
    """A ``Make`` batch in progress."""

    is_full = False

    def __init__(self, settings: Settings, batch: Make, result: FilesMade | None = None) -> None:
        """Prepare the rows.

        ``result`` is the result to fill in if the C backend has already processed other rows; None to create one.
        """
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
        """Create one file.

        Raise ``Problem`` if this fails; then nothing of the file remains. Raise ``MetadataProblem`` if only metadata
        could not be set; then the file is kept.
        """
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
        # Keep a file with incomplete metadata, and report that: this is better than no file.
        if new.shortcoming is not None:
            raise new.shortcoming
        if applied != _NOTHING:
            self.result.applied[row] = applied
