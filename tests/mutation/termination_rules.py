"""The rules of both termination detectors, and of what they are told."""

from __future__ import annotations

from tests.mutation.rule import Rule

DIRECTED = "mutation/test_directed.py::"
NODE = "engine/test_node_rules.py::"
SAFRA = "engine/test_safra.py::"
JOB = "engine/test_node.py::test_a_large_job[7-tree]"
RING_JOB = "engine/test_node.py::test_a_large_job[7-ring]"
SINGLE_JOB = "engine/test_node.py::test_a_large_job[1-tree]"
EARLY = NODE + "test_early_work_is_held_and_signalled_after_the_start"


TERMINATION = (
    Rule(
        "a rank that has unsignalled work is not signalled for",
        "termination.py",
        "DijkstraScholtenDetector.handle_idle",
        "self._issued",
        "self._issued and not self._rank",
        (JOB,),
    ),
    Rule(
        "the root doesn't end while its own work is unsignalled",
        "termination.py",
        "DijkstraScholtenDetector.handle_idle",
        "self._issued",
        "self._issued and self._rank",
        (JOB,),
    ),
    Rule(
        "the engaging message is signalled last",
        "termination.py",
        "DijkstraScholtenDetector.count_received",
        "self._parent, self._held, self._depth = account, stamp.credits, stamp.depth + 1\nreturn []",
        "return [(account, CreditReturn(self._phase, stamp.credits))]",
        (JOB,),
    ),
    Rule(
        "a rank that its engaging message's signal has left stays engaged",
        "termination.py",
        "DijkstraScholtenDetector.count_received",
        "self._parent, self._held, self._depth = account, stamp.credits, stamp.depth + 1\nreturn []",
        "self._parent, self._held, self._depth = account, 0, stamp.depth + 1\n"
        "return [(account, CreditReturn(self._phase, stamp.credits))]",
        (JOB,),
    ),
    Rule(
        "what comes while engaged is signalled at once",
        "termination.py",
        "DijkstraScholtenDetector.count_received",
        "self.handle_message(source, home) if account == self._rank else [(account, home)]",
        "[]",
        (JOB,),
    ),
    Rule(
        "a start is counted by its sender",
        "node.py",
        "RankNode._begin_phase",
        "StartPhase(phase, self._detector.count_sent(starting=True))",
        "StartPhase(phase)",
        (JOB,),
    ),
    Rule(
        "a start is counted by its sender, on the ring",
        "node.py",
        "RankNode._begin_phase",
        "StartPhase(phase, self._detector.count_sent(starting=True))",
        "StartPhase(phase)",
        (RING_JOB,),
    ),
    Rule(
        "a start is work of its receiver",
        "node.py",
        "RankNode._begin_phase",
        "if source >= 0:\n"
        "    self._send_all(self._detector.count_received(source, stamp))\n"
        "if self.rank == 0:\n"
        "    self._send_all(self._phase_end.query_counters(now))",
        "if self.rank == 0:\n    self._send_all(self._phase_end.query_counters(now))",
        (NODE + "test_early_work_of_the_next_phase_is_held", JOB),
    ),
    Rule(
        "addressed work is counted by its sender",
        "node.py",
        "RankNode._add_new_tasks",
        "AddressedTasks(self.phase, batch, self._detector.count_sent())",
        "AddressedTasks(self.phase, batch)",
        (JOB,),
    ),
    Rule(
        "addressed work is counted by its sender, on the ring",
        "node.py",
        "RankNode._add_new_tasks",
        "AddressedTasks(self.phase, batch, self._detector.count_sent())",
        "AddressedTasks(self.phase, batch)",
        (RING_JOB,),
    ),
    Rule(
        "addressed work is counted by its receiver",
        "node.py",
        "RankNode._receive_work",
        "self._send_all(self._detector.count_received(source, work.stamp))\nself._queue_tasks(work.tasks)",
        "self._queue_tasks(work.tasks)",
        (JOB,),
    ),
    Rule(
        "early addressed work is not signalled at once",
        "node.py",
        "RankNode._receive_work",
        "self._early_tasks.append((source, work))",
        "self._send(source, CreditReturn(work.phase, work.stamp.credits))\nself._early_tasks.append((source, work))",
        (EARLY,),
    ),
    Rule(
        "early addressed work is not taken in at once",
        "node.py",
        "RankNode._receive_work",
        "self._early_tasks.append((source, work))",
        "self._send_all(self._detector.count_received(source, work.stamp))\nself._queue_tasks(work.tasks)",
        (EARLY,),
    ),
    Rule(
        "early addressed work is taken in once its phase begins",
        "node.py",
        "RankNode._begin_phase",
        "for sender, work in early:\n"
        "    self._receive_work(sender, work)\n"
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
        "self.state is State.WORKING and self.begun_tasks.has_room and not len(self.queue)",
        "self.state is State.WORKING and self.begun_tasks.has_room",
        (SINGLE_JOB,),
    ),
    Rule(
        "stolen tasks are counted by the victim",
        "node.py",
        "RankNode._answer_requests",
        "self._detector.count_sent() if tasks else Stamp()",
        "Stamp()",
        (JOB,),
    ),
    Rule(
        "stolen tasks are counted by the victim, on the ring",
        "node.py",
        "RankNode._answer_requests",
        "self._detector.count_sent() if tasks else Stamp()",
        "Stamp()",
        (RING_JOB,),
    ),
    Rule(
        "stolen tasks are counted by the thief",
        "node.py",
        "RankNode._receive_reply",
        "self._send_all(self._detector.count_received(source, reply.stamp))\nself._queue_tasks(reply.tasks)",
        "self._queue_tasks(reply.tasks)",
        (JOB,),
    ),
    Rule(
        "a phase begins only when the last is over",
        "termination.py",
        "DijkstraScholtenDetector.begin_phase",
        "self.engagement is Engagement.ENGAGED or self._issued",
        "False",
        (DIRECTED + "test_a_phase_begins_only_when_the_last_is_over",),
    ),
    Rule(
        "credits that are given are no longer held",
        "termination.py",
        "DijkstraScholtenDetector.count_sent",
        "self._held -= part\nreturn Stamp(self._parent, part, self._depth - 1)",
        "return Stamp(self._parent, part, self._depth - 1)",
        (DIRECTED + "test_credits_are_conserved",),
    ),
    Rule(
        "no work travels without credits",
        "termination.py",
        "DijkstraScholtenDetector.count_sent",
        "part and self._depth >= MAX_DEPTH and not starting",
        "self._depth >= MAX_DEPTH and not starting",
        (DIRECTED + "test_credits_are_conserved",),
    ),
    Rule(
        "credits that are issued are awaited",
        "termination.py",
        "DijkstraScholtenDetector.count_sent",
        "self._issued += CREDITS_PER_MESSAGE\nreturn Stamp(self._rank, CREDITS_PER_MESSAGE, self._depth)",
        "return Stamp(self._rank, CREDITS_PER_MESSAGE, self._depth)",
        (JOB,),
    ),
    Rule(
        "credits of one's own account come home without a message",
        "termination.py",
        "DijkstraScholtenDetector.count_received",
        "self.handle_message(source, home) if account == self._rank else [(account, home)]",
        "[(account, home)]",
        (DIRECTED + "test_credits_of_the_own_account_come_home",),
    ),
    Rule(
        "further credits of the parent's account are kept",
        "termination.py",
        "DijkstraScholtenDetector.count_received",
        "self._held += stamp.credits\nreturn []",
        "return []",
        (DIRECTED + "test_credits_are_conserved",),
    ),
    Rule(
        "signals carry their phase",
        "termination.py",
        "DijkstraScholtenDetector.handle_message",
        "not isinstance(message, CreditReturn) or message.phase != self._phase or message.credits > self._issued",
        "not isinstance(message, CreditReturn) or message.credits > self._issued",
        (NODE + "test_out_of_turn_while_working",),
    ),
    Rule(
        "a state follows another only if the table says so",
        "states.py",
        "checked_transition",
        "following not in table[state]",
        "False",
        (NODE + "test_out_of_turn_while_waiting",),
    ),
)

RING = (
    Rule(
        "the ring's end needs counts that sum to nothing (plain colours alone)",
        "safra.py",
        "SafraDetector._found_no_work",
        "token is not None and not token.is_black and not self._is_black and token.surplus + self._surplus == 0",
        "token is not None and not token.is_black and not self._is_black",
        (SAFRA + "test_work_that_is_slower_than_the_token_is_missed_by_colours_alone",),
    ),
    Rule(
        "the ring's end needs a white token",
        "safra.py",
        "SafraDetector._found_no_work",
        "token is not None and not token.is_black and not self._is_black and token.surplus + self._surplus == 0",
        "token is not None and not self._is_black and token.surplus + self._surplus == 0",
        (SAFRA + "test_counts_alone_miss_work_behind_the_token",),
    ),
    Rule(
        "the ring's end needs a white root",
        "safra.py",
        "SafraDetector._found_no_work",
        "token is not None and not token.is_black and not self._is_black and token.surplus + self._surplus == 0",
        "token is not None and not token.is_black and token.surplus + self._surplus == 0",
        (SAFRA + "test_a_black_root_does_not_end",),
    ),
    Rule(
        "a rank is black once it has received work",
        "safra.py",
        "SafraDetector.count_received",
        "self._is_black = True\nreturn []",
        "return []",
        (SAFRA + "test_counts_alone_miss_work_behind_the_token",),
    ),
    Rule(
        "a black rank blackens the token",
        "safra.py",
        "SafraDetector.handle_idle",
        "self._token.is_black or self._is_black",
        "self._token.is_black",
        (SAFRA + "test_counts_alone_miss_work_behind_the_token",),
    ),
    Rule(
        "a token that is black stays so",
        "safra.py",
        "SafraDetector.handle_idle",
        "self._token.is_black or self._is_black",
        "self._is_black",
        (SAFRA + "test_counts_alone_miss_work_behind_the_token",),
    ),
    Rule(
        "a rank is white again once it has handed the token on",
        "safra.py",
        "SafraDetector.handle_idle",
        "self._is_black = False\nself._token = None",
        "self._token = None",
        (SAFRA + "test_a_rank_is_white_again_once_it_has_handed_the_token_on",),
    ),
    Rule(
        "a rank adds its count to the token's",
        "safra.py",
        "SafraDetector.handle_idle",
        "self._token.surplus + self._surplus",
        "self._token.surplus",
        (SAFRA + "test_a_rank_is_white_again_once_it_has_handed_the_token_on",),
    ),
    Rule(
        "the root's next round starts from nothing",
        "safra.py",
        "SafraDetector.handle_idle",
        "0",
        "self._token.surplus if self._token else 0",
        (SAFRA + "test_any_schedule[3]",),
    ),
    Rule(
        "a working rank keeps the token",
        "node.py",
        "RankNode",
        "node._detector.handle_message(source, token)",
        "node._detector.handle_message(source, token) + node._detector.handle_idle()",
        (SAFRA + "test_a_working_rank_keeps_the_token",),
    ),
    Rule(
        "a token of a later phase waits for it",
        "safra.py",
        "SafraDetector.handle_idle",
        "self.token_state is not TokenState.HELD or (self._token is not None and self._token.phase > self._phase)",
        "self.token_state is not TokenState.HELD",
        (SAFRA + "test_a_token_of_a_later_phase_waits_for_it",),
    ),
    Rule(
        "a token of a past phase can't come",
        "safra.py",
        "SafraDetector.handle_message",
        "not isinstance(message, RingToken) or message.phase < self._phase or self.token_state is TokenState.HELD",
        "not isinstance(message, RingToken) or self.token_state is TokenState.HELD",
        (SAFRA + "test_tokens_that_cannot_come",),
    ),
)
