"""Runs a program in this process with budgets of memory so small that a directory of some thousand names exceeds them.

``python -m tests.support.small_budgets PROGRAM ARGUMENTS…``, with ``-n 1`` among the arguments.
"""

from __future__ import annotations

import sys
from typing import Any

from pcopy.checkpoint import lmdb_backlog, record
from pcopy.cli import script
from pcopy.engine.limits import EngineLimits
from pcopy.launch import rank
from pcopy.signature.sorting import ExternalSorter
from pcopy.tasks.compare import compare_pairs, compare_trees
from pcopy.walk import listing

KIB = 1 << 10


def reduce_budgets() -> None:
    """Reduce the budgets of what a rank keeps of a large directory."""
    normal_limits, normal_sorter = rank.engine_limits, ExternalSorter.__init__

    def limits(*arguments: Any) -> EngineLimits:
        return normal_limits(*arguments)._replace(
            queue_memory_bytes=512 * KIB, scan_ahead_bytes=256 * KIB, message_bytes=128 * KIB
        )

    def begin_sorter(self: ExternalSorter, open_spool: Any, budget: int = 0) -> None:
        normal_sorter(self, open_spool, 512 * KIB)

    rank.engine_limits = limits  # type: ignore[assignment]
    ExternalSorter.__init__ = begin_sorter  # type: ignore[method-assign]
    listing.MAX_BATCH_BYTES_IN_MEMORY = 256 * KIB
    listing.MAX_REMEMBERED_NAMES = 1 << 10
    record.SPOOL_RECORD_AT_BYTES = 256 * KIB
    lmdb_backlog.MAX_TOUCHED_BYTES = 1 << 20
    compare_pairs.MAX_NAMES_IN_SETS = compare_trees.MAX_MERGED_NAMES = 1 << 10


if __name__ == "__main__":
    reduce_budgets()
    sys.argv = sys.argv[1:]
    sys.exit(getattr(script, sys.argv[0])())
