"""A chain of directories: the memory of no program may grow with the square of its depth, as it would if the paths of
all directories were in memory, or in the records of the job.
"""

from __future__ import annotations

import os
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pcopy.engine.task import Task
from pcopy.fsio.identity import ItemIdentity
from pcopy.jobs.directories import StoredJob
from pcopy.jobs.leftovers import TemporaryFileRemover
from pcopy.jobs.missing_directories import MissingDirectoryRepair
from pcopy.tasks.base.codec import encode_task
from pcopy.tasks.base.job import Job, Options, Root, mount_codes
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.values import Place
from pcopy.tasks.directories.finish_dir import FinishDir
from tests.support.processes import peak_memory

NAME = "d" * 40
SHALLOW, DEEP = 500, 2000
ALL_PATHS = len(NAME) * DEEP**2 // 2
"""Bytes that the paths of all directories of the deep chain have together: 80 MB."""


def make_chain(top: Path, depth: int) -> None:
    """Create a chain of directories, whose path may be longer than PATH_MAX."""
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(NAME, dir_fd=here)
        below = os.open(NAME, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def signed(top: Path, *options: str | Path) -> int:
    return peak_memory("pverify", "--create", top / "signature", *options, top / "chain", ranks=2)


def copied(top: Path) -> int:
    return peak_memory("pcopy", "-T", top / "chain", top / "copy", ranks=2)


def deleted(top: Path) -> int:
    (top / "empty").mkdir()
    return peak_memory("psync", "-T", "--delete-all", top / "empty", top / "chain", ranks=2)


RUNS: dict[str, Callable[[Path], int]] = {
    "pcopy": copied,
    "psync again": lambda top: copied(top) and peak_memory("psync", "-T", top / "chain", top / "copy", ranks=2),
    "psync --delete-all": deleted,
    "pverify two trees": lambda top: copied(top) and peak_memory("pverify", top / "chain", top / "copy", ranks=2),
    "pverify --create": signed,
    "pverify --create --manifest": lambda top: signed(top, "--manifest", top / "manifest"),
    "pverify SIGNATURE": lambda top: signed(top) and peak_memory("pverify", top / "signature", top / "chain", ranks=2),
    "pverify --manifest": lambda top: (
        signed(top, "--manifest", top / "manifest")
        and peak_memory("pverify", "--manifest", top / "manifest", top / "chain", ranks=2)
    ),
    "pwalk": lambda top: peak_memory("pwalk", top / "chain", ranks=2),
    "pwalk -ls": lambda top: peak_memory("pwalk", top / "chain", "-ls", ranks=2),
    "pchmod": lambda top: peak_memory("pchmod", "g-w", top / "chain", ranks=2),
    "prm": lambda top: peak_memory("prm", "--yes", top / "chain", ranks=2),
    "prm, one by one": lambda top: peak_memory("prm", "--yes", "--log", os.devnull, top / "chain", ranks=2),
}


@pytest.mark.parametrize("run", RUNS)
def test_memory_does_not_grow_with_the_square_of_the_depth(area: Path, run: str) -> None:
    peaks = []
    for depth in (SHALLOW, DEEP):
        top = area / str(depth)
        top.mkdir()
        make_chain(top / "chain", depth)
        peaks.append(RUNS[run](top))
        for each in ("chain", "copy"):
            if (top / each).exists():
                peak_memory("prm", "--yes", top / each, ranks=2)
    assert peaks[1] - peaks[0] < ALL_PATHS // 2, f"{peaks[0] >> 20} and {peaks[1] >> 20} MiB"


def directories_of_chain(top: Path) -> Iterator[Place]:
    """The directories of a chain, as tasks of a copy name them, the innermost last."""
    path, here = b"", os.open(top, os.O_RDONLY)
    for _ in range(DEEP):
        below = os.open(NAME, os.O_RDONLY, dir_fd=here)
        os.close(here)
        path, here = os.path.join(path, os.fsencode(NAME)), below
        yield Place(0, path, ItemIdentity(0, 0), ItemIdentity(0, os.fstat(here).st_ino), False, False)
    os.close(here)


def peak_of_python_objects(run: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def root_of_copy(top: Path) -> Root:
    status = top.stat()
    return Root(b"/source", bytes(top), b"", b"", b"source", b"copy", (0, 0), (status.st_dev, status.st_ino))


def test_memory_to_look_for_temporary_files(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--discard`` remembers the directories in which it has looked."""
    make_chain(area / "chain", DEEP)
    *_, innermost = directories_of_chain(area / "chain")
    (area / "chain" / NAME / ".pcopy-job-1-0.1").touch()
    root: Any = SimpleNamespace(as_root=root_of_copy(area / "chain"))
    job: Any = SimpleNamespace(name="job", roots=(root,))
    reported: list[str] = []
    lengths: list[int] = []
    remover = TemporaryFileRemover(StoredJob(b"", job), reported.append)
    find_names = remover._names_of_subdirectories

    def recorded_names(root: int, path: bytes) -> list[bytes]:
        lengths.append(len(path))
        return find_names(root, path)

    monkeypatch.setattr(remover, "_names_of_subdirectories", recorded_names)
    peak = peak_of_python_objects(lambda: remover.remove_temporary_files_below(0, b""))
    remover.close()
    assert (len(lengths), lengths[-1]) == (DEEP + 1, len(innermost.path))
    assert (os.listdir(area / "chain" / NAME), reported) == ([NAME], [])
    assert peak < ALL_PATHS // 4, f"{peak >> 20} MiB"


def test_memory_to_find_removed_directories(area: Path) -> None:
    """A resumed job opens all directories of its tasks, to find those that were removed meanwhile."""
    make_chain(area / "chain", DEEP)
    root = root_of_copy(area / "chain")
    repair = MissingDirectoryRepair(Job("job", 2, (root,), Options()), tempfile.TemporaryFile)
    code = mount_codes((root,))[0][1]
    tasks = (
        Task((1, 0, number), int(Phase.FINISH), encode_task(FinishDir(place, None, True, -1)), 0)
        for number, place in enumerate(directories_of_chain(area / "chain"), 1)
        if place.target_id.mount_code == code
    )
    peak = peak_of_python_objects(lambda: repair.examine_tasks(1, tasks))
    assert (repair.notices, len([*repair.replacement_tasks()])) == ([], DEEP)
    assert peak < ALL_PATHS // 2, f"{peak >> 20} MiB"
