"""``psync`` to a tree that exists: one call of the C backend skips whole subtrees that are unchanged. Each difference
of a directory, however deep, is repaired; rsync says what differs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command import show, succeed, summary
from tests.support.oracle import differences
from tests.support.users import require_root

LEVELS = 4
EARLIER = 10**18
ACL = "user:1235:r-x"


def set_acl(*words: str) -> Callable[[Path, Path], object]:
    return lambda _, there: subprocess.run(["setfacl", *words, there], check=True)


def set_attributes(here: Path, there: Path) -> None:
    """Give both directories an attribute, with different values."""
    for path, value in ((here, b"1"), (there, b"2")):
        os.setxattr(path, "user.other", value)


def make_file_of_directory(_: Path, there: Path) -> None:
    shutil.rmtree(there / "side")
    (there / "side").touch()


def make_directory_of_file(_: Path, there: Path) -> None:
    (there / "file").unlink()
    (there / "file").mkdir()


def write_with_equal_times(here: Path, there: Path, name: str) -> None:
    """Write a file that only the source has; the times of both directories are equal afterwards."""
    (here / name).write_text("new")
    status = there.stat()
    os.utime(here, ns=(status.st_atime_ns, status.st_mtime_ns))


DIFFERENCES: dict[str, Callable[[Path, Path], object]] = {
    "nothing": lambda here, there: None,
    "mode": lambda here, there: there.chmod(0o701),
    "set-gid": lambda here, there: there.chmod(0o2755),
    "owner": lambda here, there: os.chown(there, 1234, -1),
    "group": lambda here, there: os.chown(there, -1, 1234),
    "mtime": lambda here, there: os.utime(there, ns=(EARLIER, EARLIER - 1)),
    "mtime and atime": lambda here, there: os.utime(there, ns=(1, 1)),
    "extra attribute": lambda here, there: os.setxattr(there, "user.extra", b"value"),
    "missing attribute": lambda here, there: os.setxattr(here, "user.missing", b"value"),
    "other attribute": set_attributes,
    "access ACL": set_acl("-m", ACL),
    "default ACL": set_acl("-d", "-m", ACL),
    "ACL of the source": lambda here, there: subprocess.run(["setfacl", "-m", ACL, here], check=True),
    "extra file": lambda here, there: (there / "extra").write_text("extra"),
    "extra directory": lambda here, there: (there / "extra/below").mkdir(parents=True),
    "missing file": lambda here, there: (there / "file").unlink(),
    "other file": lambda here, there: (there / "file").write_text("other contents"),
    "mode of a file": lambda here, there: (there / "file").chmod(0o600),
    "new file": lambda here, there: write_with_equal_times(here, there, "new"),
    "missing directory": lambda here, there: shutil.rmtree(there / "below"),
    "file for a directory": make_file_of_directory,
    "directory for a file": make_directory_of_file,
}


def make_chain(top: Path) -> None:
    """Make a chain of directories, each with a file and an empty directory."""
    for _ in range(LEVELS):
        (top / "side").mkdir(parents=True)
        (top / "file").write_text("contents")
        top /= "below"
    top.mkdir()


def metadata(top: Path) -> dict[Path, tuple[object, ...]]:
    """Return the metadata of all directories, by path below ``top``."""
    found: dict[Path, tuple[object, ...]] = {}
    for path in (top, *top.rglob("*")):
        if path.is_dir():
            status = path.lstat()
            attributes = [(name, os.getxattr(path, name)) for name in sorted(os.listxattr(path))]
            place = status.st_ino, status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns
            found[path.relative_to(top)] = (*place, attributes)
    return found


def make_trees_with_each_difference(area: Path) -> tuple[Path, Path]:
    """Create ``source`` and ``copy`` in ``area``, which have each difference at each depth. Return their paths."""
    source, copy = area / "source", area / "copy"
    for name in DIFFERENCES:
        for depth in range(LEVELS):
            make_chain(source / name / f"{depth}")
    for number, path in enumerate(sorted(source.rglob("*"), reverse=True)):
        os.utime(path, ns=(EARLIER, EARLIER + number))
    subprocess.run(["cp", "-a", source, copy], check=True)
    for name, differ in DIFFERENCES.items():
        for depth in range(LEVELS):
            below = f"{name}/{depth}{'/below' * depth}"
            differ(source / below, copy / below)
    return source, copy


@pytest.mark.parametrize("ranks", [1, 2])
def test_each_difference_at_each_depth_is_repaired(area: Path, ranks: int) -> None:
    require_root("give directories away")
    source, copy = make_trees_with_each_difference(area)
    assert len(differences(source, copy)) > 2 * LEVELS * len(DIFFERENCES) // 3
    before = metadata(copy)
    words = ("--json", f"{source}/", copy)
    run = succeed(*words, ranks=ranks, program="psync")
    assert differences(source, copy) == [], show(run)
    reported, after = summary(run), metadata(copy)
    assert reported["directories"] == sum(before.get(path) != after[path] for path in after), show(run)
    items = 1 + sum(1 for _ in source.rglob("*"))
    assert (reported["found"], reported["copied"] + reported["skipped"]) == (items, items), show(run)
    for _ in range(2):
        run = succeed(*words, ranks=ranks, program="psync")
        reported = summary(run)
        assert (reported["found"], reported["skipped"], reported["deleted"]) == (items, items, 0), show(run)
        assert metadata(copy) == after
