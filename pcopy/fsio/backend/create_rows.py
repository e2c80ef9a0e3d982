"""Creates the files of a ``CreateSmallFilesBatch`` in the Python backend: from contents in memory, one after the
other.
"""

from __future__ import annotations

import errno
import time

from pcopy.fsio.attributes import ItemMetadata, MetadataOutcome
from pcopy.fsio.backend.batches import CreateSmallFilesBatch, CreateSmallFilesResult
from pcopy.fsio.backend.columns import BatchOutcomeColumns, OutcomeCode, unpack_names
from pcopy.fsio.backend.interface import BackendSettings
from pcopy.fsio.memory_copy import write_all
from pcopy.fsio.new_file import NewFile
from pcopy.fsio.problem import Problem

_EMPTY_METADATA_OUTCOME = MetadataOutcome()


class CreateSmallFilesBatchProcessor:
    """A ``CreateSmallFilesBatch`` in progress: creates files from contents in memory. A row is one file."""

    is_target_full = False

    def __init__(
        self, settings: BackendSettings, batch: CreateSmallFilesBatch, result: CreateSmallFilesResult | None = None
    ) -> None:
        """Prepare the creation of the files of ``batch``.

        ``result`` is the result to fill in if the C backend has already processed other rows; None to create one.
        """
        self._batch = batch
        self._preserve, self._umask = settings.preserve, settings.umask
        self._names = unpack_names(batch.names, len(batch))
        self._contents = memoryview(batch.contents)
        self.result = result or CreateSmallFilesResult(BatchOutcomeColumns(len(batch)), {})

    def run(self, start: int, end: int) -> None:
        verdicts = self.result.verdicts
        for row in range(start, end):
            began = time.monotonic_ns()
            try:
                self._create_file(row)
                verdicts.codes[row] = OutcomeCode.DONE
            except Problem as problem:
                is_taken = (problem.operation, problem.errno) == ("create", errno.EEXIST)
                verdicts.set_code_and_problem(
                    row, OutcomeCode.DECIDE_AGAIN, problem
                ) if is_taken else verdicts.set_problem_of_row(row, problem)
            verdicts.nanoseconds[row] = time.monotonic_ns() - began

    def _create_file(self, row: int) -> None:
        """Create the file of this row, with its contents and metadata.

        Raise ``Problem`` if this fails; then nothing of the file remains. Raise ``MetadataProblem`` if only metadata
        could not be set; then the file is kept.
        """
        batch, verdicts = self._batch, self.result.verdicts
        rows, at = batch.rows, batch.offsets[row]
        size, mtime = rows.size[row], rows.mtime[row]
        with NewFile.create(batch.directory, self._names[row]) as new:
            write_all(new.descriptor, self._contents[at : at + size], 0)
            attributes = ItemMetadata(rows.mode[row], rows.uid[row], rows.gid[row], mtime, mtime)
            applied = new.apply_metadata(attributes, self._preserve, self._umask, inherits_acl=batch.inherits_acl)
            new.close_without_removing()
        verdicts.bytes[row] = size
        verdicts.moved += size
        # Keep a file with incomplete metadata, and report that: this is better than no file.
        if new.metadata_problem is not None:
            raise new.metadata_problem
        if applied != _EMPTY_METADATA_OUTCOME:
            self.result.metadata_outcomes[row] = applied
