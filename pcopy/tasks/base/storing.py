"""Brings the contents of files to stable storage before the files get their final names (``pcopy.fsio.new_file``)."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import suppress

from pcopy import libc
from pcopy.beside import done_beside
from pcopy.fsio.close import let_go, store_data
from pcopy.fsio.kernel.interface import SMALL_FILE
from pcopy.fsio.new_file import NewFile
from pcopy.fsio.problem import failing
from pcopy.fsio.source import status_of
from pcopy.tasks.base.rank import Rank

NAP = 0.005
"""Seconds that a slice waits for the storage."""

TOGETHER = 16
"""Small files that wait together: so many share a commit of the file system's journal. Each holds two descriptors."""


def data_stored(descriptor: int) -> Generator[None, None, None]:
    """Yield until the contents of an open file are on stable storage; raise ``Problem``.

    For a file that is not small another thread waits: the rank must answer messages and signals meanwhile.
    """
    if status_of(descriptor).st_size <= SMALL_FILE:
        store_data(descriptor)
        return
    errors: list[Exception] = []
    with failing("dup"):
        own = os.dup(descriptor)  # the caller may close its descriptor before the thread is done: a job that stops

    def store() -> None:
        try:
            store_data(own)
        except Exception as error:  # for the thread that runs tasks
            errors.append(error)
        finally:
            let_go(own)

    yield from done_beside(store, NAP)
    if errors:
        raise errors[0]


class StoredTogether:
    """Small files of one task that wait for stable storage together, each in the generator that has written it.

    The storage begins to write all of them before the first one is waited for.
    """

    def __init__(self) -> None:
        self._files: list[NewFile] = []

    @property
    def is_full(self) -> bool:
        return len(self._files) >= TOGETHER

    def __len__(self) -> int:
        return len(self._files)

    def add(self, new: NewFile) -> None:
        """Add a file that is written, and open."""
        self._files.append(new)

    def begin(self) -> None:
        """Begin to write all files to storage, and forget them: from now on each may be waited for."""
        files, self._files = self._files, []
        for new in files:
            with suppress(OSError):  # the sync of the file reports what is wrong
                libc.sync_file_range(new.descriptor, 0, 0, libc.WRITE)


def stored(rank: Rank, new: NewFile, together: StoredTogether | None = None) -> Generator[None, None, None]:
    """Yield until the file ``new``, whose contents are written, may get its final name; raise ``Problem``.

    A small file is added to ``together``, and ``commit`` waits for it.
    """
    if not (rank.options.sync and new.awaits_storage):
        return
    if together is not None and status_of(new.descriptor).st_size <= SMALL_FILE:
        together.add(new)
        yield
    else:
        yield from data_stored(new.descriptor)
        new.note_stored()
