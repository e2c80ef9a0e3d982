"""Child processes of rank 0 that run the forked ranks: reports how each one ended, and leaves none of them running.

A process id is signalled only while its process has not been reaped, since the kernel may give the id to an unrelated
process afterwards. All waiting and killing therefore uses one table, from which a child is removed at the moment it is
reaped.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from pcopy.errors import EXIT_REFUSED, EXIT_STOPPED

_EXIT_WAIT_SECONDS = 0.01
"""Seconds to wait until waitpid(2) can report a dead child, whose sockets close a little earlier."""
_SHORTEST_PAUSE = 0.0005
"""Seconds between the first two checks whether child processes have ended."""
_LONGEST_PAUSE = 0.02
"""Maximum seconds between two checks whether child processes have ended; the pause grows with each check."""


class ChildProcesses:
    """The child processes of rank 0 that have not been reaped (waitpid(2)), by rank. In a child process the table is
    empty.
    """

    def __init__(self) -> None:
        self._alive: dict[int, int] = {}
        self._exit_codes: dict[int, int] = {}

    def add(self, rank: int, process: int) -> None:
        """Add the process with the id ``process``, which runs ``rank``."""
        self._alive[rank] = process

    def exit_description(self, rank: int) -> str | None:
        """Return a text that says how the process of ``rank`` ended, such as "killed by SIGKILL", for an error message;
        None if that is not known within 10 ms.
        """
        until = time.monotonic() + _EXIT_WAIT_SECONDS
        while rank in self._alive and not self._try_to_reap_child(rank, os.WNOHANG) and time.monotonic() < until:
            time.sleep(_SHORTEST_PAUSE)
        return _exit_code_text(self._exit_codes[rank]) if rank in self._exit_codes else None

    def has_ended_for_lack_of_resource(self, rank: int) -> bool:
        """Return True if the process of ``rank`` ended by itself because the operating system refused it a resource,
        such as memory. Its exit status shows that.
        """
        return self._exit_codes.get(rank) in (EXIT_STOPPED, EXIT_REFUSED)

    def reap_children(self, grace: float) -> None:
        """Wait up to ``grace`` seconds until all children have exited; then kill the others, and wait until they have
        ended.
        """
        self._reap_children_within(grace)
        self._send_sigkill_to_children()
        for rank in list(self._alive):
            self._try_to_reap_child(rank, 0)

    def kill(self) -> None:
        """Kill all children. Do not wait for one that is blocked in a system call; ``reap_children`` does."""
        self._send_sigkill_to_children()
        self._reap_children_within(_EXIT_WAIT_SECONDS)

    def _reap_children_within(self, seconds: float) -> None:
        """Wait up to ``seconds`` until all child processes have exited, and reap (waitpid(2)) each that has."""
        until = time.monotonic() + seconds
        pause = _SHORTEST_PAUSE
        while True:
            for rank in list(self._alive):
                self._try_to_reap_child(rank, os.WNOHANG)
            left = until - time.monotonic()
            if not self._alive or left <= 0.0:
                return
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _send_sigkill_to_children(self) -> None:
        """Send SIGKILL to all children."""
        for process in self._alive.values():
            with contextlib.suppress(ProcessLookupError):  # where SIGCHLD is ignored the kernel has reaped it
                os.kill(process, signal.SIGKILL)

    def _try_to_reap_child(self, rank: int, options: int) -> bool:
        """Reap the process of ``rank`` with waitpid(2), so that its exit status becomes known; return True if it has
        ended. ``options`` is the argument of waitpid(2): with WNOHANG the call does not wait, with 0 it waits for
        the end of the process.
        """
        try:
            process, status = os.waitpid(self._alive[rank], options)
        except OSError:
            # The exit status is lost: waitpid failed, or the kernel reaped the child, since SIGCHLD is ignored.
            del self._alive[rank]
            return True
        if process == 0:
            return False
        del self._alive[rank]
        self._exit_codes[rank] = os.waitstatus_to_exitcode(status)
        return True


def _exit_code_text(exit_code: int) -> str:
    """Return a text that says how a process ended, such as "killed by SIGKILL". A negative exit code is the number of a
    signal.
    """
    if exit_code >= 0:
        return f"it exited with status {exit_code}"
    try:
        return f"killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"killed by signal {-exit_code}"
