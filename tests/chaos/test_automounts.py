"""Automounts below the source that expire while a program works on the tree around them.

A file system that the system unmounts, and mounts again when it is entered, is the same file system: no item fails, and
the deletion is not prevented. Each mount of FUSE has a new device number, as mounts of network file systems have.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.autofs import BIND, FUSE, automounted
from tests.support.command import Argument, Completed, show
from tests.support.files import NOW, write
from tests.support.held import held
from tests.support.oracle import differences

LISTING = ("getdents64",)
FILES = {"a/file", "m/auto/file", "m/auto/inner/file", "z/file"}
LATE = Path("late")
"""A file that DST lacks. It is opened after its directory was scanned and before anything is deleted."""


class Trees(NamedTuple):
    source: Path
    copy: Path
    point: Path
    """A mount point in SRC; the file system is mounted when it is entered."""


def fill(tree: Path, names: Sequence[str]) -> None:
    for name in names:
        write(tree / name, b"content")
    for path in (*tree.rglob("*"), tree):
        os.utime(path, ns=(NOW, NOW))


@pytest.fixture(params=[BIND, FUSE], ids=["bind", "FUSE"])
def trees(request: pytest.FixtureRequest, area: Path) -> Iterator[Trees]:
    by = request.param
    if by == FUSE and not shutil.which("bindfs"):
        pytest.skip("there is no bindfs here")
    source, copy = area / "source", area / "copy"
    fill(source, ("a/file", "z/file"))
    fill(area / "served", ("file", "inner/file"))
    fill(copy, sorted(FILES))
    (source / "m").mkdir()
    with automounted(source / "m", area / "served", ["auto"], by):
        yield Trees(source, copy, source / "m/auto")


def enter(trees: Trees) -> None:
    assert os.listdir(trees.point)
    assert os.path.ismount(trees.point)


def expire(trees: Trees) -> None:
    assert os.path.ismount(trees.point)
    subprocess.run(["umount", "--lazy", trees.point], check=True)


def files(tree: Path) -> set[str]:
    return {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}


def in_copy(area: Path, done: Completed) -> bool:
    assert os.listdir(area / "source/m/auto")
    return differences(area / "source", area / "new") == []


def in_archive(area: Path, done: Completed) -> bool:
    listed = subprocess.run(["tar", "-tf", area / "archive"], check=True, capture_output=True, text=True).stdout
    return {f"{area}/source/{name}".lstrip("/") for name in FILES} <= {*listed.splitlines()}


def in_output(area: Path, done: Completed) -> bool:
    return {f"{area}/source/{name}" for name in FILES} <= {*done.stdout.decode().splitlines()}


def changed(area: Path, done: Completed) -> bool:
    """Return True if all modes were changed, including that of the top directory of the mount."""
    trees = [area / "source", area / "served"]
    modes = [path.stat().st_mode for tree in trees for path in (tree, *tree.rglob("*"))]
    return b"10 found" in done.stdout and not any(mode & 0o077 for mode in modes)


def is_same(area: Path, done: Completed) -> bool:
    return b"the same" in done.stderr + done.stdout


PROGRAMS = {
    "pcopy": (in_copy, ("--checkpoint", "none", "-T")),
    "psync": (in_copy, ("--checkpoint", "none")),
    "ptar": (in_archive, ("-c", "-f", "ARCHIVE")),
    "pchmod": (changed, ("--mode", "go-rwx")),
    "pwalk": (in_output, ()),
    "pverify": (is_same, ()),
}
"""By program: a function that checks that the run has processed all files, and the arguments. (prm removes no mounted
items.)"""

MOMENTS = {"before it is found": "SRC", "when it is found": "a", "while it is listed": "m/auto/inner"}
"""The directory that the run is listing when the mount expires."""


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_expired_automount_is_entered_again(area: Path, trees: Trees, program: str, moment: str, ranks: int) -> None:
    has_all, options = PROGRAMS[program]
    words: list[Argument] = [area / "archive" if word == "ARCHIVE" else word for word in options]
    words.append(f"{trees.source}/" if program == "psync" else trees.source)
    if program in ("psync", "pcopy", "pverify"):
        words.append(trees.copy if program == "pverify" else area / "new")
    enter(trees)
    path = trees.source if MOMENTS[moment] == "SRC" else trees.source / MOMENTS[moment]
    with held(area / "log", *words, program=program, ranks=ranks, calls=LISTING, path=path) as run:
        expire(trees)
        done = run.go_on()
    assert done.returncode == 0, show(done)
    assert has_all(area, done), show(done)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("words", [(), ("--max-delete", "50")], ids=["mirror", "max-delete"])
def test_deletion_continues_after_an_automount_expired(
    area: Path, trees: Trees, words: Sequence[Argument], ranks: int
) -> None:
    """The check of the mounts enters it again."""
    write(trees.source / LATE, b"late")
    fill(trees.copy, ("a/extra", "m/auto/extra", "m/auto/inner/extra", "m/extra/file"))
    enter(trees)
    job: list[Argument] = ["--mirror", "--checkpoint", "none", *words, f"{trees.source}/", trees.copy]
    with held(area / "log", *job, ranks=ranks, calls=("openat",), path=LATE) as run:
        expire(trees)
        done = run.go_on()
    assert done.returncode == 0, show(done)
    assert files(trees.copy) == {*FILES, str(LATE)}, show(done)
