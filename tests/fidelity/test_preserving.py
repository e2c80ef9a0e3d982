"""Details of preserving metadata: set-id bits, excused items, the order of calls, and attributes that are never copied.

``tests/e2e/test_preserve.py`` tests what the options select; this file tests what happens where metadata cannot be set.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from pcopy.fsio import attributes
from pcopy.fsio.preserve import PreservedMetadataKinds
from tests.fidelity.rows import GROUP, OTHER
from tests.support.attributes import ACCESS_ACL, acl
from tests.support.command import pcopy, show, succeed, summary
from tests.support.faults import Fault, require_strace
from tests.support.files import mode_of
from tests.support.filesystems import Place
from tests.support.users import NOBODY, is_root, require_root

WITHOUT_CHOWN = ["setpriv", "--bounding-set=-chown", f"--groups={GROUP}"]
"""Command prefix: root without CAP_CHOWN, as a member of ``GROUP``."""

CHOWN = ("chown", "lchown", "fchown", "fchownat")
SET_XATTR = ("setxattr", "fsetxattr", "lsetxattr")
CHMOD = re.compile(r"\bf?chmod(?:at2?)?\(.*?, (0\d+)\b")
MIB = 1 << 20


def owner(path: Path) -> tuple[int, int]:
    return path.lstat().st_uid, path.lstat().st_gid


def make_some(source: Path) -> list[str]:
    """Create one item of each kind that is copied differently, with set-id bits; return their names."""
    source.mkdir()
    (source / "small").write_bytes(b"x")
    (source / "large").write_bytes(b"x" * (26 * MIB))
    (source / "linked").write_bytes(b"x")
    (source / "directory").mkdir()
    os.mkfifo(source / "fifo")
    names = ["small", "large", "linked", "directory", "fifo"]
    for name in names:
        os.chown(source / name, OTHER, OTHER)
        (source / name).chmod(0o6757)
    os.link(source / "linked", source / "again")
    return names


@pytest.fixture
def traced() -> list[str]:
    require_strace()
    return [
        "strace",
        "-f",
        "-qq",
        "-y",
        "-e",
        f"trace={','.join((*CHOWN, *SET_XATTR))},chmod,fchmod,fchmodat,?fchmodat2",
    ]


def test_without_mode_all_kinds_lose_set_id_bits(area: Path) -> None:
    require_root("give files away")
    names = make_some(area / "source")
    succeed("--no-preserve", "mode", area / "source", area / "copy", umask=0o027, ranks=2)
    for name in names:
        assert (name, mode_of(area / "copy" / name)) == (name, 0o750)
        assert owner(area / "copy" / name) == (OTHER, OTHER), name


def test_without_mode_existing_targets_of_all_kinds_keep_their_modes(area: Path) -> None:
    require_root("give files away")
    names = make_some(area / "source")
    copy = area / "copy"
    (copy / "directory").mkdir(parents=True)
    os.mkfifo(copy / "fifo")
    for name in names:
        if not (copy / name).exists():
            (copy / name).write_bytes(b"old")
        (copy / name).chmod(0o614)
    os.link(copy / "linked", copy / "again")
    succeed("--no-preserve", "mode", f"{area}/source/", copy, ranks=2)
    assert (copy / "large").stat().st_size == 26 * MIB
    for name in names:
        assert (name, mode_of(copy / name)) == (name, 0o614)


def test_without_mode_a_target_of_another_type_does_not_pass_on_its_mode(area: Path) -> None:
    """Mode and owner of the old item do not apply to another item of that name."""
    (area / "source").mkdir()
    (area / "copy").mkdir()
    os.mkfifo(area / "source/fifo")
    (area / "source/fifo").chmod(0o666)
    (area / "copy/fifo").write_bytes(b"no FIFO")
    (area / "copy/fifo").chmod(0o601)
    ours = owner(area / "source/fifo")
    if is_root():
        os.chown(area / "copy/fifo", OTHER, OTHER)
    succeed("--no-preserve", "mode,ownership", f"{area}/source/", area / "copy", umask=0o027)
    assert mode_of(area / "copy/fifo") == 0o640
    assert owner(area / "copy/fifo") == ours


def test_root_without_cap_chown_is_excused(area: Path) -> None:
    """CAP_CHOWN matters, not the user id: in containers root often lacks it."""
    require_root("drop a capability")
    names = make_some(area / "source")
    reported = summary(succeed("--json", area / "source", area / "copy", wrap=WITHOUT_CHOWN, ranks=2))
    assert (reported["excused"], reported["failed"]) == (len(names), 0)
    for name in names:
        assert owner(area / "copy" / name) == (0, 0), name
        assert (name, mode_of(area / "copy" / name)) == (name, 0o757)
    assert (area / "copy/linked").stat().st_nlink == 2


def test_group_alone_is_preserved_without_set_id_bits(area: Path) -> None:
    require_root("drop a capability")
    names = make_some(area / "source")
    for name in names:
        os.chown(area / "source" / name, OTHER, GROUP)
        (area / "source" / name).chmod(0o6757)
    reported = summary(succeed("--json", area / "source", area / "copy", wrap=WITHOUT_CHOWN, ranks=2))
    assert (reported["excused"], reported["failed"]) == (len(names), 0)
    for name in names:
        assert owner(area / "copy" / name) == (0, GROUP), name
        assert (name, mode_of(area / "copy" / name)) == (name, 0o757)


def test_ownership_that_needs_no_privilege_is_preserved_and_not_excused(area: Path) -> None:
    """Own files with a group of the user: chown succeeds without CAP_CHOWN, and set-id bits are kept."""
    require_root("drop a capability")
    names = make_some(area / "source")
    for name in names:
        os.chown(area / "source" / name, 0, GROUP)
        (area / "source" / name).chmod(0o6757)
    reported = summary(succeed("--json", area / "source", area / "copy", wrap=WITHOUT_CHOWN, ranks=2))
    assert reported["excused"] == 0
    for name in names:
        assert (owner(area / "copy" / name), mode_of(area / "copy" / name)) == ((0, GROUP), 0o6757), name


def test_chown_of_owner_and_group_is_tried_before_the_group_alone(area: Path, traced: list[str]) -> None:
    require_root("drop a capability")
    (area / "source").write_bytes(b"x")
    os.chown(area / "source", OTHER, OTHER + 1)
    wrap = [*traced, "-o", str(area / "trace"), *WITHOUT_CHOWN]
    succeed(area / "source", area / "copy", wrap=wrap, ranks=1)
    tried = re.findall(r"chown(?:at)?\([^\n]*?(-?\d+), (-?\d+)(?:, \w+)?\) += ([^\n]*)", (area / "trace").read_text())
    both, group = (str(OTHER), str(OTHER + 1)), ("-1", str(OTHER + 1))
    calls = [(uid, gid) for uid, gid, _ in tried]
    assert set(calls) == {both, group}, tried
    assert calls[0] == both and calls[-1] == group, tried
    assert all("EPERM" in result for *_, result in tried), tried


def test_eperm_of_chown_is_a_failure_for_a_process_with_cap_chown(area: Path) -> None:
    """On a file server that maps root to nobody this is a failure like any other: it must be reported."""
    require_root("give files away")
    source, copy = area / "source", area / "copy"
    source.mkdir()
    for name in ("one", "victim", "two"):
        (source / name).write_bytes(b"content")
        os.chown(source / name, OTHER, OTHER)
        (source / name).chmod(0o6755)
    fault = Fault(area / "trace", CHOWN, copy / "victim", "EPERM")
    run = pcopy("--json", "--errors", area / "errors", source, copy, wrap=fault.wrap(), ranks=1)
    fault.check()
    assert run.returncode == 1, show(run)
    reported = summary(run)
    assert (reported["excused"], reported["failed"], reported["files"]) == (0, 1, 2)
    (line,) = (area / "errors").read_text().splitlines()
    assert "victim" in line and '"operation": "chown"' in line and f'"errno": {errno.EPERM}' in line
    assert (copy / "victim").read_bytes() == b"content"
    assert (owner(copy / "victim"), mode_of(copy / "victim")) == ((0, 0), 0o755)
    assert (owner(copy / "two"), mode_of(copy / "two")) == ((OTHER, OTHER), 0o6755)


def test_eperm_of_chown_is_a_failure_for_items_of_every_type(area: Path, traced: list[str]) -> None:
    require_root("give files away")
    names = make_some(area / "source")
    wrap = [*traced, "-o", str(area / "trace"), "-e", f"inject={','.join(CHOWN)}:error=EPERM"]
    run = pcopy("--json", "--errors", area / "errors", area / "source", area / "copy", wrap=wrap, ranks=2)
    assert run.returncode == 1, show(run)
    reported = summary(run)
    assert (reported["excused"], reported["failed"]) == (0, len(names)), (
        reported
    )  # the parent directory has the right owner already
    for name in names:
        assert (owner(area / "copy" / name), mode_of(area / "copy" / name)) == ((0, 0), 0o757), name


ACL = acl(7, 5, 1, {OTHER: 7})


def acl_order(trace: str) -> list[str]:
    """Return the permission bits of each chmod, and the position of the call that sets the access ACL."""
    reported = []
    for line in trace.splitlines():
        if found := CHMOD.search(line):
            reported.append(found[1].lstrip("0") or "0")
        elif ACCESS_ACL in line and re.search(r"\bf?setxattr\(", line):
            reported.append("ACL")
    return reported


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("kind", ["new file", "existing file", "large file", "directory", "existing directory", "fifo"])
def test_mode_set_before_the_acl_grants_nothing_to_group_and_others(on: Place, kind: str, traced: list[str]) -> None:
    """The mask of an ACL appears as the group permissions: chmod to these bits would give the owning group what only
    the named users of the ACL may have, until the ACL is set."""
    here = on("ext4")
    source, copy = here / "source", here / "copy"
    if "directory" in kind:
        source.mkdir()
    elif kind == "fifo":
        os.mkfifo(source)
    else:
        source.write_bytes(b"x" * (26 * MIB if kind == "large file" else 5))
    if kind == "existing file":
        copy.write_bytes(b"old")
    elif kind == "existing directory":
        copy.mkdir()
    os.setxattr(source, ACCESS_ACL, ACL)
    bits = 0o2000 if "directory" in kind else 0o6000
    source.chmod(source.stat().st_mode & 0o777 | bits)
    log = here / "trace"
    succeed("-T", source, copy, wrap=[*traced, "-o", str(log)], ranks=2 if kind == "large file" else 1)
    assert os.getxattr(copy, ACCESS_ACL) == ACL
    assert mode_of(copy) == 0o771 | bits
    order = acl_order(log.read_text())
    assert order[-2:] == [f"{0o700 | bits:o}", "ACL"], order
    assert all(step == "ACL" or not int(step, 8) & 0o077 for step in order), order
    assert order.count("ACL") == 1


def test_attributes_that_do_not_fit_do_not_stop_the_job(on: Place) -> None:
    """Many such items in a row, on one rank: after two items without space for their contents a job stops, but not
    here."""
    require_root("set trusted attributes")
    here, there = on("xfs"), on("ext4")
    source = here / "source"
    (source / "full").mkdir(parents=True)
    big = b"x" * 6000
    for number in range(6):
        (source / f"{number}").write_bytes(b"whole")
        (source / f"directory-{number}").mkdir()
        (source / f"symlink-{number}").symlink_to("target")
        os.mkfifo(source / f"fifo-{number}")
        for name in (f"{number}", f"directory-{number}", f"symlink-{number}", f"fifo-{number}"):
            os.setxattr(source / name, "trusted.big", big, follow_symlinks=False)
    (source / "full/inside").write_bytes(b"x" * (26 * MIB))
    os.setxattr(source / "full/inside", "user.big", big)
    (source / "full/small").write_bytes(b"fits")
    os.link(source / "0", source / "full/link")
    for ranks in (1, 2):
        copy = there / f"copy-{ranks}"
        run = pcopy("--json", "--errors", there / "errors", source, copy, ranks=ranks)
        assert run.returncode == 1, show(run)
        reported = summary(run)
        assert (reported["failed"], reported["files"], reported["hardlinks"], reported["directories"]) == (
            25,
            1,
            1,
            2,
        ), reported
        lines = (there / "errors").read_text().splitlines()
        assert len(lines) == 25
        assert all(f'"errno": {errno.ENOSPC}' in line and '"operation": "setxattr ' in line for line in lines), lines
        for number in range(6):
            assert (copy / f"{number}").read_bytes() == b"whole"
            assert (copy / f"symlink-{number}").is_symlink() and (copy / f"fifo-{number}").is_fifo()
        assert (copy / "full/inside").stat().st_size == 26 * MIB
        assert (copy / "full/small").read_bytes() == b"fits"
        assert (copy / "full/link").stat().st_ino == (copy / "0").stat().st_ino


HOST = ("security.ima", "security.evm")
LUSTRE = tuple(f"trusted.{name}" for name in ("lov", "lma", "link", "fid", "som", "version", "hsm", "lmv", "dmv"))


def set_all(path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        try:
            os.setxattr(path, name, b"\x01not to be copied", follow_symlinks=False)
        except OSError as error:
            pytest.skip(f"{name} can't be set here: {error.strerror}")


def attributes_of(path: Path) -> set[str]:
    return set(os.listxattr(path, follow_symlinks=False)) - {"security.selinux"}


def test_attributes_of_the_host_and_of_lustre_are_not_copied(on: Place) -> None:
    require_root("set such attributes")
    here = on("ext4")
    source, copy = here / "source", here / "copy"
    (source / "directory").mkdir(parents=True)
    (source / "file").write_bytes(b"x")
    (source / "large").write_bytes(b"x" * (26 * MIB))
    (source / "symlink").symlink_to("nowhere")
    os.mkfifo(source / "fifo")
    names = ("directory", "file", "large", "symlink", "fifo")
    for name in names:
        set_all(source / name, (*HOST, *LUSTRE))
        os.setxattr(source / name, "trusted.lovely", b"to be copied", follow_symlinks=False)
    reported = summary(succeed("--json", source, copy, ranks=2))
    assert (reported["excused"], reported["warnings"]) == (0, 0)
    for name in names:
        assert (name, attributes_of(copy / name)) == (name, {"trusted.lovely"})


def test_existing_directory_keeps_attributes_that_are_never_copied(on: Place) -> None:
    """The source does not remove attributes that the file system of the destination set."""
    require_root("set such attributes")
    here = on("ext4")
    (here / "source").mkdir()
    (here / "copy").mkdir()
    set_all(here / "copy", (*HOST, *LUSTRE, "trusted.old"))
    succeed("-T", here / "source", here / "copy")
    assert attributes_of(here / "copy") == {*HOST, *LUSTRE}


def test_lustre_attributes_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other file system has the namespace, so listing it is simulated. Reading a layout costs a call on Lustre."""
    listed = ["lustre.lov", "user.mine", "trusted.lov", "security.ima"]
    monkeypatch.setattr(os, "listxattr", lambda _, **_options: listed)
    monkeypatch.setattr(os, "getxattr", lambda _, name, **_options: {"user.mine": b"1"}[name])
    assert attributes.read_xattrs(0, PreservedMetadataKinds()).found == (("user.mine", b"1"),)


def labelled(source: Path) -> list[str]:
    source.mkdir()
    (source / "file").write_bytes(b"x")
    (source / "directory").mkdir()
    os.mkfifo(source / "fifo")
    names = ["file", "directory", "fifo"]
    for name in names:
        set_all(source / name, ("security.selinux",))
    return names


@pytest.mark.parametrize(
    ("error", "user"), [("EOPNOTSUPP", None), ("EPERM", None), ("EINVAL", None), ("ENOSPC", None), ("EPERM", NOBODY)]
)
def test_selinux_label_that_cannot_be_set_is_a_warning(
    on: Place, traced: list[str], error: str, user: int | None
) -> None:
    """For any error and user: a label is a policy of the host, not a property of the file."""
    require_root("set a label")
    here = on("ext4")
    here.chmod(0o777)
    names = labelled(here / "source")
    for path in (here / "source", *(here / "source" / name for name in names)):
        os.chown(path, user or 0, user or 0)
        path.chmod(0o750)
    wrap = [*traced, "-o", str(here / "trace"), "-e", f"inject={','.join(SET_XATTR)}:error={error}"]
    run = succeed("--json", here / "source", here / "copy", wrap=wrap, ranks=1, user=user)
    assert b"(INJECTED)" in (here / "trace").read_bytes()
    reported = summary(run)
    assert (reported["warnings"], reported["excused"], reported["failed"]) == (len(names), 0, 0), show(run)
    assert run.stderr.count(b"setxattr security.selinux") == len(names), show(run)
    for name in names:
        assert mode_of(here / "copy" / name) == 0o750


def test_selinux_label_is_copied_where_it_can_be_set(on: Place) -> None:
    require_root("set a label")
    here = on("ext4")
    names = labelled(here / "source")
    reported = summary(succeed("--json", here / "source", here / "copy"))
    assert reported["warnings"] == 0
    for name in names:
        assert os.getxattr(here / "copy" / name, "security.selinux") == b"\x01not to be copied"
