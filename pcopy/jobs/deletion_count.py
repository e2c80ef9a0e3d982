"""The number of items that a job has deleted (``--delete``): one small file for each rank, updated at each deletion.

A resumed job must know this number, because ``--max-delete`` limits the deletions of all its runs. A rank records its
progress only at intervals. If the rank is killed, the records lack the deletions since the last one, but this file has
them. The files lie in the job directory. They are mapped into memory where that is safe, and never synced: after a
power failure they may contain a smaller number than the records.
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

from pcopy.checkpoint.directory import opened_trusted_directory, read_trusted_file
from pcopy.checkpoint.layout import DELETION_COUNT_FILE_PATTERN
from pcopy.errors import RequestRefused
from pcopy.fsio.close import closing_descriptor, names_in_directory
from pcopy.fsio.retries import open_with_retries
from pcopy.libc import type_of_file_system

_COUNTERS_FORMAT = Struct("=QQ")
"""Format of a file: the number of items that the C code of the rank has removed, and the number that Python has."""

_OPEN_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_FILE_SYSTEMS_SAFE_TO_MAP = (0xEF53, 0x58465342, 0x01021994)
"""Types (f_type) of the file systems on which the file with the counters is mapped into memory: ext4, XFS, tmpfs.

They write a changed page to the blocks that the file already has. On others, such as btrfs or a network file system, a
write to a mapped page may need new space or a server. If that is missing, the kernel sends SIGBUS and the process ends.
"""


def deletion_counters_getter(
    directory: bytes, rank: int, warn: Callable[[str], None]
) -> Callable[[], memoryview | None]:
    """Return a function that returns the memory in which ``rank`` counts the items that it deletes.

    The caller calls that function before each batch of deletions, and then increases the two counters in the memory. If
    the memory is mapped, the file in the job ``directory`` changes with it. Otherwise the next call writes the counters
    to the file, so that a killed rank loses the count of one batch. The function returns None if the file cannot be
    created, for example on a full file system. Then only the records of the job's progress count what the rank deletes,
    and ``warn`` is called once with a message.
    """

    @cache
    def found() -> tuple[memoryview, int] | None:
        try:
            with (
                opened_trusted_directory(directory) as job,
                closing_descriptor(open_with_retries(b"deleted-%d" % rank, _OPEN_FLAGS, 0o600, dir_fd=job)) as file,
            ):
                return _counters_in_file(file)
        except (OSError, RequestRefused) as error:  # The job directory is missing if the job could not be recorded.
            reason = error.strerror if isinstance(error, OSError) else error
            warn(f"cannot record the number of deletions of rank {rank}: {reason}")
            return None

    def numbers() -> memoryview | None:
        opened_file = found()
        if opened_file is None:
            return None
        counted, file = opened_file
        if file >= 0:
            with suppress(OSError):  # Not fatal: the next record of the rank counts these deletions, too.
                os.pwrite(file, counted, 0)
        return counted

    return numbers


def _counters_in_file(file: int) -> tuple[memoryview, int]:
    """Return memory with the counters in the open ``file``, and the descriptor to which the caller must write them.

    The descriptor is -1 if the memory is a mapping of the file, which needs no writing. Raise ``OSError`` if the
    counters cannot be read or mapped.
    """
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise OSError(errno.EEXIST, "another item has the name of the counter file")
    if status.st_size != _COUNTERS_FORMAT.size:
        os.truncate(file, 0)
        os.write(file, bytes(_COUNTERS_FORMAT.size))  # Allocate the blocks before the file is mapped.
    if type_of_file_system(file) in _FILE_SYSTEMS_SAFE_TO_MAP:
        from mmap import mmap

        return memoryview(mmap(file, _COUNTERS_FORMAT.size)).cast("Q"), -1
    return memoryview(bytearray(os.pread(file, _COUNTERS_FORMAT.size, 0))).cast("Q"), os.dup(file)


def number_of_deleted_items(directory: bytes) -> int:
    """Return the sum of the counters of all ranks: the number of items that all runs of the job in ``directory`` have
    deleted.

    Raise ``RequestRefused`` for a file that another user may have written, and ``OSError`` if a file cannot be read.
    """
    with opened_trusted_directory(directory) as job:
        files = [name for name in names_in_directory(job) if re.fullmatch(DELETION_COUNT_FILE_PATTERN, name)]
        contents = [read_trusted_file(job, name, where=directory, most=_COUNTERS_FORMAT.size + 1) for name in files]
    return sum(sum(_COUNTERS_FORMAT.unpack(each)) for each in contents if len(each) == _COUNTERS_FORMAT.size)
