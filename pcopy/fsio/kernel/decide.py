"""The batch ``Decide``: plans the copies of small files from the status of source and target, without opening anything.

Files that need a closer look get the plan ``CARE``: the slow path examines them again.
"""

from __future__ import annotations

import errno
import os
import stat

from pcopy.fsio.existing import Decision, decide, may_be_compared
from pcopy.fsio.kernel.batches import SYNC, Batch, Fields, Plan, Stated
from pcopy.fsio.kernel.columns import FIRST, LAST, Code, Rows, Status
from pcopy.fsio.kernel.interface import SMALL_FILE
from pcopy.fsio.preserve import Preserve
from pcopy.named import NamedTuple


class Decided(Fields):
    """The result of ``Decide``: a ``Plan`` for each row."""

    plans: bytearray


class Policy(NamedTuple):
    """The rules by which the plan of a row is decided.

    Fields:
        existing: policy for existing items, as in ``pcopy.fsio.existing``.
        modify_window: seconds by which equal times may differ, as in ``pcopy.fsio.existing``.
        contents: True if contents are compared (``--checksum``).
        keeps: True if existing items are replaced only on request, so that files are copied under temporary names and
            get their own names last.
        dresses: True if copies get the owner and mode of their sources.
        in_place: True if existing files are overwritten in place.
        sync: True if each file is synced separately.
        touched: items in the target that have changed since this time (nanoseconds since 1970) may have been created by
            this job; None if there are none.
        mends: the metadata to preserve, and ``modify_window``, if a skipped item gets the metadata of its source where
            they differ (``pcopy.fsio.mending.has_metadata``); otherwise None.
        backs_up: True if a backup is made of each item before it is replaced.
    """

    existing: str = "replace"
    modify_window: int = 0
    contents: bool = False
    keeps: bool = False
    dresses: bool = True
    in_place: bool = False
    sync: bool = False
    touched: int | None = None
    mends: tuple[Preserve, int] | None = None
    backs_up: bool = False


class Decide(Batch[Decided]):
    """Plan the copies of regular files.

    Fields:
        policy: the rules.
        sources: the columns that a scan found: ``FOUND``, as far as they exist.
        targets: the result of ``Stat`` for the names in the target (``FOUND | OWNER``); None if the target is known to
            have none of these names.
    """

    policy: Policy
    sources: Rows
    targets: Stated | None = None

    @property
    def descriptors(self) -> tuple[int, ...]:
        return ()


def decide_rows(policy: Policy, sources: Rows, targets: Stated | None) -> bytearray:
    """Return a plan for each row of a ``Decide`` batch."""
    plans = bytearray((make_plan(policy),)) * len(sources)
    slow_rows = _careful_rows(sources)
    for row in slow_rows:
        plans[row] = Plan.CARE
    if targets is None:
        return plans
    user, done, present = os.geteuid(), Code.DONE, targets.rows
    for row, code in enumerate(targets.verdicts.codes):
        if row in slow_rows:
            continue
        if code == done:
            lacks_metadata = present.uid[row] == user and stat.S_IMODE(present.mode[row]) == 0o600
            plans[row] = _over(policy, sources.status(row), present.status(row), lacks_metadata=lacks_metadata)
            if plans[row] == Plan.SKIP and policy.mends is not None and not sources.uid:
                plans[row] = Plan.CARE  # the owner of the source is not known here
        elif targets.verdicts.errnos[row] != errno.ENOENT:
            plans[row] = Plan.CARE  # the slow path reports the error
    return plans


def make_plan(policy: Policy) -> int:
    """Return the plan of a small file whose name is free in the target."""
    return (Plan.TEMPORARY if policy.keeps else Plan.NEW) | (SYNC if policy.sync else 0)


def _careful_rows(sources: Rows) -> set[int]:
    """Return the rows that are not small regular files."""
    slow_rows: set[int] = set()
    if sources.size and max(sources.size) > SMALL_FILE:
        slow_rows.update(row for row, size in enumerate(sources.size) if size > SMALL_FILE)
    slow_rows.update(row for row, mode in enumerate(sources.mode) if not stat.S_ISREG(mode))
    return slow_rows


def _over(policy: Policy, source: Status, present: Status, *, lacks_metadata: bool) -> int:
    """Return the plan of a file whose name is taken in the target.

    Args:
        policy: the rules.
        source: status of the source.
        present: status of the existing item in the target.
        lacks_metadata: True if the existing item has the owner and mode of a new file without its metadata. It may be
            half written then (``pcopy.fsio.half_written``). So may any file if files are overwritten in place.
    """
    is_far = not (FIRST < source.st_mtime_ns < LAST and FIRST < present.st_mtime_ns < LAST)
    if is_far or (policy.touched is not None and present.st_ctime_ns >= policy.touched):
        # An earlier run may have created it, or this run, for another name that the file system treats as equal.
        return Plan.CARE
    decision = decide(policy.existing, policy.modify_window, source, present, contents=policy.contents)
    if decision is Decision.REPLACE:
        return _replacing(policy, source, present)
    if stat.S_ISREG(present.st_mode) and (policy.in_place or lacks_metadata):
        return Plan.CARE
    if decision is Decision.FAIL:
        return Plan.REFUSE
    return Plan.CARE if policy.contents or not _is_dressed(policy, source, present) else Plan.SKIP


def _is_dressed(policy: Policy, source: Status, present: Status) -> bool:
    """Return True if the metadata of the existing item need not be updated."""
    if policy.mends is None:
        return True
    from pcopy.fsio.mending import has_metadata  # imported here because few jobs need it

    return has_metadata(source, present, *policy.mends)


def _replacing(policy: Policy, source: Status, present: Status) -> int:
    """Return the plan of a file that replaces an existing item."""
    if policy.in_place or policy.backs_up or not policy.dresses or stat.S_ISDIR(present.st_mode):
        return Plan.CARE
    if policy.mends is not None and may_be_compared(source, present):
        return Plan.CARE  # perhaps only the time differs
    return (Plan.TEMPORARY if policy.keeps else Plan.REPLACE) | (SYNC if policy.sync else 0)
