"""File systems that are mounted or unmounted while a program works on the tree around them.

A table of all programs that traverse a tree, and all changes. A run stops at a system call, the mount is changed, and
the run continues. No run may mistake the directory below a mount for the mounted file system, and no run that could not
examine an item may report success.
"""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.command import Argument, Completed, show
from tests.support.files import NOW, write
from tests.support.filesystems import mounted
from tests.support.held import held
from tests.support.users import require_root

EXTRA = ("a/extra", "mount/extra", "mount/inner/extra", "z/extra", "extra/file")
LISTING = ("getdents64",)
FAILED = 1
TROUBLE = 2


class Trees(NamedTuple):
    """``source`` and ``copy`` have the same files; something is mounted at ``mount`` of one of them, or nothing."""

    source: Path
    copy: Path
    other: Path
    """Another file system to be mounted, which contains ``strange``."""


def fill(tree: Path) -> None:
    for name in ("a/file", "mount/file", "mount/inner/file", "z/file"):
        write(tree / name, b"content")
    for path in (*tree.rglob("*"), tree):
        os.utime(path, ns=(NOW, NOW))


@pytest.fixture
def trees(area: Path, session_scratch: Path) -> Iterator[Trees]:
    require_root("mount file systems")
    source, copy = area / "source", area / "copy"
    fill(source)
    fill(copy)
    with mounted("tmpfs", session_scratch, size=8 << 20) as other:
        write(other / "strange", b"")
        try:
            yield Trees(source, copy, other)
        finally:
            for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
                if line.split()[1].startswith(f"{area}/"):
                    subprocess.run(["umount", "--lazy", line.split()[1]], check=True)


def mount(tree: Path) -> Path:
    """Mount a tmpfs with the same files at ``mount``; return the mount point."""
    point = tree / "mount"
    for path in sorted(point.rglob("*"), reverse=True):
        (path.rmdir if path.is_dir() else path.unlink)()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8M,mode=755", "pcopy-test", point], check=True)
    fill(tree)
    return point


def files(tree: Path) -> set[str]:
    return {str(path.relative_to(tree)) for path in tree.rglob("*") if not path.is_dir()}


def vanish(tree: Path, trees: Trees) -> None:
    subprocess.run(["umount", "--lazy", tree / "mount"], check=True)


def appear(tree: Path, trees: Trees) -> None:
    subprocess.run(["mount", "--bind", trees.other, tree / "mount"], check=True)


def appear_from_same_file_system(tree: Path, trees: Trees) -> None:
    """The mount has the same device number."""
    (tree.parent / "hidden").mkdir()
    subprocess.run(["mount", "--bind", tree.parent / "hidden", tree / "mount"], check=True)


CHANGES: dict[str, tuple[bool, Callable[[Path, Trees], None]]] = {
    "vanishes": (True, vanish),
    "appears": (False, appear),
    "appears from the same file system": (False, appear_from_same_file_system),
}
"""Whether a file system is mounted when the run begins, and the change."""

MIRRORS: dict[str, tuple[str, tuple[Argument, ...]]] = {
    "psync": ("psync", ("--checkpoint", "none")),
    "psync kept": ("psync", ()),
    "mirror": ("pcopy", ("--mirror", "--checkpoint", "none")),
    "max-delete": ("pcopy", ("--mirror", "--checkpoint", "none", "--max-delete", "50")),
    "backup": ("pcopy", ("--mirror", "--checkpoint", "none", "--backup", "BACKUP")),
    "dry run": ("pcopy", ("--mirror", "--dry-run")),
}


LATE = Path("late")
"""A file that DST lacks. It is opened after its directory was scanned and before anything is deleted."""


def mirror(area: Path, trees: Trees, way: str, name: str, ranks: int, calls: Sequence[str], path: Path) -> Completed:
    """A run that has stopped at one of ``calls`` on ``path``, and continues after the change ``name`` of the source."""
    program, words = MIRRORS[way]
    options = [area / "backup" if word == "BACKUP" else word for word in words]
    job = (*options, f"{trees.source}/", trees.copy)
    with held(area / "log", *job, program=program, ranks=ranks, calls=calls, path=path) as run:
        CHANGES[name][1](trees.source, trees)
        return run.go_on()


def add_extra(trees: Trees, name: str) -> set[str]:
    """Create files that the source lacks; return all files of DST."""
    if CHANGES[name][0]:
        mount(trees.source)
    for path in EXTRA:
        write(trees.copy / path, b"")
    return files(trees.copy)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("way", [way for way in MIRRORS if way != "dry run"])
def test_nothing_is_deleted_if_mounts_of_source_change_before_deletion(
    area: Path, trees: Trees, way: str, name: str, ranks: int
) -> None:
    write(trees.source / LATE, b"late")
    before = add_extra(trees, name)
    done = mirror(area, trees, way, name, ranks, ("openat",), LATE)
    assert done.returncode == FAILED, show(done)
    assert b"%b" % bytes(trees.source / "mount") in done.stderr, show(done)
    assert b": nothing was deleted: " in done.stderr, show(done)
    assert before <= files(trees.copy) <= {*before, str(LATE)}, show(done)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("way", MIRRORS)
def test_only_extra_items_are_deleted_if_mounts_of_source_change_during_deletion(
    area: Path, trees: Trees, way: str, name: str, ranks: int
) -> None:
    """DST is listed for the first time in the search for extra items. Directories that are open already may be compared
    in their earlier state."""
    before = add_extra(trees, name)
    done = mirror(area, trees, way, name, ranks, LISTING, trees.copy)
    left = files(trees.copy)
    assert before - {*EXTRA} <= left <= before, show(done)
    if done.returncode == 0:
        assert left == (before if way == "dry run" else before - {*EXTRA}), show(done)
    else:
        assert done.returncode == FAILED, show(done)
        assert b"%b" % bytes(trees.source / "mount") in done.stderr, show(done)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("way", ["psync", "max-delete"])
def test_deletion_stops_where_a_directory_cannot_be_compared(area: Path, trees: Trees, way: str, ranks: int) -> None:
    """No other extra item is deleted if the first compared directory is missing."""
    for number in range(30):
        write(trees.copy / "z" / f"extra-{number}/file", b"")
    program, words = MIRRORS[way]
    job = (*words, f"{trees.source}/", trees.copy)
    with held(area / "log", *job, program=program, ranks=ranks, calls=LISTING, path=trees.copy) as run:
        (trees.source / "z").rename(trees.source / "y")
        done = run.go_on()
    assert done.returncode == FAILED, show(done)
    assert len([*(trees.copy / "z").iterdir()]) == 31, show(done)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("way", [way for way in MIRRORS if way != "dry run"])
def test_nothing_on_a_changed_mount_of_the_target_is_deleted(
    area: Path, trees: Trees, way: str, name: str, ranks: int
) -> None:
    """Files on a new mount in DST are kept, and no files are created in the directory below a removed mount."""
    program, words = MIRRORS[way]
    if CHANGES[name][0]:
        mount(trees.copy)
    write(trees.copy / "mount/extra", b"")
    options = [area / "backup" if word == "BACKUP" else word for word in words]
    job = (*options, f"{trees.source}/", trees.copy)
    with held(area / "log", *job, program=program, ranks=ranks, calls=LISTING, path=trees.copy) as run:
        CHANGES[name][1](trees.copy, trees)
        here = files(trees.copy / "mount")
        done = run.go_on()
    assert done.returncode in (0, FAILED), show(done)
    assert files(trees.copy / "mount") == here, show(done)
    assert (trees.other / "strange").exists()


ALL = b"mount/inner/file"


def seen_in_copy(area: Path, done: Completed) -> bytes:
    return subprocess.run(["find", area / "new", "-type", "f"], check=True, capture_output=True).stdout


def seen_in_archive(area: Path, done: Completed) -> bytes:
    return subprocess.run(["tar", "-tf", area / "archive"], check=True, capture_output=True).stdout


def seen_in_output(area: Path, done: Completed) -> bytes:
    return done.stdout


def seen_in_number(area: Path, done: Completed) -> bytes:
    """Return ``ALL`` if nine items of SRC were found."""
    return ALL if b"9 found" in done.stdout else b""


def seen_by_comparison(area: Path, done: Completed) -> bytes:
    """Return ``ALL`` if all items were compared; the other side has all files."""
    return ALL if b"pverify: 9 items of" in done.stderr or b"pverify: 10 items of" in done.stderr else b""


def removed(area: Path, done: Completed) -> bytes:
    """Return ``ALL`` if SRC was removed: no mount prevented that, and no mounted item was removed."""
    return b"" if (area / "source").exists() else ALL


class Program(NamedTuple):
    """A program that traverses SRC, with the arguments ``words``.

    ``seen`` returns what the program has processed of SRC if its exit status is 0, which means all of it.
    """

    seen: Callable[[Path, Completed], bytes]
    words: tuple[Argument, ...] = ()
    changed: tuple[int, ...] = (FAILED,)
    """Exit statuses of a run that could not examine a part of SRC."""


PROGRAMS: dict[str, Program] = {
    "pcopy": Program(seen_in_copy, ("--checkpoint", "none", "-T")),
    "psync": Program(seen_in_copy, ("--checkpoint", "none")),
    "ptar": Program(seen_in_archive, ("-c", "-f", "ARCHIVE")),
    "prm": Program(removed, ("--yes",)),
    "pchmod": Program(seen_in_number, ("--mode", "go-rwx")),
    "pwalk": Program(seen_in_output),
    "pverify": Program(seen_by_comparison, (), (FAILED, TROUBLE)),
}


MOMENTS = {
    "before it is found": ("getdents64", ""),
    "when it is found": ("getdents64", "a"),
    "when it is listed": ("getdents64", "mount"),
    "when all in it is found": ("getdents64", "mount/inner"),
    "when a file in it is read": ("openat", "large"),
}
"""The call at which a run stops, and the directory in SRC or the name of a file that it is for."""

LARGE = 5 << 20
"""Size in bytes of a file that is copied and compared by its own tasks, after its directory was scanned."""


def happens(program: str, name: str, moment: str) -> bool:
    """Return True if a run of ``program`` has this moment, and the documentation promises that it notices the
    change."""
    if moment == "before it is found":
        # psync lists SRC before the job begins. A later mount from the same file system is not noticed.
        return program != "psync" and CHANGES[name][1] is not appear_from_same_file_system
    if moment == "when a file in it is read":
        return program in ("pcopy", "psync", "ptar", "pverify")
    return moment == "when it is found" or program != "prm" or not CHANGES[name][0]  # prm enters no mount


SITUATIONS = [each for each in product(PROGRAMS, CHANGES, MOMENTS) if happens(*each)]


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize(("program", "name", "moment"), SITUATIONS)
def test_no_program_mistakes_a_changed_mount_for_the_original_directory(
    area: Path, trees: Trees, program: str, name: str, moment: str, ranks: int
) -> None:
    """A run that opened the directory before the change may use its earlier state, if it uses all of it."""
    chosen, source = PROGRAMS[program], trees.source
    call, directory = MOMENTS[moment]
    if CHANGES[name][0]:
        mount(source)
    if program == "prm" and directory == "a":  # prm removes one subtree after the other, in the order of the listing
        directory = next(each for each in os.listdir(source) if each != "mount")
    if call == "openat":
        write(source / "mount" / directory, bytes(LARGE))
        write(trees.copy / "mount" / directory, bytes(LARGE))
    words = [area / "archive" if word == "ARCHIVE" else word for word in chosen.words]
    paths: list[Argument] = [f"{source}/" if program == "psync" else source]
    if program in ("psync", "pcopy", "pverify"):
        paths.append(trees.copy if program == "pverify" else area / "new")
    path = Path(directory) if call == "openat" else source / directory
    for _ in range(10):
        with held(area / "log", *words, *paths, program=program, ranks=ranks, calls=(call,), path=path) as run:
            is_removed = not (source / "mount").exists()
            if not is_removed:
                CHANGES[name][1](source, trees)
            done = run.go_on()
        if not is_removed:
            break
        fill(source)  # another rank of prm has removed the mount point: the moment has passed
    assert not is_removed
    if done.returncode == 0:
        seen = chosen.seen(area, done)
        assert b"mount/inner/file" in seen and b"strange" not in seen, show(done)
    else:
        assert done.returncode in chosen.changed, show(done)
        assert b"mount" in done.stdout + done.stderr, show(done)
    assert (trees.other / "strange").exists()
    assert stat.S_IMODE((trees.other / "strange").stat().st_mode) == 0o644
