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
        "is not Engagement.ENGAGED or self._issued:",
        "is not Engagement.ENGAGED or (self._issued and not self._rank):",
        (JOB,),
    ),
    Rule(
        "the root doesn't end while its own work is unsignalled",
        "termination.py",
        "is not Engagement.ENGAGED or self._issued:",
        "is not Engagement.ENGAGED or (self._issued and self._rank):",
        (JOB,),
    ),
    Rule(
        "the engaging message is signalled last",
        "termination.py",
        "            self._parent, self._held, self._depth = account, stamp.credits, stamp.depth + 1\n"
        "            return []",
        "            return [(account, Signal(self._phase, stamp.credits))]",
        (JOB,),
    ),
    Rule(
        "a rank that its engaging message's signal has left stays engaged",
        "termination.py",
        "            self._parent, self._held, self._depth = account, stamp.credits, stamp.depth + 1\n"
        "            return []",
        "            self._parent, self._held, self._depth = account, 0, stamp.depth + 1\n"
        "            return [(account, Signal(self._phase, stamp.credits))]",
        (JOB,),
    ),
    Rule(
        "what comes while engaged is signalled at once",
        "termination.py",
        "return self.receive(source, home) if account == self._rank else [(account, home)]",
        "return []",
        (JOB,),
    ),
    Rule(
        "a start is counted by its sender",
        "node.py",
        "Start(phase, self._detector.sent(starting=True))",
        "Start(phase)",
        (JOB,),
    ),
    Rule(
        "a start is counted by its sender, on the ring",
        "node.py",
        "Start(phase, self._detector.sent(starting=True))",
        "Start(phase)",
        (RING_JOB,),
    ),
    Rule(
        "a start is work of its receiver",
        "node.py",
        "        if source >= 0:\n            self._send_all(self._detector.received(source, stamp))\n",
        "",
        (NODE + "test_early_work_of_the_next_phase_is_held", JOB),
    ),
    Rule(
        "addressed work is counted by its sender",
        "node.py",
        "Work(self.phase, batch, self._detector.sent())",
        "Work(self.phase, batch)",
        (JOB,),
    ),
    Rule(
        "addressed work is counted by its sender, on the ring",
        "node.py",
        "Work(self.phase, batch, self._detector.sent())",
        "Work(self.phase, batch)",
        (RING_JOB,),
    ),
    Rule(
        "addressed work is counted by its receiver",
        "node.py",
        "            self._check_current(source, work.phase)\n"
        "            self._send_all(self._detector.received(source, work.stamp))\n",
        "            self._check_current(source, work.phase)\n",
        (JOB,),
    ),
    Rule(
        "early addressed work is not signalled at once",
        "node.py",
        "            self._early.append((source, work))",
        "            self._send(source, Signal(work.phase, work.stamp.credits))\n"
        "            self._early.append((source, work))",
        (EARLY,),
    ),
    Rule(
        "early addressed work is not taken in at once",
        "node.py",
        "            self._early.append((source, work))",
        "            self._send_all(self._detector.received(source, work.stamp))\n            self._accept(work.tasks)",
        (EARLY,),
    ),
    Rule(
        "early addressed work is taken in once its phase begins",
        "node.py",
        "        for sender, work in early:\n            self._receive_work(sender, work)\n",
        "",
        (EARLY,),
    ),
    Rule(
        "a rank with tasks is not idle",
        "node.py",
        "if self.state is State.WORKING and self.under_way.has_room and not len(self.queue):\n            self._seek",
        "if self.state is State.WORKING and self.under_way.has_room:\n            self._seek",
        (SINGLE_JOB,),
    ),
    Rule(
        "stolen tasks are counted by the victim",
        "node.py",
        "self._detector.sent() if tasks else Stamp()",
        "Stamp()",
        (JOB,),
    ),
    Rule(
        "stolen tasks are counted by the victim, on the ring",
        "node.py",
        "self._detector.sent() if tasks else Stamp()",
        "Stamp()",
        (RING_JOB,),
    ),
    Rule(
        "stolen tasks are counted by the thief",
        "node.py",
        "            self._check_current(source, reply.phase)\n"
        "            self._send_all(self._detector.received(source, reply.stamp))\n",
        "            self._check_current(source, reply.phase)\n",
        (JOB,),
    ),
    Rule(
        "a phase begins only when the last is over",
        "termination.py",
        "if self.engagement is Engagement.ENGAGED or self._issued:",
        "if False:",
        (DIRECTED + "test_a_phase_begins_only_when_the_last_is_over",),
    ),
    Rule(
        "credits that are given are no longer held",
        "termination.py",
        "            self._held -= part\n",
        "",
        (DIRECTED + "test_credits_are_conserved",),
    ),
    Rule(
        "no work travels without credits",
        "termination.py",
        "if part and self._depth >= DEEPEST",
        "if self._depth >= DEEPEST",
        (DIRECTED + "test_credits_are_conserved",),
    ),
    Rule(
        "credits that are issued are awaited",
        "termination.py",
        "        self._issued += ISSUED\n",
        "",
        (JOB,),
    ),
    Rule(
        "credits of one's own account come home without a message",
        "termination.py",
        "return self.receive(source, home) if account == self._rank else [(account, home)]",
        "return [(account, home)]",
        (DIRECTED + "test_credits_of_the_own_account_come_home",),
    ),
    Rule(
        "further credits of the parent's account are kept",
        "termination.py",
        "            self._held += stamp.credits\n",
        "",
        (DIRECTED + "test_credits_are_conserved",),
    ),
    Rule(
        "signals carry their phase",
        "termination.py",
        "or message.phase != self._phase or",
        "or",
        (NODE + "test_out_of_turn_while_working",),
    ),
    Rule(
        "a state follows another only if the table says so",
        "states.py",
        "if following not in table[state]:",
        "if False:",
        (NODE + "test_out_of_turn_while_waiting",),
    ),
)

RING = (
    Rule(
        "the ring's end needs counts that sum to nothing (plain colours alone)",
        "safra.py",
        "not token.black and not self._black and token.surplus + self._count == 0",
        "not token.black and not self._black",
        (SAFRA + "test_work_that_is_slower_than_the_token_is_missed_by_colours_alone",),
    ),
    Rule(
        "the ring's end needs a white token",
        "safra.py",
        "not token.black and not self._black and",
        "not self._black and",
        (SAFRA + "test_counts_alone_miss_work_behind_the_token",),
    ),
    Rule(
        "the ring's end needs a white root",
        "safra.py",
        "not token.black and not self._black and",
        "not token.black and",
        (SAFRA + "test_a_black_root_does_not_end",),
    ),
    Rule(
        "a rank is black once it has received work",
        "safra.py",
        "        self._black = True\n",
        "",
        (SAFRA + "test_counts_alone_miss_work_behind_the_token",),
    ),
    Rule(
        "a black rank blackens the token",
        "safra.py",
        "self._token.black or self._black)",
        "self._token.black)",
        (SAFRA + "test_counts_alone_miss_work_behind_the_token",),
    ),
    Rule(
        "a token that is black stays so",
        "safra.py",
        "self._token.black or self._black)",
        "self._black)",
        (SAFRA + "test_counts_alone_miss_work_behind_the_token",),
    ),
    Rule(
        "a rank is white again once it has handed the token on",
        "safra.py",
        "        self._black = False\n        self._token = None\n",
        "        self._token = None\n",
        (SAFRA + "test_a_rank_is_white_again_once_it_has_handed_the_token_on",),
    ),
    Rule(
        "a rank adds its count to the token's",
        "safra.py",
        "self._token.surplus + self._count,",
        "self._token.surplus,",
        (SAFRA + "test_a_rank_is_white_again_once_it_has_handed_the_token_on",),
    ),
    Rule(
        "the root's next round starts from nothing",
        "safra.py",
        "token = Token(self._phase, 0, False)",
        "token = Token(self._phase, self._token.surplus if self._token else 0, False)",
        (SAFRA + "test_any_schedule[3]",),
    ),
    Rule(
        "a working rank keeps the token",
        "node.py",
        "node._send_all(node._detector.receive(source, token))",
        "node._send_all(node._detector.receive(source, token) + node._detector.idle())",
        (SAFRA + "test_a_working_rank_keeps_the_token",),
    ),
    Rule(
        "a token of a later phase waits for it",
        "safra.py",
        " or (self._token is not None and self._token.phase > self._phase):",
        ":",
        (SAFRA + "test_a_token_of_a_later_phase_waits_for_it",),
    ),
    Rule(
        "a token of a past phase can't come",
        "safra.py",
        "or message.phase < self._phase or",
        "or",
        (SAFRA + "test_tokens_that_cannot_come",),
    ),
)
