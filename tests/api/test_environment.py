"""The environment of child processes lacks what describes the caller's own rank, and has the user's settings."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pcopy.api.environment import child_environment
from pcopy.launch import launcher, mpi_run
from tests.launch.launchers import Launchers
from tests.support.command import REPOSITORY
from tests.support.oracle import differences
from tests.support.processes import HANGS

OF_LAUNCHERS = re.compile(r"(?:OMPI|PMI|PMIX|HYDI|SLURM)_[A-Z_]+[A-Z]")
SETTINGS = {
    "OMPI_MCA_btl": "^openib",
    "PMIX_MCA_gds": "hash",
    "PRTE_MCA_plm": "ssh",
    "PRTE_MCA_rmaps_base_verbose": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_orte_base_help_aggregate": "0",
}


def inspected_variables() -> set[str]:
    """Return the names of launchers' variables in the code that finds out whether a launcher has started it."""
    found = set()
    for module in (launcher, mpi_run):
        for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and OF_LAUNCHERS.fullmatch(node.value):
                found.add(node.value)
    return found


def test_variables_that_the_programs_inspect_are_not_passed_on() -> None:
    inspected = inspected_variables()
    assert inspected >= {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_NAMESPACE", "HYDI_CONTROL_FD", "SLURM_STEP_ID"}
    assert child_environment(dict.fromkeys(inspected, "1")) == {}
    assert not launcher.is_started_by_launcher(child_environment(dict.fromkeys(inspected, "1")))


def test_variables_of_slurm_steps_are_not_passed_on() -> None:
    step = ("SLURM_STEPID", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", "SLURM_LOCALID", "SLURM_GTIDS")
    job = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_CONF": "/etc/slurm.conf"}
    assert child_environment({**dict.fromkeys(step, "1"), **job}) == job


def test_settings_of_users_are_passed_on() -> None:
    assert child_environment(SETTINGS) == SETTINGS


@pytest.fixture
def open_mpi() -> list[str]:
    return [os.fspath(word) for word in Launchers("no Slurm").line("open_mpi", 2)]  # type: ignore[misc]


def test_environment_of_a_rank_of_open_mpi(open_mpi: list[str], area: Path) -> None:
    """Nothing is left but what the user has set, and what is no description of a rank."""
    code = "import json, os; from pcopy.api.environment import child_environment as e; print(json.dumps(e(os.environ)))"
    environment = {"PATH": os.environ["PATH"], "HOME": str(area), "PYTHONPATH": str(REPOSITORY), **SETTINGS}
    run = subprocess.run(
        [*open_mpi, sys.executable, "-c", code], check=True, capture_output=True, env=environment, timeout=HANGS
    )
    for line in run.stdout.splitlines():
        left = {name: value for name, value in json.loads(line).items() if re.match("OMPI|PMI|PRTE", name)}
        others = {name: value for name, value in left.items() if name not in SETTINGS}
        assert {name: left.get(name) for name in SETTINGS} == SETTINGS
        assert sorted(others) == [
            *("OMPI_MCA_mpi_oversubscribe", "OMPI_MCA_orte_tmpdir_base", "OMPI_MCA_rmaps_base_oversubscribe"),
            *("OMPI_MCA_shmem_RUNTIME_QUERY_hint", "PMIX_MCA_mca_base_component_show_load_errors"),
        ]


@pytest.mark.parametrize("is_nested", [False, True], ids=["own ranks", "launcher"])
def test_call_from_a_rank_of_open_mpi(open_mpi: list[str], is_nested: bool, area: Path, tree: Path) -> None:
    ranks = f"launcher={open_mpi!r}" if is_nested else "ranks=2"
    code = f"""
import os
import pcopy
rank = os.environ["OMPI_COMM_WORLD_RANK"]
result = pcopy.copy({str(tree)!r}, {str(area)!r} + "/copy" + rank, {ranks})
assert (result.ranks, result.failed) == (2, 0), result
"""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    words = [*open_mpi, sys.executable, "-c", code]
    run = subprocess.run(words, check=False, capture_output=True, text=True, env=environment, timeout=HANGS)
    assert run.returncode == 0, run.stderr
    for rank in range(2):
        assert differences(tree, area / f"copy{rank}") == []
