"""A rank's facts on stable storage: a file that grows by a record with each cut.

Rule: an error is final. After a failed write or fsync nobody knows what the file holds behind the last good record (the
kernel may have dropped pages, and reports that once only), so nothing is ever written behind it.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import BinaryIO

from pcopy.checkpoint.directory import sync
from pcopy.checkpoint.files import Path, create
from pcopy.checkpoint.framing import write_frame
from pcopy.checkpoint.layout import facts_name, run_name
from pcopy.checkpoint.record import Record


class SegmentWriter:
    """The segment of one rank in one run. Not for two threads at once."""

    def __init__(self, directory: int | Path, run: int, rank: int) -> None:
        """``directory`` is the job directory, or a descriptor of it that stays open as long as this writer."""
        self._directory = directory
        self._run, self._rank = run, rank
        self._file: BinaryIO | None = None
        self._length = 0
        self._failed = False

    def append(self, record: Record) -> None:
        """Writes ``record``, and returns once it is on stable storage.

        Raises ``OSError``; once it has, each further call does so too.
        """
        if self._failed:
            raise OSError(errno.EIO, "an earlier record could not be written")
        try:
            self._append(record)
        except OSError:
            self._failed = True
            self._cut_off()
            raise

    def _append(self, record: Record) -> None:
        first = self._file is None
        directory = self._open() if first else None
        try:
            assert self._file is not None
            write_frame(self._file, record.pack())
            os.fsync(self._file.fileno())
            if directory is not None:
                sync(directory)
        finally:
            if directory is not None:
                os.close(directory)
        self._length = self._file.tell()

    def _open(self) -> int:
        """Creates the file; a descriptor of the run's directory."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        if isinstance(self._directory, int):
            directory = os.open(run_name(self._run), flags, dir_fd=self._directory)
        else:
            directory = os.open(os.path.join(os.fsencode(self._directory), run_name(self._run)), flags)
        try:
            self._file = create(facts_name(self._rank), directory)
        except BaseException:
            os.close(directory)
            raise
        return directory

    def _cut_off(self) -> None:
        """Gives back the room that half a record takes; readers ignore it as well."""
        if self._file is not None:
            with suppress(OSError):
                os.ftruncate(self._file.fileno(), self._length)

    def close(self) -> None:
        """Closes the file; what was appended is durable already."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._failed = True
