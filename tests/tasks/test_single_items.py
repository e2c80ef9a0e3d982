"""Sources that are a single file, and names that fail alone."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from pcopy.fsio.backend.choose import BACKEND_VARIABLES
from pcopy.fsio.preserve import PreservedMetadataKinds
from pcopy.tasks.base import sibling_directories
from pcopy.tasks.files.copy_files import CopyFiles
from tests.support.attributes import ACCESS_ACL, DEFAULT_ACL, acl
from tests.tasks.one_rank import consistent, copy, root_of, scans


@pytest.fixture
def places(area: Path) -> tuple[Path, Path]:
    source, target = area / "source", area / "target"
    source.mkdir()
    target.mkdir()
    (source / "file").write_bytes(b"new content")
    return source, target


@pytest.mark.parametrize(
    ("existing", "copied", "skipped", "failed"),
    [("replace", 1, 0, 0), ("changed", 1, 0, 0), ("newer", 0, 1, 0), ("skip", 0, 1, 0), ("fail", 0, 0, 1)],
)
def test_single_file_over_an_existing_one_follows_the_policy(
    places: tuple[Path, Path], existing: str, copied: int, skipped: int, failed: int
) -> None:
    source, target = places
    (target / "file").write_bytes(b"old")
    os.utime(source / "file", (1000, 1000))
    totals = consistent(copy(root_of(source, target, b"file"), existing=existing))
    assert (totals.files, totals.skipped, totals.failed) == (copied, skipped, failed)
    assert (target / "file").read_bytes() == (b"new content" if copied else b"old")


def test_single_file_inherits_no_acl(on: Any) -> None:
    """The default ACL of the directory does not belong to the source."""
    place = on("ext4")
    source, target = place / "source", place / "target"
    source.mkdir()
    target.mkdir()
    (source / "file").write_bytes(b"private")
    (source / "file").chmod(0o640)
    os.setxattr(target, DEFAULT_ACL, acl(7, 7, 5, {65534: 7}))
    consistent(copy(root_of(source, target, b"file")))
    assert ACCESS_ACL not in os.listxattr(target / "file")
    assert (target / "file").stat().st_mode & 0o7777 == 0o640


def test_failed_lookup_of_one_name_fails_only_that_name(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that the target does not support must not fail the other files of its batch."""
    source, target = places
    for number in range(9):
        (source / f"{number}").write_bytes(b"%d" % number)
    real = os.stat
    below = target.stat().st_ino

    def stat(path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
        if path == b"5" and dir_fd is not None and os.fstat(dir_fd).st_ino == below:
            raise OSError(errno.ENAMETOOLONG, "File name too long")
        return real(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)

    monkeypatch.setenv(BACKEND_VARIABLES[0], "python")  # because it calls the patched function
    monkeypatch.setattr(os, "stat", stat)
    totals = consistent(copied := copy(root_of(source, target), existing="changed"))
    assert (totals.files, totals.failed) == (9, 1)
    assert [(failure.path, failure.errno) for failure in copied.failures] == [(bytes(target / "5"), errno.ENAMETOOLONG)]


def test_every_item_of_a_vanished_directory_is_counted(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sibling_directories, "MAX_SECONDS_WHILE_IDLE", 0.0)  # the files become tasks
    source, target = places
    inner = source / "inner"
    inner.mkdir()
    for number in range(5):
        (inner / f"{number}").write_bytes(b"1")
        os.symlink("x", inner / f"s{number}")
    os.link(inner / "0", inner / "linked")

    def before(value: Any) -> None:
        if isinstance(value, CopyFiles) and value.place.path == b"inner" and inner.exists():
            moved = source.parent / "moved"
            inner.rename(moved)
            shutil.rmtree(moved)

    totals = consistent(copied := copy(root_of(source, target), before=before))
    # The descriptor of the directory is still open, as in a real run, or it is opened again: both end with failures.
    assert totals.failed == 11 and totals.directories == 2 and totals.files == 1
    assert len(copied.failures) == 11


@pytest.mark.parametrize("kind", ["symlink", "fifo", "directory"])
def test_file_replacing_another_type_does_not_take_its_mode(places: tuple[Path, Path], kind: str) -> None:
    """The mode 0777 of a symbolic link is not a permission that anybody granted."""
    source, target = places
    (source / "file").chmod(0o640)
    if kind == "symlink":
        (target / "file").symlink_to("nowhere")
    elif kind == "fifo":
        os.mkfifo(target / "file")
        (target / "file").chmod(0o777)
    else:
        (target / "file").mkdir()
        (target / "file").chmod(0o777)
    consistent(copy(root_of(source, target), preserve=PreservedMetadataKinds(mode=False), umask=0o027))
    status = (target / "file").lstat()
    assert (target / "file").is_file() and status.st_mode & 0o7777 == 0o640


def test_more_sources_than_descriptors_are_copied(area: Path) -> None:
    """As with ``pcopy SRC/* DST``: the number of open descriptors must not grow with the number of sources."""
    roots = []
    for number in range(300):
        source, target = area / "source" / f"{number}", area / "target" / f"{number}"
        (source / "a/b/c").mkdir(parents=True)
        target.mkdir(parents=True)
        roots.append(root_of(source, target))
    most = 0

    def watch(_: Any) -> None:
        nonlocal most
        most = max(most, len(os.listdir("/proc/self/fd")))

    before = len(os.listdir("/proc/self/fd"))
    totals = consistent(copy(*roots, before=watch))
    assert totals.directories == 4 * 300
    assert most <= before + 2 * 300 + 2 * 128 + 8
    assert len(os.listdir("/proc/self/fd")) == before


def test_swapped_directory_fails(places: tuple[Path, Path]) -> None:
    source, target = places
    for name in ("inner", "other"):
        (source.parent / name).mkdir()
    (source.parent / "inner").rename(source / "inner")

    def before(value: Any) -> None:
        if scans(value, b"inner"):
            (source / "inner").rmdir()
            (source.parent / "other").rename(source / "inner")

    totals = consistent(copied := copy(root_of(source, target), before=before))
    assert totals.failed == 1
    assert copied.failures[0].errno == errno.ESTALE


@pytest.mark.parametrize("there", [False, True])
def test_copied_bytes_of_a_file_of_reported_size_zero_are_counted(area: Path, there: bool) -> None:
    """By any method of copying the actual bytes are counted, also if the file is named last or repaired."""
    if there:
        (area / "version").write_bytes(b"old")
    totals = consistent(copied := copy(root_of(Path("/proc"), area, b"version"), hash="xxh3-128"))
    assert copied.failures == []
    assert totals.bytes == len(Path("/proc/version").read_bytes()) > 0
