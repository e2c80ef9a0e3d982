"""pcopy that is broken on purpose, in the midst of its work: ``python -m tests.launch.failing HOW …``.

HOW is the rank that raises, or ``lock``: rank 1 makes the lock of its first record only once the job is over.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from threading import Event
from typing import Any

from pcopy.checkpoint.journal import ThreadedTaskJournal
from pcopy.checkpoint.layout import remove_job_files
from pcopy.cli.pcopy import main
from pcopy.engine.commit import CheckpointSchedule
from pcopy.engine.driver import RankDriver
from pcopy.engine.limits import EngineLimits
from pcopy.engine.messages import HaltMessage
from pcopy.jobs import directories
from pcopy.jobs.rank_store import RankProgressRecorder
from pcopy.launch import rank
from pcopy.tasks.base.phases import Phase
from pcopy.tools.director import CopyDirector

BUG = "broken on purpose"


def break_rank(number: int) -> None:
    steps = 0
    original = RankDriver._run_loop_step

    def step(self: RankDriver) -> None:
        nonlocal steps
        steps += 1
        if self._node.rank == number and steps > 5:
            raise RuntimeError(BUG)
        original(self)

    RankDriver._run_loop_step = step  # type: ignore[method-assign]


def make_lock_late() -> None:
    """The only cut is in the last phase. A stop comes when all is done, so that nobody waits for that; rank 0 takes its
    time to remove the job."""
    is_over, is_last = Event(), Event()
    take_lock, close, status = RankProgressRecorder.take_lock, ThreadedTaskJournal.close, CopyDirector.status
    next_phase = CopyDirector.next_phase

    def next_and_note(self: CopyDirector, phase: int, totals: tuple[int, ...]) -> int | None:
        following = next_phase(self, phase, totals)
        if following == Phase.SYNC:
            is_last.set()
        return following

    def is_due(self: CheckpointSchedule, rank: int, *_: object) -> bool:
        due = is_last.is_set() and not rank
        is_last.clear()
        return due

    def close_later(self: ThreadedTaskJournal, patience: float) -> bool:
        is_over.set()
        return close(self, patience)

    def take_late(self: RankProgressRecorder) -> None:
        is_over.wait()
        time.sleep(0.3)
        take_lock(self)

    def status_and_stop(self: CopyDirector, totals: tuple[int, ...], halted: HaltMessage | None) -> int:
        os.kill(os.getpid(), signal.SIGUSR1)
        return status(self, totals, halted)

    def clear_slowly(*given: Any) -> None:
        remove_job_files(*given)
        time.sleep(1)

    patches: list[tuple[Any, str, object]] = [
        (ThreadedTaskJournal, "close", close_later),
        (RankProgressRecorder, "take_lock", take_late),
        (rank._RankRunner, "_acquire_rank_lock", lambda *_: None),  # as of a rank that had no task
        (CopyDirector, "status", status_and_stop),
        (CopyDirector, "next_phase", next_and_note),
        (CheckpointSchedule, "advance_to_due_checkpoint", is_due),
        (directories, "remove_job_files", clear_slowly),
        (rank, "EngineLimits", partial(EngineLimits, last_checkpoint_cut_timeout=0.2)),
    ]
    for owner, name, replacement in patches:
        assert hasattr(owner, name)
        setattr(owner, name, replacement)


if __name__ == "__main__":
    how = sys.argv.pop(1)
    make_lock_late() if how == "lock" else break_rank(int(how))
    sys.exit(main())
