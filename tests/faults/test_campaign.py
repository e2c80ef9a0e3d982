"""A quick part of the campaign: the calls by which a rank starts, waits, and communicates."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.launchers import HYDRA
from tests.support.command import REPOSITORY
from tests.support.faults import require_strace
from tests.support.filesystems import scratch
from tests.support.users import require_root

CALLS = "clone3,epoll_create1,epoll_ctl,epoll_wait,fcntl,fstatfs,getdents64,lseek,mmap,pipe2,poll,recvfrom,sendmsg"


@pytest.mark.timeout(180)
@pytest.mark.parametrize("scenario", ["plain-2", "kept-1", "different-2"])
def test_fault_at_a_start_or_a_wait_causes_no_crash_or_hang(scenario: str) -> None:
    require_strace()
    require_root("make items of all kinds")
    with scratch() as place:
        chosen: list[str | Path] = ["--rotate", "--uses", "3", "--calls", CALLS, "--place", place, scenario]
        line = [sys.executable, "-m", "tests.faults.campaign", *chosen]
        run = subprocess.run(line, check=False, cwd=REPOSITORY, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-3000:]
        assert "0 wrong" in run.stdout


@pytest.mark.timeout(180)
def test_unnamed_items_are_kept_while_they_are_recorded() -> None:
    """A destination that cannot be synced stops the job. Items created by an earlier run, or recorded in between, get
    their names in a resumed job."""
    require_strace()
    require_root("make items of all kinds")
    with scratch() as place:
        chosen: list[str | Path] = ["--errors", "EIO", "--uses", "2", "--calls", "syncfs", "--place", place]
        scenarios = ["unasked-2", "resumed-unasked-1", "resumed-unasked-2"]
        line = [sys.executable, "-m", "tests.faults.campaign", *chosen, *scenarios]
        run = subprocess.run(line, check=False, cwd=REPOSITORY, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-3000:]
        assert "0 wrong" in run.stdout


@pytest.mark.timeout(180)
def test_start_of_a_thread_without_memory_does_not_hang() -> None:
    """``Thread.start`` of Python waits forever for a thread that ends before it has begun."""
    require_strace()
    require_root("make items of all kinds")
    with scratch() as place:
        chosen: list[str | Path] = ["--uses", "3", "--calls", "mmap", "--place", place, "resumed-1"]
        line = [sys.executable, "-m", "tests.faults.campaign", *chosen]
        run = subprocess.run(line, check=False, cwd=REPOSITORY, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-3000:]
        assert "0 wrong" in run.stdout


@pytest.mark.timeout(180)
def test_fault_in_one_of_two_ranks_under_mpiexec_causes_no_crash_or_hang() -> None:
    require_strace()
    require_root("make items of all kinds")
    pytest.importorskip("mpi4py")
    if not HYDRA.exists():
        pytest.skip(f"no MPICH: {HYDRA} doesn't exist")
    with scratch() as place:
        chosen: list[str | Path] = ["--rotate", "--uses", "2", "--calls", "flock,fsync,linkat,pidfd_open,renameat"]
        line = [sys.executable, "-m", "tests.faults.campaign", *chosen, "--place", place, "mpi-kept-1"]
        run = subprocess.run(line, check=False, cwd=REPOSITORY, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-3000:]
        assert "0 wrong" in run.stdout
