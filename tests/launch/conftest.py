"""Fixtures for runs under launchers; Slurm is started once, by ``tests/slurm/slurm``, if some test wants it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.launchers import SLURM, Launchers
from tests.support.users import is_root


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "launch" in item.path.parts and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(180))


@pytest.fixture(scope="session")
def slurm() -> Iterator[dict[str, str] | str]:
    """The environment in which srun finds a Slurm on this machine, or why there is none."""
    missing = [name for name in ("slurmctld", "slurmd", "munged", "srun") if not which(name)]
    if missing or not is_root():
        yield f"no Slurm: {', '.join(missing)} not installed" if missing else "only root can start Slurm"
        return
    directory = tempfile.mkdtemp(prefix="pcopy-test-slurm-", dir="/tmp")
    os.chmod(directory, 0o755)
    try:
        begun = subprocess.run([SLURM, "start", directory], check=False, capture_output=True, text=True, timeout=60)
        if begun.returncode:
            yield f"Slurm doesn't start: {begun.stderr.strip()}"
        else:
            yield {"SLURM_CONF": str(Path(directory, "slurm.conf"))}
    finally:
        subprocess.run([SLURM, "stop", directory], check=False, capture_output=True, timeout=60)
        shutil.rmtree(directory, ignore_errors=True)


def which(name: str) -> str | None:
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


@pytest.fixture(scope="session")
def launchers(slurm: dict[str, str] | str) -> Launchers:
    return Launchers(slurm)


@pytest.fixture
def source(area: Path) -> Path:
    """A small tree, enough for several ranks to have something to do."""
    tree = area / "source"
    for name in ("a", "b/c", "d"):
        (tree / name).mkdir(parents=True)
        for number in range(20):
            (tree / name / str(number)).write_bytes(b"%d" % number * 500)
    return tree


@pytest.fixture(scope="module")
def large(session_scratch: Path) -> Iterator[Path]:
    """Enough data that a signal meets the run in the midst of it."""
    path = session_scratch / f"large-{os.getpid()}"
    with open(path, "wb") as file:
        for _ in range(1024):
            file.write(b"x" * (1 << 20))
    yield path
    path.unlink()
