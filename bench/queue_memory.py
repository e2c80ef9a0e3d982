"""Measure the memory of a rank's queue of waiting tasks, with millions of files to copy.

Two cases are measured: all tasks are in memory, and the tasks that do not fit into a memory budget are in an LMDB
database. The tasks are those that a scan creates: each is to copy 256 files with names of some 24 bytes. Nothing is
copied. Each measurement runs in a process of its own, whose resident memory before and after is read from /proc.
"""

from __future__ import annotations

import argparse
import multiprocessing
import multiprocessing.connection
import os
import sys
import tempfile
import time
from array import array
from pathlib import Path

from bench.timing import text_table
from pcopy.checkpoint.lmdb_backlog import LmdbBacklog
from pcopy.engine.limits import EngineLimits
from pcopy.engine.queue import TaskQueue
from pcopy.engine.task import Task
from pcopy.fsio.backend.columns import VERSION_COLUMNS, ItemStatusColumns, pack_names
from pcopy.fsio.identity import ItemIdentity
from pcopy.tasks.base.codec import encode_task
from pcopy.tasks.base.values import Place
from pcopy.tasks.files.copy_files import CopyFiles

MIB = 1 << 20
FILES_PER_TASK = 256
"""Files per task."""


def main() -> int:
    """Run the measurements, print the table, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.queue_memory", description=__doc__)
    parser.add_argument("--entries", type=int, default=5_000_000)
    parser.add_argument(
        "--budgets", type=int, nargs="+", default=[16, 64], help="MiB of entries in memory, beyond which LMDB is used"
    )
    parser.add_argument("--spool", type=Path, default=Path("/dev/shm"), help="the directory of the database")
    arguments = parser.parse_args()
    rows = [_measured_row("in core", arguments, 1 << 40)]
    rows += [_measured_row(f"LMDB beyond {budget} MiB", arguments, budget * MIB) for budget in arguments.budgets]
    print(f"{arguments.entries:,} entries in batches of {FILES_PER_TASK}")
    print(text_table(["", "MiB more", "bytes an entry", "s to fill", "s to empty"], rows))
    return 0


def _measured_row(label: str, arguments: argparse.Namespace, budget: int) -> list[str]:
    """Measure in a new process, and return the row ``label`` of the table.

    ``arguments`` is the parsed command line. ``budget`` is the memory in bytes beyond which tasks go to the database.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(
        target=_fill_and_empty_queue, args=(theirs, arguments.entries, budget, str(arguments.spool))
    )
    child.start()
    grown, filled, emptied = ours.recv()
    child.join()
    return [label, f"{grown / MIB:.0f}", f"{grown / arguments.entries:.1f}", f"{filled:.1f}", f"{emptied:.1f}"]


def _fill_and_empty_queue(pipe: multiprocessing.connection.Connection, entries: int, budget: int, spool: str) -> None:
    """Fill and empty a queue of tasks in this process, and send the results through ``pipe``.

    The results are the growth of memory in bytes, and the times of filling and emptying in seconds.

    Args:
        entries: number of files to copy.
        budget: bytes of memory beyond which tasks go to the database.
        spool: directory of the database.
    """
    with tempfile.TemporaryDirectory(dir=spool) as directory:
        queue = TaskQueue(
            EngineLimits(queue_memory_bytes=budget), open_overflow=lambda: LmdbBacklog(os.fsencode(directory))
        )
        queue.begin_phase(0)
        place = Place(0, b"some/directory/of/the/source", ItemIdentity(0, 1), ItemIdentity(0, 2), True, False)
        before, began = _resident_bytes(), time.monotonic()
        for number in range(entries // FILES_PER_TASK):
            names = [b"a-file-of-run-%010d" % (number * FILES_PER_TASK + index) for index in range(FILES_PER_TASK)]
            rows = ItemStatusColumns(FILES_PER_TASK, VERSION_COLUMNS)
            rows.inode = rows.size = array("Q", range(number * FILES_PER_TASK, (number + 1) * FILES_PER_TASK))
            payload = encode_task(CopyFiles(place, pack_names(names), rows.status_columns_as_bytes(), 0))
            queue.push_task(Task((1, 0, number), 0, payload, FILES_PER_TASK << 16))
        grown, filled = _resident_bytes() - before, time.monotonic() - began
        began = time.monotonic()
        remaining = entries // FILES_PER_TASK
        while queue.pop() is not None:
            remaining -= 1
        if remaining:
            raise SystemExit(f"{remaining} tasks were lost")
        pipe.send((grown, filled, time.monotonic() - began))


def _resident_bytes() -> int:
    """Return the resident memory of this process in bytes, without mapped files."""
    with open("/proc/self/status") as status:
        sizes = {line.split(":")[0]: int(line.split()[1]) << 10 for line in status if line.startswith("Rss")}
    return sizes["RssAnon"]


if __name__ == "__main__":
    sys.exit(main())
