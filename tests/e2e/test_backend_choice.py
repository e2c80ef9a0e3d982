"""The choice of the backend by ``PCOPY_BACKEND``, its report, and the refusal of a missing backend."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.support import native
from tests.support.command import REPOSITORY, pcopy, show, succeed


@pytest.fixture
def source(area: Path) -> Path:
    (area / "source").mkdir()
    (area / "source/file").write_text("content")
    return area / "source"


@pytest.fixture
def package_without_backend(area: Path) -> str:
    """The parent directory of a package that was installed without a compiler."""
    unwanted = shutil.ignore_patterns("*.pyc.*", "_native.*.so")
    shutil.copytree(REPOSITORY / "pcopy", area / "other/pcopy", ignore=unwanted)
    return str(area / "other")


@pytest.mark.parametrize("backend", ["c", "python"])
def test_running_backend_is_printed(backend: str, source: Path, area: Path) -> None:
    if backend == "c":
        native.require()
    env = {"PCOPY_BACKEND": backend}
    assert succeed("--version", env=env).stdout.endswith(f" (backend {backend})\n".encode())
    run = succeed("-v", source, area / "copy", env=env)
    assert run.stderr.startswith(f"pcopy: backend {backend}\n".encode()), show(run)
    run = succeed("-q", "-v", source, area / "another", env=env)
    assert run.stderr == b"", show(run)


def test_package_without_c_backend_uses_python_backend(package_without_backend: str, source: Path, area: Path) -> None:
    env = {"PYTHONPATH": package_without_backend, "PCOPY_BACKEND": ""}
    assert succeed("--version", env=env).stdout.endswith(b" (backend python)\n")
    succeed(source, area / "copy", env=env)
    assert (area / "copy/file").read_text() == "content"


@pytest.mark.parametrize("launcher", [None, "mpi"])
@pytest.mark.parametrize(("backend", "word"), [("c", "not installed"), ("fast", "c or python")])
def test_missing_prerequisite_is_refused_with_one_message(
    backend: str, word: str, launcher: str | None, package_without_backend: str, source: Path, area: Path
) -> None:
    env = {"PYTHONPATH": package_without_backend, "PCOPY_BACKEND": backend}
    run = pcopy(source, area / "copy", ranks=3, launcher=launcher, env=env)
    assert run.returncode == 2, show(run)
    lines = [line for line in run.stderr.splitlines() if b"PCOPY_BACKEND" in line]
    assert len(lines) == 1 and word.encode() in lines[0], show(run)
    assert sorted(os.listdir(area)) == ["other", "source"]
