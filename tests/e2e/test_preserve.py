"""``--preserve`` and ``--no-preserve`` for each attribute."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support.attributes import ACCESS_ACL, DEFAULT_ACL, acl, has_acls, has_xattrs
from tests.support.command import pcopy, show, succeed
from tests.support.files import mode_of
from tests.support.oracle import differences
from tests.support.users import require_root

OLD = 1_000_000_000


@pytest.fixture
def source(area: Path) -> Path:
    """Return a tree with files that have all attributes, a hard link and a directory."""
    if not has_xattrs(os.fsencode(area)) or not has_acls(os.fsencode(area)):
        pytest.skip("this file system has no extended attributes or no ACLs")
    path = area / "source"
    (path / "sub").mkdir(parents=True)
    (path / "file").write_bytes(b"content")
    os.link(path / "file", path / "sub/linked")
    (path / "plain").write_bytes(b"plain")
    os.setxattr(path / "file", "user.x", b"1")
    os.setxattr(path / "plain", ACCESS_ACL, acl(7, 5, 0, {1000: 6}))
    os.setxattr(path / "sub", DEFAULT_ACL, acl(7, 5, 5, {1000: 7}))
    (path / "file").chmod(0o777)
    (path / "sub").chmod(0o770)
    for name in ("file", "plain", "sub", "."):
        os.utime(path / name, (OLD, OLD))
    return path


@pytest.mark.parametrize("options", [[], ["-a"], ["-r"], ["-R"], ["--preserve", "all"], ["-aR"]])
def test_all_attributes_are_preserved_by_default(area: Path, source: Path, options: list[str]) -> None:
    succeed(*options, source, area / "copy")
    assert differences(source, area / "copy") == []


def test_timestamps_are_not_preserved(area: Path, source: Path) -> None:
    begun = time.time() - 1
    succeed("--no-preserve", "timestamps", source, area / "copy")
    for path in (area / "copy", area / "copy/file", area / "copy/sub"):
        assert path.stat().st_mtime >= begun
    assert mode_of(area / "copy/file") == 0o777
    assert os.getxattr(area / "copy/file", "user.x") == b"1"


def test_links(area: Path, source: Path) -> None:
    succeed("--no-preserve", "links", source, area / "copy")
    assert (area / "copy/file").stat().st_nlink == 1
    assert (area / "copy/sub/linked").read_bytes() == b"content"
    assert mode_of(area / "copy/sub/linked") == 0o777


def test_extended_attributes_are_not_preserved(area: Path, source: Path) -> None:
    succeed("--no-preserve", "xattr", source, area / "copy")
    assert "user.x" not in os.listxattr(area / "copy/file")
    assert os.getxattr(area / "copy/plain", ACCESS_ACL) == os.getxattr(source / "plain", ACCESS_ACL)


def test_acls_are_not_preserved(area: Path, source: Path) -> None:
    succeed("--no-preserve", "acl", source, area / "copy")
    assert ACCESS_ACL not in os.listxattr(area / "copy/plain")
    assert DEFAULT_ACL not in os.listxattr(area / "copy/sub")
    assert os.getxattr(area / "copy/file", "user.x") == b"1"


def test_umask_determines_modes_that_are_not_preserved(area: Path, source: Path) -> None:
    (source / "file").chmod(0o6775)
    (source / "script").write_bytes(b"x")
    (source / "script").chmod(0o4711)
    (source / "set-gid").mkdir()
    (source / "set-gid").chmod(0o2777)
    succeed("--no-preserve", "mode,acl", source, area / "copy", umask=0o027)
    assert mode_of(area / "copy/file") == 0o750
    assert mode_of(area / "copy/script") == 0o710
    assert mode_of(area / "copy/set-gid") == 0o750
    assert mode_of(area / "copy/sub") == 0o750
    assert (area / "copy/file").stat().st_mtime == (source / "file").stat().st_mtime


def test_existing_targets_keep_modes_that_are_not_preserved(area: Path, source: Path) -> None:
    (area / "copy/sub").mkdir(parents=True)
    (area / "copy/sub").chmod(0o711)
    (area / "copy/file").write_bytes(b"old")
    (area / "copy/file").chmod(0o604)
    succeed("--no-preserve", "mode,acl,links", f"{source}/", area / "copy")
    assert (area / "copy/file").read_bytes() == b"content"
    assert mode_of(area / "copy/file") == 0o604
    assert mode_of(area / "copy/sub") == 0o711


def test_umask_does_not_affect_preserved_modes(area: Path, source: Path) -> None:
    succeed(source, area / "copy", umask=0o077)
    assert differences(source, area / "copy") == []


def test_set_id_bits_are_cleared_if_ownership_is_not_preserved(area: Path, source: Path) -> None:
    """Otherwise set-id bits of another user would apply to the caller."""
    require_root("give files away")
    for path in (source / "file", source / "plain", source / "sub"):
        os.chown(path, 1000, 1001)
    (source / "file").chmod(0o6755)
    (source / "sub").chmod(0o2755)
    succeed("--no-preserve", "ownership", source, area / "copy")
    for name in ("file", "plain", "sub"):
        status = (area / "copy" / name).stat()
        assert (status.st_uid, status.st_gid) == (0, 0), name
    assert mode_of(area / "copy/file") == 0o755


def test_set_id_bits_are_kept_if_ownership_is_preserved(area: Path, source: Path) -> None:
    require_root("give files away")
    os.chown(source / "file", 1000, 1001)
    (source / "file").chmod(0o6755)
    succeed("--preserve", "mode,ownership", source, area / "copy")
    status = (area / "copy/file").stat()
    assert (status.st_uid, status.st_gid, mode_of(area / "copy/file")) == (1000, 1001, 0o6755)


def test_preserve_list_replaces_the_default(area: Path, source: Path) -> None:
    begun = time.time() - 1
    succeed("--preserve", "mode", source, area / "copy")
    assert mode_of(area / "copy/file") == 0o777
    assert (area / "copy/file").stat().st_mtime >= begun
    assert (area / "copy/file").stat().st_nlink == 1
    assert "user.x" not in os.listxattr(area / "copy/file")


def test_preserve_and_no_preserve_combine(area: Path, source: Path) -> None:
    begun = time.time() - 1
    succeed("--preserve", "mode,timestamps,links", "--no-preserve", "timestamps", source, area / "copy")
    assert mode_of(area / "copy/file") == 0o777
    assert (area / "copy/file").stat().st_nlink == 2
    assert (area / "copy/file").stat().st_mtime >= begun


def test_only_contents_are_copied_if_nothing_is_preserved(area: Path, source: Path) -> None:
    succeed("--no-preserve", "all", source, area / "copy", umask=0o022)
    assert (area / "copy/file").read_bytes() == b"content"
    assert (area / "copy/sub/linked").read_bytes() == b"content"
    assert mode_of(area / "copy/file") == 0o755


def test_default_acl_of_the_destination_is_not_inherited(area: Path, source: Path) -> None:
    """Items without an ACL in the source get none."""
    (area / "into").mkdir()
    os.setxattr(area / "into", DEFAULT_ACL, acl(7, 7, 7, {1000: 7}))
    succeed(source, area / "into")
    assert differences(source, area / "into/source") == []


@pytest.mark.parametrize("option", ["--preserve", "--no-preserve"])
def test_unknown_attributes_are_refused(area: Path, source: Path, option: str) -> None:
    run = pcopy(option, "mode,colour", source, area / "copy")
    assert run.returncode == 2, show(run)
    assert b"colour" in run.stderr, show(run)
    assert not (area / "copy").exists()
