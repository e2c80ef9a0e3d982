"""Where each of ``Totals``' fields stands in a rank's vector of counters."""

from __future__ import annotations

from pcopy.tasks.base.job import Totals
from pcopy.tasks.base.phases import Phase

COUNTERS = len(Totals._fields)

(
    FOUND, FOUND_BYTES, UNSCANNED,
    FILES, DIRECTORIES, SYMLINKS, SPECIAL, HARDLINKS, BYTES, MOVED,
    SKIPPED, SKIPPED_BYTES, DELETED, FAILED, FAILED_BYTES, CHANGED, VANISHED, EXCUSED, WARNINGS, UNSYNCED,
    FOR_LINK, FOR_NAME, FOR_FINISH, FOR_SEAL, FOR_REPAIR,
    TO_VERIFY, TO_VERIFY_BYTES, VERIFIED, VERIFIED_BYTES, REFUTED, EXTRA, CONFIRMED_BYTES,
    MENDED, TO_DELETE, FOR_AGAIN, EXCLUDED,
) = range(COUNTERS)  # fmt: skip

PUT_ASIDE: dict[int, int] = {
    Phase.LINK: FOR_LINK,
    Phase.NAME: FOR_NAME,
    Phase.AGAIN: FOR_AGAIN,
    Phase.FINISH: FOR_FINISH,
    Phase.SEAL: FOR_SEAL,
    Phase.REPAIR: FOR_REPAIR,
    Phase.REPAIR_FINISH: FOR_REPAIR,
    Phase.REPAIR_SYNC: FOR_REPAIR,
    Phase.REPAIR_VERIFY: FOR_REPAIR,
}
"""The counter of the tasks that wait for a phase: if there are none, the phase is left out."""

_OF_KIND = {b"f": FILES, b"l": SYMLINKS, b"d": DIRECTORIES}


def of_kind(kind: bytes) -> int:
    """The counter of copied items with this type byte."""
    return _OF_KIND.get(kind, SPECIAL)
