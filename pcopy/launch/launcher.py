"""Which launcher started this process, with how many ranks, and which MPI library fits it?

The rule: OMPI_COMM_WORLD_SIZE counts, else PMI_SIZE, else, inside a step of Slurm (SLURM_STEP_ID is set),
SLURM_STEP_NUM_TASKS. SLURM_NTASKS and SLURM_PROCID never count, because a batch script has them too. Nothing here
imports MPI: without a launcher the start stays quick.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from pcopy.errors import Refused
from pcopy.named import NamedTuple

_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


class Wire(Enum):
    """How a launcher tells the ranks of each other; a library that doesn't speak it finds itself alone, or aborts."""

    OPEN_MPI = "Open MPI"
    PMI = "PMI"
    PMIX = "PMIx"
    NOTHING = "nothing"
    """``srun --mpi=none``: only a library that was built with Slurm's own can find the others."""


class Launch(NamedTuple):
    """What a launcher has started: ``size`` ranks."""

    wire: Wire
    size: int
    by_srun: bool

    @property
    def name(self) -> str:
        """The launcher, for people."""
        if self.by_srun:
            return {Wire.PMI: "srun --mpi=pmi2", Wire.PMIX: "srun --mpi=pmix"}.get(self.wire, "srun --mpi=none")
        return "Open MPI's mpiexec" if self.wire is Wire.OPEN_MPI else "mpiexec (of MPICH or its kin)"

    @property
    def alone(self) -> bool:
        """A single rank needs no MPI."""
        return self.size == 1

    @property
    def is_plain(self) -> bool:
        """A step of one task is what a shell of ``srun --pty`` is, too: pcopy forks there as it does anywhere."""
        return self.alone and self.by_srun

    @property
    def started(self) -> str:
        return f"{self.name} has started {self.size} ranks"


def is_launched(environment: Mapping[str, str]) -> bool:
    """Was this process started by mpiexec or srun, well or badly?"""
    return bool(_sizes(environment))


def speaks(environment: Mapping[str, str]) -> bool:
    """Is this the one rank that answers where all ranks know the same?

    If an outer launcher has left a rank's number, the same for all, that of the inner one decides, or all speak.
    """
    names = [name for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK") if environment.get(name)]
    if not names and environment.get("SLURM_STEP_ID"):
        names = ["SLURM_PROCID"]
    return not is_launched(environment) or not names or "0" in [environment.get(name, "0") for name in names]


def identify(environment: Mapping[str, str]) -> Launch:
    """The launch that this process is part of; ``is_launched`` has said that there is one. Raises ``Refused``."""
    sizes: dict[int, str] = {}
    for name in _sizes(environment):
        value = environment[name]
        if not (value.isascii() and value.isdecimal()) or not int(value):
            raise Refused(f"{name}={value}: not a number of ranks; unset it, or start pcopy by its launcher")
        sizes[int(value)] = name
    if len(sizes) > 1:
        told = " and ".join(f"{name}={size}" for size, name in sizes.items())
        raise Refused(f"{told} differ: start pcopy by one launcher only, or unset what another one has left")
    wire = _wire(environment)
    # mpiexec starts its own daemons by srun, so that a step alone doesn't tell.
    by_srun = bool(environment.get("SLURM_STEP_ID")) and (
        wire in (Wire.PMIX, Wire.NOTHING) or (wire is Wire.PMI and "HYDI_CONTROL_FD" not in environment)
    )
    return Launch(wire, next(iter(sizes)), by_srun)


def _sizes(environment: Mapping[str, str]) -> list[str]:
    """The names of the variables that count."""
    names = [name for name in _SIZES if environment.get(name)]
    if not names and environment.get("SLURM_STEP_ID") and environment.get("SLURM_STEP_NUM_TASKS"):
        names = ["SLURM_STEP_NUM_TASKS"]
    return names


def _wire(environment: Mapping[str, str]) -> Wire:
    if environment.get("OMPI_COMM_WORLD_SIZE"):
        return Wire.OPEN_MPI
    if environment.get("PMI_SIZE"):
        return Wire.PMI
    return Wire.PMIX if environment.get("PMIX_NAMESPACE") else Wire.NOTHING


def conflicting(wire: Wire) -> tuple[str, ...]:
    """How the names of variables begin that another launcher has left and that would mislead the library."""
    return {Wire.OPEN_MPI: ("PMI_",), Wire.PMI: ("PMIX_",)}.get(wire, ())
