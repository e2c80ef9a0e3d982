"""Counters summed over all ranks along the tree of ranks, without any rank waiting for another.

If a new query arrives before all child ranks have answered the last one, a rank answers with the numbers that it has
and names the ranks that are missing. Sequence numbers make late answers harmless.
"""

from __future__ import annotations

from collections.abc import Callable

from pcopy.engine.messages import Answer, Outgoing, Query
from pcopy.engine.steering import Reported, Steering, Unsteered


def parent(rank: int, fan_out: int) -> int:
    """Return the rank above ``rank`` in the tree of ranks; -1 for rank 0."""
    return (rank - 1) // fan_out if rank else -1


def children(rank: int, size: int, fan_out: int) -> range:
    """Return the ranks directly below ``rank`` in the tree of ``size`` ranks."""
    first = fan_out * rank + 1
    return range(min(first, size), min(first + fan_out, size))


SILENT_SHOWN = 16
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
        steering: Steering = Unsteered(),  # noqa: B008 (it has no state)
    ) -> None:
        """Create one rank's part. ``durable`` is a function that returns this rank's durable epoch."""
        self._durable = durable
        self.steering = steering
        self._rank = rank
        self._parent = parent(rank, fan_out)
        self._children = children(rank, size, fan_out)
        self._counters = counters
        self._answers: dict[int, Answer] = {}  # the last answer of each child
        self._missing: set[int] = set()
        self.sequence = 0
        """Number of the last query that was received; on rank 0, that was sent."""
        self._open = False
        self._own_report: Reported = ()
        self.totals = tuple(counters)
        """Sums over all ranks as rank 0 last sent them."""
        self.report: Answer | None = None
        """On rank 0: the latest answer, with the sums over all ranks."""

    def ask(self) -> Outgoing:
        """On rank 0: start the next query; return the messages to send."""
        totals = self.report.totals if self.report else tuple(self._counters)
        return self._begin(Query(self.sequence + 1, totals, self.steering.orders()))

    def receive_query(self, query: Query) -> Outgoing:
        """Process a query of the parent; return the messages to send. A query that is not newer than the last one is
        ignored.
        """
        return self._begin(query) if query.sequence > self.sequence else []

    def _begin(self, query: Query) -> Outgoing:
        """Start to answer ``query``: forward it to the children, and first answer an unfinished older query as far as
        possible.
        """
        out = self._finish() if self._open else []
        self.sequence, self.totals = query.sequence, query.totals
        self.steering.obey(query.orders)
        self._own_report = self.steering.report()
        self._missing = set(self._children)
        self._open = True
        out.extend((child, query) for child in self._children)
        if not self._missing:
            out += self._finish()
        return out

    def receive_answer(self, source: int, answer: Answer) -> Outgoing:
        """Process the answer of the child ``source``; return the messages to send."""
        self._answers[source] = answer
        if answer.sequence != self.sequence or source not in self._missing:
            return []
        self._missing.discard(source)
        return [] if self._missing else self._finish()

    def _find_silent(self) -> set[int]:
        """Return the ranks of this subtree whose part of the sums is out of date.

        A child that waits for a silent rank below it answers one query late. It is not silent itself, and has named
        that rank.
        """
        silent: set[int] = set()
        for child in self._children:
            answer = self._answers.get(child)
            late = child in self._missing
            if late and (answer is None or answer.sequence < self.sequence - 1 or not answer.silent):
                silent.add(child)
            elif answer is not None:
                silent.update(answer.silent)
        return silent

    def _finish(self) -> Outgoing:
        """Add up the known answers and return the answer to the parent; on rank 0, store it as the latest report."""
        self._open = False
        rows = [self._counters, *(answer.totals for answer in self._answers.values())]
        totals = tuple(map(sum, zip(*rows, strict=True)))
        silent = tuple(sorted(self._find_silent()))[:SILENT_SHOWN]
        heard = [self._answers[child].durable if child in self._answers else 0 for child in self._children]
        durable = min([self._durable(), *heard])
        reports = [self._own_report, *(answer.reported for answer in self._answers.values())]
        answer = Answer(self.sequence, totals, silent, durable, tuple(map(sum, zip(*reports, strict=True))))
        if self._rank:
            return [(self._parent, answer)]
        self.totals, self.report = totals, answer
        self.steering.heard(answer.reported)
        return []
