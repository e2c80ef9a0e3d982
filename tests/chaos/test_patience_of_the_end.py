"""How long a stopped job waits for storage: its last checkpoint may fail, and the job ends in time."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.chaos.dataset import SPLIT
from tests.chaos.unfinished import REFUSED, STOPPED, check_equal, listed
from tests.support.command import pcopy, show, succeed
from tests.support.faults import ITEM_BY_ITEM, SLOW, slowed
from tests.support.preload import hanging_syncs
from tests.support.processes import background, wait_until

PROMISED = 5
ALLOWED = PROMISED + 2
"""Seconds from the signal to the end of all processes; longer than promised, since the machine may be busy."""


@pytest.mark.alone
def test_stopped_job_waits_less_than_five_seconds_for_its_last_checkpoint(
    tree: Path, area: Path, env: dict[str, str]
) -> None:
    """The fourth sync of a rank hangs, and all later ones.

    Items are slow enough for this to happen during the copy: at the end of a phase there is nothing new to record.
    """
    reported = area / "hanging"
    hanging = {**hanging_syncs(4), "PCOPY_TEST_HANGING": str(reported)}
    arguments = ("--checkpoint-interval", "0.1", *SPLIT, "-T", tree, area / "copy")
    with background(*arguments, ranks=2, env=env | hanging, wrap=slowed(ITEM_BY_ITEM, 5 * SLOW)) as run:
        assert wait_until(lambda: run.process.poll() is not None or reported.exists())
        assert run.process.poll() is None, run.process.communicate()
        sent = time.monotonic()
        run.send_signal(signal.SIGTERM)
        _, err = run.process.communicate(timeout=60)
        took = time.monotonic() - sent
        assert run.survivors() == []
    assert run.process.returncode == STOPPED, err
    assert took < ALLOWED, f"it took {took:.1f} s"
    assert took > 2, "it did not try a last checkpoint"
    assert [job["state"] for job in listed(env)] == ["stopped"]
    for policy in ("newer", "skip"):  # a power loss now may truncate files that are not on storage
        again = pcopy("--existing", policy, "-T", tree, area / "copy", env=env)
        assert again.returncode == REFUSED and b"may be cut short" in again.stderr, show(again)
    succeed("--resume", ranks=3, env=env)
    check_equal(tree, area / "copy")
