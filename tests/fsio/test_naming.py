"""Names are given without replacing anything; only a ``Problem`` says that one could not be."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pcopy import libc
from pcopy.fsio import naming
from pcopy.fsio.naming import NoReplaceRenamer, RenameResult


def no_renameat2(*_: object) -> None:
    """As with a C library from before 2018, or on NFS."""
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def test_a_probe_that_cannot_be_closed_ends_nothing(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was made to learn of its file system, and holds nothing."""
    real = os.close
    broken: list[int] = []

    def close(descriptor: int) -> None:
        real(descriptor)
        broken.append(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    directory = os.open(area, os.O_RDONLY)
    monkeypatch.setattr(os, "close", close)
    needed = NoReplaceRenamer().needs_placeholders(directory, area.stat().st_dev, b"probe")
    monkeypatch.undo()
    os.close(directory)
    assert (needed, len(broken)) == (False, 1)
    assert os.listdir(area) == []


@pytest.mark.parametrize("way", ["rename", "link", "placeholder"])
@pytest.mark.parametrize("taken", [False, True])
def test_a_name_is_given_in_each_way(area: Path, monkeypatch: pytest.MonkeyPatch, way: str, taken: bool) -> None:
    if way != "rename":
        monkeypatch.setattr(libc, "renameat2", no_renameat2)
    if way == "placeholder":
        monkeypatch.setattr(naming, "_rename_by_link", lambda *_: None)
    (area / "temporary").write_bytes(b"new")
    if taken:
        (area / "name").write_bytes(b"the user's")
    directory = os.open(area, os.O_RDONLY)
    try:
        given = NoReplaceRenamer().rename(directory, b"temporary", area.stat().st_dev, b"name")
    finally:
        os.close(directory)
    assert given is (RenameResult.NAME_TAKEN if taken else RenameResult.RENAMED)
    assert (area / "name").read_bytes() == (b"the user's" if taken else b"new")
    assert (area / "temporary").exists() == taken


def test_where_each_name_has_a_number_of_its_own_none_is_given_by_a_link(
    area: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sshfs knows no flags of renameat2(2), and a link there has another inode number: it would seem another's."""

    def link(old: bytes, new: bytes, *, src_dir_fd: int, dst_dir_fd: int, follow_symlinks: bool) -> None:
        (area / os.fsdecode(new)).write_bytes((area / os.fsdecode(old)).read_bytes())

    (area / "temporary").write_bytes(b"new")
    number = (area / "temporary").stat().st_ino
    namer, directory = NoReplaceRenamer(), os.open(area, os.O_RDONLY)
    monkeypatch.setattr(libc, "renameat2", no_renameat2)
    monkeypatch.setattr(os, "link", link)
    try:
        given = namer.rename(directory, b"temporary", area.stat().st_dev, b"name")
        assert namer.needs_placeholders(directory, area.stat().st_dev, b"probe")
    finally:
        os.close(directory)
    assert (given, os.listdir(area), (area / "name").stat().st_ino) == (RenameResult.RENAMED, ["name"], number)
