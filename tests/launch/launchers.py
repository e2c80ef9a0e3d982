"""The launchers that there are here, each with what it says besides pcopy, and runs of pcopy by them.

A launcher that is not installed, or that can't be started, skips the test with the reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Argument, Completed, pcopy, show
from tests.support.processes import Run

HYDRA = Path(sys.executable).with_name("mpiexec")
OPEN_MPI = shutil.which("mpiexec.openmpi") or "/usr/bin/mpiexec"  # whichever the machine's alternatives name
OPEN_MPI_LIBRARY = "libmpi.so.40"
SLURM = Path(__file__).resolve().parents[1] / "slurm" / "slurm"
NAMES = ("hydra", "open_mpi", "pmi2", "pmix")
"""The pairs that work: mpiexec of MPICH and of Open MPI, and srun --mpi=pmi2 and --mpi=pmix."""


class Launchers:
    """Command lines of launchers, and the environment that a run by them needs."""

    def __init__(self, slurm: Mapping[str, str] | str) -> None:
        self._slurm = slurm

    def line(self, name: str, ranks: int) -> list[Argument]:
        """The launcher's part of a command line."""
        pytest.importorskip("mpi4py")
        if name == "hydra":
            if not HYDRA.exists():
                pytest.skip(f"no MPICH: {HYDRA} doesn't exist")
            return [HYDRA, "-n", str(ranks)]
        if name == "open_mpi":
            version = shutil.which(OPEN_MPI) and subprocess.getoutput(f"{OPEN_MPI} --version")
            if not version or "Open" not in version:
                pytest.skip(f"no Open MPI: {OPEN_MPI} doesn't exist or is another one's")
            return [OPEN_MPI, "--allow-run-as-root", "--oversubscribe", "-n", str(ranks)]
        if isinstance(self._slurm, str):
            pytest.skip(self._slurm)
        if name == "pmix":
            self._require_pmix()
        return ["srun", "--quiet", f"--mpi={name}", "-n", str(ranks)]

    def environment(self) -> dict[str, str]:
        return {} if isinstance(self._slurm, str) else dict(self._slurm)

    def _require_pmix(self) -> None:
        line = ["srun", "--quiet", "--mpi=pmix", "-n", "1", "true"]
        tried = subprocess.run(line, check=False, env={**os.environ, **self.environment()}, capture_output=True)
        if tried.returncode:
            pytest.skip(f"srun --mpi=pmix doesn't work here: {tried.stderr.decode().splitlines()[0]}")

    def run(
        self, name: str, ranks: int, *arguments: Argument, env: Mapping[str, str] | None = None, **options: Any
    ) -> Completed:
        """``pcopy arguments`` on ``ranks`` ranks, to its end."""
        environment = {**self.environment(), **(env or {})}
        wrap = [*self.line(name, ranks), *options.pop("wrap", [])]
        return pcopy(*arguments, wrap=wrap, env=environment, timeout=60, **options)


def reported(run: Completed) -> list[str]:
    """The lines of standard error that pcopy has written."""
    return [line for line in run.stderr.decode().splitlines() if line.startswith("pcopy: ")]


def assert_refused(run: Completed, *parts: str) -> None:
    """Status 2, nothing on standard output, and one line of pcopy's in which ``parts`` occur."""
    lines = reported(run)
    assert run.returncode == 2, show(run)
    assert run.stdout == b"", show(run)
    assert len(lines) == 1, show(run)
    assert "Abort(" not in run.stderr.decode(), show(run)
    for part in parts:
        assert part in lines[0], show(run)


def ranks_of(run: Run) -> dict[int, int]:
    """The processes of pcopy in ``run`` by their ranks as the launcher counts them."""
    found: dict[int, int] = {}
    for pid in run.processes():
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            variables = dict(
                item.split(b"=", 1) for item in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if b"=" in item
            )
        except OSError:
            continue
        for name in (b"OMPI_COMM_WORLD_RANK", b"PMI_RANK", b"SLURM_PROCID"):
            if b"pcopy" in line and line[0].endswith(os.fsencode(Path(sys.executable).name)) and name in variables:
                found[int(variables[name])] = pid
                break
    return found
