"""The rules of both termination detectors, and of what they are told."""

from __future__ import annotations

from tests.mutation.rule import Rule

DIRECTED = "mutation/test_directed.py::"
NODE = "engine/test_node_rules.py::"
SAFRA = "engine/test_safra.py::"
JOB = "engine/test_node.py::test_large_job_completes[7-tree]"
RING_JOB = "engine/test_node.py::test_large_job_completes[7-ring]"
SINGLE_JOB = "engine/test_node.py::test_large_job_completes[1-tree]"
EARLY = NODE + "test_work_before_start_is_queued_and_acknowledged_after_it"


TERMINATION = (
    Rule(
        "a rank keeps its credits while its own credits are not returned",
        "termination.py",
        "DijkstraScholtenTerminationDetector.advance_while_idle",
        "self._issued",
        "self._issued and not self._rank",
        (JOB,),
    ),
    Rule(
        "rank 0 does not end a phase while its own credits are not returned",
        "termination.py",
        "DijkstraScholtenTerminationDetector.advance_while_idle",
        "self._issued",
        "self._issued and self._rank",
        (JOB,),
    ),
    Rule(
        "the credits of the parent are returned last",
        "termination.py",
        "DijkstraScholtenTerminationDetector.count_received_work",
        "self._parent, self._held, self._depth = account, stamp.credits, stamp.depth + 1\nreturn []",
        "return [(account, CreditReturn(self._phase, stamp.credits))]",
        (JOB,),
    ),
    Rule(
        "a rank that its engaging message's signal has left stays engaged",
        "termination.py",
        "DijkstraScholtenTerminationDetector.count_received_work",
        "self._parent, self._held, self._depth = account, stamp.credits, stamp.depth + 1\nreturn []",
        "self._parent, self._held, self._depth = account, 0, stamp.depth + 1\n"
        "return [(account, CreditReturn(self._phase, stamp.credits))]",
        (JOB,),
    ),
    Rule(
        "credits of other accounts are returned immediately",
        "termination.py",
        "DijkstraScholtenTerminationDetector.count_received_work",
        "self.handle_detector_message(source, home) if account == self._rank else [(account, home)]",
        "[]",
        (JOB,),
    ),
    Rule(
        "a start is counted by its sender",
        "node.py",
        "RankNode._begin_phase",
        "StartPhase(phase, self._detector.count_sent_work(starting=True))",
        "StartPhase(phase)",
        (JOB,),
    ),
    Rule(
        "a start is counted by its sender, on the ring",
        "node.py",
        "RankNode._begin_phase",
        "StartPhase(phase, self._detector.count_sent_work(starting=True))",
        "StartPhase(phase)",
        (RING_JOB,),
    ),
    Rule(
        "a start is work of its receiver",
        "node.py",
        "RankNode._begin_phase",
        "if source >= 0:\n"
        "    self._send_all(self._detector.count_received_work(source, stamp))\n"
        "if self.rank == 0:\n"
        "    self._send_all(self._phase_end.query_counters(now))",
        "if self.rank == 0:\n    self._send_all(self._phase_end.query_counters(now))",
        (NODE + "test_work_of_next_phase_is_queued_until_phase_starts", JOB),
    ),
    Rule(
        "addressed work is counted by its sender",
        "node.py",
        "RankNode._add_new_tasks",
        "AddressedTasks(self.phase, batch, self._detector.count_sent_work())",
        "AddressedTasks(self.phase, batch)",
        (JOB,),
    ),
    Rule(
        "addressed work is counted by its sender, on the ring",
        "node.py",
        "RankNode._add_new_tasks",
        "AddressedTasks(self.phase, batch, self._detector.count_sent_work())",
        "AddressedTasks(self.phase, batch)",
        (RING_JOB,),
    ),
    Rule(
        "addressed work is counted by its receiver",
        "node.py",
        "RankNode._receive_addressed_tasks",
        "self._send_all(self._detector.count_received_work(source, work.stamp))\nself._queue_tasks(work.tasks)",
        "self._queue_tasks(work.tasks)",
        (JOB,),
    ),
    Rule(
        "credits of early addressed work are not returned immediately",
        "node.py",
        "RankNode._receive_addressed_tasks",
        "self._early_tasks.append((source, work))",
        "self._send(source, CreditReturn(work.phase, work.stamp.credits))\nself._early_tasks.append((source, work))",
        (EARLY,),
    ),
    Rule(
        "early addressed work is not queued immediately",
        "node.py",
        "RankNode._receive_addressed_tasks",
        "self._early_tasks.append((source, work))",
        "self._send_all(self._detector.count_received_work(source, work.stamp))\nself._queue_tasks(work.tasks)",
        (EARLY,),
    ),
    Rule(
        "early addressed work is queued once its phase begins",
        "node.py",
        "RankNode._begin_phase",
        "for sender, work in early:\n"
        "    self._receive_addressed_tasks(sender, work)\n"
        "if self.rank == 0 and phase != self.resumed_phase:\n"
        "    self._add_new_tasks(self._director.first_tasks(phase), begins=phase == 0)",
        "if self.rank == 0 and phase != self.resumed_phase:\n"
        "    self._add_new_tasks(self._director.first_tasks(phase), begins=phase == 0)",
        (EARLY,),
    ),
    Rule(
        "a rank with tasks is not idle",
        "node.py",
        "RankNode.tick",
        "self.state is RankState.WORKING and self.begun_tasks.has_room and not len(self.queue)",
        "self.state is RankState.WORKING and self.begun_tasks.has_room",
        (SINGLE_JOB,),
    ),
    Rule(
        "stolen tasks are counted by the victim",
        "node.py",
        "RankNode._answer_requests",
        "self._detector.count_sent_work() if tasks else CreditStamp()",
        "CreditStamp()",
        (JOB,),
    ),
    Rule(
        "stolen tasks are counted by the victim, on the ring",
        "node.py",
        "RankNode._answer_requests",
        "self._detector.count_sent_work() if tasks else CreditStamp()",
        "CreditStamp()",
        (RING_JOB,),
    ),
    Rule(
        "stolen tasks are counted by the thief",
        "node.py",
        "RankNode._receive_reply",
        "self._send_all(self._detector.count_received_work(source, reply.stamp))\nself._queue_tasks(reply.tasks)",
        "self._queue_tasks(reply.tasks)",
        (JOB,),
    ),
    Rule(
        "a phase begins only when the previous one is over",
        "termination.py",
        "DijkstraScholtenTerminationDetector.begin_phase",
        "self.engagement is TreeEngagement.ENGAGED or self._issued",
        "False",
        (DIRECTED + "test_phase_start_before_end_of_last_phase_is_refused",),
    ),
    Rule(
        "credits that are passed on are no longer held",
        "termination.py",
        "DijkstraScholtenTerminationDetector.count_sent_work",
        "self._held -= part\nreturn CreditStamp(self._parent, part, self._depth - 1)",
        "return CreditStamp(self._parent, part, self._depth - 1)",
        (DIRECTED + "test_credits_are_conserved",),
    ),
    Rule(
        "no work travels without credits",
        "termination.py",
        "DijkstraScholtenTerminationDetector.count_sent_work",
        "part and self._depth >= MAX_ENGAGEMENT_DEPTH and not starting",
        "self._depth >= MAX_ENGAGEMENT_DEPTH and not starting",
        (DIRECTED + "test_credits_are_conserved",),
    ),
    Rule(
        "credits that are issued are awaited",
        "termination.py",
        "DijkstraScholtenTerminationDetector.count_sent_work",
        "self._issued += CREDITS_PER_MESSAGE\nreturn CreditStamp(self._rank, CREDITS_PER_MESSAGE, self._depth)",
        "return CreditStamp(self._rank, CREDITS_PER_MESSAGE, self._depth)",
        (JOB,),
    ),
    Rule(
        "credits of the rank's own account are returned without a message",
        "termination.py",
        "DijkstraScholtenTerminationDetector.count_received_work",
        "self.handle_detector_message(source, home) if account == self._rank else [(account, home)]",
        "[(account, home)]",
        (DIRECTED + "test_credits_of_own_account_return_without_message",),
    ),
    Rule(
        "further credits of the parent's account are kept",
        "termination.py",
        "DijkstraScholtenTerminationDetector.count_received_work",
        "self._held += stamp.credits\nreturn []",
        "return []",
        (DIRECTED + "test_credits_are_conserved",),
    ),
    Rule(
        "signals carry their phase",
        "termination.py",
        "DijkstraScholtenTerminationDetector.handle_detector_message",
        "not isinstance(message, CreditReturn) or message.phase != self._phase or message.credits > self._issued",
        "not isinstance(message, CreditReturn) or message.credits > self._issued",
        (NODE + "test_unexpected_message_while_working_is_refused",),
    ),
    Rule(
        "only transitions in the table are legal",
        "states.py",
        "checked_transition",
        "following not in table[state]",
        "False",
        (NODE + "test_unexpected_message_while_waiting_is_refused",),
    ),
)

RING = (
    Rule(
        "the ring detects the end only if the counts sum to zero",
        "safra.py",
        "SafraTerminationDetector._found_no_work",
        "token is not None and not token.is_black and not self._is_black and token.surplus + self._surplus == 0",
        "token is not None and not token.is_black and not self._is_black",
        (SAFRA + "test_counts_detect_work_that_is_slower_than_token",),
    ),
    Rule(
        "the ring detects the end only if the token is white",
        "safra.py",
        "SafraTerminationDetector._found_no_work",
        "token is not None and not token.is_black and not self._is_black and token.surplus + self._surplus == 0",
        "token is not None and not self._is_black and token.surplus + self._surplus == 0",
        (SAFRA + "test_black_rank_prevents_termination_when_counts_balance",),
    ),
    Rule(
        "the ring detects the end only if rank 0 is white",
        "safra.py",
        "SafraTerminationDetector._found_no_work",
        "token is not None and not token.is_black and not self._is_black and token.surplus + self._surplus == 0",
        "token is not None and not token.is_black and token.surplus + self._surplus == 0",
        (SAFRA + "test_black_root_does_not_terminate",),
    ),
    Rule(
        "a rank is black once it has received work",
        "safra.py",
        "SafraTerminationDetector.count_received_work",
        "self._is_black = True\nreturn []",
        "return []",
        (SAFRA + "test_black_rank_prevents_termination_when_counts_balance",),
    ),
    Rule(
        "a black rank blackens the token",
        "safra.py",
        "SafraTerminationDetector.advance_while_idle",
        "self._token.is_black or self._is_black",
        "self._token.is_black",
        (SAFRA + "test_black_rank_prevents_termination_when_counts_balance",),
    ),
    Rule(
        "a black token stays black",
        "safra.py",
        "SafraTerminationDetector.advance_while_idle",
        "self._token.is_black or self._is_black",
        "self._is_black",
        (SAFRA + "test_black_rank_prevents_termination_when_counts_balance",),
    ),
    Rule(
        "a rank is white after it has passed the token on",
        "safra.py",
        "SafraTerminationDetector.advance_while_idle",
        "self._is_black = False\nself._token = None",
        "self._token = None",
        (SAFRA + "test_rank_is_white_after_forwarding_token",),
    ),
    Rule(
        "a rank adds its count to the token's",
        "safra.py",
        "SafraTerminationDetector.advance_while_idle",
        "self._token.surplus + self._surplus",
        "self._token.surplus",
        (SAFRA + "test_rank_is_white_after_forwarding_token",),
    ),
    Rule(
        "the next round of the token starts from zero",
        "safra.py",
        "SafraTerminationDetector.advance_while_idle",
        "0",
        "self._token.surplus if self._token else 0",
        (SAFRA + "test_random_schedule_terminates_within_three_rounds[3]",),
    ),
    Rule(
        "a working rank keeps the token",
        "node.py",
        "RankNode",
        "node._detector.handle_detector_message(source, token)",
        "node._detector.handle_detector_message(source, token) + node._detector.advance_while_idle()",
        (SAFRA + "test_working_rank_does_not_forward_token",),
    ),
    Rule(
        "a token of a later phase waits for it",
        "safra.py",
        "SafraTerminationDetector.advance_while_idle",
        "self.token_state is not RingTokenState.HELD or (self._token is not None and self._token.phase > self._phase)",
        "self.token_state is not RingTokenState.HELD",
        (SAFRA + "test_token_of_later_phase_is_not_forwarded_before_phase_starts",),
    ),
    Rule(
        "a token of a past phase is an error",
        "safra.py",
        "SafraTerminationDetector.handle_detector_message",
        "not isinstance(message, RingToken) or message.phase < self._phase or self.token_state is RingTokenState.HELD",
        "not isinstance(message, RingToken) or self.token_state is RingTokenState.HELD",
        (SAFRA + "test_token_of_past_phase_and_second_token_are_refused",),
    ),
)
