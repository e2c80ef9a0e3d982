"""A quick selection of the campaign: the calls by which a rank starts, waits, and speaks with others."""

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
def test_no_fault_at_a_start_or_a_wait_ends_a_job_in_disorder(scenario: str) -> None:
    require_strace()
    require_root("make items of all kinds")
    with scratch() as place:
        chosen: list[str | Path] = ["--rotate", "--uses", "3", "--calls", CALLS, "--place", place, scenario]
        line = [sys.executable, "-m", "tests.faults.campaign", *chosen]
        run = subprocess.run(line, check=False, cwd=REPOSITORY, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-3000:]
        assert "0 wrong" in run.stdout


@pytest.mark.timeout(180)
def test_what_waits_for_its_name_stays_while_it_is_on_record() -> None:
    """A destination that can't be synced stops the job; what an earlier run has made, or what is recorded meanwhile, is
    named by a resumed one."""
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
def test_a_thread_that_gets_no_memory_is_not_waited_for() -> None:
    """Python's own start of a thread waits for ever for one that ends before it has begun."""
    require_strace()
    require_root("make items of all kinds")
    with scratch() as place:
        chosen: list[str | Path] = ["--uses", "3", "--calls", "mmap", "--place", place, "resumed-1"]
        line = [sys.executable, "-m", "tests.faults.campaign", *chosen]
        run = subprocess.run(line, check=False, cwd=REPOSITORY, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-3000:]
        assert "0 wrong" in run.stdout


@pytest.mark.timeout(180)
def test_a_fault_in_one_of_two_ranks_under_mpiexec() -> None:
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
