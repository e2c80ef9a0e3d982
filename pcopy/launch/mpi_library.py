"""Selection of the MPI library that fits the launcher, before MPI is initialised.

An MPI library learns from the launcher which ranks there are, by an interface such as PMI or PMIx. A library that does
not support the launcher's interface aborts the process in MPI_Init, or each rank sees only itself and would do the
whole job.

mpi4py's wheels load the library when ``mpi4py.MPI`` is imported: that of MPI4PY_LIBMPI (paths separated by colons),
else libmpi.so, libmpi.so.12 (MPICH) or libmpi.so.40 (Open MPI) of the virtual environment, else of the system. Then
they load the extension module for the library's ABI. That cannot be undone, so another library requires a restart: the
process replaces itself (exec) with MPI4PY_LIBMPI set. It keeps its process id and its connections, so the launcher sees
no difference. An mpi4py that was built from source is bound to one library.
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
from pcopy.launch.launcher import LauncherInfo, LauncherInterface, conflicting_variable_prefixes
from pcopy.text import printable_path

OPEN_MPI_VENDORS = ("Open MPI",)
"""Vendor names that ``MPI.get_vendor()`` returns for libraries with Open MPI's ABI."""
MPICH_VENDORS = ("MPICH", "MPICH2", "Intel MPI", "MVAPICH", "MVAPICH2", "Cray MPICH")
"""Vendor names that ``MPI.get_vendor()`` returns for libraries with MPICH's ABI."""

_ADVICE_FOR_INTERFACE = {
    LauncherInterface.OPEN_MPI: "install Open MPI's library, or use the mpiexec of the MPI that is loaded",
    LauncherInterface.PMI: "use the mpiexec of the MPI that is loaded; for Open MPI in Slurm: srun --mpi=pmix",
    LauncherInterface.PMIX: "for MPICH and its kin: srun --mpi=pmi2",
    LauncherInterface.NOTHING: "for Open MPI: srun --mpi=pmix; for MPICH and its kin: srun --mpi=pmi2",
}
_MPICH_SONAME = "libmpi.so.12"
_MODULE_OPTION = re.compile(r"-[bBdEhiIOPqRsSuvx?]*m")
"""Matches an option of the Python interpreter after which a module is named: ``-m``, alone or after other options in
one word (``-Bm``).
"""
_MAX_ANCESTORS = 4
"""Number of ancestor processes that are examined to find the launcher: between the launcher and this process there may
be a shell, time, numactl and the like.
"""


def load_mpi_transport(launch: LauncherInfo, words: Sequence[str]) -> ModuleType:
    """Import the module ``pcopy.engine.transports.mpi``, and with it an MPI library that supports the launcher's
    interface; return the module. Raise ``RequestRefused`` if there is no such library.

    If the imported library does not support it, and another one may, the process is replaced (exec) and starts again
    with the other one; ``words`` are its command line arguments.
    """
    misleading = conflicting_variable_prefixes(launch.interface)
    for name in [name for name in os.environ if name.startswith(misleading)]:
        del os.environ[
            name
        ]  # MPICH aborts if both PMI_ and PMIX_ variables exist, as under its mpiexec in srun --mpi=pmix.
    try:
        from pcopy.engine.transports import mpi
    except ModuleNotFoundError as error:
        package = f"{error.name}: pip install {error.name}"
        reason = f"this needs the Python package {package}; without mpiexec and srun pcopy needs no MPI"
    except (ImportError, RuntimeError, OSError) as error:
        _restart_with_other_library(launch, words)
        reason = str(error).partition("\n")[0]
        advice = _debian_mpich_advice(launch.interface, "")
        reason = f"mpi4py finds no MPI library that fits: {reason}{advice and f'; {advice}'}"
    else:
        if is_mpi_library_compatible(launch.interface, mpi.mpi_library_name(), mpi.is_mpi_linked_with_pmix()):
            return mpi
        if mpi.can_switch_mpi_library():
            _restart_with_other_library(launch, words)
        advice = _debian_mpich_advice(launch.interface, _ADVICE_FOR_INTERFACE[launch.interface])
        reason = f"mpi4py loads {mpi.mpi_library_name()}, which doesn't fit: {advice}"
    raise RequestRefused(f"{launch.launcher_started_text}, but {reason}")


def is_mpi_library_compatible(interface: LauncherInterface, vendor: str, speaks_pmix: bool) -> bool:
    """Return True if an MPI library can be used under a launcher with the interface ``interface``: it finds the other
    ranks, or at least does not abort the process (``wrong_rank_count_error`` then reports that it sees a single rank).

    Args:
        interface: interface of the launcher.
        vendor: vendor name of the library, as mpi4py returns it.
        speaks_pmix: True if the library is linked with PMIx.
    """
    if vendor in OPEN_MPI_VENDORS:
        return interface in (LauncherInterface.OPEN_MPI, LauncherInterface.PMIX)
    if vendor in MPICH_VENDORS:
        return interface in (LauncherInterface.PMI, LauncherInterface.NOTHING) or speaks_pmix
    return True


def wrong_rank_count_error(launch: LauncherInfo, vendor: str, size: int) -> RequestRefused:
    """Return the error for an MPI library that sees another number of ranks (``size``) than the launcher has started.
    ``vendor`` is the name of the library.
    """
    return RequestRefused(
        f"{launch.launcher_started_text}, but MPI ({vendor}) sees {size}: {_ADVICE_FOR_INTERFACE[launch.interface]}"
    )


def _restart_with_other_library(launch: LauncherInfo, words: Sequence[str]) -> None:
    """Replace this process (exec) by one that loads another MPI library: the next one in the list of libraries that
    could support the launcher's interface. Return if there is none left, or if the command line cannot be repeated.
    """
    if not sys.executable or list(words) != sys.argv[1:] or not _does_mpi4py_choose_library():
        return
    tried = os.environ.get("MPI4PY_LIBMPI")
    libraries = candidate_mpi_libraries(launch.interface)
    for library in libraries[libraries.index(tried) + 1 :] if tried in libraries else libraries:
        if _is_library_file_compatible(library, launch.interface):
            os.environ.pop("MPI4PY_MPIABI", None)
            os.environ["MPI4PY_LIBMPI"] = library
            sys.stdout.flush()
            os.execv(sys.executable, [sys.executable, *_safe_path_option(), *sys.orig_argv[1:]])


def _does_mpi4py_choose_library() -> bool:
    """Return True if mpi4py knows the variable MPI4PY_LIBMPI: versions before 4.1 do not."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = re.match(r"(\d+)\.(\d+)", version("mpi4py"))
    except PackageNotFoundError:
        return False
    return found is not None and (int(found[1]), int(found[2])) >= (4, 1)


def _safe_path_option() -> Sequence[str]:
    """Return the option -P, without which ``python -m pcopy`` would load a ``pcopy.py`` of the working directory.

    It is omitted if the package itself is in the working directory, as in a checkout.
    """
    packages = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    of_python = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv[1:])]
    is_module = any(_MODULE_OPTION.match(word) for word in of_python)
    return ["-P"] if is_module and os.path.realpath(os.curdir) != os.path.realpath(packages) else []


def candidate_mpi_libraries(interface: LauncherInterface) -> list[str]:
    """Return paths or names of MPI libraries that may support the launcher's interface ``interface``, the likeliest
    first: those in the installation of the launcher, then those of the environment, of Python and of the system.
    """
    soname = "libmpi.so.40" if interface in (LauncherInterface.OPEN_MPI, LauncherInterface.PMIX) else _MPICH_SONAME
    return list(dict.fromkeys((*_installed_libraries(soname), soname)))


def _installed_libraries(soname: str) -> Iterator[str]:
    """Yield the paths of existing libraries with the file name ``soname`` in the usual directories, those of the
    launcher's installation first.
    """
    prefixes = [
        *_installation_prefixes_of_parents(),
        *filter(None, [os.environ.get("OPAL_PREFIX"), os.environ.get("MPI_HOME")]),
        sys.prefix,
    ]
    for prefix in prefixes:
        for directory in ("lib", "lib64", "lib/*-linux-gnu", "lib/release", "lib/openmpi/lib", "lib64/openmpi/lib"):
            yield from sorted(glob.glob(os.path.join(glob.escape(prefix), directory, soname)))


def _debian_mpich_advice(interface: LauncherInterface, other: str) -> str:
    """Return advice how to make Debian's MPICH available, if it is installed and supports the launcher's interface
    ``interface``; otherwise the advice ``other``.

    Debian installs it under another name than libmpi.so.12, by which mpi4py's wheels look for it.
    """
    renamed = next(_installed_libraries("libmpich.so.12"), "") if interface is LauncherInterface.PMI else ""
    if not renamed:
        return other
    link = f"mkdir DIR && ln -s {printable_path(os.fsencode(renamed))} DIR/{_MPICH_SONAME}"
    return f"Debian's MPICH is installed under another name: {link}, and start again with DIR in LD_LIBRARY_PATH"


def _installation_prefixes_of_parents() -> Iterator[str]:
    """Yield the installation directories of the programs that run as parent processes, one of which is the launcher:
    /opt/mpi for /opt/mpi/bin/hydra_pmi_proxy.
    """
    pid = os.getppid()
    for _ in range(_MAX_ANCESTORS):
        try:
            program = os.readlink(f"/proc/{pid}/exe")
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return
        yield os.path.dirname(os.path.dirname(program))


def _is_library_file_compatible(library: str, interface: LauncherInterface) -> bool:
    """Return True if the file ``library`` can be loaded as an MPI library and supports the launcher's interface
    ``interface``. The symbols of the library are checked, since its file name proves nothing.
    """
    try:
        found = libc.symbols_defined_in_library(library, ["MPI_Get_library_version", "ompi_mpi_comm_self", "PMIx_Init"])
    except OSError:
        return False
    if "MPI_Get_library_version" not in found:
        return False
    vendor = OPEN_MPI_VENDORS[0] if "ompi_mpi_comm_self" in found else MPICH_VENDORS[0]
    return is_mpi_library_compatible(interface, vendor, "PMIx_Init" in found)
