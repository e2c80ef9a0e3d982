"""The forked ranks as processes: how each one ended, and that none is left behind.

The rule: a process id is signalled only while its process has not been reaped, since the kernel may give the id to
somebody else's process afterwards. So all waiting and killing goes through one table, which forgets a child in the
moment it is reaped.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from pcopy.errors import REFUSED, STOPPED

_FATE_WAIT = 0.01
"""Seconds that a dead child has to become waitable: its sockets close a little earlier."""
_SHORTEST_PAUSE = 0.0005
"""Seconds between the first two looks at children that end."""
_LONGEST_PAUSE = 0.02
"""Seconds to which the pause between two looks grows."""


class Children:
    """The table of one parent's children that have not been reaped; empty in a child."""

    def __init__(self) -> None:
        self._alive: dict[int, int] = {}
        self._codes: dict[int, int] = {}

    def add(self, rank: int, process: int) -> None:
        self._alive[rank] = process

    def fate(self, rank: int) -> str | None:
        """How ``rank``'s process ended, in words; None if it can't be said within some milliseconds."""
        until = time.monotonic() + _FATE_WAIT
        while rank in self._alive and not self._wait(rank, os.WNOHANG) and time.monotonic() < until:
            time.sleep(_SHORTEST_PAUSE)
        return _describe(self._codes[rank]) if rank in self._codes else None

    def gave_up(self, rank: int) -> bool:
        """Has ``rank``'s process ended by itself, because the system refused it something (``Hindered``)?"""
        return self._codes.get(rank) in (STOPPED, REFUSED)

    def reap(self, grace: float) -> None:
        """Waits up to ``grace`` seconds until all have exited, then kills the rest and waits for them."""
        self._collect(grace)
        self._signal()
        for rank in list(self._alive):
            self._wait(rank, 0)

    def kill(self) -> None:
        """Kills all at once. One that is stuck in a system call is not waited for: ``reap`` does that."""
        self._signal()
        self._collect(_FATE_WAIT)

    def _collect(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        pause = _SHORTEST_PAUSE
        while True:
            for rank in list(self._alive):
                self._wait(rank, os.WNOHANG)
            left = until - time.monotonic()
            if not self._alive or left <= 0.0:
                return
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _signal(self) -> None:
        for process in self._alive.values():
            with contextlib.suppress(ProcessLookupError):  # where SIGCHLD is ignored the kernel has reaped it
                os.kill(process, signal.SIGKILL)

    def _wait(self, rank: int, options: int) -> bool:
        """Has ``rank``'s process been reaped? Waits for it if ``options`` is 0."""
        try:
            process, status = os.waitpid(self._alive[rank], options)
        except OSError:
            # Nobody knows how it ended: waitpid failed, or the kernel reaped it, since our parent ignores SIGCHLD.
            del self._alive[rank]
            return True
        if process == 0:
            return False
        del self._alive[rank]
        self._codes[rank] = os.waitstatus_to_exitcode(status)
        return True


def _describe(exit_code: int) -> str:
    if exit_code >= 0:
        return f"it exited with status {exit_code}"
    try:
        return f"killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"killed by signal {-exit_code}"
