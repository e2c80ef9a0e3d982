"""No program loads modules from the working directory, where another user may have put them.

Programs are started as commands, also by mpiexec, as ``python -P -m pcopy`` and as ``python -m pcopy``. With the
last one, Python itself loads a pcopy.py from the working directory; if there is none, nothing is loaded later.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pcopy.cli.programs import PROGRAMS
from tests.e2e.test_named_files import RUNS
from tests.support.command import REPOSITORY, mpiexec

MODULES = (
    "pcopy",
    "mpi4py",
    "yaml",
    "xxhash",
    "lmdb",
    "rich",
    "blake3",
    "zstandard",
    "cffi",
    "_cffi_backend",
)
EXTRA_ARGUMENTS = {
    "pcopy": ("--signature", "sig", "--force"),
    "pdbench": ("--time", "0.01", "--files", "1", "--tests", "create"),
}
STATUSES = {"pstripe": (2,)}
"""Expected statuses other than 0: there is no Lustre here."""


@pytest.fixture
def place(area: Path) -> Path:
    for name in ("src", "same", "dir"):
        (area / name).mkdir()
    for name in ("src/a", "same/a"):
        (area / name).write_text("a")
        os.utime(area / name, (10**9, 10**9))
    for name in MODULES:
        (area / f"{name}.py").write_text("open('hostile', 'w')\nraise SystemExit(99)\n")
    return area


def check(place: Path, program: str, python: Sequence[str], ranks: int, **environment: str) -> None:
    foreign = ("PYTHON", "OMPI_", "PMI_", "MPI4PY_", "XDG_", "PCOPY_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    line = [*([mpiexec(), "-n", str(ranks)] if ranks else []), sys.executable, *python]
    run = subprocess.run(
        [*line, *EXTRA_ARGUMENTS.get(program, ()), *RUNS[program]],
        check=False,
        cwd=place,
        env={**kept, "HOME": str(place), **environment},
        capture_output=True,
        timeout=100,
    )
    assert not (place / "hostile").exists(), run
    assert run.returncode in STATUSES.get(program, (0,)), run


@pytest.mark.parametrize("ranks", [0, 2])
@pytest.mark.parametrize("program", [program for program in PROGRAMS if program != "pbcast"])
def test_commands_load_no_modules_from_the_working_directory(place: Path, program: str, ranks: int) -> None:
    check(place, program, [f"{REPOSITORY}/bin/{program}"], ranks)


def test_pbcast_loads_no_modules_from_the_working_directory(place: Path) -> None:
    check(place, "pbcast", [f"{REPOSITORY}/bin/pbcast"], 2)


@pytest.mark.parametrize("ranks", [0, 2])
def test_safe_path_loads_no_modules_from_the_working_directory(place: Path, ranks: int) -> None:
    check(place, "pcopy", ["-P", "-m", "pcopy"], ranks, PYTHONPATH=str(REPOSITORY))


@pytest.mark.parametrize("ranks", [0, 2])
def test_run_as_a_module_loads_no_further_modules_from_the_working_directory(place: Path, ranks: int) -> None:
    (place / "pcopy.py").unlink()
    check(place, "pcopy", ["-m", "pcopy"], ranks, PYTHONPATH=str(REPOSITORY))


_APPEARS = """
import os, time
real = os.execv
def execv(*words):
    open({place!r} + "/packages/replaced-" + str(os.getpid()), "w").close()
    while sum(name.startswith("replaced-") for name in os.listdir({place!r} + "/packages")) < 2:
        time.sleep(0.01)  # until the other process has loaded pcopy as well
    if not os.path.exists({path!r}):
        open({path!r}, "w").write({hostile!r})
    real(*words)
os.execv = execv
"""


@pytest.mark.parametrize("options", [["-m"], ["-Bm"], ["-P", "-m"]])
def test_restarted_process_loads_no_modules_from_the_working_directory(place: Path, options: list[str]) -> None:
    """mpi4py is given an invalid library, so that the process replaces itself by one with the right library.

    By then pcopy.py exists, which an attacker may create at any time.
    """
    path = place / "pcopy.py"
    hostile = path.read_text()
    path.unlink()
    packages = place / "packages"
    packages.mkdir()
    os.symlink(REPOSITORY / "pcopy", packages / "pcopy")
    (packages / "sitecustomize.py").write_text(_APPEARS.format(place=str(place), path=str(path), hostile=hostile))
    check(
        place,
        "pcopy",
        [*options, "pcopy"],
        2,
        PYTHONPATH=f"{packages}:{REPOSITORY}",
        MPI4PY_LIBMPI=str(place / "src/a"),
    )
    assert path.exists(), "the process has not replaced itself"
