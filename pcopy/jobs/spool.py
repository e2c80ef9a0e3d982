"""Temporary files (spools) of a rank for data that does not fit into memory: waiting tasks, names, entries to be
sorted.

If a spool cannot be written, for example because its file system is full, nothing is lost: the job stops in an orderly
way, and can be resumed with a spool directory that has space. Therefore such an error has a class of its own,
``TemporaryFileFailed``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

from pcopy.engine.backlog import OpenSpool, TaskBacklog
from pcopy.errors import RequestRefused, TemporaryFileFailed
from pcopy.text import printable_path


def spool_factory(directory: bytes) -> OpenSpool:
    """Return a function that opens an empty temporary file in ``directory``.

    If ``directory`` is empty, the file is created in the system's directory for temporary files.
    """

    def open_spool() -> BinaryIO:
        from pcopy.jobs.spool_file import SpoolFile

        return cast(BinaryIO, SpoolFile(directory))

    return open_spool


def task_database_factory(directory: bytes) -> Callable[[], TaskBacklog]:
    """Return a function that opens a temporary LMDB database in ``directory``, for waiting tasks.

    If ``directory`` is empty, the database is created in the system's directory for temporary files. The methods of the
    database raise ``OSError`` if it fails.
    """

    def open_database() -> TaskBacklog:
        from pcopy.checkpoint.lmdb_backlog import LmdbBacklog
        from pcopy.jobs.spool_file import temporary_directory

        return LmdbBacklog(directory or temporary_directory())

    return open_database


SPOOL_ADVICE = "name another directory with --spool"
TMPDIR_ADVICE = "set TMPDIR to another directory"


def spool_error_text(directory: bytes, trouble: OSError, advice: str) -> str:
    """Return the error message for a temporary file (spool) in ``directory`` that failed with ``trouble``.

    ``directory``: empty for the system's directory of temporary files. ``advice`` is the end of the message, which says
    what the user can do.
    """
    from pcopy.jobs.spool_file import temporary_directory

    try:
        place = printable_path(directory or temporary_directory())
    except OSError:  # No directory for temporary files can be written to.
        place = "TMPDIR"
    return f"waiting tasks cannot be written to {place}: {trouble.strerror}; {advice}"


@contextmanager
def spool_errors_as_refusal(directory: bytes, advice: str = SPOOL_ADVICE) -> Iterator[None]:
    """Context manager: if its block raises ``TemporaryFileFailed`` (a temporary file cannot be written), raise
    ``RequestRefused`` instead.

    For use before any task runs: the job then does not start. ``directory`` is the directory of temporary files (empty:
    the system's), ``advice`` the end of the message.
    """
    try:
        yield
    except TemporaryFileFailed as trouble:
        raise RequestRefused(spool_error_text(directory, trouble, advice), path=directory) from None
