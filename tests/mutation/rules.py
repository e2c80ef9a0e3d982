"""The engine's rules, each with an edit that drops it and the quick tests that must then fail.

These checks of the code are not in the tables, because no test can observe whether they are made:

- A rank ignores a query that is not newer than the last one: it has one parent, and messages between two ranks keep
  their order.
- A second answer of a rank to a query is dropped: a rank answers each query once.
- Safra's detector on a single rank requires a count of 0: a rank that is alone never sends work.
- A rank *holds* a token of a later phase until it reaches that phase. It is idle in that phase, and the sender of its
  ``StartPhaseMessage`` has counted this message. So a token that is passed on with its own phase would be as safe. The
  edit in the table passes it on as a token of the old phase, which is the mistake that the rule forbids.
"""

from __future__ import annotations

from tests.mutation.end_rules import ENDS, REPORTS
from tests.mutation.epoch_rules import COMMITS, CUTS, RECORDS
from tests.mutation.rule import Rule
from tests.mutation.termination_rules import RING, TERMINATION
from tests.mutation.ticket_rules import WAITS
from tests.mutation.work_rules import STEALS

RULES: tuple[Rule, ...] = (*TERMINATION, *RING, *STEALS, *REPORTS, *ENDS, *CUTS, *RECORDS, *COMMITS, *WAITS)
