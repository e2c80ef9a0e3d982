"""Whether another rank's process on this host still lives, which MPI doesn't tell.

mpiexec ends a job that has lost a rank, srun lets the others wait for ever (unless it was given --kill-on-bad-exit). So
each rank watches the next one of its host, in a ring: if some of them have died and some live, a living one watches a
dead one. A process that has stopped, or that a file server keeps waiting, is not dead.
"""

from __future__ import annotations

import os
import select

_PAUSE = 0.25
"""Seconds between two looks."""


class Neighbour:
    """The process ``pid`` of this host, which is rank ``rank``."""

    def __init__(self, rank: int, pid: int) -> None:
        self.rank = rank
        self._gone = False
        self._next_look = 0.0
        self._poll: select.poll | None = None
        try:
            self._descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self._gone = True
        except OSError:
            return  # Linux before 5.3, or no descriptor to spare: then nobody watches
        else:
            self._poll = select.poll()
            self._poll.register(self._descriptor, select.POLLIN)

    def is_gone(self, now: float) -> bool:
        """Has it ended? ``now`` is a monotonic time in seconds; looks again only a while after the last look."""
        if not self._gone and self._poll is not None and now >= self._next_look:
            self._next_look = now + _PAUSE
            self._gone = bool(self._poll.poll(0))
        return self._gone
