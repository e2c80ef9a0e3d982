"""How long another host's rank is believed to live by its heartbeat, where the file system knows no flock: 300 s.

The files are written as docs/formats/checkpoint.md says, ten seconds before and after that time.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from pcopy.checkpoint import lock
from pcopy.checkpoint.lock import Held, hold, hold_alone, holders
from tests.support.processes import wait_until

BELIEVED = 300
OTHER = "another-host.example"


@pytest.fixture
def job(area: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job directory where nothing can be locked."""

    def missing(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", missing)
    monkeypatch.setattr(lock, "PATIENCE", 0.0)
    (area / "job").mkdir(0o700)
    return area / "job"


def say(job: Path, rank: int, host: str, ago: float, pid: int = 1 << 30) -> None:
    """The lock file of a rank whose heart beat last ``ago`` seconds ago."""
    now = time.time()
    path = job / f"lock-{rank}"
    path.write_text(json.dumps({"host": host, "pid": pid, "began": now - 9999, "heartbeat": now - ago}))
    path.chmod(0o600)


@pytest.mark.parametrize("ago", [0, 10, 60, BELIEVED - 10])
@pytest.mark.parametrize("rank", [0, 3])
def test_a_heart_that_has_beaten_within_300_seconds_keeps_others_out(job: Path, ago: int, rank: int) -> None:
    say(job, rank, OTHER, ago)
    assert [(holder.rank, holder.host) for holder in holders(bytes(job))] == [(rank, OTHER)]
    with pytest.raises(Held, match=rf"rank {rank} on another-host.example .*heard of \d+ s ago"):
        hold_alone(bytes(job))
    with pytest.raises(Held):
        hold(bytes(job), rank)


@pytest.mark.parametrize("ago", [BELIEVED + 10, 10_000])
@pytest.mark.parametrize("rank", [0, 3])
def test_one_that_has_not_is_gone(job: Path, ago: int, rank: int) -> None:
    say(job, rank, OTHER, ago)
    assert holders(bytes(job)) == []
    hold_alone(bytes(job)).close()
    hold(bytes(job), rank).close()


def test_a_heart_beats_without_records(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be further apart than 300 s, and a sync may hang for longer."""
    monkeypatch.setattr(lock, "BEAT_EVERY", 0.01)
    held = hold(bytes(job), 0)
    first = heard(job)
    assert wait_until(lambda: heard(job) > first)
    held.close()
    assert wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name == "heartbeat"])
    assert (job / "lock-0").read_text().strip() == ""


def heard(job: Path) -> float:
    return float(json.loads((job / "lock-0").read_text())["heartbeat"])


def test_on_this_host_the_process_counts_and_not_its_heart(job: Path) -> None:
    say(job, 0, socket.gethostname(), 10_000, pid=os.getppid())
    assert [holder.rank for holder in holders(bytes(job))] == [0]
    say(job, 0, socket.gethostname(), 0)
    assert holders(bytes(job)) == []
