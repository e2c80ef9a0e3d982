"""The exceptions that end a job, and the exit status of each.

An item that failed is not an exception here: it is recorded (``pcopy.tasks.base.job.Failure``), and the job continues.
"""

from __future__ import annotations

import errno
import os
import sys

from pcopy.text import printable_path

EXIT_OK = 0
EXIT_INCOMPLETE = 1
EXIT_REFUSED = 2
EXIT_INTERNAL = 70
EXIT_STOPPED = 75
EXIT_DIFFERENT = 1
"""Exit statuses.

The last one is used by programs that compare. 70 and 75 are EX_SOFTWARE and EX_TEMPFAIL of sysexits.h.
"""

SYNC_FAILED_TEXT = "the destination could not be synced"
"""Beginning of the text of the reason to stop after a sync has failed."""

SYNC_FAILED_CODE = -1
"""Code of that reason (``pcopy.engine.messages.Halt``): the copied data may not be on storage.

Codes above 0 are signal numbers, and 0 is any other reason.
"""

ARCHIVE_FULL_CODE = -2
"""Code of the reason that an archive cannot be written because its file system is full."""


class PcopyError(Exception):
    """An error that ends the job with ``status``.

    Its text is one line for the user: the failure, the path, and what to do.
    """

    status = EXIT_INTERNAL

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        if status is not None:
            self.status = status


class RequestRefused(PcopyError):
    """The arguments request something that pcopy does not do. Nothing has been changed."""

    status = EXIT_REFUSED


class PartlyRefused(PcopyError):
    """Several things were requested, and some of them were refused."""

    status = EXIT_INCOMPLETE


class InvariantBroken(PcopyError):
    """A defect of pcopy, or a peer with another protocol: the job must not continue."""


class PeerLost(PcopyError):
    """The connection to another rank was closed before the end of the job."""

    def __init__(self, rank: int, reason: str, *, ended_itself: bool = False) -> None:
        """``ended_itself`` is True if the other rank stopped because of ``ResourceUnavailable`` and has reported the
        reason.
        """
        super().__init__(f"rank {rank} is gone: {reason}")
        self.rank = rank
        self.ended_itself = ended_itself


class ResourceUnavailable(PcopyError):
    """The system refuses a resource that a rank itself needs (memory, descriptors, a pipe).

    The job stops and can be resumed.
    """

    status = EXIT_STOPPED


RESOURCE_EXCEPTIONS = (OSError, MemoryError, ImportError)
"""Exceptions of Python for resources that the system refuses.

ImportError is one, because modules are imported when needed.
"""


class SpillFailed(OSError):
    """Pending work that does not fit into memory cannot be spilled to disk, or cannot be read back: the job must
    stop.
    """


class JobAborted(PcopyError):
    """Another error has ended a rank. The text holds its traceback, or the resource that was refused to it."""


def current_traceback() -> str:
    """Return the traceback of the exception that is being handled; only its text if the module ``traceback`` cannot be
    imported.
    """
    try:
        from traceback import format_exc
    except RESOURCE_EXCEPTIONS:
        return f"{sys.exception()!r}\n"
    return format_exc()


def resource_error_text(error: OSError | MemoryError | ImportError) -> str:
    """Return in one line the resource that the system has refused, and the path or the function of pcopy that needed
    it.
    """
    where, trace = "pcopy", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        folder, _, file = code.co_filename.rpartition("/")
        if "/pcopy" in folder:
            where = f"{code.co_name} of {file}, line {trace.tb_lineno}"
        trace = trace.tb_next
    if isinstance(error, ImportError):
        return f"{error} (in {where})"
    number = error.errno if isinstance(error, OSError) and error.errno else errno.ENOMEM
    text = f"{os.strerror(number)} ({errno.errorcode.get(number, number)})"
    operation = getattr(error, "operation", "")  # of a Problem (pcopy.fsio.problem)
    path = error.filename if isinstance(error, OSError) else None
    if operation and path:
        return f"{printable_path(os.fsencode(path))}: {operation}: {text}"
    return f"{text} in {operation or where}"
