"""Safra's ring by hand: schedules in which one of its parts alone keeps the end from coming too early."""

from __future__ import annotations

from random import Random

import pytest

from pcopy.engine.limits import EngineLimits
from pcopy.engine.messages import AddressedTasksMessage, Message, RingToken, StartPhaseMessage, TerminationCreditStamp
from pcopy.engine.node import RankStateMachine
from pcopy.engine.safra import SafraTerminationDetector
from pcopy.engine.task import NewTask
from pcopy.engine.ticket import TaskOutcome
from pcopy.errors import InvariantBroken
from tests.engine.spoken import node_of, task


class Ring:
    """Detectors, what work is under way between them, and the token; fails once the end comes too early.

    All ranks work at first. The root is 0, and the token goes downwards.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.ranks = [SafraTerminationDetector(rank, size) for rank in range(size)]
        self.working = set(range(size))
        self.under_way: list[tuple[int, int]] = []
        self.token: tuple[int, RingToken] | None = None
        self.hops = 0
        for rank in self.ranks:
            rank.begin_phase(0)

    @property
    def ended(self) -> bool:
        return self.ranks[0].is_phase_over_on_all_ranks

    @property
    def quiet(self) -> bool:
        return not self.working and not self.under_way

    def send(self, source: int, destination: int) -> None:
        assert source in self.working
        self.ranks[source].count_sent_work_message()
        self.under_way.append((source, destination))

    def arrive(self, source: int, destination: int) -> None:
        self.under_way.remove((source, destination))
        assert self.ranks[destination].count_received_work_message(source, TerminationCreditStamp()) == []
        self.working.add(destination)

    def rest(self, *ranks: int) -> None:
        for rank in ranks:
            self.working.discard(rank)
            self._idle(rank)

    def hand_on(self) -> None:
        """The token arrives where it was sent; an idle rank sends it on at once."""
        assert self.token is not None
        (destination, token), self.token = self.token, None
        self.hops += 1
        self.ranks[destination].handle_termination_message((destination + 1) % self.size, token)
        if destination not in self.working:
            self._idle(destination)

    def go_round(self) -> None:
        for _ in range(self.size):
            self.hand_on()

    def _idle(self, rank: int) -> None:
        for destination, message in self.ranks[rank].advance_termination_detection():
            assert isinstance(message, RingToken)
            assert self.token is None
            self.token = (destination, message)
        assert self.quiet or not self.ended, f"the end with {self.working} working and {self.under_way} under way"


def test_first_round_terminates_ring_that_sent_no_work() -> None:
    ring = Ring(3)
    ring.rest(2, 1, 0)
    ring.go_round()
    assert ring.ended
    assert ring.hops == 3


def test_counts_detect_work_that_is_slower_than_token() -> None:
    """The receiver would be black, but has received nothing yet: only the counts tell."""
    ring = Ring(3)
    ring.rest(2, 1)
    ring.send(0, 1)
    ring.rest(0)
    ring.go_round()
    ring.go_round()
    assert not ring.ended
    ring.arrive(0, 1)
    ring.rest(1)
    ring.go_round()
    assert not ring.ended  # rank 1 was black
    ring.go_round()
    assert ring.ended


def behind_the_token() -> Ring:
    """The token has passed rank 3 when work of the root reaches it; that is at the root's count only."""
    ring = Ring(4)
    ring.rest(1, 2, 3)
    ring.send(0, 3)
    ring.rest(0)
    ring.hand_on()
    ring.arrive(0, 3)
    return ring


def test_black_rank_prevents_termination_when_counts_balance() -> None:
    """Rank 1's receipt balances the root's sending; that rank 1 is black tells that it woke."""
    ring = behind_the_token()
    ring.send(3, 1)
    ring.arrive(3, 1)
    ring.rest(1)
    for _ in range(3):
        ring.hand_on()
    assert not ring.ended
    ring.rest(3)
    ring.go_round()
    ring.go_round()
    assert ring.ended


def test_black_root_does_not_terminate() -> None:
    """The token comes back white and all counts seen are 0, but the root itself has received work from behind it."""
    ring = behind_the_token()
    ring.send(3, 0)
    ring.arrive(3, 0)
    ring.rest(0)
    for _ in range(3):
        ring.hand_on()
    assert not ring.ended
    assert ring.token == (3, RingToken(0, 0, False))
    ring.rest(3)
    ring.go_round()
    ring.go_round()
    assert ring.ended


def test_rank_is_white_after_forwarding_token() -> None:
    ring = Ring(2)
    ring.send(0, 1)
    ring.arrive(0, 1)
    ring.rest(1, 0)
    ring.hand_on()
    assert ring.token == (0, RingToken(0, -1, True))
    ring.hand_on()
    ring.hand_on()
    assert ring.token == (0, RingToken(0, -1, False))


def test_token_of_later_phase_is_not_forwarded_before_phase_starts() -> None:
    rank = SafraTerminationDetector(1, 3)
    rank.begin_phase(0)
    assert rank.count_received_work_message(0, TerminationCreditStamp()) == []
    assert rank.handle_termination_message(2, RingToken(1, 2, False)) == []
    assert rank.advance_termination_detection() == []
    rank.begin_phase(1)
    assert rank.count_received_work_message(0, TerminationCreditStamp()) == []
    rank.count_sent_work_message()
    assert rank.advance_termination_detection() == [(0, RingToken(1, 1, True))]


def test_token_of_past_phase_and_second_token_are_refused() -> None:
    rank = SafraTerminationDetector(1, 3)
    rank.begin_phase(1)
    with pytest.raises(InvariantBroken):
        rank.handle_termination_message(2, RingToken(0, 0, False))
    rank.handle_termination_message(2, RingToken(1, 0, False))
    with pytest.raises(InvariantBroken):
        rank.handle_termination_message(2, RingToken(1, 0, False))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_random_schedule_terminates_within_three_rounds(size: int) -> None:
    """Work wanders at random. The end never comes before it rests, and then within three rounds."""
    for seed in range(60):
        random = Random(seed)
        ring = Ring(size)
        budget = random.randrange(4 * size) if size > 1 else 0
        quiet_since = -1
        while not ring.ended:
            actions = ["arrive"] * bool(ring.under_way) + ["rest"] * bool(ring.working)
            actions += ["hand on"] * (3 if ring.token else 0)
            actions += ["send"] * bool(ring.working and budget)
            action = random.choice(actions)  # raises if there is nothing to do though the end was not seen
            if action == "arrive":
                ring.arrive(*random.choice(ring.under_way))
            elif action == "rest":
                ring.rest(random.choice(sorted(ring.working)))
            elif action == "hand on":
                ring.hand_on()
            else:
                source = random.choice(sorted(ring.working))
                ring.send(source, (source + random.randrange(1, size)) % size)
                budget -= 1
            if ring.quiet and quiet_since < 0:
                quiet_since = ring.hops
            assert quiet_since < 0 or ring.hops <= quiet_since + 3 * size


# In a node.


def tokens(node: RankStateMachine) -> list[tuple[int, Message]]:
    said = [each for each in node.outbox if isinstance(each[1], RingToken)]
    node.outbox.clear()
    return said


def test_working_rank_does_not_forward_token() -> None:
    limits = EngineLimits(fan_out=2)
    node = node_of(1, 3, limits, termination="ring")
    node.receive_message(0, StartPhaseMessage(0), 0.0)
    node.receive_message(0, AddressedTasksMessage(0, (task(1, owner=1), task(2, owner=1))), 0.0)
    node.receive_message(2, RingToken(0, 2, False), 0.0)
    assert tokens(node) == []
    assert node.take_task() == task(1, owner=1)
    node.perform_due_actions(0.1)
    assert tokens(node) == []
    node.finish_task(task(1, owner=1), TaskOutcome((NewTask(0, b"", 1, owner=2),)), 0.2)
    assert tokens(node) == []  # one more waits
    assert node.take_task() == task(2, owner=1)
    node.finish_task(task(2, owner=1), TaskOutcome(), 0.3)
    assert tokens(node) == [(0, RingToken(0, 1, True))]
