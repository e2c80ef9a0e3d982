"""Jobs whose directory, source or destination was moved or is unusable: messages and leftovers."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.chaos.unfinished import BUSY, REFUSED, STOPPED, Stop, check_equal, listed
from tests.support.command import Argument, Completed, pcopy, show, succeed
from tests.support.faults import ITEM_BY_ITEM, SLOW, slowed
from tests.support.filesystems import mounted
from tests.support.processes import background, wait_until
from tests.support.users import require_root

UNKNOWN = 54321
"""A user without an entry in the user database."""


def stopped_in(job: Path, *words: Argument, env: dict[str, str], user: int | None = None) -> str:
    """Stop a job whose job directory is ``job``; return the command that resumes it."""
    words = ("--checkpoint", job, *BUSY, *words)
    with background(*words, ranks=2, env=env, user=user, wrap=slowed(ITEM_BY_ITEM, SLOW)) as run:
        assert wait_until(lambda: run.process.poll() is not None or (job / "run-1" / "facts-0").exists())
        run.send_signal(signal.SIGTERM)
        _, err = run.process.communicate(timeout=60)
    assert run.process.returncode == STOPPED, err
    (line,) = [line for line in err.decode().splitlines() if line.startswith("pcopy: to go on: ")]
    return line.removeprefix("pcopy: to go on: ")


def refused(*words: Argument, env: dict[str, str], cwd: Path | None = None) -> Completed:
    run = pcopy(*words, ranks=2, env=env, cwd=cwd)
    assert run.returncode == REFUSED, show(run)
    return run


def test_job_of_a_user_without_a_home_is_named_by_its_directory(area: Path) -> None:
    require_root("be somebody else")
    env = {"HOME": "", "XDG_STATE_HOME": ""}
    for number in range(900):
        (area / "source" / str(number % 30)).mkdir(parents=True, exist_ok=True)
        (area / "source" / str(number % 30) / f"file {number}").touch()
    (area / "mine").mkdir()
    os.chown(area / "mine", UNKNOWN, UNKNOWN)
    job, copy = area / "mine" / "job", area / "mine" / "copy"
    command = stopped_in(job, "--no-preserve", "ownership", area / "source", copy, env=env, user=UNKNOWN)
    assert shlex.split(command) == ["pcopy", "--resume", str(job)]
    succeed("--discard", "job", env=env, user=UNKNOWN, cwd=area / "mine")
    assert os.listdir(area / "mine") == ["copy"]


@pytest.mark.parametrize("name", ["my job; it's $HOME", "it's\n a \\\udce4 job"])
def test_printed_resume_command_is_quoted_for_the_shell(tree: Path, area: Path, env: dict[str, str], name: str) -> None:
    job = area / name
    command = stopped_in(job, tree, area / "copy", env=env)
    read = subprocess.run(["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True).stdout
    assert read == b"pcopy\0--resume\0%s\0" % bytes(job)
    other = refused("--checkpoint", job, *BUSY, tree, area / "other", env=env)
    advice = f"(different: DST): name another directory, or resume that job: {command}\n"
    assert advice in other.stderr.decode(), show(other)
    succeed("--resume", job, ranks=2, env=env)
    check_equal(tree, area / "copy")


def test_only_options_that_were_given_are_reported_as_different(tree: Path, area: Path, env: dict[str, str]) -> None:
    """A destination that is given in another form is the same, and a required digest is not a requested one."""
    job = area / "job"
    stopped_in(job, tree, area / "copy", env=env)
    for options, reported in (
        (["--verify"], b"(different: --verify)"),
        (["--verify", "--hash", "blake3"], b"(different: --hash, --verify)"),
        (["--hash", "blake3"], b"(different: --hash)"),
    ):
        run = refused("--checkpoint", job, *BUSY, *options, tree, area / "copy", env=env)
        assert reported in run.stderr, show(run)
    (area / "link").symlink_to(area)
    (area / "sub").mkdir()
    for other in ("copy", "../link/other", "../copy/inner", "."):
        run = refused("--checkpoint", job, *BUSY, tree, other, env=env, cwd=area / "sub")
        assert b"(different: DST)" in run.stderr, show(run)
    succeed("--checkpoint", job, *BUSY, tree, "../link/./copy/", ranks=2, env=env, cwd=area / "sub")
    check_equal(tree, area / "copy")


@pytest.mark.parametrize("replaced", [False, True])
def test_discard_reports_a_copy_that_was_moved(
    tree: Path, area: Path, env: dict[str, str], stop: Stop, replaced: bool
) -> None:
    name = stop(tree, area / "copy")
    (area / "copy").rename(area / "moved")
    if replaced:
        (area / "copy").mkdir()
    run = succeed("--discard", name, env=env)
    assert run.stdout == b"discarded\n"
    assert run.stderr.startswith(os.fsencode(area / "copy") + b": "), show(run)
    assert b"(.pcopy-%s-*) may be left" % name.encode() in run.stderr, show(run)


def test_discard_reports_nothing_if_the_copy_was_never_created(area: Path, tree: Path, env: dict[str, str]) -> None:
    words = ("--checkpoint", area / "job", tree, area / "copy")
    with background(*words, ranks=2, env=env, wrap=slowed("fsync", 300)) as run:
        assert wait_until(lambda: run.process.poll() is not None or (area / "job/job").exists())
        run.send_signal(signal.SIGKILL)
        run.process.communicate(timeout=60)
    assert not (area / "copy").exists()
    done = succeed("--discard", area / "job", env=env)
    assert (done.stdout, done.stderr) == (b"discarded\n", b""), show(done)


@pytest.mark.parametrize(("there", "files"), [("*/run-1/facts-0", 1), ("*/run-1/facts-*", 2)])
def test_no_resume_is_suggested_if_the_job_directory_vanished(
    tree: Path, area: Path, env: dict[str, str], there: str, files: int
) -> None:
    """If the directory vanishes before the first record, the record fails. Later, ranks write into files that they hold
    open, and do not notice."""
    words = (*BUSY, tree, area / "copy")
    jobs = area / "state" / "pcopy"
    with background(*words, ranks=2, env=env, wrap=slowed(ITEM_BY_ITEM, SLOW)) as run:
        assert wait_until(lambda: run.process.poll() is not None or len([*jobs.glob(there)]) == files)
        (job,) = jobs.iterdir()
        job.rename(area / "elsewhere")
        run.send_signal(signal.SIGTERM)
        _, err = run.process.communicate(timeout=60)
    assert run.process.returncode == STOPPED, err
    assert b"pcopy: %s: the job directory has vanished: start it again" % os.fsencode(job) in err
    assert b"to go on" not in err, err


@pytest.mark.alone
def test_job_directory_removed_during_the_run_disables_resume(tree: Path, area: Path, env: dict[str, str]) -> None:
    """The run does not wait for the job directory, and does not suggest a resume."""
    job = area / "job"
    words = ("--checkpoint", job, "--checkpoint-interval", "1.5", tree, area / "copy")
    with background(*words, ranks=3, env=env, wrap=slowed(ITEM_BY_ITEM, 40)) as run:
        assert wait_until(lambda: run.process.poll() is not None or (job / "job").exists())
        assert wait_until(lambda: run.process.poll() is not None or (area / "copy").exists())
        shutil.rmtree(job)
        time.sleep(3)
        assert run.process.poll() is None, run.process.communicate()
        sent = time.monotonic()
        run.send_signal(signal.SIGTERM)
        _, err = run.process.communicate(timeout=60)
        assert time.monotonic() - sent < 10
    assert run.process.returncode == STOPPED, err
    assert b"no more checkpoints" in err and os.fsencode(job) in err
    assert b"start it again" in err and b"to go on" not in err, err
    assert b"share" not in err, err


def test_unfinished_job_inside_the_destination_is_reported(
    tree: Path, area: Path, env: dict[str, str], stop: Stop
) -> None:
    (area / "copy").mkdir()
    name = stop(tree, area / "copy" / "inner")
    run = succeed("-T", "--existing", "skip", tree, area / "copy", ranks=2, env=env)
    reported = f"pcopy: job {name} has not finished with {area}/copy/inner in this destination: "
    assert reported in run.stderr.decode(), show(run)


def test_job_that_cannot_be_stored_leaves_nothing_behind(tree: Path, area: Path, env: dict[str, str]) -> None:
    require_root("mount")
    with mounted("tmpfs", area, size=4096) as full:
        (full / "filled").write_bytes(bytes(4096))
        (full / "empty").mkdir()
        for place in ("job", "above/job", "empty"):
            run = refused("--checkpoint", full / place, tree, area / "copy", env=env)
            assert b"No space left on device" in run.stderr, show(run)
        assert sorted(path.name for path in full.rglob("*")) == ["empty", "filled"]
        state = {"XDG_STATE_HOME": str(full / "empty")}
        words = ("--checkpoint-interval", "0.1", tree, area / "copy")
        run = succeed(*words, ranks=2, env=state, wrap=slowed(ITEM_BY_ITEM, SLOW))
        assert b"no more checkpoints" in run.stderr, show(run)
        assert sorted(path.name for path in full.rglob("*")) == ["empty", "filled"]


@pytest.mark.in_turn(1)
@pytest.mark.parametrize(
    ("calls", "place"),
    [("rename,renameat,renameat2", ""), ("unlink,unlinkat", ""), ("unlinkat", "state/pcopy")],
    ids=["rename", "unlink", "rmdir"],
)
def test_remains_of_a_job_killed_before_it_was_stored_are_removed_after_a_day(
    tree: Path, area: Path, env: dict[str, str], calls: str, place: str
) -> None:
    """A job that was not stored completely, or is over, can neither be resumed nor discarded.

    ``place``: only calls in this directory count.
    """
    state = area / "state/pcopy"
    words = ("--checkpoint-interval", "0.02", "-T", tree)
    kill = ["-f", "-qq", "-o", os.devnull, "-e", f"trace={calls}", "-e", f"inject={calls}:signal=KILL:when=1"]
    kill += ["-P", str(area / place)] if place else []
    assert pcopy(*words, area / "copy-1", ranks=2, env=env, wrap=["strace", *kill]).returncode != 0
    (left,) = state.iterdir()
    assert listed(env=env) == []
    (state / "mine").mkdir()
    (state / "mine/file").touch()
    for old in (False, True):
        if old:
            for path in (left, state / "mine"):
                os.utime(path, (time.time() - 90_000,) * 2)
        succeed(*words, area / f"copy-{2 + old}", ranks=2, env=env, wrap=slowed(ITEM_BY_ITEM, SLOW))
        assert left.exists() != old
    assert [path.name for path in state.iterdir()] == ["mine"]


def test_directories_created_for_a_job_are_removed_with_it(tree: Path, area: Path, env: dict[str, str]) -> None:
    """Also after a resume; existing directories are kept."""
    (area / "there").mkdir()
    succeed("--checkpoint", area / "there/a/b/job", tree, area / "copy", ranks=2, env=env)
    assert os.listdir(area / "there") == []
    job = area / "there" / "c" / "d" / "job"
    stopped_in(job, tree, area / "other", env=env)
    (area / "there" / "c" / "mine").touch()
    succeed("--resume", job, ranks=2, env=env)
    check_equal(tree, area / "other")
    assert [*area.glob("there/**/*")] == [area / "there/c", area / "there/c/mine"]
    stopped_in(job, tree, area / "moved", env=env)
    (area / "mine/empty").mkdir(parents=True)
    job.rename(area / "mine/empty/job")
    succeed("--resume", area / "mine/empty/job", ranks=2, env=env)
    assert [*area.glob("mine/*")] == [area / "mine/empty"], "a directory was removed that the job had not created"
    assert [*area.glob("there/**/*")] == [area / "there/c", area / "there/c/mine"]


def test_unusable_job_is_reported_with_the_reason(tree: Path, area: Path, env: dict[str, str], stop: Stop) -> None:
    name = stop(tree, area / "copy")
    job = area / "state" / "pcopy" / name
    job.chmod(0o777)
    for words in (["--resume"], ["--resume", name]):
        run = refused(*words, env=env)
        assert b"%s: others may write to it (mode 0777)" % os.fsencode(job) in run.stderr, show(run)
        assert b"there is no unfinished job" not in run.stderr and b"keep new jobs" not in run.stderr, show(run)
    assert listed(env)[0]["state"] is None
    job.chmod(0o700)
    tree.rename(area / "elsewhere")
    try:
        run = refused("--resume", env=env)
    finally:
        (area / "elsewhere").rename(tree)
    assert run.stderr.endswith(b"%s: the job's source cannot be opened: No such file or directory\n" % bytes(tree))
    succeed("--resume", ranks=2, env=env)
    check_equal(tree, area / "copy")


def test_job_of_another_user_is_reported_with_its_owner(
    tree: Path, area: Path, env: dict[str, str], stop: Stop
) -> None:
    require_root("give a job away")
    name = stop(tree, area / "copy")
    job = area / "state" / "pcopy" / name
    os.chown(job, UNKNOWN, UNKNOWN)
    for words in (["--resume"], ["--resume", name]):
        run = refused(*words, env=env)
        assert b"; only user %d can resume it\n" % UNKNOWN in run.stderr, show(run)
        assert b"keep new jobs" not in run.stderr, show(run)
