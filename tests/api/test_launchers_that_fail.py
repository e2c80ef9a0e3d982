"""A launcher that ends before the program begins: the exception has what the launcher has printed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import pcopy
from tests.launch.launchers import OPEN_MPI, Launchers
from tests.support.users import require_root

CALLS: dict[str, Callable[[list[str]], object]] = {
    "copy": lambda launcher: pcopy.copy("tree", "copy", launcher=launcher),
    "walk": lambda launcher: list(pcopy.walk("tree", launcher=launcher)),
    "remove": lambda launcher: pcopy.remove("tree", launcher=launcher),
}


def launcher(area: Path, code: str) -> list[str]:
    (area / "launch").write_text(f"#!/bin/sh\n{code}\n")
    (area / "launch").chmod(0o755)
    return [str(area / "launch"), "-n", "2"]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("status", [1, 2, 3, 75, 213])
@pytest.mark.usefixtures("tree")
def test_status_and_first_lines(call: str, status: int, area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(area)
    code = f"printf '%s\\n' -------- 'no host is called nowhere' '' >&2; seq 100 >&2; exit {status}"
    with pytest.raises(pcopy.InternalError) as caught:
        CALLS[call](launcher(area, code))
    program = {"copy": "pcopy", "walk": "pwalk", "remove": "prm"}[call]
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{area}/launch ended with status {status} before {program} began:"
    assert lines[1:] == ["no host is called nowhere", *map(str, range(1, 20))]
    assert caught.value.status == status


@pytest.mark.parametrize("call", CALLS)
def test_without_output(call: str, area: Path, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(area)
    with pytest.raises(pcopy.InternalError, match=r"^false ended with status 1 before p\w+ began, and has printed no"):
        CALLS[call](["false"])
    with pytest.raises(pcopy.InternalError):
        CALLS[call](["true"])
    with pytest.raises(pcopy.InternalError, match="was killed by signal 9 before"):
        CALLS[call](launcher(area, "kill -9 $$"))
    assert tree.exists()


@pytest.mark.parametrize("call", CALLS)
def test_launcher_that_does_not_exist(call: str, area: Path, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(area)
    with pytest.raises(FileNotFoundError) as caught:
        CALLS[call](["./nonexistent", "-n", "2"])
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, "./nonexistent")


def test_refusal_of_the_program_is_no_failure_of_the_launcher(area: Path) -> None:
    with pytest.raises(pcopy.Refused, match="does not exist") as caught:
        pcopy.copy(area / "no", area / "copy", launcher=launcher(area, 'shift 2; exec "$@"'))
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, os.fsencode(area / "no"))


def test_open_mpi_refuses_root(area: Path, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_root("be refused by Open MPI")
    Launchers("no Slurm").line("open_mpi", 2)  # skips the test if it is not installed
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(pcopy.InternalError) as caught:
        pcopy.copy(tree, area / "copy", launcher=[OPEN_MPI, "-n", "2"])
    assert "--allow-run-as-root" in str(caught.value)
    assert "ended with status 1 before pcopy began:\n" in str(caught.value)
