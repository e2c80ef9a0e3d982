"""Work stealing, the thief's side: which rank to ask for tasks, and when.

An idle rank (the thief) requests tasks from one other rank at a time, its victim, which it chooses at random. A victim
that has no tasks to give delays its reply until it has some, or until the time given in the request (the patience) is
over. Then the thief asks another victim with twice the patience, so that idle ranks sleep. The maximum patience grows
with the time for which the rank has been idle, because requests take processor time from ranks on the same cores.

Blumofe and Leiserson, "Scheduling multithreaded computations by work stealing" (1999), show that random victims
suffice.
"""

from __future__ import annotations

from random import Random

from pcopy.engine.limits import EngineLimits
from pcopy.engine.messages import TaskReply, TaskRequest
from pcopy.engine.steering import RankSteering, RankTaskRestriction

_PATIENCE_PER_IDLE_TIME = 1 / 8
"""An idle rank lets the receiver of its request for tasks delay the reply (patience). The longest patience is this
fraction of the time for which the rank has been idle, if that is more than ``EngineLimits.longest_steal_wait``.
"""

LONGEST_STEAL_PATIENCE = 0.25
"""Maximum seconds for which an idle rank lets another rank delay the reply to a request for tasks."""


class WorkStealingThief:
    """Requests tasks from other ranks when this rank is idle (work stealing). At most one request is unanswered at any
    time.
    """

    def __init__(self, rank: int, size: int, random: Random, limits: EngineLimits, steering: RankSteering) -> None:
        self._rank = rank
        self._size = size
        self._random = random
        self._limits = limits
        self._steering = steering
        self._sequence = 0
        self._patience = limits.first_steal_wait
        self._idle_since = 0.0
        self._request_deadline = 0.0
        self.is_request_pending = False
        """True while a request for tasks that this rank has sent is unanswered."""
        self.next_request_time = 0.0
        """Earliest time in seconds at which this rank may request tasks again."""

    def reset_patience_of_task_requests(self, now: float) -> None:
        """Begin again with the shortest patience (time for which the receiver of a request may delay its reply),
        because a phase has begun or tasks have arrived. Idle time is counted from ``now``.
        """
        self._patience = self._limits.first_steal_wait
        self._idle_since = self.next_request_time = now

    def record_last_busy_time(self, now: float) -> None:
        """Record that this rank had work until ``now``, from when its idle time is counted. Reduce the patience (time
        for which the receiver of a request may delay its reply) to at most ``EngineLimits.longest_steal_wait``.
        """
        self._idle_since = now
        self._patience = min(self._patience, self._limits.longest_steal_wait)

    @property
    def can_request_tasks(self) -> bool:
        """True if this rank could request tasks from another rank, now or later.

        That is so if no request is unanswered, there are other ranks, and this rank may begin any task.
        """
        return not (
            self.is_request_pending or self._size == 1 or self._steering.allowed_tasks is not RankTaskRestriction.ALL
        )

    def next_task_request(self, phase: int, now: float) -> tuple[int, TaskRequest] | None:
        """Return the rank to ask for tasks (chosen at random) and the request to send to it. Return None if no request
        is due or allowed at the time ``now``.
        """
        if now < self.next_request_time or not self.can_request_tasks:
            return None
        victim = self._random.randrange(self._size - 1)
        victim += victim >= self._rank
        self._sequence += 1
        self.is_request_pending = True
        patience = self._patience * (0.5 + self._random.random() / 2)
        self._request_deadline = now + patience
        return victim, TaskRequest(phase, self._sequence, patience)

    def receive_task_reply(self, reply: TaskReply, now: float) -> bool:
        """Process a reply to a request for tasks, and determine when the next request is due. Return False if ``reply``
        answers an earlier request than the latest one.
        """
        if not self.is_request_pending or reply.sequence != self._sequence:
            return False
        self.is_request_pending = False
        if reply.tasks:
            self.reset_patience_of_task_requests(now)
        else:
            self.next_request_time = max(now, self._request_deadline)
            share = min((now - self._idle_since) * _PATIENCE_PER_IDLE_TIME, LONGEST_STEAL_PATIENCE)
            self._patience = min(2 * self._patience, max(self._limits.longest_steal_wait, share))
        return True
