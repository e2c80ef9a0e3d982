"""The errors that end a job, and the exit status of each.

A failed *item* is no exception here: it is recorded (``pcopy.tasks.base.job.Failure``) and the work goes on.
"""

from __future__ import annotations

import errno
import os
import sys

from pcopy.text import shown

OK = 0
INCOMPLETE = 1
REFUSED = 2
INTERNAL = 70
STOPPED = 75
DIFFERENT = 1
"""Exit statuses; the last one is of programs that compare. 70 and 75 are EX_SOFTWARE and EX_TEMPFAIL of sysexits.h."""

NOT_SYNCED = "the destination could not be synced"
"""How the text of the reason to stop begins after a sync that has failed."""

UNSYNCED = -1
"""The code of that reason (``pcopy.engine.messages.Halt``): what was copied may not be on storage. Codes above 0 are
numbers of signals, and 0 is any other reason."""

NO_ROOM = -2
"""The code of the reason that an archive cannot be written, since there is no room for it."""


class PcopyError(Exception):
    """Ends the job with ``status``; its text is one line for the user: what, which path, what to do."""

    status = INTERNAL

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        if status is not None:
            self.status = status


class Refused(PcopyError):
    """The arguments ask for something that pcopy does not do; nothing has been touched."""

    status = REFUSED


class NotAllDone(PcopyError):
    """Several things were asked for, and some of them were refused."""

    status = INCOMPLETE


class InvariantBroken(PcopyError):
    """pcopy itself is wrong (or a peer speaks another protocol): the job must not go on."""


class PeerLost(PcopyError):
    """Another rank is gone: its connection closed before the job was over."""

    def __init__(self, rank: int, reason: str, *, gave_up: bool = False) -> None:
        """``gave_up``: it ended by itself, as ``Hindered``, and has said why."""
        super().__init__(f"rank {rank} is gone: {reason}")
        self.rank = rank
        self.gave_up = gave_up


class Hindered(PcopyError):
    """The system refuses a rank what it needs for itself (memory, descriptors, a pipe): the job ends as it stands."""

    status = STOPPED


HINDRANCES = (OSError, MemoryError, ImportError)
"""What Python raises where the system refuses something; a module is loaded when it is needed, and may not be then."""


class NotPutAside(OSError):
    """Work that does not fit into memory can't be put aside, or fetched again: the job has to stop."""


class JobAborted(PcopyError):
    """A rank ended the job in disorder; the text holds its traceback, or what has hindered it."""


def story() -> str:
    """What Python would print of the exception that is being handled; without a trace where that can't be loaded."""
    try:
        from traceback import format_exc
    except HINDRANCES:
        return f"{sys.exception()!r}\n"
    return format_exc()


def hindrance(error: OSError | MemoryError | ImportError) -> str:
    """Return in one line what the system has refused, and of which path or in which function of pcopy."""
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
        return f"{shown(os.fsencode(path))}: {operation}: {text}"
    return f"{text} in {operation or where}"
