"""Changes of modes on systems without fchmodat2 or /proc: they work as usual, or the item fails and keeps its mode."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pcopy.fsio.backend.batches import UNCHANGED_VALUE, FileOperationBatch, SetMetadataBatch, SetUniformMetadataBatch
from pcopy.fsio.backend.columns import (
    GROUP_COLUMN,
    INODE_COLUMN,
    MODE_COLUMN,
    OWNER_COLUMN,
    SCAN_COLUMNS,
    ItemStatusColumns,
    OutcomeCode,
)
from pcopy.fsio.backend.interface import BackendSettings
from pcopy.fsio.preserve import PreservedMetadataKinds
from tests.fsio.backend_bench import BACKENDS, done, found
from tests.support.command import pcopy, show
from tests.support.confined import WAYS, confined, wrapped
from tests.support.users import require_root

IN_USE = ("c", "c-threads", "python")
MISSING_PROC = "/proc is not mounted"


def set_metadata(directory: int, place: Path, mode: int) -> SetMetadataBatch:
    wanted = ItemStatusColumns(1, MODE_COLUMN | OWNER_COLUMN | GROUP_COLUMN)
    wanted.mode, wanted.uid, wanted.gid = (array("I", [each]) for each in (mode, UNCHANGED_VALUE, UNCHANGED_VALUE))
    return SetMetadataBatch(directory, b"file", found(place, ["file"], SCAN_COLUMNS), wanted)


def set_uniform_metadata(directory: int, place: Path, mode: int) -> SetUniformMetadataBatch:
    return SetUniformMetadataBatch(directory, b"file", found(place, ["file"], INODE_COLUMN), array("H", [mode]) * 4096)


BATCHES: dict[str, Callable[[int, Path, int], FileOperationBatch[Any]]] = {
    "mend": set_metadata,
    "plain": set_uniform_metadata,
}


def changed(place: Path, backend: str, batch: str, mode: int) -> Callable[[], object]:
    """Return an action that changes the mode of the file, and returns the code, the errno and the text."""

    def action() -> object:
        directory = os.open(place, os.O_RDONLY)
        one = BACKENDS[backend](BackendSettings(PreservedMetadataKinds(), 0o022))
        verdicts = done(one, BATCHES[batch](directory, place, mode)).verdicts
        problem = None if verdicts.codes[0] == OutcomeCode.DONE else verdicts.problem(0)
        return problem and [problem.operation, problem.errno, problem.strerror or ""]

    return action


@pytest.fixture
def place(on: Any) -> Path:
    made: Path = on("ext4")
    (made / "file").touch()
    (made / "file").chmod(0o644)
    return made


def needs_proc(backend: str, way: str) -> bool:
    number, proc = WAYS[way]
    return not proc and (backend == "python" or bool(number))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("backend", IN_USE)
def test_mode_is_changed_or_the_item_fails(place: Path, backend: str, batch: str, way: str) -> None:
    require_root("hide /proc")
    number, proc = WAYS[way]
    problem: Any = confined(changed(place, backend, batch, 0o4751), fchmodat2=number, proc=proc)
    if needs_proc(backend, way):
        assert problem[:2] == ["chmod", errno.ENOSYS] and MISSING_PROC in problem[2]
    else:
        assert problem is None
    assert stat.S_IMODE((place / "file").stat().st_mode) == (0o644 if needs_proc(backend, way) else 0o4751)


@pytest.mark.parametrize(
    ("backend", "way"), [(backend, way) for backend in IN_USE for way in WAYS if not needs_proc(backend, way)]
)
@pytest.mark.parametrize("batch", BATCHES)
def test_refused_change_is_reported_as_such(place: Path, backend: str, batch: str, way: str) -> None:
    require_root("make files immutable")
    number, proc = WAYS[way]
    subprocess.run(["chattr", "+i", place / "file"], check=True)
    try:
        problem: Any = confined(changed(place, backend, batch, 0o4751), fchmodat2=number, proc=proc)
    finally:
        subprocess.run(["chattr", "-i", place / "file"], check=True)
    assert problem[:2] == ["chmod", errno.EPERM] and MISSING_PROC not in problem[2]
    assert stat.S_IMODE((place / "file").stat().st_mode) == 0o644


@pytest.mark.parametrize("backend", ["c", "python"])
@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_pchmod_changes_a_tree_without_the_call(place: Path, backend: str, number: int) -> None:
    (place / "inner").mkdir()
    (place / "inner/file").touch()
    run = pcopy("-n", "2", "a=rx,u+s", place, program="pchmod", env={"PCOPY_BACKEND": backend}, wrap=wrapped(number))
    assert run.returncode == 0, show(run)
    asked = subprocess.run(
        ["find", place, "-type", "f", "-perm", "4555", "-printf", "%f\\n"], check=True, capture_output=True
    )
    assert sorted(asked.stdout.split()) == [b"file", b"file"]


def test_pchmod_names_missing_proc(place: Path) -> None:
    require_root("hide /proc")
    run = pcopy("-n", "1", "0600", place / "file", program="pchmod", wrap=wrapped(proc=False))
    assert run.returncode == 2 and MISSING_PROC.encode() in run.stderr, show(run)
    assert run.stderr.count(b"\n") == 1, show(run)
    assert stat.S_IMODE((place / "file").stat().st_mode) == 0o644
