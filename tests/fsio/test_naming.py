"""Renaming without replacement: existing items are never replaced, and every failure raises ``Problem``."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pcopy import libc
from pcopy.fsio import naming
from pcopy.fsio.naming import NonReplacingRenamer, RenameResult


def no_renameat2(*_: object) -> None:
    """renameat2(2) as on NFS, or in a C library from before 2018."""
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def test_probe_that_cannot_be_closed_is_ignored(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe was created only to examine its file system, and contains nothing."""
    real = os.close
    broken: list[int] = []

    def close(descriptor: int) -> None:
        real(descriptor)
        broken.append(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    directory = os.open(area, os.O_RDONLY)
    monkeypatch.setattr(os, "close", close)
    needed = NonReplacingRenamer().needs_placeholders(directory, area.stat().st_dev, b"probe")
    monkeypatch.undo()
    os.close(directory)
    assert (needed, len(broken)) == (False, 1)
    assert os.listdir(area) == []


@pytest.mark.parametrize("way", ["rename", "link", "placeholder"])
@pytest.mark.parametrize("taken", [False, True])
def test_each_method_of_renaming_never_replaces(
    area: Path, monkeypatch: pytest.MonkeyPatch, way: str, taken: bool
) -> None:
    if way != "rename":
        monkeypatch.setattr(libc, "renameat2", no_renameat2)
    if way == "placeholder":
        monkeypatch.setattr(naming, "_rename_by_link", lambda *_: None)
    (area / "temporary").write_bytes(b"new")
    if taken:
        (area / "name").write_bytes(b"the user's")
    directory = os.open(area, os.O_RDONLY)
    try:
        given = NonReplacingRenamer().rename(directory, b"temporary", area.stat().st_dev, b"name")
    finally:
        os.close(directory)
    assert given is (RenameResult.NAME_TAKEN if taken else RenameResult.RENAMED)
    assert (area / "name").read_bytes() == (b"the user's" if taken else b"new")
    assert (area / "temporary").exists() == taken


def test_link_is_not_used_if_each_name_has_its_own_inode_number(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """sshfs does not support the flags of renameat2(2), and a link has another inode number there: it would seem to be
    a foreign file.
    """

    def link(old: bytes, new: bytes, *, src_dir_fd: int, dst_dir_fd: int, follow_symlinks: bool) -> None:
        (area / os.fsdecode(new)).write_bytes((area / os.fsdecode(old)).read_bytes())

    (area / "temporary").write_bytes(b"new")
    number = (area / "temporary").stat().st_ino
    namer, directory = NonReplacingRenamer(), os.open(area, os.O_RDONLY)
    monkeypatch.setattr(libc, "renameat2", no_renameat2)
    monkeypatch.setattr(os, "link", link)
    try:
        given = namer.rename(directory, b"temporary", area.stat().st_dev, b"name")
        assert namer.needs_placeholders(directory, area.stat().st_dev, b"probe")
    finally:
        os.close(directory)
    assert (given, os.listdir(area), (area / "name").stat().st_ino) == (RenameResult.RENAMED, ["name"], number)
