"""Every launcher with every library: one job, or one line and status 2; never N copies, never an abort in MPI_Init."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.launchers import NAMES, OPEN_MPI_LIBRARY, Launchers, assert_refused, reported
from tests.support.command import REPOSITORY, Completed, pcopy, show, summary
from tests.support.oracle import differences
from tests.support.users import require_root

MPICH_LIBRARY = Path(sys.prefix, "lib", "libmpi.so.12")
LIBRARIES = {"as it comes": None, "MPICH": str(MPICH_LIBRARY), "Open MPI": OPEN_MPI_LIBRARY}
HIDING = [
    "unshare",
    "--mount",
    "sh",
    "-c",
    'for file in $HIDDEN; do mount --bind /dev/null $file; done; exec "$@"',
    "sh",
]
"""Put before a program it hides the files of the variable HIDDEN."""


def require(library: str) -> None:
    if library == "MPICH" and not MPICH_LIBRARY.exists():
        pytest.skip(f"no MPICH: {MPICH_LIBRARY} doesn't exist")
    if library == "Open MPI" and not open_mpi_libraries():
        pytest.skip("no library of Open MPI")


def open_mpi_libraries() -> list[str]:
    reported = subprocess.run(["/sbin/ldconfig", "-p"], check=False, capture_output=True, text=True).stdout
    return sorted({os.path.realpath(line.split()[-1]) for line in reported.splitlines() if OPEN_MPI_LIBRARY in line})


def assert_one_job(run: Completed, source: Path, target: Path, ranks: int) -> None:
    """All ranks worked at one job, and one of them told of it."""
    assert run.returncode == 0, show(run)
    assert reported(run) == [], show(run)
    assert summary(run)["ranks"] == ranks
    assert differences(source, target) == []


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", NAMES)
def test_every_launcher_with_every_library_runs_one_job(
    launchers: Launchers, area: Path, source: Path, name: str, library: str
) -> None:
    """With the wrong library, too, because the fitting one is here and pcopy takes it."""
    require(library)
    chosen = LIBRARIES[library]
    env = {} if chosen is None else {"MPI4PY_LIBMPI": chosen}
    run = launchers.run(name, 2, "--json", "-q", source, area / "copy", env=env)
    assert_one_job(run, source, area / "copy", 2)


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("name", ["hydra", "open_mpi", "pmix"])
def test_launcher_without_a_compatible_library_is_refused(
    launchers: Launchers, area: Path, source: Path, name: str
) -> None:
    require_root("hide a library")
    wanted = "MPICH" if name in ("hydra", "pmi2") else "Open MPI"
    require("MPICH")
    require("Open MPI")
    hidden = [str(MPICH_LIBRARY)] if wanted == "MPICH" else open_mpi_libraries()
    # What mpi4py finds first by itself is what the machine's alternatives name, if anything.
    other = "MPICH" if wanted == "Open MPI" else "Open MPI"
    env = {"HIDDEN": " ".join(hidden), "MPI4PY_LIBMPI": str(LIBRARIES[other])}
    run = launchers.run(name, 3, source, area / "copy", env=env, wrap=HIDING)
    assert_refused(run, "has started 3 ranks", other)
    assert not (area / "copy").exists()


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("loaded", ["libmpi.so.40", "/nowhere"])
def test_refusal_explains_how_to_use_debian_name_of_mpich(
    launchers: Launchers, area: Path, source: Path, loaded: str
) -> None:
    require_root("hide a library")
    require("MPICH")
    require("Open MPI")
    library = area / "mpich/lib/libmpich.so.12"
    library.parent.mkdir(parents=True)
    shutil.copy(MPICH_LIBRARY, library)
    env = {"HIDDEN": str(MPICH_LIBRARY), "MPI_HOME": str(area / "mpich"), "MPI4PY_LIBMPI": loaded}
    run = launchers.run("hydra", 2, source, area / "copy", env=env, wrap=HIDING)
    assert_refused(run, f"mkdir DIR && ln -s {library} DIR/libmpi.so.12, and start again with DIR in LD_LIBRARY_PATH")
    assert not (area / "copy").exists()


@pytest.mark.parametrize("library", LIBRARIES)
def test_srun_without_mpi_is_refused(launchers: Launchers, area: Path, source: Path, library: str) -> None:
    """MPICH finds itself alone there, Open MPI aborts: either way N copies of the job lie in wait."""
    require(library)
    chosen = LIBRARIES[library]
    env = {} if chosen is None else {"MPI4PY_LIBMPI": chosen}
    run = launchers.run("none", 3, source, area / "copy", env=env)
    assert_refused(run, "srun --mpi=none has started 3 ranks")
    assert not (area / "copy").exists()


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(("name", "ranks"), [("hydra", "1"), ("open_mpi", "2"), ("pmi2", "2")])
def test_number_of_ranks_under_a_launcher_is_refused(
    launchers: Launchers, area: Path, source: Path, name: str, ranks: str
) -> None:
    run = launchers.run(name, 2, "-n", ranks, source, area / "copy")
    assert_refused(run, f"-n {ranks}")
    assert not (area / "copy").exists()


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("name", ["hydra", "open_mpi"])
def test_conflicting_sizes_are_refused_under_a_launcher(
    launchers: Launchers, area: Path, source: Path, name: str
) -> None:
    """Rank 0 comes last: Open MPI's mpiexec would kill it before it has spoken, did the others not wait."""
    env = {"PMI_SIZE": "7"} if name == "open_mpi" else {"OMPI_COMM_WORLD_SIZE": "7"}
    wrap = ["sh", "-c", '[ "${OMPI_COMM_WORLD_RANK-$PMI_RANK}" != 0 ] || sleep 1; exec "$@"', "sh"]
    run = launchers.run(name, 2, source, area / "copy", env=env, wrap=wrap)
    assert_refused(run, "=7", "differ")
    assert not (area / "copy").exists()


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("env", [{"PMIX_NAMESPACE": "left", "PMIX_RANK": "0"}, {"MPI4PY_MPIABI": "openmpi"}])
def test_variables_of_another_launcher_do_no_harm(
    launchers: Launchers, area: Path, source: Path, env: dict[str, str]
) -> None:
    """MPICH aborts when it finds PMIX_NAMESPACE besides PMI_SIZE, and mpi4py takes the wrong module for MPIABI."""
    require("Open MPI")
    run = launchers.run("hydra", 2, "--json", "-q", source, area / "copy", env=env)
    assert_one_job(run, source, area / "copy", 2)


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("name", ["hydra", "open_mpi"])
def test_one_rank_of_mpiexec_needs_no_mpi(launchers: Launchers, area: Path, source: Path, name: str) -> None:
    env = {"MPI4PY_LIBMPI": "/nowhere"}
    assert_one_job(launchers.run(name, 1, "--json", "-q", source, area / "1", env=env), source, area / "1", 1)
    run = launchers.run(name, 1, "--json", "-q", "-n", "3", source, area / "3", env=env)
    assert_one_job(run, source, area / "3", 3)


def test_without_mpi4py_only_a_start_by_a_launcher_is_refused(launchers: Launchers, area: Path, source: Path) -> None:
    block = area / "block"
    block.mkdir()
    (block / "mpi4py.py").write_text("raise ModuleNotFoundError('No module named mpi4py', name='mpi4py')\n")
    env = {"PYTHONPATH": f"{block}:{REPOSITORY}"}
    run = launchers.run("hydra", 2, source, area / "copy", env=env)
    assert_refused(run, "this needs the Python package mpi4py: pip install mpi4py")
    assert not (area / "copy").exists()
    assert pcopy(source, area / "copy", env=env).returncode == 0


@pytest.mark.parametrize("name", ["hydra", "open_mpi", "none"])
def test_version_is_printed_once(launchers: Launchers, name: str) -> None:
    run = launchers.run(name, 3, "--version")
    assert run.returncode == 0
    assert len(run.stdout.splitlines()) == 1


def test_start_without_a_launcher_imports_no_mpi(area: Path, source: Path) -> None:
    program = (
        "import sys\nfrom pcopy.cli.pcopy import main\n"
        "status = main(sys.argv[1:])\n"
        "assert not {'mpi4py', 'pcopy.launch.mpi_run', 'pcopy.engine.transports.mpi'} & set(sys.modules)\n"
        "sys.exit(status)\n"
    )
    line = [sys.executable, "-c", program, "-q", "-n", "2", str(source), str(area / "copy")]
    assert subprocess.run(line, check=False, cwd=REPOSITORY, capture_output=True).returncode == 0
