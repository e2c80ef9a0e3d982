"""Flow control for reports to rank 0: the amount that was sent and that rank 0 has not acknowledged yet is limited.

Each rank has a share of the limit. While it has used up its share, it begins no new task. So rank 0 holds a bounded
amount of data, even if the program that reads its output is slow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import ClassVar

from pcopy.engine.ticket import TicketGenerator
from pcopy.tasks.base.kind import TaskKind
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult


class SendWindow:
    """Limit of what this rank sends to rank 0: ``unacknowledged`` is the amount that rank 0 has not acknowledged yet.
    If it is too large, the rank begins no new task until an acknowledgement arrives.

    A subclass defines the unit (items or bytes) and the limits. A job uses one subclass.
    """

    total_limit: ClassVar[int]
    """Largest amount that all ranks together may have sent without an acknowledgement."""
    min_share: ClassVar[int]
    """Least amount that one rank may have sent without an acknowledgement. If there are very many ranks, their shares
    may exceed ``total_limit`` together.
    """

    def __init__(self, rank: Rank) -> None:
        self.unacknowledged = 0
        self._share = self.max_unacknowledged_amount(rank.size)

    @classmethod
    def max_unacknowledged_amount(cls, ranks: int) -> int:
        """Return the amount that one rank may have sent without an acknowledgement, in a job of ``ranks`` ranks."""
        return max(cls.min_share, cls.total_limit // ranks)

    @property
    def is_full(self) -> bool:
        """True if this rank has sent more than its share and must wait for acknowledgements."""
        return self.unacknowledged > self._share

    def wait_until_sending_allowed(self) -> TicketGenerator[bool]:
        """Yield until this rank may send again. Return True then, or False if the job stops before."""
        while self.is_full:
            hearing = SendWindowTicket(self)
            yield hearing
            if hearing.is_cancelled:
                return False
        return True


class SendWindowTicket:
    """A ticket (``pcopy.engine.ticket.OperationTicket``), for which a task waits before it may send to rank 0. It is
    done when rank 0 has acknowledged enough.
    """

    def __init__(self, window: SendWindow) -> None:
        self._window = window
        self.is_cancelled = False

    @property
    def is_done(self) -> bool:
        return self.is_cancelled or not self._window.is_full

    def cancel(self) -> None:
        self.is_cancelled = True


class _ReceivedAmounts(Counter[int]):
    """Amounts that rank 0 has received and not acknowledged yet, by the number of the sending rank."""

    def __init__(self, rank: Rank) -> None:
        super().__init__()


def acknowledge_received_amount_when_due(
    rank: Rank,
    result: TaskResult,
    sender: int,
    amount: int,
    window_type: type[SendWindow],
    note: Callable[[int], TaskKind],
) -> None:
    """On rank 0: count the ``amount`` that was received from the rank ``sender``. Once a quarter of what that rank may
    send without an acknowledgement has come together, send it one.

    Args:
        window_type: the subclass of ``SendWindow`` that defines the unit and the limits.
        note: function that returns the acknowledgement, a message in the form of a short task, for an amount.
    """
    received = rank.shared_instance(_ReceivedAmounts)
    received[sender] += amount
    if received[sender] >= window_type.max_unacknowledged_amount(rank.size) // 4:
        result.spawn_task(note(received.pop(sender)), owner=sender)
