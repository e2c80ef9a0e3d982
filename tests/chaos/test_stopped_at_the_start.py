"""Signals while a job is first stored, while a resume is prepared, and while the storage of the job directory is slow.

A batch script that checks for status 75 restarts the job, whenever the signal came.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.unfinished import INCOMPLETE, STOPPED, Stop, check_equal, listed
from tests.support.command import Argument, pcopy, succeed
from tests.support.faults import ITEM_BY_ITEM, SLOW, require_strace, slowed
from tests.support.preload import preloaded
from tests.support.processes import Run, background, wait_until

SLOW_SYNCS = slowed("fsync", 500)

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)

PROMISED = 5
ALLOWED = PROMISED + 2
"""Seconds from the signal to the end; longer than promised, since the machine may be busy."""


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("number", SIGNALS)
def test_signal_during_the_preparation_of_a_resume_keeps_the_job(
    tree: Path, area: Path, env: dict[str, str], stop: Stop, number: signal.Signals
) -> None:
    job = area / "state" / "pcopy" / stop(tree, area / "copy")
    before = (job / "current").read_bytes()
    err = signalled(job / "run-2", number, "--resume", env=env)
    assert err == reported(number) + b"pcopy: to go on: pcopy --resume %s\n" % os.fsencode(job.name)
    assert (job / "current").read_bytes() == before, "it was not stopped before the next run was ready"
    assert [found["job"] for found in listed(env)] == [job.name]
    succeed("--resume", ranks=2, env=env)
    check_equal(tree, area / "copy")


def test_signal_under_mpiexec_during_the_preparation_of_a_resume(
    tree: Path, area: Path, env: dict[str, str], stop: Stop
) -> None:
    """The signal is sent to each rank in turn."""
    job = area / "state" / "pcopy" / stop(tree, area / "copy")
    for rank in (0, 1):
        shutil.rmtree(job / "run-2", ignore_errors=True)  # the previous run left it, as a crash would
        err = signalled(job / "run-2", signal.SIGUSR1, "--resume", env=env, launcher="mpi", rank=rank)
        assert b"pcopy: to go on: pcopy --resume %s\n" % os.fsencode(job.name) in err, err
        assert (reported(signal.SIGUSR1) in err) == (rank == 0)
    succeed("--resume", ranks=2, env=env)
    check_equal(tree, area / "copy")


@pytest.mark.parametrize("launcher", [None, "mpi"])
def test_signal_while_a_job_is_first_stored_leaves_nothing(
    tree: Path, area: Path, env: dict[str, str], launcher: str | None
) -> None:
    """Nothing is left of the job, and the same command line starts it."""
    words = ("--checkpoint", area / "above" / "job", tree, area / "copy")
    err = signalled(area / "above" / "job" / "lock-0", signal.SIGTERM, *words, env=env, launcher=launcher)
    assert err == reported(signal.SIGTERM) + b"pcopy: no checkpoint was stored: start it again\n"
    assert not (area / "above").exists()
    assert not (area / "copy").exists()
    succeed(*words, ranks=2, env=env)
    check_equal(tree, area / "copy")
    assert not (area / "above").exists(), "directories created for the job are left"


CALLS = "mkdir,openat,close,fsync,flock,rename,renameat,renameat2,unlink,unlinkat,rmdir,clone3"
"""System calls of a run that stores or resumes a job."""


def test_signal_at_each_system_call_while_a_job_is_first_stored(tree: Path, area: Path, env: dict[str, str]) -> None:
    """The run leaves nothing, or a job that can be resumed."""
    job = area / "above" / "job"
    for err in signalled_at_each_call(area, "-n", "1", "--checkpoint", job, tree, area / "copy", env=env):
        if err == reported(signal.SIGTERM) + b"pcopy: no checkpoint was stored: start it again\n":
            assert not (area / "above").exists() and not (area / "copy").exists()
        else:
            assert err.endswith(b"\npcopy: to go on: pcopy --resume %s\n" % os.fsencode(job)), err
            succeed("--discard", job, env=env)
            assert not (area / "above").exists()
            shutil.rmtree(area / "copy", ignore_errors=True)


def test_signal_at_each_system_call_during_the_preparation_of_a_resume(
    tree: Path, area: Path, env: dict[str, str], stop: Stop
) -> None:
    job = stop(tree, area / "copy")
    for err in signalled_at_each_call(area, "-n", "1", "--resume", env=env):
        assert err.endswith(b"\npcopy: to go on: pcopy --resume %s\n" % os.fsencode(job)), err
    succeed("--resume", ranks=2, env=env)
    check_equal(tree, area / "copy")


def signalled_at_each_call(area: Path, *words: Argument, env: dict[str, str]) -> Iterator[bytes]:
    """Yield the messages of runs that get a SIGTERM at one of the system calls of their first thread before the first
    task."""
    require_strace()
    log = area / "log"

    def run(inject: str, *statuses: int) -> bytes:
        trace = f"trace={CALLS},rt_sigaction,{ITEM_BY_ITEM}"
        ended = pcopy(*words, wrap=["strace", "-qq", "-o", str(log), "-e", trace, "-e", f"inject={inject}"], env=env)
        assert ended.returncode in statuses, (inject, ended)
        assert all(line.startswith(b"pcopy: ") for line in ended.stderr.splitlines()), (inject, ended.stderr)
        return bytes(ended.stderr)

    for _ in range(2):  # the first run compiles modules
        yield run(f"{ITEM_BY_ITEM}:error=EIO", INCOMPLETE)
    calls = calls_before_the_first_task(log.read_text(errors="replace"))
    reported_signals = 0
    for number, call in calls:
        # A run may make one more call than the previous one: then the signal comes too early to be reported.
        if err := run(f"{call}:signal=SIGTERM:when={number}", STOPPED, -signal.SIGTERM):
            reported_signals += 1
            yield err
    assert reported_signals > len(calls) // 2


def calls_before_the_first_task(log: str) -> list[tuple[int, str]]:
    """Return each call with its number among calls of the same name, between the first and the last installation of
    signal handlers.

    Handlers are installed first when a job is about to be stored or resumed, and last when its ranks are about to
    start.
    """
    names = [line.partition("(")[0] for line in log.splitlines()]
    taken = [at for at, line in enumerate(log.splitlines()) if line.startswith("rt_sigaction(SIGTERM, {sa_handler=0x")]
    window = range(taken[0], taken[-1])
    found = [(names[: at + 1].count(names[at]), names[at]) for at in window if names[at] in CALLS.split(",")]
    assert found
    return found


def reported(number: signal.Signals) -> bytes:
    return b"pcopy: stopped by %s before anything was copied in this run\n" % number.name.encode()


def signalled(
    there: Path,
    number: signal.Signals,
    *words: Argument,
    env: dict[str, str],
    launcher: str | None = None,
    rank: int = 0,
) -> bytes:
    """Return the messages of a run that was signalled as soon as the file ``there`` existed."""
    with background(*words, ranks=2, env=env, wrap=SLOW_SYNCS, launcher=launcher) as run:
        assert wait_until(lambda: run.process.poll() is not None or there.exists())
        if launcher is None:
            run.send_signal(number)
        else:
            os.kill(process_of(run, rank), number)
        _, err = run.process.communicate(timeout=60)
    assert run.process.returncode == STOPPED, err
    # strace may report there that a delayed process is delayed already.
    return b"".join(line for line in err.splitlines(keepends=True) if not line.startswith(b"strace: "))


def process_of(run: Run, rank: int) -> int:
    wanted = b"PMI_RANK=%d" % rank
    (found,) = (pid for pid in run.ranks() if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    return found


@pytest.mark.alone
def test_slow_storage_of_the_job_directory_does_not_delay_a_stop(tree: Path, area: Path, env: dict[str, str]) -> None:
    """The recorded items are valid without the last messages of the job."""
    slow = area / "slow"
    environment = {**env, **preloaded(Path(__file__).with_name("slow.c")), "PCOPY_TEST_SLOW": str(slow)}
    words = ("--checkpoint-interval", "0.1", "--checkpoint", area / "job", tree, area / "copy")
    with background(*words, ranks=2, env=environment, wrap=slowed(ITEM_BY_ITEM, SLOW)) as run:
        assert wait_until(lambda: run.process.poll() is not None or (area / "job/run-1/facts-0").exists())
        slow.touch()
        sent = time.monotonic()
        run.send_signal(signal.SIGTERM)
        _, err = run.process.communicate(timeout=60)
        took = time.monotonic() - sent
    assert run.process.returncode == STOPPED, err
    assert b"pcopy: to go on: pcopy --resume %s\n" % os.fsencode(area / "job") in err
    assert took < ALLOWED, f"it took {took:.1f} s"
    succeed("--resume", area / "job", ranks=2, env=env)
    check_equal(tree, area / "copy")
