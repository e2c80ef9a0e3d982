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
        "DijkstraScholten.idle",
        "self._issued",
        "self._issued and not self._rank",
        (JOB,),
    ),
    Rule(
        "the root doesn't end while its own work is unsignalled",
        "termination.py",
        "DijkstraScholten.idle",
        "self._issued",
        "self._issued and self._rank",
        (JOB,),
    ),
    Rule(
        "the engaging message is signalled last",
        "termination.py",
        "DijkstraScholten.received",
        "self._parent, self._held, self._depth = account, stamp.credits, stamp.depth + 1\nreturn []",
        "return [(account, Signal(self._phase, stamp.credits))]",
        (JOB,),
    ),
    Rule(
        "a rank that its engaging message's signal has left stays engaged",
        "termination.py",
        "DijkstraScholten.received",
        "self._parent, self._held, self._depth = account, stamp.credits, stamp.depth + 1\nreturn []",
        "self._parent, self._held, self._depth = account, 0, stamp.depth + 1\n"
        "return [(account, Signal(self._phase, stamp.credits))]",
        (JOB,),
    ),
    Rule(
        "what comes while engaged is signalled at once",
        "termination.py",
        "DijkstraScholten.received",
        "self.receive(source, home) if account == self._rank else [(account, home)]",
        "[]",
        (JOB,),
    ),
    Rule(
        "a start is counted by its sender",
        "node.py",
        "Node._begin_phase",
        "Start(phase, self._detector.sent(starting=True))",
        "Start(phase)",
        (JOB,),
    ),
    Rule(
        "a start is counted by its sender, on the ring",
        "node.py",
        "Node._begin_phase",
        "Start(phase, self._detector.sent(starting=True))",
        "Start(phase)",
        (RING_JOB,),
    ),
    Rule(
        "a start is work of its receiver",
        "node.py",
        "Node._begin_phase",
        "if source >= 0:\n"
        "    self._send_all(self._detector.received(source, stamp))\n"
        "if self.rank == 0:\n"
        "    self._send_all(self._phase_end.ask(now))",
        "if self.rank == 0:\n    self._send_all(self._phase_end.ask(now))",
        (NODE + "test_early_work_of_the_next_phase_is_held", JOB),
    ),
    Rule(
        "addressed work is counted by its sender",
        "node.py",
        "Node._spawn",
        "Work(self.phase, batch, self._detector.sent())",
        "Work(self.phase, batch)",
        (JOB,),
    ),
    Rule(
        "addressed work is counted by its sender, on the ring",
        "node.py",
        "Node._spawn",
        "Work(self.phase, batch, self._detector.sent())",
        "Work(self.phase, batch)",
        (RING_JOB,),
    ),
    Rule(
        "addressed work is counted by its receiver",
        "node.py",
        "Node._receive_work",
        "self._send_all(self._detector.received(source, work.stamp))\nself._accept(work.tasks)",
        "self._accept(work.tasks)",
        (JOB,),
    ),
    Rule(
        "early addressed work is not signalled at once",
        "node.py",
        "Node._receive_work",
        "self._early.append((source, work))",
        "self._send(source, Signal(work.phase, work.stamp.credits))\nself._early.append((source, work))",
        (EARLY,),
    ),
    Rule(
        "early addressed work is not taken in at once",
        "node.py",
        "Node._receive_work",
        "self._early.append((source, work))",
        "self._send_all(self._detector.received(source, work.stamp))\nself._accept(work.tasks)",
        (EARLY,),
    ),
    Rule(
        "early addressed work is taken in once its phase begins",
        "node.py",
        "Node._begin_phase",
        "for sender, work in early:\n"
        "    self._receive_work(sender, work)\n"
        "if self.rank == 0 and phase != self.restored:\n"
        "    self._spawn(self._director.first_tasks(phase), begins=phase == 0)",
        "if self.rank == 0 and phase != self.restored:\n"
        "    self._spawn(self._director.first_tasks(phase), begins=phase == 0)",
        (EARLY,),
    ),
    Rule(
        "a rank with tasks is not idle",
        "node.py",
        "Node.tick",
        "self.state is State.WORKING and self.under_way.has_room and not len(self.queue)",
        "self.state is State.WORKING and self.under_way.has_room",
        (SINGLE_JOB,),
    ),
    Rule(
        "stolen tasks are counted by the victim",
        "node.py",
        "Node._answer_requests",
        "self._detector.sent() if tasks else Stamp()",
        "Stamp()",
        (JOB,),
    ),
    Rule(
        "stolen tasks are counted by the victim, on the ring",
        "node.py",
        "Node._answer_requests",
        "self._detector.sent() if tasks else Stamp()",
        "Stamp()",
        (RING_JOB,),
    ),
    Rule(
        "stolen tasks are counted by the thief",
        "node.py",
        "Node._receive_reply",
        "self._send_all(self._detector.received(source, reply.stamp))\nself._accept(reply.tasks)",
        "self._accept(reply.tasks)",
        (JOB,),
    ),
    Rule(
        "a phase begins only when the last is over",
        "termination.py",
        "DijkstraScholten.begin_phase",
        "self.engagement is Engagement.ENGAGED or self._issued",
        "False",
        (DIRECTED + "test_a_phase_begins_only_when_the_last_is_over",),
    ),
    Rule(
        "credits that are given are no longer held",
        "termination.py",
        "DijkstraScholten.sent",
        "self._held -= part\nreturn Stamp(self._parent, part, self._depth - 1)",
        "return Stamp(self._parent, part, self._depth - 1)",
        (DIRECTED + "test_credits_are_conserved",),
    ),
    Rule(
        "no work travels without credits",
        "termination.py",
        "DijkstraScholten.sent",
        "part and self._depth >= DEEPEST and not starting",
        "self._depth >= DEEPEST and not starting",
        (DIRECTED + "test_credits_are_conserved",),
    ),
    Rule(
        "credits that are issued are awaited",
        "termination.py",
        "DijkstraScholten.sent",
        "self._issued += ISSUED\nreturn Stamp(self._rank, ISSUED, self._depth)",
        "return Stamp(self._rank, ISSUED, self._depth)",
        (JOB,),
    ),
    Rule(
        "credits of one's own account come home without a message",
        "termination.py",
        "DijkstraScholten.received",
        "self.receive(source, home) if account == self._rank else [(account, home)]",
        "[(account, home)]",
        (DIRECTED + "test_credits_of_the_own_account_come_home",),
    ),
    Rule(
        "further credits of the parent's account are kept",
        "termination.py",
        "DijkstraScholten.received",
        "self._held += stamp.credits\nreturn []",
        "return []",
        (DIRECTED + "test_credits_are_conserved",),
    ),
    Rule(
        "signals carry their phase",
        "termination.py",
        "DijkstraScholten.receive",
        "not isinstance(message, Signal) or message.phase != self._phase or message.received > self._issued",
        "not isinstance(message, Signal) or message.received > self._issued",
        (NODE + "test_out_of_turn_while_working",),
    ),
    Rule(
        "a state follows another only if the table says so",
        "states.py",
        "follow",
        "following not in table[state]",
        "False",
        (NODE + "test_out_of_turn_while_waiting",),
    ),
)

RING = (
    Rule(
        "the ring's end needs counts that sum to nothing (plain colours alone)",
        "safra.py",
        "Safra._silent_round",
        "token is not None and not token.black and not self._black and token.surplus + self._count == 0",
        "token is not None and not token.black and not self._black",
        (SAFRA + "test_work_that_is_slower_than_the_token_is_missed_by_colours_alone",),
    ),
    Rule(
        "the ring's end needs a white token",
        "safra.py",
        "Safra._silent_round",
        "token is not None and not token.black and not self._black and token.surplus + self._count == 0",
        "token is not None and not self._black and token.surplus + self._count == 0",
        (SAFRA + "test_counts_alone_miss_work_behind_the_token",),
    ),
    Rule(
        "the ring's end needs a white root",
        "safra.py",
        "Safra._silent_round",
        "token is not None and not token.black and not self._black and token.surplus + self._count == 0",
        "token is not None and not token.black and token.surplus + self._count == 0",
        (SAFRA + "test_a_black_root_does_not_end",),
    ),
    Rule(
        "a rank is black once it has received work",
        "safra.py",
        "Safra.received",
        "self._black = True\nreturn []",
        "return []",
        (SAFRA + "test_counts_alone_miss_work_behind_the_token",),
    ),
    Rule(
        "a black rank blackens the token",
        "safra.py",
        "Safra.idle",
        "self._token.black or self._black",
        "self._token.black",
        (SAFRA + "test_counts_alone_miss_work_behind_the_token",),
    ),
    Rule(
        "a token that is black stays so",
        "safra.py",
        "Safra.idle",
        "self._token.black or self._black",
        "self._black",
        (SAFRA + "test_counts_alone_miss_work_behind_the_token",),
    ),
    Rule(
        "a rank is white again once it has handed the token on",
        "safra.py",
        "Safra.idle",
        "self._black = False\nself._token = None",
        "self._token = None",
        (SAFRA + "test_a_rank_is_white_again_once_it_has_handed_the_token_on",),
    ),
    Rule(
        "a rank adds its count to the token's",
        "safra.py",
        "Safra.idle",
        "self._token.surplus + self._count",
        "self._token.surplus",
        (SAFRA + "test_a_rank_is_white_again_once_it_has_handed_the_token_on",),
    ),
    Rule(
        "the root's next round starts from nothing",
        "safra.py",
        "Safra.idle",
        "0",
        "self._token.surplus if self._token else 0",
        (SAFRA + "test_any_schedule[3]",),
    ),
    Rule(
        "a working rank keeps the token",
        "node.py",
        "Node",
        "node._detector.receive(source, token)",
        "node._detector.receive(source, token) + node._detector.idle()",
        (SAFRA + "test_a_working_rank_keeps_the_token",),
    ),
    Rule(
        "a token of a later phase waits for it",
        "safra.py",
        "Safra.idle",
        "self.probe is not Probe.HELD or (self._token is not None and self._token.phase > self._phase)",
        "self.probe is not Probe.HELD",
        (SAFRA + "test_a_token_of_a_later_phase_waits_for_it",),
    ),
    Rule(
        "a token of a past phase can't come",
        "safra.py",
        "Safra.receive",
        "not isinstance(message, Token) or message.phase < self._phase or self.probe is Probe.HELD",
        "not isinstance(message, Token) or self.probe is Probe.HELD",
        (SAFRA + "test_tokens_that_cannot_come",),
    ),
)
