"""Counters, summed up the tree without anybody waiting: who is asked again answers with what it has, and names who is
missing. Sequence numbers make late answers harmless.
"""

from __future__ import annotations

from collections.abc import Callable

from pcopy.engine.messages import Answer, Outgoing, Query
from pcopy.engine.steering import Reported, Steering, Unsteered


def parent(rank: int, fan_out: int) -> int:
    """The rank above ``rank``; the root has none (-1)."""
    return (rank - 1) // fan_out if rank else -1


def children(rank: int, size: int, fan_out: int) -> range:
    first = fan_out * rank + 1
    return range(min(first, size), min(first + fan_out, size))


SILENT_SHOWN = 16
"""The most silent ranks that one answer names."""


class CounterTree:
    """One rank's part in summing ``counters``, the list that the rank itself adds to."""

    def __init__(
        self,
        rank: int,
        size: int,
        fan_out: int,
        counters: list[int],
        durable: Callable[[], int] = lambda: 0,
        steering: Steering = Unsteered(),  # noqa: B008 (it has no state)
    ) -> None:
        """``durable`` tells this rank's durable epoch."""
        self._durable = durable
        self.steering = steering
        self._rank = rank
        self._parent = parent(rank, fan_out)
        self._children = children(rank, size, fan_out)
        self._counters = counters
        self._answers: dict[int, Answer] = {}  # each child's last one
        self._missing: set[int] = set()
        self.sequence = 0
        """The last query seen (at the root: asked)."""
        self._open = False
        self._own_report: Reported = ()
        self.totals = tuple(counters)
        """The sums over all ranks as last heard from the root."""
        self.report: Answer | None = None
        """At the root: the last sums over all ranks."""

    def ask(self) -> Outgoing:
        """At the root: starts the next query."""
        totals = self.report.totals if self.report else tuple(self._counters)
        return self._begin(Query(self.sequence + 1, totals, self.steering.orders()))

    def receive_query(self, query: Query) -> Outgoing:
        return self._begin(query) if query.sequence > self.sequence else []

    def _begin(self, query: Query) -> Outgoing:
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
        self._answers[source] = answer
        if answer.sequence != self.sequence or source not in self._missing:
            return []
        self._missing.discard(source)
        return [] if self._missing else self._finish()

    def _find_silent(self) -> set[int]:
        """Whose share is old. A child that waits for a silent rank is itself one query late, and has named that one."""
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
