"""A job directory where there is no flock: another host's rank is believed to work for 300 s after its heartbeat."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.chaos.unfinished import INCOMPLETE, REFUSED, check_equal
from tests.support.command import pcopy, show
from tests.support.faults import Fault
from tests.support.filesystems import remove

BELIEVED = 300


@pytest.mark.parametrize(("ago", "refused"), [(BELIEVED - 20, True), (BELIEVED + 20, False)])
def test_a_job_is_left_alone_while_another_host_may_work_on_it(
    area: Path, env: dict[str, str], ago: int, refused: bool
) -> None:
    source, copy = area / "source", area / "copy"
    source.mkdir()
    (source / "file").write_bytes(b"file")
    (copy / "file" / "in the way").mkdir(parents=True)
    first = pcopy("-T", source, copy, ranks=2, env=env)
    assert first.returncode == INCOMPLETE, show(first)
    remove(copy / "file")
    (job,) = (area / "state" / "pcopy").iterdir()
    now = time.time()
    lock = job / "lock-7"
    lock.write_text(json.dumps({"host": "another.example", "pid": 7, "began": now - 9999, "heartbeat": now - ago}))
    lock.chmod(0o600)
    missing = Fault(area / "log", ["flock"], None, "ENOSYS")
    run = pcopy("--resume", job.name, ranks=2, env=env, wrap=missing.wrap())
    missing.check()
    if refused:
        assert run.returncode == REFUSED, show(run)
        assert b"rank 7 on another.example (process 7, heard of " in run.stderr, show(run)
        assert os.listdir(copy) == []
    else:
        assert run.returncode == 0, show(run)
        check_equal(source, copy)
        assert list(job.parent.iterdir()) == []
