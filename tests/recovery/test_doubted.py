"""A new job over the target of an unfinished one compares what may have been lost, and nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support.command import Completed, pcopy, succeed, summary

PROGRAMS = {"psync": ["psync"], "pcopy": ["pcopy", "--existing", "changed"]}
OLD = 10**9


@pytest.fixture
def env(area: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(area / "state")}


@pytest.fixture
def source(area: Path) -> Path:
    made = area / "source"
    made.mkdir()
    for name, size in {"small": 5000, "middle": 5 << 20}.items():
        (made / name).write_bytes(os.urandom(size))
        os.utime(made / name, (OLD, OLD))
    return made


def run(program: str, source: Path, target: Path, env: dict[str, str]) -> Completed:
    name, *words = PROGRAMS[program]
    return succeed("--json", *words, f"{source}/", target, ranks=2, program=name, env=env)


def interrupted(source: Path, target: Path, env: dict[str, str]) -> None:
    """A job that is killed at its last sync: all files have their names."""
    wrap = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=syncfs", "-e", "inject=syncfs:signal=KILL"]
    pcopy("--existing", "changed", f"{source}/", target, ranks=1, env=env, wrap=wrap)
    assert list(Path(env["XDG_STATE_HOME"]).glob("pcopy/*/job"))


def lose(path: Path) -> None:
    """As a loss of power: the size and the time stay."""
    status = path.stat()
    path.write_bytes(bytes(status.st_size))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("name", ["small", "middle"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_lost_contents_are_replaced(program: str, name: str, source: Path, area: Path, env: dict[str, str]) -> None:
    target = area / "target"
    interrupted(source, target, env)
    lose(target / name)
    done = run(program, source, target, env)
    assert (target / name).read_bytes() == (source / name).read_bytes()
    assert summary(done)["files"] == 1, "the others are kept"


@pytest.mark.parametrize("program", PROGRAMS)
def test_file_is_not_read_without_an_unfinished_job(
    program: str, source: Path, area: Path, env: dict[str, str]
) -> None:
    target = area / "target"
    run(program, source, target, env)
    lose(target / "middle")
    assert summary(run(program, source, target, env))["files"] == 0


@pytest.mark.parametrize("program", PROGRAMS)
def test_file_older_than_the_unfinished_job_is_not_read(
    program: str, source: Path, area: Path, env: dict[str, str]
) -> None:
    target = area / "target"
    run(program, source, target, env)
    lose(target / "middle")
    (source / "more").write_bytes(b"more")
    time.sleep(6)  # more than clocks may differ
    interrupted(source, target, env)
    assert summary(run(program, source, target, env))["files"] == 0
