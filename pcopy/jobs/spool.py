"""Where a rank puts what does not fit into memory: tasks that wait, names, entries that are sorted.

Rule: if the spool's place is full, or fails, nothing is lost. The work that could not be put aside is still to be done:
the job stops in order, and can go on where there is room. So this error is told apart from all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

from pcopy.engine.backlog import Backlog, SpoolFactory
from pcopy.errors import NotPutAside, Refused
from pcopy.text import shown


def spool_in(directory: bytes) -> SpoolFactory:
    """Opens files in ``directory``; empty: where the system has temporary files."""

    def open_spool() -> BinaryIO:
        from pcopy.jobs.spool_file import SpoolFile

        return cast(BinaryIO, SpoolFile(directory))

    return open_spool


def database_in(directory: bytes) -> Callable[[], Backlog]:
    """Opens databases in ``directory``, as ``spool_in``; what they raise is an ``OSError``."""

    def open_database() -> Backlog:
        from pcopy.checkpoint.lmdb_backlog import LmdbBacklog
        from pcopy.jobs.spool_file import temporary_directory

        return LmdbBacklog(directory or temporary_directory())

    return open_database


NAME_ANOTHER = "name another directory with --spool"
SET_ANOTHER = "set TMPDIR to another directory"


def no_room(directory: bytes, trouble: OSError, advice: str) -> str:
    """What is told of ``trouble`` in ``directory``, and what the user can do."""
    from pcopy.jobs.spool_file import temporary_directory

    try:
        where = shown(directory or temporary_directory())
    except OSError:  # there is none where anything can be written
        where = "TMPDIR"
    return f"tasks that wait cannot be put aside in {where}: {trouble.strerror}; {advice}"


@contextmanager
def refusing(directory: bytes, advice: str = NAME_ANOTHER) -> Iterator[None]:
    """Where no work is under way yet: ``NotPutAside`` becomes ``Refused``, with what ``no_room`` tells."""
    try:
        yield
    except NotPutAside as trouble:
        raise Refused(no_room(directory, trouble, advice)) from None
