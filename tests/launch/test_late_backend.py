"""Whole jobs of real ranks whose backend finishes later: tasks wait for their tickets, and others run meanwhile."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Completed, pcopy, show, start, summary
from tests.support.oracle import differences
from tests.support.trees import random_tree

RANKS: dict[str, dict[str, Any]] = {
    "one": {"ranks": 1},
    "local": {"ranks": 2},
    "mpi": {"ranks": 2, "launcher": "mpi"},
}


@pytest.fixture(params=RANKS)
def ranks(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {**RANKS[request.param], "program": "late", "real": True}


def at_once(run: Completed) -> int:
    """The most tickets that a rank had under way."""
    return max(map(int, re.findall(rb"^at once: (\d+)", run.stderr, re.MULTILINE)))


def make(path: Path) -> None:
    random_tree(path, 7, files=60, directories=10, largest=6 << 20)
    for number in range(6):
        (path / f"many{number}").mkdir()
        for name in range(60):
            (path / f"many{number}" / f"{name}").write_text(f"{number} {name}")


@pytest.mark.in_turn(1)
def test_job_with_a_late_backend_gives_the_same_result(ranks: dict[str, Any], area: Path) -> None:
    """Copied, read back, and found unchanged; as another backend counts it."""
    make(area / "source")
    words = ("--json", "--verify", "-T", area / "source")
    run = pcopy(*words, area / "copy", **ranks)
    reported = summary(run)
    assert run.returncode == 0, show(run)
    assert at_once(run) > 1, "its tasks have waited one by one"
    assert not differences(area / "source", area / "copy")
    usual = summary(pcopy(*words, area / "usual", ranks=2))
    for counter in ("found", "copied", "files", "bytes", "skipped", "failed"):
        assert reported[counter] == usual[counter]
    again = pcopy("--json", "-u", "-T", area / "source", area / "copy", **ranks)
    assert again.returncode == 0 and summary(again)["skipped"] >= 360, show(again)


@pytest.mark.in_turn(1)
def test_job_stopped_while_tasks_wait_can_be_resumed(ranks: dict[str, Any], area: Path) -> None:
    """What had begun counts, what had not is done by the resumed job, and nothing is left of the first run."""
    make(area / "source")
    env = {"XDG_STATE_HOME": str(area / "state")}
    words = ("--json", "-T", area / "source", area / "copy")
    with start(*words, env={**env, "LATEST": "0.3"}, **ranks) as process:
        end = time.monotonic() + 60
        while not list((area / "copy").glob("many*/*")):
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
    first = Completed(process.args, process.returncode, output, errors)
    assert first.returncode == 75, show(first)
    assert at_once(first) > 1
    some = len(list((area / "copy").glob("many*/*")))
    assert 0 < some < 360, "the job was over before it was told to stop, or had not begun"
    last = pcopy("--json", "--resume", env=env, **ranks)
    assert last.returncode == 0, show(last)
    assert summary(last)["files"] == summary(pcopy("--json", "-T", area / "source", area / "usual"))["files"]
    assert not differences(area / "source", area / "copy")
