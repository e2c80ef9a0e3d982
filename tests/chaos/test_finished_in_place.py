"""A large file was overwritten and finished, and the job was killed before it recorded that: the next run resumes
it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.chaos.unfinished import check_equal, stopped
from tests.support.command import Argument, pcopy, show, summary
from tests.support.faults import WRITES
from tests.support.files import noise
from tests.support.held import held
from tests.support.processes import Run, wait_until

MIB = 1 << 20


@pytest.mark.parametrize("again", [1, 2])
def test_resume_after_a_kill_between_finishing_a_file_and_recording_it(
    area: Path, env: dict[str, str], again: int
) -> None:
    """Each run but the last is killed just after the file got its mode; its chunks are not recorded."""
    source, copy = area / "source", area / "copy"
    for tree, content in ((source, noise(12 * MIB)), (copy, b"old")):
        tree.mkdir()
        (tree / "file").write_bytes(content)
        (tree / "file").chmod(0o644)
    words: list[Argument] = ["--inplace", "--json", "-T", source, copy]
    slow = ",".join(f"?{call}" for call in WRITES), 300, "-P", str(copy / "file")
    stopped(area, env, *words, ranks=2, number=signal.SIGTERM, slow=slow, until=lambda: size(copy / "file") > 3)  # type: ignore[arg-type]
    assert (copy / "file").stat().st_mode & 0o777 == 0o600
    resume: list[Argument] = ["--resume", "--json", "--checkpoint-interval", "30"]
    for number in range(again):
        log = area / f"trace-{number}"
        with held(log, *resume, calls=("utimensat",), path=copy / "file", ranks=2, env=env) as run:
            assert (copy / "file").stat().st_mode & 0o777 == 0o644
            killed(run.run)
    ended = pcopy(*resume, ranks=3, env=env)
    assert ended.returncode == 0, show(ended)
    assert summary(ended)["failed"] == 0
    check_equal(source, copy)


def size(path: Path) -> int:
    return path.stat().st_size


def killed(run: Run) -> None:
    run.kill_all()
    assert wait_until(lambda: not run.processes())
