"""The engine's rules, each with an edit that drops it and the quick tests that must then fail.

What no test can see is missing, because it changes nothing that anybody could observe:

- A rank takes no query that is not newer than the last: it has one parent, and a pair's messages keep their order.
- An answer of a rank that has answered already is dropped: a rank answers each query once.
- Safra's detector alone on one rank asks for a count of 0: a rank that is alone never sends work.
- That a token of a later phase is *held* is bookkeeping. A rank which that phase hasn't reached is idle in it, and its
  ``StartPhase`` is counted by whoever sent it, so a token handed on with its own phase would be no less safe. The edit
  in the table hands it on as one of the old phase, which is the mistake that the rule forbids.
"""

from __future__ import annotations

from tests.mutation.end_rules import ENDS, REPORTS
from tests.mutation.epoch_rules import COMMITS, CUTS, TOLD
from tests.mutation.rule import Rule
from tests.mutation.termination_rules import RING, TERMINATION
from tests.mutation.ticket_rules import WAITS
from tests.mutation.work_rules import STEALS

RULES: tuple[Rule, ...] = (*TERMINATION, *RING, *STEALS, *REPORTS, *ENDS, *CUTS, *TOLD, *COMMITS, *WAITS)
