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
"""Exit statuses. ``EXIT_OK``: all done; ``EXIT_INCOMPLETE``: some items failed; ``EXIT_REFUSED``: the request was
refused; ``EXIT_INTERNAL``: a bug; ``EXIT_STOPPED``: stopped early, and the job can be resumed; ``EXIT_DIFFERENT``: what
was compared differs.

Only programs that compare use the last one. 70 and 75 are EX_SOFTWARE and EX_TEMPFAIL of sysexits.h.
"""

SYNC_FAILED_TEXT = "the destination could not be synced"
"""Beginning of the message with which a job stops because a sync of the destination has failed."""

SYNC_FAILED_CODE = -1
"""Code for the reason why a job stops: a sync has failed, so that the copied data may not be on stable storage.

The ranks send each other such a code with the message (``pcopy.engine.messages.HaltMessage``). A code above 0 is the
number of the signal that stops the job, and 0 stands for any other reason.
"""

NO_SPACE_CODE = -2
"""Code for the reason why a job stops: the file system of the archive or of the destination is full."""


class PcopyError(Exception):
    """An error that ends the program with the exit status ``status``.

    Its text is one line for the user: path, failure, reason, and what to do.
    """

    status = EXIT_INTERNAL

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        if status is not None:
            self.status = status


class RequestRefused(PcopyError):
    """The program refuses the request, because of its arguments or of what it finds on the file system; it has changed
    nothing yet.

    ``path`` is the path that it concerns; empty if there is none. ``code`` is the error number of the system; 0 if the
    reason is another one. Unless given, they are those of the exception that is being handled.
    """

    status = EXIT_REFUSED

    def __init__(
        self, text: str, status: int | None = None, *, path: bytes | None = None, code: int | None = None
    ) -> None:
        super().__init__(text, status)
        self.path = _path_of_handled_exception() if path is None else path
        self.code = _code_of_handled_exception() if code is None else code


def _path_of_handled_exception() -> bytes:
    """Return the path of the refusal that is being handled; empty if there is none."""
    error = sys.exception()
    return error.path if isinstance(error, RequestRefused) else b""


def _code_of_handled_exception() -> int:
    """Return the error number of the exception that is being handled, or of the one during whose handling that was
    raised, and so on; 0 if none has one.
    """
    error = sys.exception()
    while error is not None:
        if isinstance(error, RequestRefused):
            return error.code
        if isinstance(error, OSError):
            return error.errno or 0
        error = error.__context__
    return 0


def path_refused(path: bytes, reason: object, *, code: int | None = None, option: str = "") -> RequestRefused:
    """Return a refusal because of ``path``. Its text is the option that names the path or a list with it, if given,
    the path and the reason.
    """
    prefix = f"{option} " if option else ""
    return RequestRefused(f"{prefix}{printable_path(path)}: {reason}", path=path, code=code)


def unwritable_directory_code(directory: bytes) -> int:
    """Return the error number of a call that creates a file in ``directory``, where that is not possible: EROFS if the
    file system is mounted read-only, otherwise EACCES.
    """
    try:
        is_read_only = os.statvfs(directory).f_flag & os.ST_RDONLY
    except OSError as error:
        return error.errno or errno.EACCES
    return errno.EROFS if is_read_only else errno.EACCES


class RequestPartlyRefused(PcopyError):
    """The program has carried out a part of the request; another part was refused, or it is uncertain whether it was
    carried out.
    """

    status = EXIT_INCOMPLETE


class InvariantBroken(PcopyError):
    """Something happened that cannot happen: a bug in pcopy, or ranks with different versions of pcopy.

    The job must not continue.
    """


class PeerLost(PcopyError):
    """The connection to another rank was closed before the end of the job."""

    def __init__(self, rank: int, reason: str, *, ended_itself: bool = False) -> None:
        """``rank`` is the number of the other rank, and ``reason`` says how the connection ended.

        ``ended_itself`` is True if the other rank stopped because of ``ResourceUnavailable`` and has reported that.
        """
        super().__init__(f"rank {rank} is gone: {reason}")
        self.rank = rank
        self.ended_itself = ended_itself


class ResourceUnavailable(PcopyError):
    """The system refuses a resource without which a rank cannot work, such as memory, a descriptor or a pipe.

    That is no failure of an item: the job stops and can be resumed.
    """

    status = EXIT_STOPPED


RESOURCE_EXCEPTIONS = (OSError, MemoryError, ImportError)
"""Exceptions that Python raises if the system refuses a resource.

ImportError is one of them, because modules are imported when they are needed, and reading them may fail then.
"""


class TemporaryFileFailed(OSError):
    """A temporary file for waiting tasks and other data that do not fit into memory cannot be written or read.

    The job must stop, and can be resumed with another directory for such files.
    """


class JobAborted(PcopyError):
    """A rank has ended because of an exception; the text is its traceback, or the resource that the system refused."""


def current_traceback() -> str:
    """Return the traceback of the exception that is being handled, as text.

    If the module ``traceback`` cannot be imported, return only the exception's own text.
    """
    try:
        from traceback import format_exc
    except RESOURCE_EXCEPTIONS:
        return f"{sys.exception()!r}\n"
    return format_exc()


_REMEDIES = {
    errno.EMFILE: "raise the limit of open files (ulimit -n), or use fewer ranks (-n)",
    errno.ENFILE: "the host has no more open files: end other programs, or use fewer ranks (-n)",
    errno.ENOMEM: "free some memory, or use fewer ranks (-n)",
    errno.EAGAIN: "raise the limit of processes (ulimit -u), or use fewer ranks (-n)",
}
"""What users can do if the system has refused a resource without a path, by errno."""

_PACKAGE_DIRECTORY = os.path.dirname(os.path.abspath(__file__))


def resource_error_text(error: OSError | MemoryError | ImportError) -> str:
    """Return a message of one line: the path or the operation for which the system has refused a resource, why
    (``error``), and what to do, as far as these are known.

    It names no function, module or file of pcopy, since these mean nothing to users.
    """
    if isinstance(error, ImportError):
        return _unreadable_installation_text() if _is_own_module(error) else str(error)
    number = error.errno if isinstance(error, OSError) and error.errno else errno.ENOMEM
    text = f"{os.strerror(number)} ({errno.errorcode.get(number, number)})"
    operation = getattr(error, "operation", "")  # of a Problem (pcopy.fsio.problem)
    path = error.filename if isinstance(error, OSError) else None
    if isinstance(path, str) and path.startswith(f"{_PACKAGE_DIRECTORY}/"):
        return f"{_unreadable_installation_text()}: {text}"
    shown = printable_path(os.fsencode(path)) if isinstance(path, (str, bytes)) and path else ""
    remedy = "" if shown else _REMEDIES.get(number, "")
    return ": ".join(filter(None, (shown, operation, text))) + (f"; {remedy}" if remedy else "")


def _is_own_module(error: ImportError) -> bool:
    """True if the module that cannot be imported is one of pcopy."""
    return (error.name or "").partition(".")[0] == "pcopy"


def _unreadable_installation_text() -> str:
    """Return the message for a file of pcopy that is missing or cannot be read."""
    directory = printable_path(os.fsencode(_PACKAGE_DIRECTORY))
    return f"{directory}: files of pcopy are missing or cannot be read; check the directory, or install pcopy again"
