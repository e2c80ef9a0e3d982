"""A temporary file is reopened only if it is the one that was created. Otherwise an attacker could have pcopy apply
metadata to a file of the attacker's.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.problem import Problem
from pcopy.fsio.temporary import (
    TEMPORARY_NAME_PREFIX,
    TemporaryNameGenerator,
    create_private_file,
    remove_item_if_present,
    rename_and_verify,
    reopen_temporary_file,
    verify_name_has_inode,
)
from tests.support.files import replace_by_link
from tests.support.users import NOBODY, as_user, is_root


def make(directory: int, name: bytes = b"temporary") -> int:
    descriptor = create_private_file(directory, name)
    status = os.fstat(descriptor)
    os.close(descriptor)
    assert status.st_mode & 0o7777 == 0o600
    return status.st_ino


def another_file(path: Path) -> None:
    path.rename(path.with_name("aside"))  # so that its inode number is not reused
    path.touch(0o600)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def directory_instead(path: Path) -> None:
    path.unlink()
    path.mkdir(0o600)


def another_owner(path: Path) -> None:
    if not is_root():
        pytest.skip("only root can give files away")
    os.chown(path, NOBODY, -1)


TRICKS: dict[str, Callable[[Path], object]] = {
    "another file": another_file,
    "a symbolic link to it": replace_by_link,
    "a hard link more": lambda path: os.link(path, path.with_name("more")),
    "readable": lambda path: path.chmod(0o644),
    "set-uid": lambda path: path.chmod(0o4600),
    "another owner": another_owner,
    "another size": lambda path: os.truncate(path, 1),
    "a FIFO": fifo,
    "a directory": directory_instead,
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("trick", TRICKS)
def test_invalid_requests_are_refused(directory: int, area: Path, trick: str) -> None:
    inode = make(directory)
    TRICKS[trick](area / "temporary")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(Problem) as caught:
        reopen_temporary_file(directory, b"temporary", ItemIdentity(0, inode), 0)
    assert caught.value.errno in (errno.ESTALE, errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENOENT)
    assert not caught.value.on_source
    assert caught.value.may_retry == (caught.value.errno in (errno.ESTALE, errno.ENOENT)), "it may be made again"
    assert len(os.listdir("/proc/self/fd")) == before


def test_unwritable_temporary_file_may_be_created_again(directory: int, area: Path) -> None:
    """A run has applied the mode of the source and was killed before this was recorded."""
    inode = make(directory)
    (area / "temporary").chmod(0o444)
    if is_root():
        os.chown(area / "temporary", NOBODY, -1)
        area.chmod(0o755)

    def check() -> None:
        with pytest.raises(Problem) as caught:
            reopen_temporary_file(directory, b"temporary", ItemIdentity(0, inode), 0)
        assert caught.value.errno == errno.EACCES
        assert caught.value.may_retry

    as_user(check)


def test_created_temporary_file_is_reopened_for_writing(directory: int, area: Path) -> None:
    descriptor = reopen_temporary_file(directory, b"temporary", ItemIdentity(0, make(directory)), 0)
    os.pwrite(descriptor, b"content", 0)
    os.close(descriptor)
    assert (area / "temporary").read_bytes() == b"content"


@pytest.mark.parametrize("trick", ["none", *TRICKS])
def test_file_with_mode_mapped_by_server_must_keep_that_mode(directory: int, area: Path, trick: str) -> None:
    made = ItemIdentity(0, make(directory))
    shown = stat.S_IFREG | 0o755, 12345
    os.chown(area / "temporary", 12345, -1) if is_root() else pytest.skip("only root can give files away")
    (area / "temporary").chmod(0o755)
    if trick == "none":
        os.close(reopen_temporary_file(directory, b"temporary", made, 0, shown))
        return
    TRICKS[trick](area / "temporary")
    with pytest.raises(Problem):
        reopen_temporary_file(directory, b"temporary", made, 0, shown)


def test_existing_names_are_never_opened_for_creation(directory: int, area: Path) -> None:
    (area / "dangling").symlink_to("elsewhere")
    (area / "there").touch()
    for name in (b"dangling", b"there"):
        with pytest.raises(Problem) as caught:
            create_private_file(directory, name)
        assert (caught.value.operation, caught.value.errno) == ("create", errno.EEXIST)
    assert not (area / "elsewhere").exists()


def test_rename_replaces_a_link_and_does_not_follow_it(directory: int, area: Path) -> None:
    (area / "outside").write_bytes(b"outside")
    (area / "final").symlink_to("outside")
    rename_and_verify(directory, b"temporary", b"final", make(directory))
    assert (area / "outside").read_bytes() == b"outside"
    assert (area / "final").is_file() and not (area / "final").is_symlink()


def test_file_swapped_before_its_rename_is_reported(directory: int, area: Path) -> None:
    inode = make(directory)
    another_file(area / "temporary")
    with pytest.raises(Problem) as caught:
        rename_and_verify(directory, b"temporary", b"final", inode)
    assert caught.value.errno == errno.ESTALE
    with pytest.raises(Problem) as caught:
        verify_name_has_inode(directory, b"nothing", inode)
    assert caught.value.errno == errno.ENOENT


def test_removing_a_missing_file_succeeds(directory: int, area: Path) -> None:
    remove_item_if_present(directory, b"absent")
    (area / "directory").mkdir()
    with pytest.raises(Problem):
        remove_item_if_present(directory, b"directory")


def test_temporary_names_are_unique() -> None:
    ranks = [TemporaryNameGenerator(job, run, rank) for job in ("1", "11") for run in (1, 11) for rank in (1, 11)]
    names = [names.next_name() for names in ranks for _ in range(20)]
    assert len(set(names)) == len(names)
    assert all(name.startswith(TEMPORARY_NAME_PREFIX) and b"/" not in name for name in names)
