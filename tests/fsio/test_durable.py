"""Replacing one of pcopy's own files: the old or the new one exists at any time, and an error names the failed step."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from pcopy.fsio.durable import Durability, replacing_file, sync_directory
from pcopy.fsio.problem import Problem
from tests.support.filesystems import mounted


@pytest.mark.parametrize(
    ("synced", "wanted"),
    [
        (Durability.NAME, ["fsync file of 8192", "rename", "fsync directory"]),
        (Durability.CONTENTS, ["fsync file of 8192", "rename"]),
        (Durability.NOTHING, ["rename"]),
    ],
)
def test_contents_are_synced_before_the_rename(
    area: Path, directory: int, monkeypatch: pytest.MonkeyPatch, synced: Durability, wanted: list[str]
) -> None:
    (area / "name").write_bytes(b"old")
    fsync, rename = os.fsync, os.rename
    calls: list[str] = []

    def noted_fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        calls.append("fsync directory" if stat.S_ISDIR(status.st_mode) else f"fsync file of {status.st_size}")
        fsync(descriptor)

    def noted_rename(old: bytes, new: bytes, **directories: int) -> None:
        calls.append("rename")
        assert (area / "name").read_bytes() == b"old"
        assert (area / os.fsdecode(old)).stat().st_size == 8192
        rename(old, new, **directories)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    with replacing_file(directory, b"name", b"new", durability=synced) as stream:
        stream.write(bytes(8192))
    assert calls == wanted
    assert os.listdir(area) == ["name"]
    assert (area / "name").read_bytes() == bytes(8192)
    assert stat.S_IMODE((area / "name").stat().st_mode) == 0o600


@pytest.mark.parametrize("operation", ["create", "fsync", "rename"])
def test_failed_replacement_keeps_the_old_file(
    area: Path, directory: int, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    (area / "name").write_bytes(b"old")

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, {"create": "open"}.get(operation, operation), fail)
    with pytest.raises(Problem) as raised, replacing_file(directory, b"name", b"new") as stream:
        stream.write(b"new")
    monkeypatch.undo()
    assert (raised.value.operation, raised.value.errno) == (operation, errno.EIO)
    assert os.listdir(area) == ["name"]
    assert (area / "name").read_bytes() == b"old"


@pytest.mark.parametrize("size", [100 << 10, 1 << 20], ids=["flushed", "written"])
def test_full_disk_keeps_the_old_file(session_scratch: Path, size: int) -> None:
    """Closing the stream fails, too, but the first error is reported."""
    with mounted("tmpfs", session_scratch, size=64 << 10) as place:
        (place / "name").write_bytes(b"old")
        directory = os.open(place, os.O_RDONLY)
        try:
            with pytest.raises(OSError) as raised, replacing_file(directory, b"name", b"new") as stream:
                stream.write(bytes(size))
        finally:
            os.close(directory)
        assert raised.value.errno == errno.ENOSPC
        assert os.listdir(place) == ["name"]
        assert (place / "name").read_bytes() == b"old"


def test_aborted_replacement_keeps_the_old_file(area: Path, directory: int) -> None:
    (area / "name").write_bytes(b"old")

    with pytest.raises(KeyboardInterrupt), replacing_file(directory, b"name", b"new") as stream:
        stream.write(b"half")
        raise KeyboardInterrupt
    assert os.listdir(area) == ["name"]
    assert (area / "name").read_bytes() == b"old"


def test_existing_item_with_the_temporary_name_is_not_written_to(area: Path, directory: int) -> None:
    (area / "elsewhere").write_bytes(b"another's")
    (area / "new").symlink_to("elsewhere")
    with pytest.raises(Problem, match="exists"), replacing_file(directory, b"name", b"new"):
        pass
    assert sorted(os.listdir(area)) == ["elsewhere", "new"]
    assert (area / "elsewhere").read_bytes() == b"another's"


@pytest.mark.parametrize(("number", "is_told"), [(errno.EIO, True), (errno.EINVAL, False), (errno.EOPNOTSUPP, False)])
def test_directory_sync_not_supported_by_the_file_system_is_ignored(
    directory: int, monkeypatch: pytest.MonkeyPatch, number: int, is_told: bool
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    if is_told:
        with pytest.raises(Problem):
            sync_directory(directory)
    else:
        sync_directory(directory)
