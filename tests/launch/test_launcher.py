"""What pcopy makes of the variables that launchers set, without any launcher."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from pcopy.errors import RequestRefused
from pcopy.launch.launcher import (
    LauncherInterface,
    conflicting_variable_prefixes,
    identify_launcher,
    is_reporting_rank,
    is_started_by_launcher,
)
from pcopy.launch.mpi_library import candidate_mpi_libraries, is_mpi_library_compatible
from tests.launch.launchers import HYDRA, OPEN_MPI_LIBRARY
from tests.support.command import REPOSITORY

HYDRA_SETS = {"PMI_SIZE": "4", "PMI_RANK": "2", "PMI_FD": "9", "HYDI_CONTROL_FD": "7", "MPI_LOCALNRANKS": "4"}
OPEN_MPI_SETS = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2", "PMIX_NAMESPACE": "1", "PMIX_RANK": "2"}
BATCH = {"SLURM_JOB_ID": "5", "SLURM_NTASKS": "4", "SLURM_NPROCS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
STEP = {**BATCH, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2"}
PMI2 = {**STEP, "PMI_SIZE": "4", "PMI_RANK": "2", "PMI_FD": "9", "PMI_JOBID": "5.0"}


@pytest.mark.parametrize(
    ("environment", "wire", "by_srun"),
    [
        (HYDRA_SETS, LauncherInterface.PMI, False),
        (OPEN_MPI_SETS, LauncherInterface.OPEN_MPI, False),
        (STEP, LauncherInterface.NOTHING, True),
        ({**STEP, "PMIX_NAMESPACE": "slurm.pmix.5.0", "PMIX_RANK": "2"}, LauncherInterface.PMIX, True),
        (PMI2, LauncherInterface.PMI, True),
        # mpiexec starts its daemons by srun, one a host: what counts is what it tells its own ranks
        ({**STEP, "SLURM_STEP_NUM_TASKS": "2", **HYDRA_SETS}, LauncherInterface.PMI, False),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "2", **OPEN_MPI_SETS}, LauncherInterface.OPEN_MPI, False),
        ({**OPEN_MPI_SETS, "PMI_SIZE": "4"}, LauncherInterface.OPEN_MPI, False),
    ],
)
def test_size_and_interface_of_launcher_are_identified(
    environment: Mapping[str, str], wire: LauncherInterface, by_srun: bool
) -> None:
    assert is_started_by_launcher(environment)
    launch = identify_launcher(environment)
    assert (launch.interface, launch.size, launch.is_by_srun) == (wire, 4, by_srun)
    assert not is_reporting_rank(environment)
    assert not launch.is_single_rank


@pytest.mark.parametrize("environment", [{}, BATCH, {"SLURM_STEP_NUM_TASKS": "4", **BATCH}, {"PMI_RANK": "1"}])
def test_environment_without_a_launcher_is_recognised(environment: Mapping[str, str]) -> None:
    assert not is_started_by_launcher(environment)
    assert is_reporting_rank(environment)


@pytest.mark.parametrize(
    "environment",
    [
        {**OPEN_MPI_SETS, "PMI_SIZE": "3", "PMI_RANK": "0"},
        {"PMI_SIZE": "0"},
        {"PMI_SIZE": "many"},
        {"OMPI_COMM_WORLD_SIZE": "-4"},
        {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "²"},
    ],
)
def test_conflicting_or_invalid_sizes_are_refused(environment: Mapping[str, str]) -> None:
    assert is_started_by_launcher(environment)
    assert is_reporting_rank(environment)
    with pytest.raises(RequestRefused):
        identify_launcher(environment)


def test_step_of_one_task_is_distinguished_from_one_rank_of_mpiexec() -> None:
    shell = {**STEP, "SLURM_STEP_NUM_TASKS": "1"}
    assert identify_launcher(shell).is_single_task_step
    assert identify_launcher({**shell, "PMI_SIZE": "1", "PMI_JOBID": "5.0"}).is_single_task_step
    for one in ({**HYDRA_SETS, "PMI_SIZE": "1"}, {**OPEN_MPI_SETS, "OMPI_COMM_WORLD_SIZE": "1"}):
        assert identify_launcher(one).is_single_rank
        assert not identify_launcher(one).is_single_task_step


def test_libraries_are_compatible_with_matching_launchers_only() -> None:
    fitting = {
        (wire, vendor, pmix)
        for wire in LauncherInterface
        for vendor in ("Open MPI", "MPICH", "Intel MPI", "unknown")
        for pmix in (False, True)
        if is_mpi_library_compatible(wire, vendor, pmix)
    }
    for wire in LauncherInterface:
        for pmix in (False, True):
            assert ((wire, "Open MPI", pmix) in fitting) == (
                wire in (LauncherInterface.OPEN_MPI, LauncherInterface.PMIX)
            )
            for vendor in ("MPICH", "Intel MPI"):
                assert ((wire, vendor, pmix) in fitting) == (
                    pmix or wire in (LauncherInterface.PMI, LauncherInterface.NOTHING)
                )
            assert (wire, "unknown", pmix) in fitting


def test_prefixes_of_conflicting_variables_depend_on_launcher() -> None:
    assert conflicting_variable_prefixes(LauncherInterface.PMI) == ("PMIX_",)
    assert conflicting_variable_prefixes(LauncherInterface.OPEN_MPI) == ("PMI_",)
    assert (
        conflicting_variable_prefixes(LauncherInterface.PMIX)
        == conflicting_variable_prefixes(LauncherInterface.NOTHING)
        == ()
    )


def test_candidate_libraries_match_the_launcher() -> None:
    assert OPEN_MPI_LIBRARY in candidate_mpi_libraries(LauncherInterface.OPEN_MPI)
    assert OPEN_MPI_LIBRARY in candidate_mpi_libraries(LauncherInterface.PMIX)
    for wire in (LauncherInterface.PMI, LauncherInterface.NOTHING):
        found = list(candidate_mpi_libraries(wire))
        assert found[-1] == "libmpi.so.12"
        if HYDRA.exists():
            assert str(Path(sys.prefix, "lib", "libmpi.so.12")) in found


@pytest.mark.skipif(not HYDRA.exists(), reason="no MPICH")
def test_mpi_init_that_never_returns_is_ended_with_one_line() -> None:
    """Rank 1 never comes. MPI_Init holds the interpreter's lock, so that no thread of Python's could end it.

    The status is told by the parent of what waits: hydra hands on that of the rank that it kills if that ends first.
    """
    pytest.importorskip("mpi4py")
    waiting = (
        "from pcopy.engine.transports import mpi\n"
        "mpi.initialise_mpi(1.0, 'pcopy: nobody else is here\\n')\n"
    )  # fmt: skip
    program = (
        "import os, subprocess, sys, time\n"
        "if os.environ['PMI_RANK'] == '1':\n"
        "    time.sleep(60)\n"
        "run = subprocess.run([sys.executable, '-c', sys.argv[1]], close_fds=False)\n"
        "print(f'status {run.returncode}')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    begun = time.monotonic()
    run = subprocess.run(
        [HYDRA, "-n", "2", sys.executable, "-c", program, waiting],
        check=False,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )
    assert run.stdout.startswith(b"status 2\n"), run.stdout
    assert run.stderr == b"pcopy: nobody else is here\n"
    assert time.monotonic() - begun < 20


def test_deadline_that_is_met_has_no_effect() -> None:
    pytest.importorskip("mpi4py")
    program = (
        "import signal, time\n"
        "from pcopy.engine.transports.mpi import exit_if_block_exceeds_time\n"
        "with exit_if_block_exceeds_time(0.2, 2, b'late'):\n"
        "    pass\n"
        "time.sleep(0.4)\n"
        "assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)\n"
        "signal.alarm(1)\n"
        "time.sleep(3)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], check=False, cwd=REPOSITORY, capture_output=True, timeout=60)
    assert run.returncode == -14  # SIGALRM does again what it did before
    assert run.stderr == b""
