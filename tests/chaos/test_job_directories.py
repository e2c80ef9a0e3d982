"""The job directory: named by an option, unusable, or missing."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.chaos.dataset import SPLIT
from tests.chaos.unfinished import BUSY, REFUSED, STOPPED, check_equal
from tests.support.command import Argument, pcopy, show, succeed
from tests.support.faults import ITEM_BY_ITEM, SLOW, slowed
from tests.support.oracle import changes, snapshot
from tests.support.processes import Run, background, wait_until
from tests.support.users import require_root


def test_same_command_line_starts_and_resumes_a_job(tree: Path, area: Path, env: dict[str, str]) -> None:
    job = area / "job"
    arguments: list[Argument] = ["--checkpoint", job, *BUSY, "--signature", area / "sig", tree, area / "copy"]
    with background(*arguments, ranks=3, env=env, wrap=slowed(ITEM_BY_ITEM, SLOW)) as run:
        assert wait_until(lambda: run.process.poll() is not None or [*job.glob("run-1/facts-0")])
        run.send_signal(signal.SIGUSR1)
        _, err = run.process.communicate(timeout=60)
        assert run.process.returncode == STOPPED, err
        assert b"pcopy: to go on: pcopy --resume %s\n" % os.fsencode(job) in err
    other = pcopy(*arguments[:-1], area / "other", ranks=2, env=env)
    assert other.returncode == REFUSED, show(other)
    assert b"(different: DST" in other.stderr, show(other)
    other = pcopy("--existing", "skip", "--no-preserve", "mode", *arguments, ranks=2, env=env)
    assert other.returncode == REFUSED, show(other)
    assert b"--existing" in other.stderr and b"--preserve" in other.stderr, show(other)
    assert not (area / "other").exists()
    other = pcopy(*arguments[:-2], f"{tree}/", area / "copy", ranks=2, env=env)
    assert other.returncode == REFUSED and b"(different: SRC)" in other.stderr, show(other)
    check_outputs_of_a_resume(tree, area, arguments, env)
    succeed(*arguments[:-2], f"./../{tree.parent.name}/{tree.name}", area / "copy", ranks=2, env=env, cwd=tree.parent)
    check_equal(tree, area / "copy")
    assert not job.exists()
    assert (area / "sig").exists()


def check_outputs_of_a_resume(tree: Path, area: Path, arguments: list[Argument], env: dict[str, str]) -> None:
    """The outputs are checked before anything is copied, as in a first run."""
    before = snapshot(area / "copy")
    (area / "sig").mkdir()
    for words in (arguments, ["--resume", area / "job"]):
        run = pcopy(*words, ranks=2, env=env)
        assert run.returncode == REFUSED, show(run)
        assert run.stderr == b"pcopy: %s: is a directory; name a file, such as %s/signature\n" % (
            (os.fsencode(area / "sig"),) * 2
        )
    (area / "sig").rmdir()
    run = pcopy("--resume", area / "job", "--errors", tree / "errors", ranks=2, env=env)
    assert run.returncode == REFUSED and b"lies in" in run.stderr, show(run)
    assert changes(before, snapshot(area / "copy")) == []


def test_job_in_a_named_directory_is_stored_before_copying_starts(tree: Path, area: Path, env: dict[str, str]) -> None:
    """Killed before anything is recorded, the job starts over, twice, with the target that the first run meant."""
    job, copy = area / "job", area / "copy"
    arguments: list[Argument] = ["--checkpoint", job, *SPLIT, tree, copy]
    for words in (arguments, arguments, ["--resume", job]):
        with background(*words, ranks=3, env=env, wrap=slowed(ITEM_BY_ITEM, 60)) as run:
            assert wait_until(lambda: run.process.poll() is not None or announced(run))
            assert wait_until(lambda: run.process.poll() is not None or copy.exists())
            second = pcopy(*arguments, ranks=2, env=env)
            assert second.returncode == REFUSED, show(second)
            assert b"on this job; wait for its end" in second.stderr, show(second)
            run.kill_all()
            run.end(10)
        assert (job / "job").exists() and not (job / "current").exists()
    succeed(*arguments, ranks=2, env=env)
    check_equal(tree, copy)
    assert not job.exists()


def announced(run: Run) -> bytes:
    """Return the first line of output, which appears once the job is stored."""
    assert run.process.stdout is not None
    return bytes(run.process.stdout.readline())


UNUSABLE = {
    "full": b"which pcopy did not create; name a new or an empty directory",
    "full/file": b"Not a directory; name a job directory, or one that does not exist yet",
    "full/file/job": b"not a directory, so ",
    "source": b"copied from or to; name another directory",
    "source/job": b"copied from or to; name another directory",
    "copy": b"copied from or to; name another directory",
    "copy/job": b"copied from or to; name another directory",
    "link/job": b"copied from or to; name another directory",
    "/proc/job": b"No such file or directory; choose another directory",
}


@pytest.mark.parametrize(("launcher", "place"), [("mpi", "full"), *((None, place) for place in UNUSABLE)])
def test_unusable_job_directory_is_refused_before_copying_starts(
    area: Path, env: dict[str, str], place: str, launcher: str | None
) -> None:
    for name in ("source", "full"):
        (area / name).mkdir()
        (area / name / "file").touch()
    (area / "link").symlink_to("source")
    run = pcopy("--checkpoint", area / place, area / "source", area / "copy", ranks=2, env=env, launcher=launcher)
    assert run.returncode == REFUSED, show(run)
    (line,) = run.stderr.splitlines()
    assert os.fsencode(area / place) in line and UNUSABLE[place] in line
    assert sorted(os.listdir(area)) == ["full", "link", "source"]
    assert os.listdir(area / "source") == os.listdir(area / "full") == ["file"]


def test_run_that_cannot_store_its_job_continues_without_delay(tree: Path, area: Path, env: dict[str, str]) -> None:
    """The obstacle appears after the start of the job."""
    state = area / "state" / "pcopy"
    state.mkdir(parents=True, mode=0o700)
    began = time.monotonic()
    with background(
        "--checkpoint-interval", "0.5", tree, area / "copy", ranks=3, env=env, wrap=slowed(ITEM_BY_ITEM, SLOW)
    ) as run:
        assert wait_until(lambda: run.process.poll() is not None or (area / "copy").exists())
        shutil.rmtree(state)
        state.touch()
        _, err = run.process.communicate(timeout=60)
    assert run.process.returncode == 0, err
    assert time.monotonic() - began < 20
    (line,) = err.splitlines()
    reported = b"pcopy: no more checkpoints, the job goes on without and cannot be resumed: "
    assert line.startswith(reported + os.fsencode(state) + b"/"), err
    check_equal(tree, area / "copy")


def test_unwritable_state_directory_is_reported_before_the_first_item(
    tree: Path, area: Path, env: dict[str, str]
) -> None:
    require_root("be let into a directory that takes no file")
    with background(
        tree, area / "copy", ranks=3, env={**env, "XDG_STATE_HOME": "/proc"}, wrap=slowed(ITEM_BY_ITEM, SLOW)
    ) as run:
        assert wait_until((area / "copy").exists)
        run.send_signal(signal.SIGTERM)
        began = time.monotonic()
        _, err = run.process.communicate(timeout=60)
    assert time.monotonic() - began < 2.5, "the run waited for a record that cannot be written"
    first, *_, last = err.splitlines()
    assert first.startswith(b"pcopy: no more checkpoints, the job goes on without and cannot be resumed: /proc/pcopy: ")
    assert b"no checkpoint was stored: start it again" in last
    assert run.process.returncode == STOPPED


def test_stop_without_a_checkpoint_prints_a_command_with_the_same_target(
    tree: Path, area: Path, env: dict[str, str]
) -> None:
    state = area / "state" / "pcopy"
    state.mkdir(parents=True, mode=0o700)
    again = b" as pcopy --no-target-directory -n 2 %s %s, since " % (os.fsencode(tree), os.fsencode(area / "copy"))
    cases: list[tuple[Path, list[Argument], bytes]] = [
        (area / "copy", [tree], again),
        (area / "other", ["-T", tree], b"\n"),
    ]
    for copy, words, advice in cases:
        with background(*words, copy, ranks=2, env=env, wrap=slowed(ITEM_BY_ITEM, SLOW)) as run:
            assert wait_until(copy.exists)
            shutil.rmtree(state)
            state.touch()
            run.send_signal(signal.SIGTERM)
            _, err = run.process.communicate(timeout=60)
        state.unlink()
        state.mkdir(mode=0o700)
        assert run.process.returncode == STOPPED, err
        assert b": the job directory has vanished: start it again" + advice in err
