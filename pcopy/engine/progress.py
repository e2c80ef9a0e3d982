"""Counters summed over all ranks along the tree of ranks, without any rank waiting for another.

If a new query arrives before all child ranks have answered the last one, a rank answers with the numbers that it has
and names the ranks that are missing. Sequence numbers make late answers harmless.
"""

from __future__ import annotations

from collections.abc import Callable

from pcopy.engine.messages import CounterQuery, CounterSums, OutgoingMessages
from pcopy.engine.steering import NoSteering, ReportedNumbers, Steering


def parent_rank(rank: int, fan_out: int) -> int:
    """Return the rank above ``rank`` in the tree of ranks; -1 for rank 0."""
    return (rank - 1) // fan_out if rank else -1


def child_ranks(rank: int, size: int, fan_out: int) -> range:
    """Return the ranks directly below ``rank`` in the tree of ``size`` ranks."""
    first = fan_out * rank + 1
    return range(min(first, size), min(first + fan_out, size))


MAX_SILENT_RANKS = 16
"""Maximum number of silent ranks that one answer names."""


class CounterTree:
    """One rank's part in summing ``counters``, a list that the rank itself updates."""

    def __init__(
        self,
        rank: int,
        size: int,
        fan_out: int,
        counters: list[int],
        durable: Callable[[], int] = lambda: 0,
        steering: Steering = NoSteering(),  # noqa: B008 (it has no state)
    ) -> None:
        """Create one rank's part. ``durable`` is a function that returns this rank's durable epoch."""
        self._durable_epoch = durable
        self.steering = steering
        self._rank = rank
        self._parent = parent_rank(rank, fan_out)
        self._children = child_ranks(rank, size, fan_out)
        self._counters = counters
        self._answers: dict[int, CounterSums] = {}  # the last answer of each child
        self._missing_children: set[int] = set()
        self.sequence = 0
        """Number of the last query that was received; on rank 0, that was sent."""
        self._is_answer_pending = False
        self._own_report: ReportedNumbers = ()
        self.totals = tuple(counters)
        """Sums over all ranks as rank 0 last sent them."""
        self.latest_sums: CounterSums | None = None
        """On rank 0: the latest answer, with the sums over all ranks."""

    def start_query(self) -> OutgoingMessages:
        """On rank 0: start the next query; return the messages to send."""
        totals = self.latest_sums.totals if self.latest_sums else tuple(self._counters)
        return self._begin_answer(CounterQuery(self.sequence + 1, totals, self.steering.orders()))

    def receive_query(self, query: CounterQuery) -> OutgoingMessages:
        """Process a query of the parent; return the messages to send. A query that is not newer than the last one is
        ignored.
        """
        return self._begin_answer(query) if query.sequence > self.sequence else []

    def _begin_answer(self, query: CounterQuery) -> OutgoingMessages:
        """Start to answer ``query``: forward it to the children, and first answer an unfinished older query as far as
        possible.
        """
        out = self._finish_answer() if self._is_answer_pending else []
        self.sequence, self.totals = query.sequence, query.totals
        self.steering.apply_orders(query.orders)
        self._own_report = self.steering.numbers_to_report()
        self._missing_children = set(self._children)
        self._is_answer_pending = True
        out.extend((child, query) for child in self._children)
        if not self._missing_children:
            out += self._finish_answer()
        return out

    def receive_answer(self, source: int, answer: CounterSums) -> OutgoingMessages:
        """Process the answer of the child ``source``; return the messages to send."""
        self._answers[source] = answer
        if answer.sequence != self.sequence or source not in self._missing_children:
            return []
        self._missing_children.discard(source)
        return [] if self._missing_children else self._finish_answer()

    def _silent_ranks(self) -> set[int]:
        """Return the ranks of this subtree whose part of the sums is out of date.

        A child that waits for a silent rank below it answers one query late. It is not silent itself, and has named
        that rank.
        """
        silent: set[int] = set()
        for child in self._children:
            answer = self._answers.get(child)
            late = child in self._missing_children
            if late and (answer is None or answer.sequence < self.sequence - 1 or not answer.silent_ranks):
                silent.add(child)
            elif answer is not None:
                silent.update(answer.silent_ranks)
        return silent

    def _finish_answer(self) -> OutgoingMessages:
        """Add up the known answers and return the answer to the parent; on rank 0, store it as the latest report."""
        self._is_answer_pending = False
        rows = [self._counters, *(answer.totals for answer in self._answers.values())]
        totals = tuple(map(sum, zip(*rows, strict=True)))
        silent = tuple(sorted(self._silent_ranks()))[:MAX_SILENT_RANKS]
        heard = [self._answers[child].durable_epoch if child in self._answers else 0 for child in self._children]
        durable = min([self._durable_epoch(), *heard])
        reports = [self._own_report, *(answer.reported_sums for answer in self._answers.values())]
        answer = CounterSums(self.sequence, totals, silent, durable, tuple(map(sum, zip(*reports, strict=True))))
        if self._rank:
            return [(self._parent, answer)]
        self.totals, self.latest_sums = totals, answer
        self.steering.receive_sums(answer.reported_sums)
        return []
