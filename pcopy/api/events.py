"""The events of a running job that a consumer has not taken yet, in bounded memory.

Rules, for a consumer that is slower than the job:

- No failure is lost: the consumer reads failures from the file in which the job keeps them (``JsonLines``).
- Of notices only the newest ones are kept.
- A new progress takes the place of one that was not taken yet, so that a consumer always gets the newest one.
- Apart from that, events keep their order.
"""

from __future__ import annotations

from collections import deque

TYPE_CHECKING = False  # stands for typing.TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import RLock

    from pcopy.api.results import Event, FailedItem, JsonLines, Progress

_MOST_PENDING_NOTICES = 1000
"""The number of notices that are kept for a consumer."""


class EventQueue:
    """The events from the time at which it is created. The reader of the job puts them; one consumer takes them."""

    def __init__(
        self, failures: JsonLines[FailedItem], lock: RLock, wake: Callable[[], object], *, only_progress: bool = False
    ) -> None:
        """``lock`` is that of the job, and protects ``failures``. ``wake`` is called at the first event after ``take``
        has found none. With ``only_progress`` there are no other events.
        """
        self._lock = lock
        self._wake = wake
        self._only_progress = only_progress
        self._others: deque[tuple[int, Event]] = deque()
        """Notices, and at most one progress, each with the number of failures before it."""
        self._read: deque[FailedItem] = deque()
        """Failures that were read from the file."""
        self._is_awake = False
        self._has_ended = False
        self.is_exhausted = False
        """True if the job has ended, and ``take`` has returned all events."""
        with lock:
            self._failures = failures
            self._place = failures.end()
            self._taken = len(failures)

    def put(self, event: Event | None) -> None:
        """Add an event; None: the job has ended. A failure is in the file already. The caller holds the lock."""
        from pcopy.api.results import Notice, Progress

        if event is None:
            self._has_ended = True
        elif isinstance(event, Progress):
            self._put_progress(event)
        elif self._only_progress:
            return
        elif isinstance(event, Notice):
            if len(self._others) > _MOST_PENDING_NOTICES:
                del self._others[0 if isinstance(self._others[0][1], Notice) else 1]
            self._others.append((len(self._failures), event))
        if not self._is_awake:
            self._is_awake = True
            self._wake()

    def _put_progress(self, progress: Progress) -> None:
        for index, (failures, other) in enumerate(self._others):
            if type(other) is type(progress):
                self._others[index] = failures, progress
                return
        self._others.append((len(self._failures), progress))

    def take(self) -> Event | None:
        """Return the next event; None if there is none yet, or if ``is_exhausted`` is True now."""
        with self._lock:
            if self._others and (self._only_progress or self._others[0][0] <= self._taken):
                return self._others.popleft()[1]
            if not self._read and not self._only_progress:
                failures, self._place = self._failures.portion(self._place)
                self._read.extend(failures)
            if self._read:
                self._taken += 1
                return self._read.popleft()
            self._is_awake = False
            self.is_exhausted = self._has_ended
            return None
