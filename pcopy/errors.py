"""The errors that end a job, and the exit status of each.

A failed *item* is no exception here: it is recorded (``pcopy.tasks.job.Failure``) and the work goes on.
"""

from __future__ import annotations

OK = 0
INCOMPLETE = 1
REFUSED = 2
INTERNAL = 70
STOPPED = 75

NOT_SYNCED = "the destination could not be synced"
"""How the reason to stop begins after a sync that has failed: what was copied may not be on storage."""


class PcopyError(Exception):
    """Ends the job with ``status``; its text is one line for the user: what, which path, what to do."""

    status = INTERNAL


class Refused(PcopyError):
    """The arguments ask for something that pcopy does not do; nothing has been touched."""

    status = REFUSED


class InvariantBroken(PcopyError):
    """pcopy itself is wrong (or a peer speaks another protocol): the job must not go on."""

    status = INTERNAL


class PeerLost(PcopyError):
    """Another rank is gone: its connection closed before the job was over."""

    status = INTERNAL

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(f"rank {rank} is gone: {reason}")
        self.rank = rank


class NotPutAside(OSError):
    """What does not fit into memory can't be put aside, or fetched again: the job has to stop."""


class JobAborted(PcopyError):
    """A rank ended the job in disorder; the text holds its traceback."""

    status = INTERNAL
