"""Temporary files (spools) of a rank for data that does not fit into memory: waiting tasks, names, entries to be
sorted.

Rule: if the spool's file system is full, or fails, nothing is lost. The work that could not be written there remains to
be done: the job stops in order, and can be resumed where there is space. Therefore this error has a class of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

from pcopy.engine.backlog import Backlog, SpoolFactory
from pcopy.errors import NotPutAside, Refused
from pcopy.text import shown


def spool_in(directory: bytes) -> SpoolFactory:
    """Return a function that opens a temporary file in ``directory`` (empty: the system's directory for temporary
    files).
    """

    def open_spool() -> BinaryIO:
        from pcopy.jobs.spool_file import SpoolFile

        return cast(BinaryIO, SpoolFile(directory))

    return open_spool


def database_in(directory: bytes) -> Callable[[], Backlog]:
    """Return a function that opens a temporary LMDB database in ``directory``, as for ``spool_in``.

    Errors of the database are ``OSError``.
    """

    def open_database() -> Backlog:
        from pcopy.checkpoint.lmdb_backlog import LmdbBacklog
        from pcopy.jobs.spool_file import temporary_directory

        return LmdbBacklog(directory or temporary_directory())

    return open_database


NAME_ANOTHER = "name another directory with --spool"
SET_ANOTHER = "set TMPDIR to another directory"


def no_room(directory: bytes, trouble: OSError, advice: str) -> str:
    """Return the message for an error ``trouble`` of a spool in ``directory``, followed by ``advice``."""
    from pcopy.jobs.spool_file import temporary_directory

    try:
        place = shown(directory or temporary_directory())
    except OSError:  # No directory for temporary files can be written to.
        place = "TMPDIR"
    return f"waiting tasks cannot be written to {place}: {trouble.strerror}; {advice}"


@contextmanager
def refusing(directory: bytes, advice: str = NAME_ANOTHER) -> Iterator[None]:
    """Turn ``NotPutAside`` of the block into ``Refused`` with the message of ``no_room``; for use before any task
    runs.
    """
    try:
        yield
    except NotPutAside as trouble:
        raise Refused(no_room(directory, trouble, advice)) from None
