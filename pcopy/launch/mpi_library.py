"""Selection of the MPI library that fits the launcher, before MPI is initialised.

A library that does not support the launcher's interface aborts the process in MPI_Init, or each rank sees itself alone
and would do the whole job.

mpi4py's wheels load the library when ``mpi4py.MPI`` is imported: that of MPI4PY_LIBMPI (paths separated by colons),
else libmpi.so, libmpi.so.12 (MPICH) or libmpi.so.40 (Open MPI) of the virtual environment, else of the system. They
select the extension module for its ABI. That cannot be undone, so another library requires a restart: the process
replaces itself (exec) with MPI4PY_LIBMPI set. It keeps its process id and its connections, so the launcher sees no
difference. An mpi4py that was built from source is bound to one library.
"""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType

from pcopy import libc
from pcopy.errors import RequestRefused
from pcopy.launch.launcher import Launch, LauncherInterface, conflicting_prefixes
from pcopy.text import printable_path

OPEN_MPI_VENDORS = ("Open MPI",)
MPICH_VENDORS = ("MPICH", "MPICH2", "Intel MPI", "MVAPICH", "MVAPICH2", "Cray MPICH")
"""Vendor names that ``MPI.get_vendor()`` returns for libraries with MPICH's ABI."""

_ADVICE = {
    LauncherInterface.OPEN_MPI: "install Open MPI's library, or use the mpiexec of the MPI that is loaded",
    LauncherInterface.PMI: "use the mpiexec of the MPI that is loaded; for Open MPI in Slurm: srun --mpi=pmix",
    LauncherInterface.PMIX: "for MPICH and its kin: srun --mpi=pmi2",
    LauncherInterface.NOTHING: "for Open MPI: srun --mpi=pmix; for MPICH and its kin: srun --mpi=pmi2",
}
_MPICH_SONAME = "libmpi.so.12"
_MODULE_OPTION = re.compile(r"-[bBdEhiIOPqRsSuvx?]*m")
"""Matches an option of Python that names a module, alone or after other options in one word, as ``-Bm``."""
_MAX_ANCESTORS = 4
"""Number of parent processes that are examined to find the launcher: there may be a shell, time, numactl and the
like between.
"""


def load_transport(launch: Launch, words: Sequence[str]) -> ModuleType:
    """Return the module ``transports.mpi`` with a library that fits ``launch``; raise ``RequestRefused`` if there is
    none.

    Replaces the process if another library fits; ``words`` are its command line arguments.
    """
    misleading = conflicting_prefixes(launch.interface)
    for name in [name for name in os.environ if name.startswith(misleading)]:
        del os.environ[
            name
        ]  # MPICH aborts if both PMI_ and PMIX_ variables exist, as under its mpiexec in srun --mpi=pmix.
    try:
        from pcopy.engine.transports import mpi
    except ModuleNotFoundError as error:
        python = printable_path(os.fsencode(sys.executable))
        reason = f"{python} has no package {error.name}; without mpiexec and srun pcopy needs no MPI"
    except (ImportError, RuntimeError, OSError) as error:
        _restart_with_other_library(launch, words)
        reason = str(error).partition("\n")[0]
        advice = _debian_mpich_advice(launch.interface, "")
        reason = f"mpi4py finds no MPI library that fits: {reason}{advice and f'; {advice}'}"
    else:
        if is_compatible(launch.interface, mpi.library_name(), mpi.is_linked_with_pmix()):
            return mpi
        if mpi.can_switch_library():
            _restart_with_other_library(launch, words)
        advice = _debian_mpich_advice(launch.interface, _ADVICE[launch.interface])
        reason = f"mpi4py loads {mpi.library_name()}, which doesn't fit: {advice}"
    raise RequestRefused(f"{launch.started_text}, but {reason}")


def is_compatible(wire: LauncherInterface, vendor: str, speaks_pmix: bool) -> bool:
    """True if the library can find the other ranks by this interface, or at least finds out that it cannot
    without an abort.
    """
    if vendor in OPEN_MPI_VENDORS:
        return wire in (LauncherInterface.OPEN_MPI, LauncherInterface.PMIX)
    if vendor in MPICH_VENDORS:
        return wire in (LauncherInterface.PMI, LauncherInterface.NOTHING) or speaks_pmix
    return True


def wrong_size(launch: Launch, vendor: str, size: int) -> RequestRefused:
    """Return the error for a COMM_WORLD whose size differs from the launcher's number of ranks."""
    return RequestRefused(f"{launch.started_text}, but MPI ({vendor}) sees {size}: {_ADVICE[launch.interface]}")


def _restart_with_other_library(launch: Launch, words: Sequence[str]) -> None:
    """Replace this process by one with the next library that could fit; return if there is none."""
    if not sys.executable or list(words) != sys.argv[1:]:
        return
    tried = os.environ.get("MPI4PY_LIBMPI")
    libraries = candidate_libraries(launch.interface)
    for library in libraries[libraries.index(tried) + 1 :] if tried in libraries else libraries:
        if _is_library_compatible(library, launch.interface):
            os.environ.pop("MPI4PY_MPIABI", None)
            os.environ["MPI4PY_LIBMPI"] = library
            sys.stdout.flush()
            os.execv(sys.executable, [sys.executable, *_safe_path_option(), *sys.orig_argv[1:]])


def _safe_path_option() -> Sequence[str]:
    """Return the option -P, without which ``python -m pcopy`` would load a ``pcopy.py`` of the working directory.

    It is omitted if the package itself is in the working directory, as in a checkout.
    """
    packages = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    of_python = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv[1:])]
    is_module = any(_MODULE_OPTION.match(word) for word in of_python)
    return ["-P"] if is_module and os.path.realpath(os.curdir) != os.path.realpath(packages) else []


def candidate_libraries(wire: LauncherInterface) -> list[str]:
    """Return libraries that may fit, the likeliest first: those of the launcher, then those that the system and
    Python would find.
    """
    soname = "libmpi.so.40" if wire in (LauncherInterface.OPEN_MPI, LauncherInterface.PMIX) else _MPICH_SONAME
    return list(dict.fromkeys((*_installed_libraries(soname), soname)))


def _installed_libraries(soname: str) -> Iterator[str]:
    """Yield libraries of this name in the usual directories, those of the launcher first."""
    prefixes = [
        *_parent_prefixes(),
        *filter(None, [os.environ.get("OPAL_PREFIX"), os.environ.get("MPI_HOME")]),
        sys.prefix,
    ]
    for prefix in prefixes:
        for directory in ("lib", "lib64", "lib/*-linux-gnu", "lib/release", "lib/openmpi/lib", "lib64/openmpi/lib"):
            yield from sorted(glob.glob(os.path.join(glob.escape(prefix), directory, soname)))


def _debian_mpich_advice(wire: LauncherInterface, other: str) -> str:
    """Return how to make Debian's MPICH available if it is installed; otherwise ``other``.

    Debian installs it under another name than libmpi.so.12, by which mpi4py's wheels look for it.
    """
    renamed = next(_installed_libraries("libmpich.so.12"), "") if wire is LauncherInterface.PMI else ""
    if not renamed:
        return other
    link = f"mkdir DIR && ln -s {printable_path(os.fsencode(renamed))} DIR/{_MPICH_SONAME}"
    return f"Debian's MPICH is installed under another name: {link}, and start again with DIR in LD_LIBRARY_PATH"


def _parent_prefixes() -> Iterator[str]:
    """Yield the installation prefixes of the parent processes: /opt/mpi for /opt/mpi/bin/hydra_pmi_proxy."""
    pid = os.getppid()
    for _ in range(_MAX_ANCESTORS):
        try:
            program = os.readlink(f"/proc/{pid}/exe")
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return
        yield os.path.dirname(os.path.dirname(program))


def _is_library_compatible(library: str, wire: LauncherInterface) -> bool:
    """True if the library can be loaded and fits the interface. Its symbols are checked, since its file name
    proves nothing.
    """
    try:
        found = libc.defined_symbols(library, ["MPI_Get_library_version", "ompi_mpi_comm_self", "PMIx_Init"])
    except OSError:
        return False
    if "MPI_Get_library_version" not in found:
        return False
    vendor = OPEN_MPI_VENDORS[0] if "ompi_mpi_comm_self" in found else MPICH_VENDORS[0]
    return is_compatible(wire, vendor, "PMIx_Init" in found)
