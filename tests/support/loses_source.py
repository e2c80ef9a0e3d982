"""pcopy in which rank 1 loses a directory of the source after every rank has begun to compare directories for --delete:
``loses_source.py PLACE PYTHON -m pcopy ...``.

The directory that rank 1 compares first is moved into the directory PLACE. The other ranks wait for this with a
directory of their own, and compare each later one after a pause in which a message may arrive. Rank 1 does not steal
tasks from them. Each directory has a task of its own, as on a host without the C backend.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pcopy.cli.pcopy import main
from pcopy.tasks.base.kind import TaskSteps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.remove import delete_extra
from pcopy.tasks.remove.delete_extra import DeleteExtraItems

LOSER = 1
MOMENT = 0.02
"""Seconds."""
LONGER_THAN_THE_REST = 2.0
"""Seconds in which rank 1 is idle: the other ranks need less to compare their directories."""
LONGEST = 30.0

compare = DeleteExtraItems.run


def waiting(condition: Callable[[], bool]) -> Iterator[None]:
    """Yield until ``condition`` is true; the rank answers messages in between."""
    end = time.monotonic() + LONGEST
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("another rank never began to compare")
        time.sleep(0.005)
        yield


def lose(place: Path) -> None:
    lost = place / "lost"
    rested: list[bool] = []

    def run(task: DeleteExtraItems, rank: Rank, result: TaskResult) -> TaskSteps:
        if rank.phase == Phase.DELETE and task.place.path:
            begun, others = place / f"begun-{rank.number}", rank.number != LOSER
            if not begun.exists():
                begun.touch()
                if others:
                    yield from waiting(lost.exists)
                else:
                    yield from waiting(lambda: len([*place.glob("begun-*")]) == rank.size)
                    os.rename(os.path.join(rank.job.roots[0].source, task.place.path), lost)
                    rank.sources[0].discard_directory(task.place.path)
            elif others:
                time.sleep(MOMENT)
            elif not rested:
                rested.append(True)
                time.sleep(LONGER_THAN_THE_REST)
        yield from compare(task, rank, result) or ()

    DeleteExtraItems.run = run  # type: ignore[assignment, method-assign]
    # One call of the backend would compare all directories: each of them gets a task instead.
    delete_extra._may_compare_subtrees = lambda rank, place: False


if __name__ == "__main__":
    lose(Path(sys.argv[1]))
    sys.exit(main(sys.argv[5:]))
