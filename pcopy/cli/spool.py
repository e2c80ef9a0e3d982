"""Where a rank puts what does not fit into memory: tasks that wait, names, entries that are sorted.

Rule: a place that is full, or fails, loses nothing. What was to be put aside is still to be done, the job stops in
order and can be gone on with where there is room; so it is told apart from all other errors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

from pcopy.engine.backlog import SpoolFactory, Store
from pcopy.errors import NotPutAside, Refused
from pcopy.text import shown


def spool_in(directory: bytes) -> SpoolFactory:
    """Opens files in ``directory``; empty: where the system has temporary files."""

    def open_spool() -> BinaryIO:
        from pcopy.cli.spool_file import SpoolFile

        return cast(BinaryIO, SpoolFile(os.fsdecode(directory) or None))

    return open_spool


def database_in(directory: bytes) -> Callable[[], Store]:
    """Opens databases in ``directory``, as ``spool_in``; what they raise is an ``OSError``."""

    def open_database() -> Store:
        from pcopy.checkpoint.lmdb_backlog import LmdbBacklog

        return LmdbBacklog(directory or _temporary())

    return open_database


def no_room(directory: bytes, trouble: OSError, *, is_option: bool = True) -> str:
    """What is told of ``trouble`` in ``directory``, which the user has named or may name if it ``is_option``."""
    try:
        where = shown(directory or _temporary())
    except OSError:  # there is none where anything can be written
        where = "TMPDIR"
    advice = "name another directory with --spool" if is_option else "set TMPDIR to another directory"
    return f"tasks that wait cannot be put aside in {where}: {trouble.strerror}; {advice}"


@contextmanager
def refusing(directory: bytes, *, is_option: bool = True) -> Iterator[None]:
    """Where no work is under way yet: ``NotPutAside`` becomes ``Refused``, with what ``no_room`` tells."""
    try:
        yield
    except NotPutAside as trouble:
        raise Refused(no_room(directory, trouble, is_option=is_option)) from None


def _temporary() -> bytes:
    """Where the system has temporary files; raises ``OSError`` if it has not one place for them."""
    import tempfile

    return os.fsencode(tempfile.gettempdir())
