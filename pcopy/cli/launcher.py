"""Which launcher started this process, and how many ranks it was asked for."""

from __future__ import annotations

from collections.abc import Mapping

from pcopy.errors import Refused

_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def expected_size(environment: Mapping[str, str]) -> int:
    """The number of ranks that mpiexec or srun started, 0 if neither did; raises ``Refused``.

    A batch script sees SLURM_NTASKS and SLURM_PROCID too: only a step (srun) counts.
    """
    names = [name for name in _SIZES if environment.get(name)]
    if not names and environment.get("SLURM_STEP_ID") and environment.get("SLURM_STEP_NUM_TASKS"):
        names = ["SLURM_STEP_NUM_TASKS"]
    sizes: dict[int, str] = {}
    for name in names:
        value = environment[name]
        if not value.isdecimal() or not int(value):
            raise Refused(f"{name}={value}: not a number of ranks; unset it, or start pcopy by its launcher")
        sizes[int(value)] = name
    if len(sizes) > 1:
        told = " and ".join(f"{name}={size}" for size, name in sizes.items())
        raise Refused(f"{told} differ: start pcopy by one launcher only")
    return next(iter(sizes), 0)
