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
        "DijkstraScholtenTerminationDetector.advance_termination_detection",
        "self._issued",
        "self._issued and not self._rank",
        (JOB,),
    ),
    Rule(
        "rank 0 does not end a phase while its own credits are not returned",
        "termination.py",
        "DijkstraScholtenTerminationDetector.advance_termination_detection",
        "self._issued",
        "self._issued and self._rank",
        (JOB,),
    ),
    Rule(
        "the credits of the parent are returned last",
        "termination.py",
        "DijkstraScholtenTerminationDetector.count_received_work_message",
        "self._parent, self._held, self._depth = account, stamp.credits, stamp.depth + 1\nreturn []",
        "return [(account, CreditReturnMessage(self._phase, stamp.credits))]",
        (JOB,),
    ),
    Rule(
        "a rank that its engaging message's signal has left stays engaged",
        "termination.py",
        "DijkstraScholtenTerminationDetector.count_received_work_message",
        "self._parent, self._held, self._depth = account, stamp.credits, stamp.depth + 1\nreturn []",
        "self._parent, self._held, self._depth = account, 0, stamp.depth + 1\n"
        "return [(account, CreditReturnMessage(self._phase, stamp.credits))]",
        (JOB,),
    ),
    Rule(
        "credits of other accounts are returned immediately",
        "termination.py",
        "DijkstraScholtenTerminationDetector.count_received_work_message",
        "self.handle_termination_message(source, home) if account == self._rank else [(account, home)]",
        "[]",
        (JOB,),
    ),
    Rule(
        "a start is counted by its sender",
        "node.py",
        "RankStateMachine._begin_phase",
        "StartPhaseMessage(phase, self._detector.count_sent_work_message(starting=True))",
        "StartPhaseMessage(phase)",
        (JOB,),
    ),
    Rule(
        "a start is counted by its sender, on the ring",
        "node.py",
        "RankStateMachine._begin_phase",
        "StartPhaseMessage(phase, self._detector.count_sent_work_message(starting=True))",
        "StartPhaseMessage(phase)",
        (RING_JOB,),
    ),
    Rule(
        "a start is work of its receiver",
        "node.py",
        "RankStateMachine._begin_phase",
        "if source >= 0:\n"
        "    self._send_all(self._detector.count_received_work_message(source, stamp))\n"
        "if self.rank == 0:\n"
        "    self._send_all(self._phase_end.start_counter_query(now))",
        "if self.rank == 0:\n    self._send_all(self._phase_end.start_counter_query(now))",
        (NODE + "test_work_of_next_phase_is_queued_until_phase_starts", JOB),
    ),
    Rule(
        "addressed work is counted by its sender",
        "node.py",
        "RankStateMachine._add_new_tasks",
        "AddressedTasksMessage(self.phase, batch, self._detector.count_sent_work_message())",
        "AddressedTasksMessage(self.phase, batch)",
        (JOB,),
    ),
    Rule(
        "addressed work is counted by its sender, on the ring",
        "node.py",
        "RankStateMachine._add_new_tasks",
        "AddressedTasksMessage(self.phase, batch, self._detector.count_sent_work_message())",
        "AddressedTasksMessage(self.phase, batch)",
        (RING_JOB,),
    ),
    Rule(
        "addressed work is counted by its receiver",
        "node.py",
        "RankStateMachine._receive_addressed_tasks",
        "self._send_all(self._detector.count_received_work_message(source, work.stamp))\nself._queue_tasks(work.tasks)",
        "self._queue_tasks(work.tasks)",
        (JOB,),
    ),
    Rule(
        "credits of early addressed work are not returned immediately",
        "node.py",
        "RankStateMachine._receive_addressed_tasks",
        "self._early_tasks.append((source, work))",
        "self._send(source, CreditReturnMessage(work.phase, work.stamp.credits))\n"
        "self._early_tasks.append((source, work))",
        (EARLY,),
    ),
    Rule(
        "early addressed work is not queued immediately",
        "node.py",
        "RankStateMachine._receive_addressed_tasks",
        "self._early_tasks.append((source, work))",
        "self._send_all(self._detector.count_received_work_message(source, work.stamp))\nself._queue_tasks(work.tasks)",
        (EARLY,),
    ),
    Rule(
        "early addressed work is queued once its phase begins",
        "node.py",
        "RankStateMachine._begin_phase",
        "for sender, work in early:\n"
        "    self._receive_addressed_tasks(sender, work)\n"
        "if self.rank == 0 and phase != self.resumed_phase:\n"
        "    self._add_new_tasks(self._director.first_tasks_of_phase(phase), begins=phase == 0)",
        "if self.rank == 0 and phase != self.resumed_phase:\n"
        "    self._add_new_tasks(self._director.first_tasks_of_phase(phase), begins=phase == 0)",
        (EARLY,),
    ),
    Rule(
        "a rank with tasks is not idle",
        "node.py",
        "RankStateMachine.perform_due_actions",
        "self.state is RankState.WORKING and self.begun_tasks.has_room and not len(self.queue)",
        "self.state is RankState.WORKING and self.begun_tasks.has_room",
        (SINGLE_JOB,),
    ),
    Rule(
        "stolen tasks are counted by the victim",
        "node.py",
        "RankStateMachine._answer_requests",
        "self._detector.count_sent_work_message() if tasks else TerminationCreditStamp()",
        "TerminationCreditStamp()",
        (JOB,),
    ),
    Rule(
        "stolen tasks are counted by the victim, on the ring",
        "node.py",
        "RankStateMachine._answer_requests",
        "self._detector.count_sent_work_message() if tasks else TerminationCreditStamp()",
        "TerminationCreditStamp()",
        (RING_JOB,),
    ),
    Rule(
        "stolen tasks are counted by the thief",
        "node.py",
        "RankStateMachine._receive_task_reply",
        "self._send_all(self._detector.count_received_work_message(source, reply.stamp))\n"
        "self._queue_tasks(reply.tasks)",
        "self._queue_tasks(reply.tasks)",
        (JOB,),
    ),
    Rule(
        "a phase begins only when the previous one is over",
        "termination.py",
        "DijkstraScholtenTerminationDetector.begin_phase",
        "self.engagement is TreeEngagementState.ENGAGED or self._issued",
        "False",
        (DIRECTED + "test_phase_start_before_end_of_last_phase_is_refused",),
    ),
    Rule(
        "credits that are passed on are no longer held",
        "termination.py",
        "DijkstraScholtenTerminationDetector.count_sent_work_message",
        "self._held -= part\nreturn TerminationCreditStamp(self._parent, part, self._depth - 1)",
        "return TerminationCreditStamp(self._parent, part, self._depth - 1)",
        (DIRECTED + "test_credits_are_conserved",),
    ),
    Rule(
        "no work travels without credits",
        "termination.py",
        "DijkstraScholtenTerminationDetector.count_sent_work_message",
        "part and self._depth >= MAX_ENGAGEMENT_DEPTH and not starting",
        "self._depth >= MAX_ENGAGEMENT_DEPTH and not starting",
        (DIRECTED + "test_credits_are_conserved",),
    ),
    Rule(
        "credits that are issued are awaited",
        "termination.py",
        "DijkstraScholtenTerminationDetector.count_sent_work_message",
        "self._issued += CREDITS_PER_MESSAGE\n"
        "return TerminationCreditStamp(self._rank, CREDITS_PER_MESSAGE, self._depth)",
        "return TerminationCreditStamp(self._rank, CREDITS_PER_MESSAGE, self._depth)",
        (JOB,),
    ),
    Rule(
        "credits of the rank's own account are returned without a message",
        "termination.py",
        "DijkstraScholtenTerminationDetector.count_received_work_message",
        "self.handle_termination_message(source, home) if account == self._rank else [(account, home)]",
        "[(account, home)]",
        (DIRECTED + "test_credits_of_own_account_return_without_message",),
    ),
    Rule(
        "further credits of the parent's account are kept",
        "termination.py",
        "DijkstraScholtenTerminationDetector.count_received_work_message",
        "self._held += stamp.credits\nreturn []",
        "return []",
        (DIRECTED + "test_credits_are_conserved",),
    ),
    Rule(
        "signals carry their phase",
        "termination.py",
        "DijkstraScholtenTerminationDetector.handle_termination_message",
        "not isinstance(message, CreditReturnMessage) or message.phase != self._phase or message.credits "
        "> self._issued",
        "not isinstance(message, CreditReturnMessage) or message.credits > self._issued",
        (NODE + "test_unexpected_message_while_working_is_refused",),
    ),
    Rule(
        "only transitions in the table are legal",
        "states.py",
        "checked_next_state",
        "following not in table[state]",
        "False",
        (NODE + "test_unexpected_message_while_waiting_is_refused",),
    ),
)

RING = (
    Rule(
        "the ring detects the end only if the counts sum to zero",
        "safra.py",
        "SafraTerminationDetector._has_token_proved_termination",
        "token is not None and not token.is_black and not self._is_black and token.surplus + self._surplus == 0",
        "token is not None and not token.is_black and not self._is_black",
        (SAFRA + "test_counts_detect_work_that_is_slower_than_token",),
    ),
    Rule(
        "the ring detects the end only if the token is white",
        "safra.py",
        "SafraTerminationDetector._has_token_proved_termination",
        "token is not None and not token.is_black and not self._is_black and token.surplus + self._surplus == 0",
        "token is not None and not self._is_black and token.surplus + self._surplus == 0",
        (SAFRA + "test_black_rank_prevents_termination_when_counts_balance",),
    ),
    Rule(
        "the ring detects the end only if rank 0 is white",
        "safra.py",
        "SafraTerminationDetector._has_token_proved_termination",
        "token is not None and not token.is_black and not self._is_black and token.surplus + self._surplus == 0",
        "token is not None and not token.is_black and token.surplus + self._surplus == 0",
        (SAFRA + "test_black_root_does_not_terminate",),
    ),
    Rule(
        "a rank is black once it has received work",
        "safra.py",
        "SafraTerminationDetector.count_received_work_message",
        "self._is_black = True\nreturn []",
        "return []",
        (SAFRA + "test_black_rank_prevents_termination_when_counts_balance",),
    ),
    Rule(
        "a black rank blackens the token",
        "safra.py",
        "SafraTerminationDetector.advance_termination_detection",
        "self._token.is_black or self._is_black",
        "self._token.is_black",
        (SAFRA + "test_black_rank_prevents_termination_when_counts_balance",),
    ),
    Rule(
        "a black token stays black",
        "safra.py",
        "SafraTerminationDetector.advance_termination_detection",
        "self._token.is_black or self._is_black",
        "self._is_black",
        (SAFRA + "test_black_rank_prevents_termination_when_counts_balance",),
    ),
    Rule(
        "a rank is white after it has passed the token on",
        "safra.py",
        "SafraTerminationDetector.advance_termination_detection",
        "self._is_black = False\nself._token = None",
        "self._token = None",
        (SAFRA + "test_rank_is_white_after_forwarding_token",),
    ),
    Rule(
        "a rank adds its count to the token's",
        "safra.py",
        "SafraTerminationDetector.advance_termination_detection",
        "self._token.surplus + self._surplus",
        "self._token.surplus",
        (SAFRA + "test_rank_is_white_after_forwarding_token",),
    ),
    Rule(
        "the next round of the token starts from zero",
        "safra.py",
        "SafraTerminationDetector.advance_termination_detection",
        "0",
        "self._token.surplus if self._token else 0",
        (SAFRA + "test_random_schedule_terminates_within_three_rounds[3]",),
    ),
    Rule(
        "a working rank keeps the token",
        "node.py",
        "RankStateMachine",
        "node._detector.handle_termination_message(source, token)",
        "node._detector.handle_termination_message(source, token) + node._detector.advance_termination_detection()",
        (SAFRA + "test_working_rank_does_not_forward_token",),
    ),
    Rule(
        "a token of a later phase waits for it",
        "safra.py",
        "SafraTerminationDetector.advance_termination_detection",
        "self.token_state is not RingTokenState.HELD or (self._token is not None and self._token.phase > self._phase)",
        "self.token_state is not RingTokenState.HELD",
        (SAFRA + "test_token_of_later_phase_is_not_forwarded_before_phase_starts",),
    ),
    Rule(
        "a token of a past phase is an error",
        "safra.py",
        "SafraTerminationDetector.handle_termination_message",
        "not isinstance(message, RingToken) or message.phase < self._phase or self.token_state is RingTokenState.HELD",
        "not isinstance(message, RingToken) or self.token_state is RingTokenState.HELD",
        (SAFRA + "test_token_of_past_phase_and_second_token_are_refused",),
    ),
)
