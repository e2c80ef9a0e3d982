"""Jobs that are ended before they are complete: how they are created, and what is checked in the end."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.chaos.dataset import SPLIT
from tests.support.command import Argument, succeed
from tests.support.faults import ITEM_BY_ITEM, SLOW, slowed
from tests.support.files import write
from tests.support.oracle import differences
from tests.support.processes import PROMPT, Run, background, wait_until
from tests.support.walk import temporaries

INCOMPLETE, REFUSED, STOPPED = 1, 2, 75
GRACE = PROMPT

BUSY = ("--checkpoint-interval", "0.05", *SPLIT)

Stop = Callable[..., str]
"""The type of the fixture ``stop``: ``stopped`` with the directory and the environment of the test."""


def stopped(
    area: Path,
    env: dict[str, str],
    *arguments: Argument,
    ranks: int = 3,
    number: int = signal.SIGTERM,
    until: Callable[[], object] = lambda: True,
    slow: tuple[str, int] = (ITEM_BY_ITEM, SLOW),
    **options: Any,
) -> str:
    """Start a job with ``arguments``, end it when it has recorded epochs, and return its name.

    Each of its items takes ``SLOW`` milliseconds, so that the job is far from its end by then.
    """
    state = area / "state" / "pcopy"
    before = set(os.listdir(state)) if state.exists() else set()

    def begun() -> bool:
        found = {path.parts[-3] for path in state.glob("*/run-*/facts-0")}
        return bool(found - before and until())

    with background(*BUSY, *arguments, ranks=ranks, env=env, wrap=slowed(*slow), **options) as run:
        assert wait_until(lambda: run.process.poll() is not None or begun())
        run.send_signal(number) if number != signal.SIGKILL else run.kill_all()
        out, err = run.process.communicate(timeout=60)
        assert run.process.returncode == (STOPPED if number != signal.SIGKILL else -number), (out, err)
    (name,) = set(os.listdir(state)) - before
    return name


def stopped_while_saving(area: Path, kept: Path, env: dict[str, str], *arguments: Argument) -> str:
    """Kill a job that replaces 60 files in ``copy`` when it has backed up some of them in ``kept``; return its name."""
    for number in range(60):
        write(area / f"source/{number}", b"new")
        write(area / f"copy/{number}", b"older")
    return stopped(
        area,
        env,
        *arguments,
        ranks=1,
        number=signal.SIGKILL,
        until=lambda: kept.exists() and len(list(kept.iterdir())) > 9,
        slow=("linkat,renameat", 8),
    )


def under_way(path: Path) -> bool:
    """Return True if a temporary file is a split file that was recorded: epochs are shorter than the time to write such
    a file."""
    return "-clock" not in path.name


def kill(run: Run) -> None:
    """Kill a running run of one rank, but not strace: without strace it would copy at full speed."""
    assert run.process.poll() is None, run.process.communicate()
    run.send_signal(signal.SIGKILL)
    run.process.communicate()


def listed(env: dict[str, str], **options: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in succeed("--jobs", "--json", env=env, **options).stdout.splitlines()]


def check_equal(source: Path, copy: Path) -> None:
    """Check that both trees are equal and no temporary files are left."""
    assert differences(source, copy) == []
    assert temporaries(os.fsencode(copy)) == []
