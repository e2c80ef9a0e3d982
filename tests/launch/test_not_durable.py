"""Records that do not outlast a reboot, of a job of two hosts: a resume on both of them uses the records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.launch.launchers import Launchers
from tests.launch.test_hosts import elsewhere
from tests.launch.test_mounts import ANOTHER_MACHINE
from tests.support.command import Argument, pcopy, show
from tests.support.oracle import differences
from tests.support.quirks import quirky

ANEW = b"the job begins anew"


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("hosts", [1, 2])
def test_records_are_used_if_no_host_was_rebooted(launchers: Launchers, area: Path, hosts: int) -> None:
    below, job = area / "below", area / "job"
    source = below / "tree"
    for directory in range(40):
        (source / f"{directory}").mkdir(parents=True)
        for number in range(5):
            (source / f"{directory}/{number}").write_bytes(b"%d" % number * 1000)
    (source / "blocked").write_bytes(b"a file over a directory that is not empty")
    (below / "made/blocked/inner").mkdir(parents=True)
    with quirky(below, "fsync=EINVAL") as mounted:
        words: list[Argument] = ["--checkpoint", job, "--checkpoint-interval", "0.1", "--bwlimit", "200K"]
        words += ["-T", mounted / "tree", mounted / "made"]
        two: dict[str, Any] = {"env": {"CHANGE": ANOTHER_MACHINE}, "wrap": elsewhere()}
        first = launchers.run("hydra", 2, *words, **two)
        assert first.returncode == 1, show(first)
        assert len(list(job.glob("not-durable-*"))) == 2
        (below / "made/blocked/inner").rmdir()
        again: list[Argument] = ["--resume", job]
        second = launchers.run("hydra", 2, *again, **two) if hosts == 2 else pcopy(*again, ranks=2)
    assert second.returncode == 0, show(second)
    assert (ANEW in second.stderr) == (hosts == 1), show(second)
    assert differences(source, below / "made") == []
