"""Counts the items that a job deletes (``--delete``), at each deletion, in a file of each rank.

Records are written at intervals: of a rank that is killed they lack what it has deleted since then. The files lie in
the job's directory, and are mapped into memory. They are not synced: after a loss of power the records may have more.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import cache
from struct import Struct

from pcopy.checkpoint.directory import opened, read
from pcopy.checkpoint.layout import DELETED
from pcopy.fsio.close import held_open, names_in

_COUNTED = Struct("=QQ")
"""The two numbers of ``pcopy.fsio.kernel.batches.Remove``."""

_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def deleted_by(directory: bytes, rank: int) -> Callable[[], memoryview | None]:
    """Return a function that opens the numbers of ``rank`` when they are first needed.

    It returns None where the file cannot be made, as in a directory without room. Then what the rank deletes is known
    from its records alone, as after a loss of power.
    """

    @cache
    def numbers() -> memoryview | None:
        from mmap import mmap

        try:
            with opened(directory) as job, held_open(os.open(b"deleted-%d" % rank, _OPEN, 0o600, dir_fd=job)) as file:
                if os.fstat(file).st_size != _COUNTED.size:
                    os.truncate(file, 0)
                    os.write(file, bytes(_COUNTED.size))  # has room before it is mapped
                return memoryview(mmap(file, _COUNTED.size)).cast("Q")
        except OSError:
            return None

    return numbers


def deleted_in(directory: bytes) -> int:
    """Return how many items all runs of the job in ``directory`` have deleted by these files.

    Raises ``Refused`` for a file that others may have written, and ``OSError``.
    """
    with opened(directory) as job:
        files = [name for name in names_in(job) if re.fullmatch(DELETED, name)]
        contents = [read(job, name, where=directory) for name in files]
    return sum(sum(_COUNTED.unpack(each)) for each in contents if len(each) == _COUNTED.size)
