"""Temporary files (spools) of a rank for data that does not fit into memory: waiting tasks, names, entries to be
sorted.

Rule: if the spool's file system is full, or fails, nothing is lost. The work that could not be written there remains to
be done: the job stops in order, and can be resumed where there is space. Therefore this error has a class of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

from pcopy.engine.backlog import Backlog, OpenSpool
from pcopy.errors import RequestRefused, SpillFailed
from pcopy.text import printable_path


def spool_factory(directory: bytes) -> OpenSpool:
    """Return a function that opens a temporary file in ``directory`` (empty: the system's directory for temporary
    files).
    """

    def open_spool() -> BinaryIO:
        from pcopy.jobs.spool_file import SpoolFile

        return cast(BinaryIO, SpoolFile(directory))

    return open_spool


def database_factory(directory: bytes) -> Callable[[], Backlog]:
    """Return a function that opens a temporary LMDB database in ``directory``, as for ``spool_factory``.

    Errors of the database are ``OSError``.
    """

    def open_database() -> Backlog:
        from pcopy.checkpoint.lmdb_backlog import LmdbBacklog
        from pcopy.jobs.spool_file import temporary_directory

        return LmdbBacklog(directory or temporary_directory())

    return open_database


SPOOL_ADVICE = "name another directory with --spool"
TMPDIR_ADVICE = "set TMPDIR to another directory"


def spool_error_text(directory: bytes, trouble: OSError, advice: str) -> str:
    """Return the message for an error ``trouble`` of a spool in ``directory``, followed by ``advice``."""
    from pcopy.jobs.spool_file import temporary_directory

    try:
        place = printable_path(directory or temporary_directory())
    except OSError:  # No directory for temporary files can be written to.
        place = "TMPDIR"
    return f"waiting tasks cannot be written to {place}: {trouble.strerror}; {advice}"


@contextmanager
def refusing_spool_errors(directory: bytes, advice: str = SPOOL_ADVICE) -> Iterator[None]:
    """Turn ``SpillFailed`` of the block into ``RequestRefused`` with the message of ``spool_error_text``; for use
    before any task runs.
    """
    try:
        yield
    except SpillFailed as trouble:
        raise RequestRefused(spool_error_text(directory, trouble, advice)) from None
