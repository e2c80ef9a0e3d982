"""The mark of a file that is overwritten in place, if extended attributes are not supported: a small sidecar file."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from pcopy.fsio import incomplete_mark
from pcopy.fsio.identity import identity_mark_of
from pcopy.fsio.incomplete_mark import SIDECAR_NAME_PREFIX, IncompleteFileMark
from pcopy.fsio.problem import Problem

MARK = IncompleteFileMark("job", stat.S_IFREG | 0o644, 1, 2)
REAL = {"rename": os.rename, "open": os.open, "fsync": os.fsync}


@pytest.fixture
def opened(area: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """Descriptors of a directory and of a file in it."""

    def unknown(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    (area / "file").write_bytes(b"contents")
    directory, file = os.open(area, os.O_RDONLY), os.open(area / "file", os.O_RDWR)
    for call in ("setxattr", "getxattr", "removexattr"):
        monkeypatch.setattr(os, call, unknown)
    yield directory, file
    monkeypatch.undo()
    os.close(directory)
    os.close(file)


def test_sidecar_mark_is_found_and_cleared(opened: tuple[int, int]) -> None:
    directory, file = opened
    status = os.fstat(file)
    incomplete_mark.set_incomplete_file_mark(directory, b"file", file, status, MARK, b"temporary")
    (beside,) = set(os.listdir(directory)) - {"file"}
    assert beside.startswith(os.fsdecode(SIDECAR_NAME_PREFIX))
    assert incomplete_mark.find_incomplete_file_mark(directory, b"file", status, file) == MARK
    incomplete_mark.remove_incomplete_file_mark(directory, b"file", file)
    assert incomplete_mark.find_incomplete_file_mark(directory, b"file", status, file) is None
    assert os.listdir(directory) == ["file"]


@pytest.mark.parametrize("is_same_inode", [True, False])
def test_another_file_with_the_same_name_is_not_marked(opened: tuple[int, int], is_same_inode: bool) -> None:
    """A file handle or a birth time distinguishes it from a later file with the same inode number."""
    directory, file = opened
    status, mark = os.fstat(file), identity_mark_of(file, created_by_job=False)
    if not mark:
        pytest.skip("identities can't be told here")
    incomplete_mark.set_incomplete_file_mark(directory, b"file", file, status, MARK, b"temporary")
    beside = os.open(incomplete_mark.sidecar_name(b"file"), os.O_RDWR, dir_fd=directory)
    try:
        mine = b"%d %s" % (status.st_ino, mark.hex().encode())
        other = mark[:-1] + bytes((mark[-1] ^ 1,)) if is_same_inode else mark
        others = b"%d %s" % (status.st_ino + (not is_same_inode), other.hex().encode())
        text = os.read(beside, 4096)
        assert mine in text
        os.ftruncate(beside, 0)
        os.pwrite(beside, text.replace(mine, others), 0)
    finally:
        os.close(beside)
    assert incomplete_mark.find_incomplete_file_mark(directory, b"file", status) is None


@pytest.mark.parametrize("operation", REAL)
def test_error_names_the_failed_operation(
    opened: tuple[int, int], monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """The reader of the error needs to know which operation the storage refused."""
    directory, file = opened

    def fail(what: object, *arguments: object, **keywords: object) -> object:
        is_meant = operation == "rename" or what == "." or (isinstance(what, int) and os.path.isdir(what))
        if is_meant:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return REAL[operation](what, *arguments, **keywords)  # type: ignore[operator]

    monkeypatch.setattr(os, operation, fail)
    with pytest.raises(Problem) as raised:
        incomplete_mark.set_incomplete_file_mark(directory, b"file", file, os.fstat(file), MARK, b"temporary")
    monkeypatch.setattr(os, operation, REAL[operation])
    assert (raised.value.operation, raised.value.errno) == (operation, errno.EIO)
    assert "temporary" not in os.listdir(directory)
