"""The batch ``Decide``: what becomes of small files, from what both sides' status tells; nothing is opened for it.

What is no plain case wants care: that is the way on which everything is looked at once more.
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
    """A plan for each row."""

    plans: bytearray


class Policy(NamedTuple):
    """By what it is decided what becomes of a row.

    ``existing`` and ``modify_window`` (seconds) as in ``pcopy.fsio.existing``, ``contents`` too (``--checksum``).
    ``keeps``: nothing is replaced unasked, so names come last. ``dresses``: owner and mode are the source's.
    ``in_place``: what exists is written over. ``sync``: each file is synced by itself. ``touched`` (nanoseconds since
    1970; None: never): what has changed since then in the target may be the job's own. ``mends``: what stays gets the
    metadata of its source, where these differ (``pcopy.fsio.mending.has_metadata``). ``backs_up``: what is replaced is
    kept elsewhere before.
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
    """What becomes of regular files.

    ``sources`` are what a scan has found (``FOUND``, or as much of it as there is), ``targets`` what ``Stat`` tells of
    their names in the target (``FOUND | OWNER``), None where nothing can be there.
    """

    policy: Policy
    sources: Rows
    targets: Stated | None = None

    @property
    def descriptors(self) -> tuple[int, ...]:
        return ()


def decide_rows(policy: Policy, sources: Rows, targets: Stated | None) -> bytearray:
    """A plan for each row (``Decide``)."""
    plans = bytearray((make_plan(policy),)) * len(sources)
    careful = _careful_rows(sources)
    for row in careful:
        plans[row] = Plan.CARE
    if targets is None:
        return plans
    user, done, present = os.geteuid(), Code.DONE, targets.rows
    for row, code in enumerate(targets.verdicts.codes):
        if row in careful:
            continue
        if code == done:
            undressed = present.uid[row] == user and stat.S_IMODE(present.mode[row]) == 0o600
            plans[row] = _over(policy, sources.status(row), present.status(row), undressed=undressed)
            if plans[row] == Plan.SKIP and policy.mends is not None and not sources.uid:
                plans[row] = Plan.CARE  # whose it is is not known here
        elif targets.verdicts.errnos[row] != errno.ENOENT:
            plans[row] = Plan.CARE  # which tells what is wrong when it is this file's turn
    return plans


def make_plan(policy: Policy) -> int:
    """The plan of a small file whose name is free."""
    return (Plan.TEMPORARY if policy.keeps else Plan.NEW) | (SYNC if policy.sync else 0)


def _careful_rows(sources: Rows) -> set[int]:
    """All but small regular files."""
    careful: set[int] = set()
    if sources.size and max(sources.size) > SMALL_FILE:
        careful.update(row for row, size in enumerate(sources.size) if size > SMALL_FILE)
    careful.update(row for row, mode in enumerate(sources.mode) if not stat.S_ISREG(mode))
    return careful


def _over(policy: Policy, source: Status, present: Status, *, undressed: bool) -> int:
    """The plan where ``present`` has the name. What is ``undressed`` may be half written (``pcopy.fsio.half_written``),
    and so may anything where files are written over."""
    is_far = not (FIRST < source.st_mtime_ns < LAST and FIRST < present.st_mtime_ns < LAST)
    if is_far or (policy.touched is not None and present.st_ctime_ns >= policy.touched):
        return Plan.CARE  # an earlier run's, or another item's whose name the file system takes for the same
    decision = decide(policy.existing, policy.modify_window, source, present, contents=policy.contents)
    if decision is Decision.REPLACE:
        return _replacing(policy, source, present)
    if stat.S_ISREG(present.st_mode) and (policy.in_place or undressed):
        return Plan.CARE
    if decision is Decision.FAIL:
        return Plan.REFUSE
    return Plan.CARE if policy.contents or not _is_dressed(policy, source, present) else Plan.SKIP


def _is_dressed(policy: Policy, source: Status, present: Status) -> bool:
    if policy.mends is None:
        return True
    from pcopy.fsio.mending import has_metadata  # few jobs need it

    return has_metadata(source, present, *policy.mends)


def _replacing(policy: Policy, source: Status, present: Status) -> int:
    if policy.in_place or policy.backs_up or not policy.dresses or stat.S_ISDIR(present.st_mode):
        return Plan.CARE
    if policy.mends is not None and may_be_compared(source, present):
        return Plan.CARE  # its time alone may be another
    return (Plan.TEMPORARY if policy.keeps else Plan.REPLACE) | (SYNC if policy.sync else 0)
