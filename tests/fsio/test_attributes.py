"""Owners, modes and attributes of single files, where what is already there or what is forbidden has a say."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from pcopy.fsio.attributes import Attributes, apply_attributes, has_default_acl, is_xattr_copied, read_attributes
from pcopy.fsio.preserve import Preserve, has_capability
from pcopy.fsio.problem import MetadataProblem
from tests.support.attributes import ACCESS_ACL, CAPABILITY, DEFAULT_ACL, NET_RAW, acl
from tests.support.users import NOBODY, as_user, require_root

REGULAR = 0o100000
OTHER = 4242


def dressed(path: Path, attributes: Attributes, preserve: Preserve, **options: Any) -> tuple[os.stat_result, int]:
    """Makes a file at ``path``; returns its status afterwards, and how much was excused."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        applied = apply_attributes(descriptor, attributes, preserve, options.pop("umask", 0o022), **options)
    finally:
        os.close(descriptor)
    return path.lstat(), applied.excused


def source(mode: int, uid: int = 0, gid: int = 0, **more: Any) -> Attributes:
    return Attributes(REGULAR | mode, uid, gid, 10**9, 2 * 10**9 + 7, **more)


@pytest.mark.parametrize("preserve", [Preserve(mode=False), Preserve(mode=False, ownership=False), Preserve()], ids=str)
def test_a_directory_of_a_group_that_is_not_ours_stays_set_gid(area: Path, preserve: Preserve) -> None:
    """Whoever sets the mode that it has, and is not in its group, takes that bit away."""
    require_root("make a directory of another group")
    path = area / "shared"
    path.mkdir()
    os.chown(path, NOBODY, OTHER)
    path.chmod(0o2777)
    like = Attributes(0o040000 | (0o2777 if preserve.mode else 0o755), NOBODY, OTHER, 10**9, 2 * 10**9)

    def as_nobody() -> None:
        apply_attributes(os.open(path, os.O_RDONLY), like, preserve, 0o022, existing=path.lstat())

    as_user(as_nobody)
    assert path.lstat().st_mode & 0o7777 == 0o2777
    assert path.lstat().st_mtime == 2


@pytest.mark.parametrize("mode", [0o2755, 0o4755, 0o6755, 0o755])
def test_a_group_from_the_directory_gets_no_set_id_bits(area: Path, mode: int) -> None:
    """A set-gid directory gives its own group to the file, for which the source's bits were not meant."""
    require_root("make a directory of another group")
    os.chown(area, -1, OTHER)
    area.chmod(0o2777)
    status, _ = dressed(area / "file", source(mode), Preserve(ownership=False))
    assert status.st_gid == OTHER
    assert status.st_mode & 0o7777 == mode & 0o777


def test_set_id_bits_come_with_owner_and_group(area: Path) -> None:
    require_root("give files away")
    status, _ = dressed(area / "file", source(0o6755, OTHER, OTHER), Preserve())
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (OTHER, OTHER, 0o6755)
    assert status.st_mtime_ns == 2 * 10**9 + 7
    status, _ = dressed(area / "without", source(0o6755, OTHER, OTHER), Preserve(ownership=False))
    assert status.st_mode & 0o7777 == 0o755
    status, _ = dressed(area / "mode", source(0o6775, OTHER, OTHER), Preserve(mode=False), umask=0o027)
    assert status.st_mode & 0o7777 == 0o750


@pytest.mark.parametrize("user", [0, NOBODY])
def test_a_set_gid_bit_that_the_system_takes_away_is_excused(area: Path, user: int) -> None:
    """From a set-gid directory a file may get a group that its owner is not in; chmod says nothing then."""
    require_root("make a directory of another group")
    os.chown(area, -1, OTHER)
    area.chmod(0o2777)

    def dress() -> None:
        has_capability.cache_clear()
        status, excused = dressed(area / "file", source(0o2755, user, OTHER), Preserve())
        assert (status.st_gid, status.st_mode & 0o7777) == (OTHER, 0o755 if user else 0o2755)
        assert excused == (1 if user else 0)

    as_user(dress) if user else dress()


def test_an_owner_that_was_named_is_never_excused(area: Path) -> None:
    """The source's own may be beyond an ordinary user; what was asked for explicitly has to be."""
    require_root("become somebody else")
    area.chmod(0o777)

    def dress(name: str, chown: tuple[int, int]) -> tuple[os.stat_result, int]:
        return dressed(area / name, source(0o640, OTHER, OTHER), Preserve(chown=chown))

    def as_nobody() -> None:
        has_capability.cache_clear()
        status, excused = dress("group", (-1, NOBODY))
        assert ((status.st_uid, status.st_gid), excused) == ((NOBODY, NOBODY), 1)
        status, excused = dress("both", (NOBODY, NOBODY))
        assert ((status.st_uid, status.st_gid), excused) == ((NOBODY, NOBODY), 0)
        for name, chown in {"owner": (OTHER, -1), "other group": (-1, OTHER)}.items():
            with pytest.raises(MetadataProblem) as caught:
                dress(name, chown)
            assert (caught.value.operation, caught.value.errno) == ("chown", errno.EPERM)

    as_user(as_nobody)


def test_an_existing_files_set_id_bits_are_not_for_another_owner(area: Path) -> None:
    """Without the mode the old file's is kept; but whoever owned that set its set-uid bit for himself alone."""
    require_root("make files of two owners")
    old = area / "old"
    old.touch()
    os.chown(old, NOBODY, NOBODY)
    old.chmod(0o6755)
    status, _ = dressed(area / "new", source(0o640), Preserve(mode=False), existing=old.lstat())
    assert (status.st_uid, status.st_mode & 0o7777) == (0, 0o755)
    status, _ = dressed(area / "same", source(0o640, NOBODY, NOBODY), Preserve(mode=False), existing=old.lstat())
    assert (status.st_uid, status.st_mode & 0o7777) == (NOBODY, 0o6755)
    status, _ = dressed(area / "neither", source(0o640), Preserve(mode=False, ownership=False), existing=old.lstat())
    assert (status.st_uid, status.st_mode & 0o7777) == (NOBODY, 0o6755)


def test_an_ordinary_users_copy_of_somebody_elses_program(area: Path) -> None:
    """Excused, once per item; and no set-id bits for him, with the owner preserved or not."""
    area.chmod(0o777)
    has_capability.cache_clear()

    def try_it() -> None:
        has_capability.cache_clear()
        more = (("trusted.a", b"1"), ("trusted.b", b"2"), (CAPABILITY, NET_RAW))
        attributes = source(0o6755, OTHER, OTHER, xattrs=more)
        status, excused = dressed(area / "one", attributes, Preserve())
        assert (status.st_uid, status.st_mode & 0o7777, excused) == (os.geteuid(), 0o755, 1)
        existing = list(status)
        existing[0], existing[4], existing[5] = REGULAR | 0o6755, OTHER, OTHER
        kept = os.stat_result(existing)
        preserve = Preserve(ownership=False, xattr=False)
        status, _ = dressed(area / "two", attributes, preserve, existing=kept)
        assert (status.st_uid, status.st_mode & 0o7777) == (os.geteuid(), 0o755)
        preserve = Preserve(mode=False, ownership=False, xattr=False)
        status, _ = dressed(area / "three", attributes, preserve, existing=kept)
        assert (status.st_uid, status.st_mode & 0o7777) == (os.geteuid(), 0o755)

    as_user(try_it)
    has_capability.cache_clear()


@pytest.mark.parametrize("kind", [0o120000, 0o040000, 0o010000])
def test_the_mode_of_another_kind_is_not_kept(area: Path, kind: int) -> None:
    existing = list(area.lstat())
    existing[0] = kind | 0o777
    status, _ = dressed(
        area / "file", source(0o640), Preserve(mode=False, ownership=False), existing=os.stat_result(existing)
    )
    assert status.st_mode & 0o7777 == 0o640


def test_the_first_problem_is_told_and_the_rest_is_set(area: Path) -> None:
    huge = (("user.huge", bytes(70_000)),)
    path = area / "file"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    with pytest.raises(MetadataProblem) as caught:
        apply_attributes(descriptor, source(0o640, os.geteuid(), os.getegid(), xattrs=huge), Preserve(), 0o022)
    os.close(descriptor)
    assert caught.value.operation == "setxattr user.huge"
    assert caught.value.errno in (errno.E2BIG, errno.ENOSPC, errno.ERANGE, errno.EOPNOTSUPP)
    assert (path.stat().st_mode & 0o7777, path.stat().st_mtime_ns) == (0o640, 2 * 10**9 + 7)


def test_acls_travel_as_they_are(on: Any) -> None:
    place = on("ext4")
    value = acl(6, 4, 0, {OTHER: 6})
    (place / "source").touch()
    os.setxattr(place / "source", ACCESS_ACL, value)
    with open(place / "source", "rb") as file:
        attributes = read_attributes(file.fileno(), os.fstat(file.fileno()), Preserve())
        without = read_attributes(file.fileno(), os.fstat(file.fileno()), Preserve(acl=False))
    dressed(place / "copy", attributes, Preserve())
    assert os.getxattr(place / "copy", ACCESS_ACL) == value
    assert (place / "copy").stat().st_mode == (place / "source").stat().st_mode
    dressed(place / "without", without, Preserve(acl=False))
    assert ACCESS_ACL not in os.listxattr(place / "without")


def test_default_acls_are_seen_through_any_descriptor(on: Any) -> None:
    """One that is open for searching only can't be asked directly."""
    place = on("ext4")
    for expected in (False, True):
        for flags in (os.O_RDONLY, os.O_PATH):
            descriptor = os.open(place, flags | os.O_DIRECTORY)
            assert has_default_acl(descriptor) is expected
            os.close(descriptor)
        os.setxattr(place, DEFAULT_ACL, acl(7, 5, 5, {OTHER: 7}))


def test_which_attributes_are_copied() -> None:
    everything = Preserve()
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
    assert not is_xattr_copied("user.a", Preserve(xattr=False)) and is_xattr_copied(ACCESS_ACL, Preserve(xattr=False))
    assert is_xattr_copied("user.a", Preserve(acl=False)) and not is_xattr_copied(DEFAULT_ACL, Preserve(acl=False))


def test_a_reader_bends_no_time(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads the copy before its times are compared gives it a new access time."""
    (area / "file").write_bytes(b"contents")
    real = os.utime

    def set_and_read(handle: int, *, ns: tuple[int, int]) -> None:
        real(handle, ns=ns)
        (area / "file").read_bytes()

    monkeypatch.setattr(os, "utime", set_and_read)
    attributes = source(0o644)._replace(atime=-(10**18))
    with open(area / "file", "r+b") as file:
        applied = apply_attributes(file.fileno(), attributes, Preserve(), 0o022)
    if (area / "file").stat().st_atime_ns == attributes.atime:
        pytest.skip("reading changes no access time here")
    assert applied.notices == ()
