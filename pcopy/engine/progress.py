"""Counters summed over all ranks along the tree of ranks, without any rank waiting for another.

Rank 0 sends numbered queries down the tree; answers come up with the sums over each subtree. If a new query arrives
before all child ranks have answered the last one, a rank answers the last one with the numbers that it has, and names
the child ranks that have not answered. An answer that arrives late is recognized by the number of its query.
"""

from __future__ import annotations

from collections.abc import Callable

from pcopy.engine.messages import CounterQuery, CounterSums, OutgoingMessages
from pcopy.engine.steering import NullRankSteering, RankSteering, ReportedNumbers


def parent_rank(rank: int, fan_out: int) -> int:
    """Return the rank above ``rank`` in the tree of ranks, in which each rank has up to ``fan_out`` children; -1 for
    rank 0.
    """
    return (rank - 1) // fan_out if rank else -1


def child_ranks(rank: int, size: int, fan_out: int) -> range:
    """Return the ranks directly below ``rank`` in the tree of ``size`` ranks, in which each rank has up to ``fan_out``
    children.
    """
    first = fan_out * rank + 1
    return range(min(first, size), min(first + fan_out, size))


MAX_SILENT_RANKS = 16
"""Maximum number of silent ranks (which have not answered in time) that one answer names. More would only lengthen the
messages.
"""


class CounterTree:
    """One rank's part in adding up the counters of all ranks along the tree of ranks. ``counters`` are the numbers of
    this rank, which it changes as its tasks end.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        fan_out: int,
        counters: list[int],
        durable: Callable[[], int] = lambda: 0,
        steering: RankSteering = NullRankSteering(),  # noqa: B008 (it has no state)
    ) -> None:
        """Create one rank's part.

        Args:
            rank: this rank.
            size: number of ranks.
            fan_out: number of child ranks of each rank.
            counters: this rank's counters; only read here.
            durable: returns this rank's durable epoch: the last one whose facts are all on stable storage.
            steering: gives rank 0's orders to all ranks, and this rank's reported numbers.
        """
        self._durable_epoch = durable
        self.steering = steering
        self._rank = rank
        self._parent = parent_rank(rank, fan_out)
        self._children = child_ranks(rank, size, fan_out)
        self._counters = counters
        self._answers: dict[int, CounterSums] = {}  # the last answer of each child
        self._missing_children: set[int] = set()
        self.sequence = 0
        """Number of the last query that this rank has received; on rank 0, of the last one that it has sent."""
        self._is_answer_pending = False
        self._own_report: ReportedNumbers = ()
        self.totals = tuple(counters)
        """Sums over all ranks as they were in the last query that rank 0 sent; on rank 0 itself, the latest sums."""
        self.latest_sums: CounterSums | None = None
        """On rank 0: the latest sums over all ranks, and the ranks that have not answered in time; None before the
        first answers.
        """

    def start_query(self) -> OutgoingMessages:
        """On rank 0: start the next query for the counters of all ranks; return the messages to send to the child
        ranks.
        """
        totals = self.latest_sums.totals if self.latest_sums else tuple(self._counters)
        return self._begin_answering_query(
            CounterQuery(self.sequence + 1, totals, self.steering.orders_for_all_ranks())
        )

    def receive_query(self, query: CounterQuery) -> OutgoingMessages:
        """Process a query for the counters, which the parent rank has sent; return the messages to send. A query that
        is not newer than the last one is ignored.
        """
        return self._begin_answering_query(query) if query.sequence > self.sequence else []

    def _begin_answering_query(self, query: CounterQuery) -> OutgoingMessages:
        """Begin to answer ``query`` of the parent rank: forward it to the child ranks, whose numbers this rank needs.
        Return the messages to send.

        If some child has not answered the previous query, that query is answered first, with the last known numbers of
        that child. A rank without children answers ``query`` at once.
        """
        out = self._finish_answering_query() if self._is_answer_pending else []
        self.sequence, self.totals = query.sequence, query.totals
        self.steering.apply_orders_of_rank_0(query.orders)
        self._own_report = self.steering.numbers_to_report_to_rank_0()
        self._missing_children = set(self._children)
        self._is_answer_pending = True
        out.extend((child, query) for child in self._children)
        if not self._missing_children:
            out += self._finish_answering_query()
        return out

    def receive_answer(self, source: int, answer: CounterSums) -> OutgoingMessages:
        """Process the sums that the child rank ``source`` has sent. If all children have answered the query now, return
        the answer of this rank as a message to send; otherwise return an empty list.
        """
        self._answers[source] = answer
        if answer.sequence != self.sequence or source not in self._missing_children:
            return []
        self._missing_children.discard(source)
        return [] if self._missing_children else self._finish_answering_query()

    def _silent_ranks(self) -> set[int]:
        """Return the ranks at or below the child ranks that have not answered in time, so that their numbers in the
        sums are out of date.

        A child rank that waits for a silent rank below it answers each query only when the next one arrives. Such a
        child is not silent itself; its last answer names the silent rank.
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

    def _finish_answering_query(self) -> OutgoingMessages:
        """Add this rank's counters to the last known sums of its child ranks. Return the answer to the parent as a
        message to send; on rank 0, store the sums in ``latest_sums`` instead and return an empty list.
        """
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
        self.steering.receive_sums_of_reported_numbers(answer.reported_sums)
        return []
