"""Tests use the programs of the system, although PATH contains fake programs with all names that tests look up."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from shutil import which

from tests.support.command import REPOSITORY

OTHERS = ("dcp", "fd", "lfs", "mpiexec", "mpirun", "rclone", "rsync", "sbatch", "srun", "ssh", "xcp", "zstd", "zstdmt")
CHECKED = (
    "tests/support/test_oracle.py",
    "tests/measuring/test_bench.py::test_benchmark_stops_if_a_copy_differs_from_its_source",
)


def looked_up() -> set[str]:
    """Programs that the tests and the benchmarks look for by name."""
    found = set()
    for path in [*(REPOSITORY / "tests").rglob("*.py"), *(REPOSITORY / "bench").rglob("*.py")]:
        text = path.read_text()
        if "which(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "which":
                found |= {value.value for value in node.args[:1] if isinstance(value, ast.Constant)}
    return {str(name) for name in found}


def test_path_of_tests_contains_system_directories_only() -> None:
    assert os.environ["PATH"].split(":") == ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]


def test_other_programs_on_the_path_change_nothing(tmp_path: Path) -> None:
    names = {*looked_up(), *OTHERS}
    assert {"strace", "bindfs"} < names
    for name in names:
        (tmp_path / name).write_text('#!/bin/sh\necho "a fake $0 was run" >&2\nexit 97\n')
        (tmp_path / name).chmod(0o755)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *CHECKED]
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, check=False, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    reasons = [line.partition(": ")[2] for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert set(reasons) <= {f"there is no {name} here" for name in (*names, "mkfs.xfs") if which(name) is None}
