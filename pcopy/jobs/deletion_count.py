"""The number of items that a job has deleted (``--delete``), updated at each deletion in a file of each rank.

The records of a rank are written at intervals. If the rank is killed, they lack the deletions since the last record,
and this file has them. The files lie in the job directory, and are mapped into memory where that is safe. They are not
synced: after a power failure they may have less than the records.
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

from pcopy.checkpoint.directory import opened_directory, read_file
from pcopy.checkpoint.layout import DELETED_PATTERN
from pcopy.fsio.close import closed_at_end, names_in_directory
from pcopy.fsio.retries import open_with_retries
from pcopy.libc import type_of_file_system

_COUNTERS = Struct("=QQ")
"""Format of a file: the two counters of ``pcopy.fsio.backend.batches.RemoveItems``."""

_OPEN_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_SAFE_TO_MAP = (0xEF53, 0x58465342, 0x01021994)
"""Types (f_type) of file systems that write mapped pages in place: ext4, XFS, tmpfs.

On other file systems, such as btrfs, writing to a mapped page may need new space or a server. If that is missing, the
operating system ends the process (SIGBUS).
"""


def deletion_counters(directory: bytes, rank: int, warn: Callable[[str], None]) -> Callable[[], memoryview | None]:
    """Return a function that returns the two counters of ``rank``; it is called before each batch of deletions.

    Counters in mapped memory are in the file at once. Otherwise the next call writes them, so that a killed rank loses
    one batch. The function returns None if the file cannot be created, for example on a full file system. Then only the
    records count what the rank deletes. ``warn`` gets a message about that.
    """

    @cache
    def found() -> tuple[memoryview, int] | None:
        try:
            with (
                opened_directory(directory) as job,
                closed_at_end(open_with_retries(b"deleted-%d" % rank, _OPEN_FLAGS, 0o600, dir_fd=job)) as file,
            ):
                return _counters_in(file)
        except OSError as error:
            warn(f"cannot record the number of deletions of rank {rank}: {error.strerror}")
            return None

    def numbers() -> memoryview | None:
        opened_file = found()
        if opened_file is None:
            return None
        counted, file = opened_file
        if file >= 0:
            with suppress(OSError):  # The records have these numbers, too.
                os.pwrite(file, counted, 0)
        return counted

    return numbers


def _counters_in(file: int) -> tuple[memoryview, int]:
    """Return the counters in an open file, and the descriptor to write them to, or -1 if they are mapped.

    Raise ``OSError`` if they cannot be read or mapped.
    """
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise OSError(errno.EEXIST, "something else has its name")
    if status.st_size != _COUNTERS.size:
        os.truncate(file, 0)
        os.write(file, bytes(_COUNTERS.size))  # Allocate the blocks before the file is mapped.
    if type_of_file_system(file) in _SAFE_TO_MAP:
        from mmap import mmap

        return memoryview(mmap(file, _COUNTERS.size)).cast("Q"), -1
    return memoryview(bytearray(os.pread(file, _COUNTERS.size, 0))).cast("Q"), os.dup(file)


def items_deleted(directory: bytes) -> int:
    """Return how many items all runs of the job in ``directory`` have deleted by these files.

    Raises ``RequestRefused`` for a file that others may have written, and ``OSError``.
    """
    with opened_directory(directory) as job:
        files = [name for name in names_in_directory(job) if re.fullmatch(DELETED_PATTERN, name)]
        contents = [read_file(job, name, where=directory, most=_COUNTERS.size + 1) for name in files]
    return sum(sum(_COUNTERS.unpack(each)) for each in contents if len(each) == _COUNTERS.size)
