"""Owners, modes and attributes of single files that exist already or whose changes are refused."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from pcopy.fsio.attributes import (
    ItemMetadata,
    apply_item_metadata,
    has_default_acl,
    is_xattr_copied,
    read_item_metadata,
)
from pcopy.fsio.preserve import PreservedMetadataKinds, has_capability
from pcopy.fsio.problem import MetadataProblem
from tests.support.attributes import ACCESS_ACL, CAPABILITY, DEFAULT_ACL, NET_RAW, acl
from tests.support.users import NOBODY, as_user, require_root

REGULAR = 0o100000
OTHER = 4242


def make_with_metadata(
    path: Path, attributes: ItemMetadata, preserve: PreservedMetadataKinds, **options: Any
) -> tuple[os.stat_result, int]:
    """Create a file at ``path`` with these attributes. Return its status and the number of excused failures."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        applied = apply_item_metadata(descriptor, attributes, preserve, options.pop("umask", 0o022), **options)
    finally:
        os.close(descriptor)
    return path.lstat(), applied.excused


def source(mode: int, uid: int = 0, gid: int = 0, **more: Any) -> ItemMetadata:
    return ItemMetadata(REGULAR | mode, uid, gid, 10**9, 2 * 10**9 + 7, **more)


@pytest.mark.parametrize(
    "preserve",
    [PreservedMetadataKinds(mode=False), PreservedMetadataKinds(mode=False, ownership=False), PreservedMetadataKinds()],
    ids=str,
)
def test_directory_of_a_foreign_group_keeps_set_gid_bit(area: Path, preserve: PreservedMetadataKinds) -> None:
    """A caller that is not in the group clears the bit by setting the same mode again."""
    require_root("make a directory of another group")
    path = area / "shared"
    path.mkdir()
    os.chown(path, NOBODY, OTHER)
    path.chmod(0o2777)
    like = ItemMetadata(0o040000 | (0o2777 if preserve.mode else 0o755), NOBODY, OTHER, 10**9, 2 * 10**9)

    def as_nobody() -> None:
        apply_item_metadata(os.open(path, os.O_RDONLY), like, preserve, 0o022, existing=path.lstat())

    as_user(as_nobody)
    assert path.lstat().st_mode & 0o7777 == 0o2777
    assert path.lstat().st_mtime == 2


@pytest.mark.parametrize("mode", [0o2755, 0o4755, 0o6755, 0o755])
def test_file_with_group_of_its_directory_gets_no_set_id_bits(area: Path, mode: int) -> None:
    """A set-gid directory passes its group on to the file; the set-id bits of the source were not meant for that
    group.
    """
    require_root("make a directory of another group")
    os.chown(area, -1, OTHER)
    area.chmod(0o2777)
    status, _ = make_with_metadata(area / "file", source(mode), PreservedMetadataKinds(ownership=False))
    assert status.st_gid == OTHER
    assert status.st_mode & 0o7777 == mode & 0o777


def test_set_id_bits_are_copied_only_with_owner_and_group(area: Path) -> None:
    require_root("give files away")
    status, _ = make_with_metadata(area / "file", source(0o6755, OTHER, OTHER), PreservedMetadataKinds())
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (OTHER, OTHER, 0o6755)
    assert status.st_mtime_ns == 2 * 10**9 + 7
    status, _ = make_with_metadata(
        area / "without", source(0o6755, OTHER, OTHER), PreservedMetadataKinds(ownership=False)
    )
    assert status.st_mode & 0o7777 == 0o755
    status, _ = make_with_metadata(
        area / "mode", source(0o6775, OTHER, OTHER), PreservedMetadataKinds(mode=False), umask=0o027
    )
    assert status.st_mode & 0o7777 == 0o750


@pytest.mark.parametrize("user", [0, NOBODY])
def test_set_gid_bit_removed_by_the_system_is_excused(area: Path, user: int) -> None:
    """In a set-gid directory a file may get a group that its owner does not belong to; chmod then clears the bit
    silently.
    """
    require_root("make a directory of another group")
    os.chown(area, -1, OTHER)
    area.chmod(0o2777)

    def make_file() -> None:
        has_capability.cache_clear()
        status, excused = make_with_metadata(area / "file", source(0o2755, user, OTHER), PreservedMetadataKinds())
        assert (status.st_gid, status.st_mode & 0o7777) == (OTHER, 0o755 if user else 0o2755)
        assert excused == (1 if user else 0)

    as_user(make_file) if user else make_file()


def test_failure_to_set_an_owner_given_by_option_is_an_error(area: Path) -> None:
    """An ordinary user may be unable to keep the owner of the source, but an owner given explicitly is required."""
    require_root("become somebody else")
    area.chmod(0o777)

    def make(name: str, chown: tuple[int, int]) -> tuple[os.stat_result, int]:
        return make_with_metadata(area / name, source(0o640, OTHER, OTHER), PreservedMetadataKinds(chown=chown))

    def as_nobody() -> None:
        has_capability.cache_clear()
        status, excused = make("group", (-1, NOBODY))
        assert ((status.st_uid, status.st_gid), excused) == ((NOBODY, NOBODY), 1)
        status, excused = make("both", (NOBODY, NOBODY))
        assert ((status.st_uid, status.st_gid), excused) == ((NOBODY, NOBODY), 0)
        for name, chown in {"owner": (OTHER, -1), "other group": (-1, OTHER)}.items():
            with pytest.raises(MetadataProblem) as caught:
                make(name, chown)
            assert (caught.value.operation, caught.value.errno) == ("chown", errno.EPERM)

    as_user(as_nobody)


def test_set_id_bits_of_existing_file_are_dropped_for_another_owner(area: Path) -> None:
    """Without ``--preserve mode`` the mode of the existing file is kept, but its set-uid bit was meant for its owner
    alone.
    """
    require_root("make files of two owners")
    old = area / "old"
    old.touch()
    os.chown(old, NOBODY, NOBODY)
    old.chmod(0o6755)
    status, _ = make_with_metadata(
        area / "new", source(0o640), PreservedMetadataKinds(mode=False), existing=old.lstat()
    )
    assert (status.st_uid, status.st_mode & 0o7777) == (0, 0o755)
    status, _ = make_with_metadata(
        area / "same", source(0o640, NOBODY, NOBODY), PreservedMetadataKinds(mode=False), existing=old.lstat()
    )
    assert (status.st_uid, status.st_mode & 0o7777) == (NOBODY, 0o6755)
    status, _ = make_with_metadata(
        area / "neither", source(0o640), PreservedMetadataKinds(mode=False, ownership=False), existing=old.lstat()
    )
    assert (status.st_uid, status.st_mode & 0o7777) == (NOBODY, 0o6755)


def test_ordinary_user_copies_program_of_another_user_without_set_id_bits(area: Path) -> None:
    """The failure is excused once per item. The copy has no set-id bits, whether the owner is preserved or not."""
    area.chmod(0o777)
    has_capability.cache_clear()

    def try_it() -> None:
        has_capability.cache_clear()
        more = (("trusted.a", b"1"), ("trusted.b", b"2"), (CAPABILITY, NET_RAW))
        attributes = source(0o6755, OTHER, OTHER, xattrs=more)
        status, excused = make_with_metadata(area / "one", attributes, PreservedMetadataKinds())
        assert (status.st_uid, status.st_mode & 0o7777, excused) == (os.geteuid(), 0o755, 1)
        existing = list(status)
        existing[0], existing[4], existing[5] = REGULAR | 0o6755, OTHER, OTHER
        kept = os.stat_result(existing)
        preserve = PreservedMetadataKinds(ownership=False, xattr=False)
        status, _ = make_with_metadata(area / "two", attributes, preserve, existing=kept)
        assert (status.st_uid, status.st_mode & 0o7777) == (os.geteuid(), 0o755)
        preserve = PreservedMetadataKinds(mode=False, ownership=False, xattr=False)
        status, _ = make_with_metadata(area / "three", attributes, preserve, existing=kept)
        assert (status.st_uid, status.st_mode & 0o7777) == (os.geteuid(), 0o755)

    as_user(try_it)
    has_capability.cache_clear()


@pytest.mark.parametrize("kind", [0o120000, 0o040000, 0o010000])
def test_mode_of_existing_item_of_another_type_is_not_kept(area: Path, kind: int) -> None:
    existing = list(area.lstat())
    existing[0] = kind | 0o777
    status, _ = make_with_metadata(
        area / "file",
        source(0o640),
        PreservedMetadataKinds(mode=False, ownership=False),
        existing=os.stat_result(existing),
    )
    assert status.st_mode & 0o7777 == 0o640


def test_first_problem_is_reported_and_remaining_metadata_is_set(area: Path) -> None:
    huge = (("user.huge", bytes(70_000)),)
    path = area / "file"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    with pytest.raises(MetadataProblem) as caught:
        apply_item_metadata(
            descriptor, source(0o640, os.geteuid(), os.getegid(), xattrs=huge), PreservedMetadataKinds(), 0o022
        )
    os.close(descriptor)
    assert caught.value.operation == "setxattr user.huge"
    assert caught.value.errno in (errno.E2BIG, errno.ENOSPC, errno.ERANGE, errno.EOPNOTSUPP)
    assert (path.stat().st_mode & 0o7777, path.stat().st_mtime_ns) == (0o640, 2 * 10**9 + 7)


def test_acls_are_copied_unchanged(on: Any) -> None:
    place = on("ext4")
    value = acl(6, 4, 0, {OTHER: 6})
    (place / "source").touch()
    os.setxattr(place / "source", ACCESS_ACL, value)
    with open(place / "source", "rb") as file:
        attributes = read_item_metadata(file.fileno(), os.fstat(file.fileno()), PreservedMetadataKinds())
        without = read_item_metadata(file.fileno(), os.fstat(file.fileno()), PreservedMetadataKinds(acl=False))
    make_with_metadata(place / "copy", attributes, PreservedMetadataKinds())
    assert os.getxattr(place / "copy", ACCESS_ACL) == value
    assert (place / "copy").stat().st_mode == (place / "source").stat().st_mode
    make_with_metadata(place / "without", without, PreservedMetadataKinds(acl=False))
    assert ACCESS_ACL not in os.listxattr(place / "without")


def test_default_acls_are_detected_through_any_descriptor(on: Any) -> None:
    """The ACL of a directory opened with O_PATH cannot be read through the descriptor itself."""
    place = on("ext4")
    for expected in (False, True):
        for flags in (os.O_RDONLY, os.O_PATH):
            descriptor = os.open(place, flags | os.O_DIRECTORY)
            assert has_default_acl(descriptor) is expected
            os.close(descriptor)
        os.setxattr(place, DEFAULT_ACL, acl(7, 5, 5, {OTHER: 7}))


def test_which_attributes_are_copied() -> None:
    everything = PreservedMetadataKinds()
    for name in (
        "user.a",
        "security.capability",
        "security.selinux",
        "trusted.overlay.opaque",
        ACCESS_ACL,
        DEFAULT_ACL,
    ):
        assert is_xattr_copied(name, everything)
    for name in ("security.ima", "security.evm", "lustre.lov", "trusted.lov", "trusted.lma", "trusted.link"):
        assert not is_xattr_copied(name, everything)
    assert not is_xattr_copied("user.a", PreservedMetadataKinds(xattr=False)) and is_xattr_copied(
        ACCESS_ACL, PreservedMetadataKinds(xattr=False)
    )
    assert is_xattr_copied("user.a", PreservedMetadataKinds(acl=False)) and not is_xattr_copied(
        DEFAULT_ACL, PreservedMetadataKinds(acl=False)
    )


def test_reader_of_the_copy_does_not_change_its_times(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader gives the copy a new access time before its times are compared."""
    (area / "file").write_bytes(b"contents")
    real = os.utime

    def set_and_read(handle: int, *, ns: tuple[int, int]) -> None:
        real(handle, ns=ns)
        (area / "file").read_bytes()

    monkeypatch.setattr(os, "utime", set_and_read)
    attributes = source(0o644)._replace(atime=-(10**18))
    with open(area / "file", "r+b") as file:
        applied = apply_item_metadata(file.fileno(), attributes, PreservedMetadataKinds(), 0o022)
    if (area / "file").stat().st_atime_ns == attributes.atime:
        pytest.skip("reading changes no access time here")
    assert applied.notices == ()
