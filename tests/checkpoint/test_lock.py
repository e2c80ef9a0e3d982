"""Locks on a job, held by real processes that end as processes do."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pcopy.errors import RequestRefused
from pcopy.jobs.lock import JobLockedError, lock_holders, take_lock, take_lock_unless_job_is_locked
from tests.checkpoint.made import HOLD, child
from tests.support.command import REPOSITORY
from tests.support.processes import wait_until

FORK = """\
import os, sys, time
from pcopy.jobs.lock import take_lock
lock = take_lock(os.fsencode(sys.argv[1]), 0)
if os.fork():
    os.wait()
assert lock.descriptor < 0
own = take_lock(os.fsencode(sys.argv[1]), 1)
assert own.descriptor >= 0
print(os.getpid(), flush=True)
time.sleep(60)
"""

SPAWN = """\
import os, subprocess, sys, time
from pcopy.jobs.lock import take_lock
lock = take_lock(os.fsencode(sys.argv[1]), 0)
print(subprocess.Popen(["sleep", "60"], close_fds=False).pid, flush=True)
time.sleep(60)
"""

RACE = """\
import os, sys, time
from pcopy.jobs.lock import JobLockedError, take_lock_unless_job_is_locked
print("ready", flush=True)
sys.stdin.readline()
try:
    lock = take_lock_unless_job_is_locked(os.fsencode(sys.argv[1]))
except JobLockedError:
    sys.exit(3)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(area: Path) -> bytes:
    (area / "job").mkdir(0o700)
    return bytes(area / "job")


def ranks(path: bytes) -> list[int]:
    return [holder.rank for holder in lock_holders(path)]


def test_lock_names_its_holder(path: bytes) -> None:
    before = time.time()
    with child(HOLD, path, "0", "12") as process:
        found = lock_holders(path)
        assert [holder.rank for holder in found] == [0, 12]
        for holder in found:
            assert (holder.host, holder.pid) == (os.uname().nodename, process.pid)
            assert before - 1 <= holder.began <= time.time()
        with pytest.raises(JobLockedError) as caught:
            take_lock(path, 12)
        assert str(caught.value).startswith(f"{path.decode()}: rank 12 on {os.uname().nodename} (process {process.pid}")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_lock_is_released_when_its_process_ends(number: int, path: bytes) -> None:
    with child(HOLD, path, "0", "3") as process:
        assert ranks(path) == [0, 3]
        process.send_signal(number)
        process.wait()
        assert lock_holders(path) == []
        assert sorted(os.listdir(path)) == [b"lock-0", b"lock-3"], "the files stay, and mean nothing"
        take_lock_unless_job_is_locked(path).close()
        take_lock(path, 3).close()


def test_stopped_process_keeps_its_lock(path: bytes) -> None:
    with child(HOLD, path, "0") as process:
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(JobLockedError):
            take_lock_unless_job_is_locked(path)


def test_lock_of_any_rank_prevents_another_run(path: bytes) -> None:
    with child(HOLD, path, "5", "7"):
        with pytest.raises(JobLockedError, match=r"rank 5 on .*, and 1 more, still work on this job"):
            take_lock_unless_job_is_locked(path)
        assert ranks(path) == [5, 7], "who was refused has left its own lock"


def test_forked_child_does_not_inherit_the_lock(path: bytes) -> None:
    with child(FORK, path) as parent:
        assert wait_until(lambda: ranks(path) == [0, 1])
        grandchild = lock_holders(path)[1].pid
        try:
            assert grandchild != parent.pid
            parent.kill()
            parent.wait()
            assert ranks(path) == [1]
        finally:
            os.kill(grandchild, signal.SIGKILL)


def test_started_program_does_not_inherit_the_lock(path: bytes) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    parent = subprocess.Popen([sys.executable, "-c", SPAWN, path], env=environment, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    sleeper = int(parent.stdout.readline())
    try:
        assert ranks(path) == [0]
        parent.kill()
        parent.wait()
        os.kill(sleeper, 0)
        assert lock_holders(path) == []
    finally:
        os.kill(sleeper, signal.SIGKILL)
        parent.kill()
        parent.communicate()


def test_only_one_of_several_simultaneous_starts_gets_the_lock(path: bytes) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, path],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for _ in range(4)
    ]  # fmt: skip
    try:
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == b"ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write(b"\n")
            racer.stdin.flush()
        assert wait_until(lambda: sum(racer.poll() == 3 for racer in racers) == 3)
        (winner,) = [racer for racer in racers if racer.poll() is None]
        assert winner.stdout is not None
        assert winner.stdout.readline() == b"held\n"
        assert [holder.pid for holder in lock_holders(path)] == [winner.pid]
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()


def test_contents_of_earlier_lock_holder_are_replaced(path: bytes) -> None:
    with open(path + b"/lock-0", "wb") as file:
        file.write(b"x" * 1000)
    lock = take_lock(path, 0)
    (holder,) = lock_holders(path)
    assert (holder.host, holder.pid) == (os.uname().nodename, os.getpid())
    lock.close()
    assert lock_holders(path) == []
    lock.close()


def test_reading_lock_holders_does_not_prevent_locking(path: bytes) -> None:
    take_lock(path, 0).close()
    end = threading.Event()

    def look() -> None:
        while not end.is_set():
            lock_holders(path)

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(20):
            take_lock(path, 0).close()
    finally:
        end.set()
        for looker in lookers:
            looker.join()


def test_readers_of_locks_are_not_reported_as_holders(path: bytes) -> None:
    take_lock(path, 0).close()
    with open(os.path.join(path, b"lock-0"), "rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert lock_holders(path) == []


def test_lock_is_retried_if_its_file_was_removed(path: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between open and flock the job may end, and take the file with it."""
    flock = fcntl.flock
    opened: list[int] = []

    def late(descriptor: int, how: int) -> None:
        if not opened:
            os.unlink(os.path.join(path, b"lock-0"))
        opened.append(descriptor)
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    lock = take_lock(path, 0)
    assert len(opened) == 2
    assert ranks(path) == [0]
    lock.close()


def test_repeatedly_removed_lock_file_is_refused(path: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    flock = fcntl.flock

    def late(descriptor: int, how: int) -> None:
        os.unlink(os.path.join(path, b"lock-0"))
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(JobLockedError):
        take_lock(path, 0)


@pytest.mark.parametrize("content", [b"", b"x" * 9999, b"[]", b'{"host": 1}', b'{"host": "h", "pid": "x"}'])
def test_lock_file_with_invalid_contents_still_counts_as_held(content: bytes, path: bytes) -> None:
    with child(HOLD, path, "4"):
        Path(os.fsdecode(path), "lock-4").write_bytes(content)
        assert ranks(path) == [4]
        with pytest.raises(JobLockedError, match="rank 4 on an unknown host"):
            take_lock_unless_job_is_locked(path)
    take_lock_unless_job_is_locked(path).close()


def test_invalid_lock_files_are_refused_or_ignored(path: bytes, area: Path) -> None:
    (area / "victim").write_text("mine")
    (area / "other").write_text("mine")
    (area / "job" / "lock-0").symlink_to(area / "victim")
    os.link(area / "other", area / "job" / "lock-1")
    os.mkfifo(area / "job" / "lock-2")
    (area / "job" / "lock-3").mkdir()
    for rank in range(4):
        with pytest.raises(RequestRefused, match=f"lock-{rank}: "):
            take_lock(path, rank)
    assert (area / "victim").read_text() == (area / "other").read_text() == "mine"
    for name in ("lock-", "lock-01", "lock-x", "lock-1.new"):
        (area / "job" / name).touch()
    assert lock_holders(path) == []


def test_locking_in_a_directory_that_others_may_write_is_refused(path: bytes, area: Path) -> None:
    (area / "job").chmod(0o770)
    for action in (lambda: take_lock(path, 0), lambda: lock_holders(path)):
        with pytest.raises(RequestRefused, match="others may write"):
            action()
    assert not os.listdir(path)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_failing_flock_is_not_taken_for_a_free_lock(code: int, path: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(descriptor: int, how: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", failing)
    reported = f"cannot be locked: {os.strerror(code)}; choose another directory with --checkpoint"
    with pytest.raises(RequestRefused, match=reported):
        take_lock(path, 0)
