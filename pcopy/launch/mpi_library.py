"""The MPI library that fits the launcher, looked for before MPI is initialised.

Why before: a library that can't speak with the launcher aborts the process inside MPI_Init, or each rank finds itself
alone and would do the whole job.

mpi4py's wheels load the library when ``mpi4py.MPI`` is imported: that of MPI4PY_LIBMPI (paths separated by colons),
else libmpi.so, libmpi.so.12 (MPICH) or libmpi.so.40 (Open MPI) of the virtual environment, else of the system; they
take the extension module for its ABI. That can't be undone, so another library needs a new start: the process
replaces itself, with MPI4PY_LIBMPI set. It keeps its number and its connections, and the launcher sees no difference.
An mpi4py that was built from source has one library for ever.
"""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType

from pcopy import libc
from pcopy.errors import Refused
from pcopy.launch.launcher import Launch, Wire, conflicting
from pcopy.text import shown

OPEN_MPI = ("Open MPI",)
MPICH_AND_KIN = ("MPICH", "MPICH2", "Intel MPI", "MVAPICH", "MVAPICH2", "Cray MPICH")
"""The names that ``MPI.get_vendor()`` gives to libraries with MPICH's ABI."""

_ADVICE = {
    Wire.OPEN_MPI: "install Open MPI's library, or use the mpiexec of the MPI that is loaded",
    Wire.PMI: "use the mpiexec of the MPI that is loaded; for Open MPI in Slurm: srun --mpi=pmix",
    Wire.PMIX: "for MPICH and its kin: srun --mpi=pmi2",
    Wire.NOTHING: "for Open MPI: srun --mpi=pmix; for MPICH and its kin: srun --mpi=pmi2",
}
_MPICH = "libmpi.so.12"
_MODULE = re.compile(r"-[bBdEhiIOPqRsSuvx?]*m")
"""An option of Python that names a module, alone or after others in one word, as ``-Bm``."""
_ANCESTORS = 4
"""Processes between a rank and its launcher: a shell script, time, numactl and the like."""


def load(launch: Launch, words: Sequence[str]) -> ModuleType:
    """The module ``transports.mpi`` with a library that fits ``launch``; raises ``Refused`` if there is none.

    Replaces the process where another library fits; ``words`` are its arguments.
    """
    misleading = conflicting(launch.wire)
    for name in [name for name in os.environ if name.startswith(misleading)]:
        del os.environ[name]  # MPICH aborts when it finds PMI_ and PMIX_, as under its mpiexec in srun --mpi=pmix
    try:
        from pcopy.engine.transports import mpi
    except ModuleNotFoundError as error:
        python = shown(os.fsencode(sys.executable))
        why = f"{python} has no package {error.name}; without mpiexec and srun pcopy needs no MPI"
    except (ImportError, RuntimeError, OSError) as error:
        _start_anew(launch, words)
        reason = str(error).partition("\n")[0]
        advice = _advice(launch.wire, "")
        why = f"mpi4py finds no MPI library that fits: {reason}{advice and f'; {advice}'}"
    else:
        if fits(launch.wire, mpi.vendor(), mpi.speaks_pmix()):
            return mpi
        if mpi.is_switchable():
            _start_anew(launch, words)
        why = f"mpi4py loads {mpi.vendor()}, which doesn't fit: {_advice(launch.wire, _ADVICE[launch.wire])}"
    raise Refused(f"{launch.started}, but {why}")


def fits(wire: Wire, vendor: str, speaks_pmix: bool) -> bool:
    """Can the library find the other ranks, or at least find out without an abort that it can't?"""
    if vendor in OPEN_MPI:
        return wire in (Wire.OPEN_MPI, Wire.PMIX)
    if vendor in MPICH_AND_KIN:
        return wire in (Wire.PMI, Wire.NOTHING) or speaks_pmix
    return True


def alone(launch: Launch, vendor: str, size: int) -> Refused:
    """What to tell when COMM_WORLD doesn't have the size that the launcher told."""
    return Refused(f"{launch.started}, but MPI ({vendor}) sees {size}: {_ADVICE[launch.wire]}")


def _start_anew(launch: Launch, words: Sequence[str]) -> None:
    """Replaces this process by one with the next library that could fit; returns if there is none."""
    if not sys.executable or list(words) != sys.argv[1:]:
        return
    tried = os.environ.get("MPI4PY_LIBMPI")
    choice = candidates(launch.wire)
    for library in choice[choice.index(tried) + 1 :] if tried in choice else choice:
        if _is_of_kind(library, launch.wire):
            os.environ.pop("MPI4PY_MPIABI", None)
            os.environ["MPI4PY_LIBMPI"] = library
            sys.stdout.flush()
            os.execv(sys.executable, [sys.executable, *_safe_path(), *sys.orig_argv[1:]])


def _safe_path() -> Sequence[str]:
    """Return the option without which ``python -m pcopy`` would load a ``pcopy.py`` of the working directory.

    It is left out where the package itself is in the working directory, as in a checkout.
    """
    packages = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    of_python = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv[1:])]
    is_module = any(_MODULE.match(word) for word in of_python)
    return ["-P"] if is_module and os.path.realpath(os.curdir) != os.path.realpath(packages) else []


def candidates(wire: Wire) -> list[str]:
    """Libraries that may fit, the likeliest first: beside the launcher, then where the system and Python look."""
    soname = "libmpi.so.40" if wire in (Wire.OPEN_MPI, Wire.PMIX) else _MPICH
    return list(dict.fromkeys((*_installed(soname), soname)))


def _installed(soname: str) -> Iterator[str]:
    prefixes = [*_launchers(), *filter(None, [os.environ.get("OPAL_PREFIX"), os.environ.get("MPI_HOME")]), sys.prefix]
    for prefix in prefixes:
        for directory in ("lib", "lib64", "lib/*-linux-gnu", "lib/release", "lib/openmpi/lib", "lib64/openmpi/lib"):
            yield from sorted(glob.glob(os.path.join(glob.escape(prefix), directory, soname)))


def _advice(wire: Wire, other: str) -> str:
    """How to make Debian's MPICH known, if that is there; else ``other``.

    It has a name of its own, while what mpi4py's wheels load asks the system for libmpi.so.12 by that name.
    """
    renamed = next(_installed("libmpich.so.12"), "") if wire is Wire.PMI else ""
    if not renamed:
        return other
    link = f"mkdir DIR && ln -s {shown(os.fsencode(renamed))} DIR/{_MPICH}"
    return f"Debian's MPICH is there under another name: {link}, and start again with DIR in LD_LIBRARY_PATH"


def _launchers() -> Iterator[str]:
    """The prefixes of the programs that started this process: /opt/mpi of /opt/mpi/bin/hydra_pmi_proxy."""
    pid = os.getppid()
    for _ in range(_ANCESTORS):
        try:
            program = os.readlink(f"/proc/{pid}/exe")
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return
        yield os.path.dirname(os.path.dirname(program))


def _is_of_kind(library: str, wire: Wire) -> bool:
    """Can it be loaded, and would it fit? Asked of the library itself, for a file's name may be anybody's."""
    try:
        found = libc.symbols_of(library, ["MPI_Get_library_version", "ompi_mpi_comm_self", "PMIx_Init"])
    except OSError:
        return False
    if "MPI_Get_library_version" not in found:
        return False
    vendor = OPEN_MPI[0] if "ompi_mpi_comm_self" in found else MPICH_AND_KIN[0]
    return fits(wire, vendor, "PMIx_Init" in found)
