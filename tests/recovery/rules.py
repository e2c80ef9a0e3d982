"""The rules that a resume rests on, each of which can be switched off to show that it is needed."""

from __future__ import annotations

from typing import NamedTuple


class Rules(NamedTuple):
    """True: the rule is kept. What each says is told in docs/design/recovery.md."""

    new_ids: bool = True
    """1. Ids carry the run, so that none is used again."""

    spawned_as_told: bool = True
    """1. Nothing that was spawned is taken for the same as something else, because it has the same description."""

    markers: bool = True
    """2. Ranks cut together: who hears from a later epoch cuts first."""

    least_epoch: bool = True
    """2. Only epochs count that all ranks have on storage."""

    phase_commit: bool = True
    """3. A phase begins once the last one is on storage."""

    named_last: bool = True
    """4. Where what exists is kept, an item has its name only once it is whole, and a task on record gives it."""

    named_durable: bool = True
    """4. Names are given after a cut, even if it is the first."""

    fixed_roots: bool = True
    """5. The roots are those that the job resolved when it began."""

    run_in_names: bool = True
    """6. Names of temporary files carry the run."""

    stale_removed: bool = True
    """6. Temporary files of earlier runs are removed."""

    sync_first: bool = True
    """A record is written after what it tells of is on storage."""

    notes_held: bool = True
    """What is only in a rank's memory is not done."""

    keys_kept: bool = True
    """What belongs together is addressed by a key that no run changes, not by the rank that an earlier run took."""


ALL = Rules()
