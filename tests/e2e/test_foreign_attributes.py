"""Attributes of particular file systems and daemons: they fail no item, and give nobody additional access."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from pcopy.fsio import attribute_names
from pcopy.fsio.attribute_names import XattrKind, parse_xattr_conf, xattr_kind
from pcopy.fsio.attributes import ItemMetadata, apply_item_metadata, remove_extra_xattrs
from pcopy.fsio.preserve import PreservedMetadataKinds
from tests.support.attributes import ACCESS_ACL, acl
from tests.support.command import pcopy, show, succeed, summary
from tests.support.files import write
from tests.support.filesystems import Place
from tests.support.oracle import differences
from tests.support.preload import preloaded
from tests.support.users import NOBODY, require_root

LISTING = Path(__file__).parents[1] / "support" / "listing.c"


def getfacl(path: Path) -> str:
    return subprocess.run(["getfacl", "-n", "-c", "-p", path], check=True, capture_output=True, text=True).stdout


def has_access(path: Path, what: str) -> bool:
    """Return True if NOBODY has access to ``path``; ``what`` is -r or -w."""
    line = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "test", what, str(path)]
    return subprocess.run(line, check=False).returncode == 0


def with_acl(path: Path, *, user: int) -> None:
    os.setxattr(path, ACCESS_ACL, acl(6, 4, 0, {NOBODY: user}))


@pytest.mark.parametrize("option", [(), ("--existing", "replace", "--inplace")])
def test_no_preserve_acl_copies_no_acl_on_xfs(on: Place, option: tuple[str, ...]) -> None:
    """XFS shows ACLs to root a second time, as ``trusted.SGI_ACL_FILE``; setting that attribute sets the ACL."""
    require_root("see trusted attributes")
    place = on("xfs")
    for name in ("small", "nested/large"):
        write(place / "source" / name, b"x" * (6 << 20 if "large" in name else 10))
        with_acl(place / "source" / name, user=6)
    with_acl(place / "source/nested", user=7)
    assert "trusted.SGI_ACL_FILE" in os.listxattr(place / "source/small")
    if option:
        write(place / "copy/small", b"old")
    succeed("--json", "--no-preserve", "acl", *option, f"{place}/source/", place / "copy", ranks=2)
    for name in ("small", "nested/large", "nested"):
        assert ACCESS_ACL not in os.listxattr(place / "copy" / name), getfacl(place / "copy" / name)
        assert not has_access(place / "copy" / name, "-r"), name
        assert not has_access(place / "copy" / name, "-w"), name


def test_revoked_acl_entry_is_not_restored_from_an_xfs_attribute(on: Place, area: Path) -> None:
    """The XFS attribute, stored on a file system where it has no meaning, must not replace the ACL on the way back."""
    require_root("set trusted attributes")
    xfs, ext4 = on("xfs"), on("ext4")
    write(xfs / "old/file", b"secret")
    with_acl(xfs / "old/file", user=6)
    write(ext4 / "source/file", b"secret")
    stale = os.getxattr(xfs / "old/file", "trusted.SGI_ACL_FILE")
    os.setxattr(ext4 / "source/file", "trusted.SGI_ACL_FILE", stale)  # as in copies made by other programs
    (ext4 / "source/file").chmod(0o600)
    succeed("--json", f"{ext4}/source/", xfs / "copy", ranks=2)
    assert not has_access(xfs / "copy/file", "-r"), getfacl(xfs / "copy/file")
    succeed("--json", f"{xfs}/old/", ext4 / "back", ranks=2)
    assert getfacl(ext4 / "back/file") == getfacl(xfs / "old/file")
    assert not [name for name in os.listxattr(ext4 / "back/file") if "SGI" in name]


def test_acls_are_copied_on_xfs(on: Place) -> None:
    place = on("xfs")
    write(place / "source/file", b"x")
    with_acl(place / "source/file", user=6)
    os.setxattr(place / "source", "system.posix_acl_default", acl(7, 5, 0, {NOBODY: 7}))
    succeed("--json", f"{place}/source/", place / "copy", ranks=2)
    for name in ("file", "."):
        assert getfacl(place / "copy" / name) == getfacl(place / "source" / name)
    assert differences(place / "source", place / "copy") == []


def test_btrfs_properties_are_copied_only_to_btrfs(on: Place) -> None:
    btrfs, ext4 = on("btrfs"), on("ext4")
    for name in ("a", "b", "nested/c"):
        write(btrfs / "source" / name, b"x" * 5000)
        os.setxattr(btrfs / "source" / name, "btrfs.compression", b"zstd")
    os.setxattr(btrfs / "source/nested", "btrfs.compression", b"zlib")
    run = succeed("--json", f"{btrfs}/source/", ext4 / "copy", ranks=3)
    reported = summary(run)
    assert (reported["files"], reported["failed"], reported["excused"], reported["warnings"]) == (3, 0, 0, 1), show(run)
    assert run.stderr.count(b"btrfs.compression") == 1, show(run)
    succeed("--json", f"{btrfs}/source/", btrfs / "copy", ranks=3)
    assert os.getxattr(btrfs / "copy/nested/c", "btrfs.compression") == b"zstd"
    # Properties that were set in the target are not removed.
    succeed("--json", f"{ext4}/copy/", btrfs / "copy", ranks=3)
    assert os.getxattr(btrfs / "copy/nested", "btrfs.compression") == b"zlib"


@pytest.mark.parametrize("attribute", ["system.nfs4_acl", "system.cifs_acl"])
def test_acls_of_other_models_are_excused_with_one_notice(area: Path, attribute: str) -> None:
    for name in ("a/listed", "b/listed", "c/listed", "c/other"):
        write(area / "source" / name, b"x" * 10)
    environment = {**preloaded(LISTING), "PCOPY_TEST_LISTS": attribute}
    run = pcopy("--json", f"{area}/source/", area / "copy", ranks=3, env=environment)
    assert run.returncode == 0, show(run)
    reported = summary(run)
    assert (reported["files"], reported["failed"], reported["excused"], reported["warnings"]) == (4, 0, 3, 1), show(run)
    assert run.stderr.count(attribute.encode()) == 1, show(run)
    assert differences(area / "source", area / "copy") == []
    run = pcopy("--json", "--no-preserve", "acl", f"{area}/source/", area / "other", ranks=3, env=environment)
    assert (run.returncode, summary(run)["excused"], run.stderr.count(b"\n")) == (0, 0, 1), show(run)


def test_unreadable_posix_acl_fails_the_file(area: Path) -> None:
    """The ACL may deny access that the mode would allow."""
    write(area / "source/listed", b"x")
    environment = {**preloaded(LISTING), "PCOPY_TEST_LISTS": ACCESS_ACL}
    run = pcopy("--json", f"{area}/source/", area / "copy", env=environment)
    assert (run.returncode, summary(run)["failed"]) == (1, 1), show(run)


def test_attributes_of_storage_daemons_are_neither_copied_nor_removed(area: Path) -> None:
    require_root("set trusted attributes")
    theirs = ["trusted.gfid", "trusted.glusterfs.dht", "trusted.afr.volume-client-0", "trusted.SGI_DMI_ATTR"]
    for name in theirs:
        write(area / "source/file", b"x")
        write(area / "copy/file", b"y")
        for path in (area / "source/file", area / "source"):
            os.setxattr(path, name, b"source's")
        for path in (area / "copy/file", area / "copy"):
            os.setxattr(path, name, b"target's")
    succeed("--json", "--inplace", f"{area}/source/", area / "copy", ranks=2)
    for name in theirs:
        for path in (area / "copy/file", area / "copy"):
            assert os.getxattr(path, name) == b"target's"
    (area / "copy/file").unlink()
    succeed("--json", f"{area}/source/", area / "copy", ranks=2)
    assert os.listxattr(area / "copy/file") == []


def test_unsupported_attribute_of_an_item_fails(area: Path) -> None:
    """A real file system refuses the attribute, and no file system or daemon owns it."""
    path = area / "file"
    path.touch()
    given = ItemMetadata(0o600, os.geteuid(), os.getegid(), 0, 0, (("system.nonsense", b"x"),))
    with pytest.raises(OSError, match="supported") as caught:
        apply_item_metadata(os.fsencode(path), given, PreservedMetadataKinds(), 0)
    assert caught.value.errno == errno.ENOTSUP
    remove_extra_xattrs(os.fsencode(path), given, PreservedMetadataKinds())


def test_xattr_conf_is_used_only_if_no_other_user_may_write_it(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"# comment\nuser.index.*\tskip # why\nsystem.other_acl permissions\nnonsense\nuser.a\n\xff\xfe skip skip\n"
    assert parse_xattr_conf(text) == (("user.index.*", XattrKind.NEVER), ("system.other_acl", XattrKind.ACL))

    def read_with(path: Path) -> XattrKind:
        monkeypatch.setattr(attribute_names, "XATTR_CONF", path)
        attribute_names._xattr_kinds_from_conf.cache_clear()
        xattr_kind.cache_clear()
        return xattr_kind("user.index.7")

    listed = area / "xattr.conf"
    try:
        assert read_with(listed) is XattrKind.ORDINARY
        listed.write_bytes(text)
        listed.chmod(0o666)
        assert read_with(listed) is XattrKind.ORDINARY  # any user may have written it
        listed.chmod(0o644)
        if not os.geteuid():
            assert read_with(listed) is XattrKind.NEVER
        os.mkfifo(area / "fifo")
        assert read_with(area / "fifo") is XattrKind.ORDINARY
    finally:
        monkeypatch.undo()
        attribute_names._xattr_kinds_from_conf.cache_clear()
        xattr_kind.cache_clear()
