"""Finds out from the environment which launcher (mpiexec, srun) started this process, with how many ranks, and by which
interface the ranks find each other.

The number of ranks is OMPI_COMM_WORLD_SIZE and PMI_SIZE, which must agree if both are set; else, in a Slurm step
(SLURM_STEP_ID is set), SLURM_STEP_NUM_TASKS. SLURM_NTASKS and SLURM_PROCID do not show a launcher, because a batch
script has them, too. This module does not import MPI, so that a start without a launcher is quick.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from pcopy.errors import RequestRefused
from pcopy.fast_named_tuple import NamedTuple

_SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


class LauncherInterface(Enum):
    """Interface by which an MPI library learns from the launcher which ranks there are.

    A library that does not support the launcher's interface sees a single rank, or aborts.
    """

    OPEN_MPI = "Open MPI"
    PMI = "PMI"
    PMIX = "PMIx"
    NOTHING = "nothing"
    """``srun --mpi=none``: only a library that was built with Slurm's own interface can find the other ranks."""


class LauncherInfo(NamedTuple):
    """What the environment says about the launcher (mpiexec, srun) of this process: the interface by which MPI finds
    the other ranks, the number ``size`` of ranks that it has started, and whether it is srun.
    """

    interface: LauncherInterface
    size: int
    is_by_srun: bool

    @property
    def name(self) -> str:
        """Name of the launcher in messages, such as "Open MPI's mpiexec"."""
        if self.is_by_srun:
            return {LauncherInterface.PMI: "srun --mpi=pmi2", LauncherInterface.PMIX: "srun --mpi=pmix"}.get(
                self.interface, "srun --mpi=none"
            )
        return "Open MPI's mpiexec" if self.interface is LauncherInterface.OPEN_MPI else "mpiexec (of MPICH or its kin)"

    @property
    def is_single_rank(self) -> bool:
        """True if the launcher has started a single rank, which needs no MPI."""
        return self.size == 1

    @property
    def is_single_task_step(self) -> bool:
        """True for a Slurm step with one task, such as a shell of ``srun --pty``: pcopy forks its ranks there, as
        without a launcher.
        """
        return self.is_single_rank and self.is_by_srun

    @property
    def launcher_started_text(self) -> str:
        """Beginning of a message about the launcher: "NAME has started N ranks"."""
        return f"{self.name} has started {self.size} ranks"


def is_started_by_launcher(environment: Mapping[str, str]) -> bool:
    """Return True if mpiexec or srun started this process: one of their variables is set, even if its value is
    invalid.
    """
    return bool(_rank_count_variables(environment))


def is_reporting_rank(environment: Mapping[str, str]) -> bool:
    """Return True if this process is to print a message that concerns all ranks: it is rank 0, or was not started by a
    launcher.

    If a launcher was started within another one, the environment also has the rank number of the outer one, the same
    for all ranks. So a process is taken for rank 0 if any of the numbers is 0: it may happen that all ranks print.
    """
    names = [name for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK") if environment.get(name)]
    if not names and environment.get("SLURM_STEP_ID"):
        names = ["SLURM_PROCID"]
    return not is_started_by_launcher(environment) or not names or "0" in [environment.get(name, "0") for name in names]


def identify_launcher(environment: Mapping[str, str]) -> LauncherInfo:
    """Return which launcher has started this process, with how many ranks. Only called if ``is_started_by_launcher``
    returns True.

    Raise ``RequestRefused`` if a number of ranks in the environment is invalid, or if two numbers differ.
    """
    sizes: dict[int, str] = {}
    for name in _rank_count_variables(environment):
        value = environment[name]
        if not (value.isascii() and value.isdecimal()) or not int(value):
            raise RequestRefused(
                f"{name}={value}: not a number of ranks; unset {name}, or start pcopy by the launcher that sets {name}"
            )
        sizes[int(value)] = name
    if len(sizes) > 1:
        assignments = " and ".join(f"{name}={size}" for size, name in sizes.items())
        raise RequestRefused(
            f"{assignments} differ: start pcopy by one launcher only, or unset the variables of the other one"
        )
    wire = _launcher_interface(environment)
    # mpiexec starts its own daemons by srun, so a step alone does not show which launcher it is.
    by_srun = bool(environment.get("SLURM_STEP_ID")) and (
        wire in (LauncherInterface.PMIX, LauncherInterface.NOTHING)
        or (wire is LauncherInterface.PMI and "HYDI_CONTROL_FD" not in environment)
    )
    return LauncherInfo(wire, next(iter(sizes)), by_srun)


def _rank_count_variables(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the variables in ``environment`` in which a launcher (mpiexec, srun) gives the number of
    ranks; an empty list without a launcher.
    """
    names = [name for name in _SIZE_VARIABLES if environment.get(name)]
    if not names and environment.get("SLURM_STEP_ID") and environment.get("SLURM_STEP_NUM_TASKS"):
        names = ["SLURM_STEP_NUM_TASKS"]
    return names


def _launcher_interface(environment: Mapping[str, str]) -> LauncherInterface:
    """Return the interface by which MPI learns from the launcher of this process which ranks there are."""
    if environment.get("OMPI_COMM_WORLD_SIZE"):
        return LauncherInterface.OPEN_MPI
    if environment.get("PMI_SIZE"):
        return LauncherInterface.PMI
    return LauncherInterface.PMIX if environment.get("PMIX_NAMESPACE") else LauncherInterface.NOTHING


def conflicting_variable_prefixes(interface: LauncherInterface) -> tuple[str, ...]:
    """Return prefixes of environment variables that must be removed before MPI is initialised, because they mislead a
    library that uses the interface ``interface``. An outer launcher or Slurm may have set them.
    """
    return {LauncherInterface.OPEN_MPI: ("PMI_",), LauncherInterface.PMI: ("PMIX_",)}.get(interface, ())
