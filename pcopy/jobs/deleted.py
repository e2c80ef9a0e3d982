"""Counts the items that a job deletes (``--delete``), at each deletion, in a file of each rank.

Records are written at intervals: of a rank that is killed they lack what it has deleted since then. The files lie in
the job's directory, and are mapped into memory where that is safe. They are not synced: after a loss of power the
records may have more.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from struct import Struct

from pcopy.checkpoint.directory import opened, read
from pcopy.checkpoint.layout import DELETED
from pcopy.errors import Refused
from pcopy.fsio.close import held_open, names_in
from pcopy.fsio.patience import open_patiently
from pcopy.libc import type_of_file_system

_COUNTED = Struct("=QQ")
"""The two numbers of ``pcopy.fsio.kernel.batches.Remove``."""

_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_IN_PLACE = (0xEF53, 0x58465342, 0x01021994)
"""Types of file systems (ext4, XFS, tmpfs) that write pages where they are. On others, such as btrfs, a mapped page may
need room or a server when it is written to; if there is none, the kernel ends the process (SIGBUS)."""


def deleted_by(directory: bytes, rank: int, tell: Callable[[str], None]) -> Callable[[], memoryview | None]:
    """Return a function that is called before each batch of deletions, and returns the numbers of ``rank``.

    They are in its file at once if that is mapped, and else when the function is called the next time: a rank that is
    killed then lacks one batch. The function returns None where the file cannot be made, as in a directory without
    room. Then what the rank deletes is known from its records alone, as after a loss of power; ``tell`` gets a line
    about that.
    """

    @cache
    def found() -> tuple[memoryview, int] | None:
        try:
            with (
                opened(directory) as job,
                held_open(open_patiently(b"deleted-%d" % rank, _OPEN, 0o600, dir_fd=job)) as file,
            ):
                return _numbers_in(file)
        except (OSError, Refused) as error:  # there is no job directory where none could be made
            reason = error.strerror if isinstance(error, OSError) else error
            tell(f"the count of deletions of rank {rank} cannot be kept: {reason}")
            return None

    def numbers() -> memoryview | None:
        known = found()
        if known is None:
            return None
        counted, file = known
        if file >= 0:
            with suppress(OSError):  # the records have them, too
                os.pwrite(file, counted, 0)
        return counted

    return numbers


def _numbers_in(file: int) -> tuple[memoryview, int]:
    """Return the numbers in an open file, and where to write them, or -1 if they are mapped.

    Raises ``OSError``.
    """
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise OSError(errno.EEXIST, "something else has its name")
    if status.st_size != _COUNTED.size:
        os.truncate(file, 0)
        os.write(file, bytes(_COUNTED.size))  # has room before it is mapped
    if type_of_file_system(file) in _IN_PLACE:
        from mmap import mmap

        return memoryview(mmap(file, _COUNTED.size)).cast("Q"), -1
    return memoryview(bytearray(os.pread(file, _COUNTED.size, 0))).cast("Q"), os.dup(file)


def deleted_in(directory: bytes) -> int:
    """Return how many items all runs of the job in ``directory`` have deleted by these files.

    Raises ``Refused`` for a file that others may have written, and ``OSError``.
    """
    with opened(directory) as job:
        files = [name for name in names_in(job) if re.fullmatch(DELETED, name)]
        contents = [read(job, name, where=directory, most=_COUNTED.size + 1) for name in files]
    return sum(sum(_COUNTED.unpack(each)) for each in contents if len(each) == _COUNTED.size)
