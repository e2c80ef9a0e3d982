"""Where each of ``Totals``' fields stands in a rank's vector of counters."""

from __future__ import annotations

from pcopy.tasks.job import Totals

COUNTERS = len(Totals._fields)

(
    FOUND,
    FOUND_BYTES,
    UNSCANNED,
    FILES,
    DIRECTORIES,
    SYMLINKS,
    SPECIAL,
    HARDLINKS,
    BYTES,
    MOVED,
    SKIPPED,
    SKIPPED_BYTES,
    DELETED,
    FAILED,
    FAILED_BYTES,
    CHANGED,
    VANISHED,
    EXCUSED,
    WARNINGS,
    UNSYNCED,
    FOR_LINK,
    FOR_FINISH,
    FOR_SEAL,
) = range(COUNTERS)
