"""Signals while a job is stored, or made ready to go on, and where the storage of jobs is slow.

A batch script that asks for status 75 starts the job again, whenever the signal came.
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
"""Seconds from the signal to the end; some more than promised, for a machine that is not all ours."""


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_while_the_next_run_is_made_ready(
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


def test_a_signal_under_mpiexec(tree: Path, area: Path, env: dict[str, str], stop: Stop) -> None:
    """To each rank in turn."""
    job = area / "state" / "pcopy" / stop(tree, area / "copy")
    for rank in (0, 1):
        shutil.rmtree(job / "run-2", ignore_errors=True)  # the run before has left it, as a crash would
        err = signalled(job / "run-2", signal.SIGUSR1, "--resume", env=env, launcher="mpi", rank=rank)
        assert b"pcopy: to go on: pcopy --resume %s\n" % os.fsencode(job.name) in err, err
        assert (reported(signal.SIGUSR1) in err) == (rank == 0)
    succeed("--resume", ranks=2, env=env)
    check_equal(tree, area / "copy")


@pytest.mark.parametrize("launcher", [None, "mpi"])
def test_a_signal_while_a_job_is_stored(tree: Path, area: Path, env: dict[str, str], launcher: str | None) -> None:
    """Nothing of it is left, and the same command line begins it."""
    words = ("--checkpoint", area / "above" / "job", tree, area / "copy")
    err = signalled(area / "above" / "job" / "lock-0", signal.SIGTERM, *words, env=env, launcher=launcher)
    assert err == reported(signal.SIGTERM) + b"pcopy: no checkpoint was stored: start it again\n"
    assert not (area / "above").exists()
    assert not (area / "copy").exists()
    succeed(*words, ranks=2, env=env)
    check_equal(tree, area / "copy")
    assert not (area / "above").exists(), "what was made for the job is left"


CALLS = "mkdir,openat,close,fsync,flock,rename,renameat,renameat2,unlink,unlinkat,rmdir,clone3"
"""What a job that is stored, or gone on with, asks of the system."""


def test_a_signal_at_each_system_call_while_a_job_is_stored(tree: Path, area: Path, env: dict[str, str]) -> None:
    """It leaves nothing, or a job that can be gone on with."""
    job = area / "above" / "job"
    for err in signalled_at_each_call(area, "-n", "1", "--checkpoint", job, tree, area / "copy", env=env):
        if err == reported(signal.SIGTERM) + b"pcopy: no checkpoint was stored: start it again\n":
            assert not (area / "above").exists() and not (area / "copy").exists()
        else:
            assert err.endswith(b"\npcopy: to go on: pcopy --resume %s\n" % os.fsencode(job)), err
            succeed("--discard", job, env=env)
            assert not (area / "above").exists()
            shutil.rmtree(area / "copy", ignore_errors=True)


def test_a_signal_at_each_system_call_while_the_next_run_is_made_ready(
    tree: Path, area: Path, env: dict[str, str], stop: Stop
) -> None:
    job = stop(tree, area / "copy")
    for err in signalled_at_each_call(area, "-n", "1", "--resume", env=env):
        assert err.endswith(b"\npcopy: to go on: pcopy --resume %s\n" % os.fsencode(job)), err
    succeed("--resume", ranks=2, env=env)
    check_equal(tree, area / "copy")


def signalled_at_each_call(area: Path, *words: Argument, env: dict[str, str]) -> Iterator[bytes]:
    """What runs tell that get a SIGTERM at one of the system calls of their first thread before their first task."""
    require_strace()
    log = area / "log"

    def run(inject: str, *statuses: int) -> bytes:
        trace = f"trace={CALLS},rt_sigaction,{ITEM_BY_ITEM}"
        ended = pcopy(*words, wrap=["strace", "-qq", "-o", str(log), "-e", trace, "-e", f"inject={inject}"], env=env)
        assert ended.returncode in statuses, (inject, ended)
        assert all(line.startswith(b"pcopy: ") for line in ended.stderr.splitlines()), (inject, ended.stderr)
        return bytes(ended.stderr)

    for _ in range(2):  # the first run compiles what nobody has compiled
        yield run(f"{ITEM_BY_ITEM}:error=EIO", INCOMPLETE)
    calls = calls_before_the_first_task(log.read_text(errors="replace"))
    told_of = 0
    for number, call in calls:
        # A run may make a call more than the one before: then the signal comes too early to be told of.
        if err := run(f"{call}:signal=SIGTERM:when={number}", STOPPED, -signal.SIGTERM):
            told_of += 1
            yield err
    assert told_of > len(calls) // 2


def calls_before_the_first_task(log: str) -> list[tuple[int, str]]:
    """Each call with its number among those of its name; from where signals are taken to where they are taken again.

    That is done first when a job is about to be stored or gone on with, and last when its ranks are about to start.
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
    """What a run has told that was signalled as soon as a file was there."""
    with background(*words, ranks=2, env=env, wrap=SLOW_SYNCS, launcher=launcher) as run:
        assert wait_until(lambda: run.process.poll() is not None or there.exists())
        if launcher is None:
            run.send_signal(number)
        else:
            os.kill(process_of(run, rank), number)
        _, err = run.process.communicate(timeout=60)
    assert run.process.returncode == STOPPED, err
    # strace may say there that a process that it delays is delayed already.
    return b"".join(line for line in err.splitlines(keepends=True) if not line.startswith(b"strace: "))


def process_of(run: Run, rank: int) -> int:
    wanted = b"PMI_RANK=%d" % rank
    (found,) = (pid for pid in run.ranks() if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    return found


@pytest.mark.alone
def test_slow_storage_of_jobs_does_not_keep_one_that_was_told_to_stop(
    tree: Path, area: Path, env: dict[str, str]
) -> None:
    """What is on record holds without its last words."""
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
