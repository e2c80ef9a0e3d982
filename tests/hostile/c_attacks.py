"""Attacks and races in the moments between two calls of the C backend, in all programs that have rows in C.

An administrator who mounts a file system while a program runs does no harm on purpose: what is below the mount is not
part of the tree.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

from tests.hostile.attack import Attack, replaced
from tests.hostile.stage import Stage
from tests.hostile.window import Ended, Window
from tests.support.attributes import DEFAULT_ACL, acl
from tests.support.command import Argument, pverify
from tests.support.users import NOBODY, as_user

SOURCE, TARGET = "/source", "/target"
ONE = ("-n", "1", "--in-flight", "1")
"""One rank without threads: the C backend is given whole directories."""

OLD, NEW = b"old", b"new"
PIECES = 400_000
"""Bytes of a file that is read in pieces."""

WITHOUT_SET_GID = ("setpriv", "--bounding-set=-fsetid")
"""The prefix of a command without the capability by which root may set any set-gid bit."""


def _source(stage: Stage) -> tuple[Argument, ...]:
    return (stage.source,)


def _both(stage: Stage) -> tuple[Argument, ...]:
    return stage.source, stage.target


def _signature(stage: Stage) -> tuple[Argument, ...]:
    return "--create", stage.scratch / "signature", stage.source


def _archive(stage: Stage) -> tuple[Argument, ...]:
    return "-f", stage.scratch / "a.tar", "-C", stage.source, "."


def _unpacked(stage: Stage) -> tuple[Argument, ...]:
    return "-f", stage.lair / "a.tar", "-C", stage.target


def _outer_with_directories(stage: Stage, tree: Path) -> None:
    """Create four directories: the C backend is given two of them at once, and then the other two."""
    stage.owned(tree / "outer")
    for name in ("inner", "many", "more", "most"):
        stage.owned(tree / "outer" / name)


# Items that become others


def _victim(stage: Stage) -> None:
    """A file of the attacker, and in the lair a name of root's file, a symbolic link to one, and a device with data."""
    stage.owned(stage.source / "victim", OLD)
    stage.link_to_canary()
    os.symlink(stage.safe / "canary", stage.lair / "link")
    os.mknod(stage.lair / "device", stat.S_IFCHR | 0o600, os.makedev(1, 5))
    stage.watch_reads(stage.lair / "device")


def _inner_victim(stage: Stage) -> None:
    """The same, with the file of the attacker in a subdirectory."""
    _victim(stage)
    stage.owned(stage.source / "inner")
    (stage.source / "victim").rename(stage.source / "inner/victim")


def _inner_victim_becomes(what: str) -> Callable[[Stage, str], None]:
    return lambda stage, _name: replaced(stage.source / "inner/victim", stage.lair / what, stage.lair)


def _victim_becomes(what: str) -> Callable[[Stage, str], None]:
    return lambda stage, _name: replaced(stage.source / "victim", stage.lair / what, stage.lair)


def _victims_in_both(stage: Stage) -> None:
    """The same file in both trees, and FIFOs with data in the lair."""
    for tree in (stage.source, stage.target):
        _outer_with_directories(stage, tree)
        stage.owned(tree / "outer/inner/victim", bytes(PIECES))
        pipe = stage.lair / f"pipe of {tree.name}"
        os.mkfifo(pipe, 0o600)
        stage.fill(pipe)


def _both_become_pipes(stage: Stage, _name: str) -> None:
    for tree in (stage.source, stage.target):
        (tree / "outer/inner/victim").rename(stage.lair / f"put away from {tree.name}")
        (stage.lair / f"pipe of {tree.name}").rename(tree / "outer/inner/victim")


def _pipes_are_read(stage: Stage, _ended: Ended) -> list[str]:
    return stage.emptied()


# Files that change while they are read


def _victim_of(content: bytes) -> Callable[[Stage], object]:
    return lambda stage: os.utime(stage.owned(stage.source / "victim", content), (1_000_000_000, 1_000_000_000))


def _inner_victim_of(content: bytes) -> Callable[[Stage], object]:
    def prepare(stage: Stage) -> None:
        stage.owned(stage.source / "inner")
        os.utime(stage.owned(stage.source / "inner/victim", content), (1_000_000_000, 1_000_000_000))

    return prepare


def _is_written_again(stage: Stage, _name: str) -> None:
    """Give the file other contents of the same size."""
    (path,) = stage.source.rglob("victim")
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.write((NEW * size)[:size])


def _get_attributes(stage: Stage, _name: str) -> None:
    for path in stage.source.glob("inner*/victim"):
        for name in os.listxattr(path):
            os.setxattr(path, name, NEW)


def _with_attributes(stage: Stage) -> None:
    """Create directories of one file each. C leaves the first ones to Python, which decides on their attributes."""
    for number in range(40):
        stage.owned(stage.source / f"inner{number}")
        path = stage.owned(stage.source / f"inner{number}/victim", OLD)
        for name in ("user.a", "user.b"):
            os.setxattr(path, name, OLD)


def _has_mixed_attributes(stage: Stage, _ended: Ended) -> list[str]:
    values = {path: {os.getxattr(path, name) for name in os.listxattr(path)} for path in stage.target.glob("*/victim")}
    return [f"{path} has attributes of two versions" for path, each in values.items() if len(each) > 1]


def _both_are_written_again(stage: Stage, _name: str) -> None:
    for tree in (stage.source, stage.target):
        (tree / "outer/inner/victim").write_bytes(b"x" * PIECES)


def _looks_like_a_copy(stage: Stage, ended: Ended) -> list[str]:
    source, copy = stage.source / "victim", stage.target / "victim"
    if ended.status or not copy.exists():
        return []
    same_time = source.stat().st_mtime_ns == copy.stat().st_mtime_ns
    differ = source.read_bytes() != copy.read_bytes()
    return ["the copy has the time of the file and other contents"] if same_time and differ else []


def _has_two_versions(stage: Stage, ended: Ended) -> list[str]:
    copy = (stage.target / "victim").read_bytes()
    is_mixed = NEW in copy[-10:] and bytes(10) in copy[:PIECES]
    return ["the copy has pieces of two versions"] if ended.status == 0 and is_mixed else []


def _signature_is_wrong(stage: Stage, ended: Ended) -> list[str]:
    """The signature must be that of the file as it is now, or an error must have been reported."""
    again = pverify("-n", "1", stage.scratch / "signature", stage.source)
    return ["the signature is that of no version"] if ended.status == 0 and again.returncode else []


def _reported_as_different(_stage: Stage, ended: Ended) -> list[str]:
    return ["equal files were reported to differ"] if ended.status else []


def _canary_is_packed(stage: Stage, _ended: Ended) -> list[str]:
    with tarfile.open(stage.scratch / "a.tar") as archive:
        return [f"{name} is packed" for name in archive.getnames() if name.endswith("/canary")]


def _member_has_old_time(stage: Stage, ended: Ended) -> list[str]:
    with tarfile.open(stage.scratch / "a.tar") as archive:
        (member,) = (each for each in archive if each.isfile())
        file = archive.extractfile(member)
        assert file is not None
        is_new = NEW in file.read()
    is_old = int(member.mtime) == 1_000_000_000
    return ["new contents have the old time"] if ended.status == 0 and is_new and is_old else []


# Directories


def _inner(mode: int = 0o755, owner: int = NOBODY, content: bytes | None = b"x") -> Callable[[Stage], None]:
    def prepare(stage: Stage) -> None:
        stage.owned(stage.source / "inner", mode=mode, owner=owner)
        if content is not None:
            stage.owned(stage.source / "inner/victim", content, owner=owner)
        stage.link_to_canary()
        os.mkfifo(stage.lair / "fifo")

    return prepare


def _deep(stage: Stage) -> None:
    _outer_with_directories(stage, stage.source)
    stage.owned(stage.source / "outer/inner/victim", b"x")
    stage.owned(stage.lair / "mounted")
    stage.owned(stage.lair / "mounted/canary", b"on another mount")


def _deep_in_both(stage: Stage) -> None:
    _deep(stage)
    _outer_with_directories(stage, stage.target)
    stage.owned(stage.target / "outer/inner/victim", b"x")


def _becomes_link_to_safe(stage: Stage, _name: str) -> None:
    (stage.source / "outer/inner").rename(stage.lair / "inner")
    os.symlink(stage.safe, stage.source / "outer/inner")


def _is_mounted_over(stage: Stage, _name: str) -> None:
    stage.mount_over(stage.source / "outer/inner", stage.lair / "mounted")


def _second_is_mounted_over(stage: Stage, _name: str) -> None:
    stage.mount_over(stage.target / "outer/inner", stage.lair / "mounted")


def _tmpfs_is_mounted_over(stage: Stage, _name: str) -> None:
    stage.mount_over(stage.source / "outer/inner")
    (stage.source / "outer/inner/canary").write_bytes(b"on another file system")


def _canary_is_reported(_stage: Stage, ended: Ended) -> list[str]:
    return ["what is mounted was listed"] if "canary" in ended.output + ended.errors else []


def _canary_is_copied(stage: Stage, _ended: Ended) -> list[str]:
    return ["what is mounted was copied"] if (stage.target / "outer/inner/canary").exists() else []


def _canary_is_removed(stage: Stage, _ended: Ended) -> list[str]:
    return [] if (stage.source / "outer/inner/canary").exists() else ["what is mounted was removed"]


def _canary_is_changed(stage: Stage, _ended: Ended) -> list[str]:
    mode = (stage.source / "outer/inner/canary").stat().st_mode & 0o7777
    return [f"what is mounted has the mode {mode:o}"] if mode == 0o4755 else []


def _inner_becomes_file(stage: Stage, _name: str) -> None:
    replaced(stage.source / "inner", stage.lair / "linked", stage.lair)


def _target_becomes(what: str) -> Callable[[Stage, str], None]:
    def act(stage: Stage, name: str) -> None:
        (stage.target / name).rename(stage.target / "put away")
        (stage.lair / what).rename(stage.target / name)

    return act


def _gets_its_number(stage: Stage, name: str) -> None:
    """Replace a new directory by the attacker's one with the same inode number."""
    path = stage.target / name
    number = path.stat().st_ino
    path.rmdir()
    for attempt in range(200):
        made = stage.target / f"try-{attempt}"
        made.mkdir()
        if made.stat().st_ino == number:
            break
    else:
        raise AssertionError("the inode's number was never used again")
    (made / "forged").touch()
    made.rename(path)


def _forged_is_given(stage: Stage, _ended: Ended) -> list[str]:
    path = stage.target / "inner"
    is_forged = (path / "forged").exists() and path.stat().st_uid == 0
    return ["the attacker's directory belongs to root"] if is_forged else []


# Permissions


def _for_root(*names: str) -> Callable[[Stage], None]:
    """Files of root that only root's group may read, besides root."""

    def prepare(stage: Stage) -> None:
        for name in names:
            if "/" in name:
                stage.owned(stage.source / "inner", mode=0o755, owner=0)
            stage.owned(stage.source / name, b"for root's group", 0o640, 0)
        own = stage.owned(stage.lair / "own", mode=0o777)
        os.setxattr(own, DEFAULT_ACL, acl(7, 7, 7, {NOBODY: 7}))

    return prepare


def _packed_for_root(stage: Stage) -> None:
    """An archive of two directories with files that only root's group may read, besides root."""
    _for_root("inner/victim", "other")(stage)
    with tarfile.open(stage.lair / "a.tar", "w") as archive:
        for name in ("inner", "more"):
            archive.add(stage.source / "inner", name)


def _gives_acl(stage: Stage, _name: str) -> None:
    os.setxattr(stage.target, DEFAULT_ACL, acl(7, 7, 7, {NOBODY: 7}))


def _gives_group(stage: Stage, _name: str) -> None:
    stage.target.chmod(0o2755)


def _can_be_read(stage: Stage, _ended: Ended) -> list[str]:
    """Return the copies of root's files that the attacker can read."""
    read = []
    for path in stage.target.rglob("*"):
        if path.is_file():
            try:
                as_user(lambda path=path: path.read_bytes())  # type: ignore[misc]
            except AssertionError:
                continue
            read.append(f"{path} can be read")
    return read


def _program(stage: Stage) -> None:
    stage.owned(stage.source / "victim", b"#!/bin/sh\n", 0o6755)


def _is_set_id(stage: Stage, _ended: Ended) -> list[str]:
    path = stage.target / "victim"
    if not path.exists():
        return []
    status = path.stat()
    return [f"it is set-id for {status.st_uid}"] if status.st_mode & 0o6000 and status.st_uid != NOBODY else []


def _set_gid_directory(stage: Stage) -> None:
    stage.owned(stage.source / "inner", mode=0o2755)


def _gives_wrong_group(stage: Stage, _ended: Ended) -> list[str]:
    status = (stage.target / "inner").stat()
    return ["it gives root's group to new files"] if status.st_mode & 0o2000 and status.st_gid != NOBODY else []


def _packed_program(stage: Stage) -> None:
    """An archive with a set-id program of another user than the one who unpacks it."""
    with tarfile.open(stage.lair / "a.tar", "w") as archive:
        for number in range(20):
            member = tarfile.TarInfo(f"victim{number}")
            member.mode, member.uid, member.gid, member.size = 0o6755, 1234, 1234, len(OLD)
            member.mtime = 1_000_000_000
            archive.addfile(member, io.BytesIO(OLD))


def _is_set_id_for_user(stage: Stage, _ended: Ended) -> list[str]:
    found = [path.stat() for path in stage.target.iterdir()]
    return [f"it is set-id for {each.st_uid}" for each in found if each.st_mode & 0o6000 and each.st_uid != 1234]


def _packed_outside(stage: Stage) -> None:
    stage.owned(stage.source / "victim", OLD)
    with tarfile.open(stage.lair / "a.tar", "w") as archive:
        for name in ("../outside", "inside"):
            archive.add(stage.source / "victim", name)


def _is_outside(stage: Stage, _ended: Ended) -> list[str]:
    path = stage.target.parent / "outside"
    return ["a member was unpacked outside of the destination"] if path.exists() else []


def _of_other_group(tree: str) -> Callable[[Stage], None]:
    def prepare(stage: Stage) -> None:
        path = stage.owned(getattr(stage, tree) / "victim", OLD)
        os.chown(path, 0, 1234)
        path.chmod(0o2755 if tree == "source" else 0o755)

    return prepare


def _lacks_set_gid(tree: str) -> Callable[[Stage, Ended], list[str]]:
    def harm(stage: Stage, ended: Ended) -> list[str]:
        mode = (getattr(stage, tree) / "victim").stat().st_mode & 0o7777
        is_reported = ended.status or "excused" in ended.output
        return [f"the mode is {mode:o}, and that was not reported"] if not is_reported and not mode & 0o2000 else []

    return harm


# Names


def _existing(stage: Stage) -> None:
    stage.owned(stage.source / "victim", NEW)
    stage.owned(stage.target / "victim", OLD)
    stage.owned(stage.lair / "forged", b"the attacker's")


def _temporary_is_forged(stage: Stage, _name: str) -> None:
    (temporary,) = stage.target.glob(".pcopy-*")
    replaced(temporary, stage.lair / "forged", stage.lair)


def _copy_becomes_link(stage: Stage, _name: str) -> None:
    (stage.target / "victim").rename(stage.target / "elsewhere")
    os.symlink("elsewhere", stage.target / "victim")


def _is_not_the_copy(stage: Stage, ended: Ended) -> list[str]:
    path = stage.target / "victim"
    is_copy = not path.is_symlink() and path.read_bytes() == NEW
    return [] if is_copy or ended.status else ["it is not the copy, and no error was reported"]


def _marked(stage: Stage) -> None:
    """A file that a run with --inplace has left half written."""
    os.setxattr(stage.owned(stage.source / "victim", OLD), "trusted.pcopy.incomplete", b"x")


def _has_signature(_stage: Stage, ended: Ended) -> list[str]:
    return ["the signature includes a half-written file"] if ended.status == 0 else []


def _chosen(stage: Stage) -> None:
    """Files that are to be removed, and one in the lair that is not."""
    for name in ("victim", "victim too"):
        os.utime(stage.owned(stage.source / name, OLD), (1, 1))
    stage.owned(stage.lair / "recent", NEW)


def _recent_is_removed(stage: Stage, _ended: Ended) -> list[str]:
    there = [path.read_bytes() for path in (stage.source / "victim", stage.lair / "recent") if path.exists()]
    return [] if NEW in there else ["a file that was not selected was removed"]


MKDIR = Window("mkdir", "inner", TARGET, when="after")
OPEN = Window("open", "victim", SOURCE)
OPEN_INNER = Window("open", "inner", SOURCE)
READ = Window("read", "victim", SOURCE, when="after")
COMPARE = (*ONE, "--compare", "content")
PACK = (*ONE, "-c")
UNPACK = (*ONE, "-x")

C_ATTACKS = (
    Attack("a new target directory becomes a file of root", _inner(content=None), MKDIR, _target_becomes("linked")),
    Attack("a new target directory becomes a FIFO", _inner(content=None), MKDIR, _target_becomes("fifo")),
    Attack("a source directory becomes a link in pverify", _deep_in_both, OPEN_INNER, _becomes_link_to_safe, COMPARE,
           program="pverify", paths=_both),
    Attack("a directory becomes a link in prm", _deep, OPEN_INNER, _becomes_link_to_safe, (*ONE, "-q", "--yes"),
           program="prm", paths=_source),
    Attack("a directory becomes a link in pchmod", _deep, OPEN_INNER, _becomes_link_to_safe, (*ONE, "4755"),
           program="pchmod", paths=_source),
    Attack("a directory becomes a link in pwalk", _deep, OPEN_INNER, _becomes_link_to_safe, ONE, program="pwalk",
           paths=_source),
    Attack("a directory becomes a link in ptar", _deep, OPEN_INNER, _becomes_link_to_safe, PACK, _canary_is_packed,
           program="ptar", paths=_archive),
    Attack("a directory is mounted over in ptar", _deep, OPEN_INNER, _is_mounted_over, PACK, _canary_is_packed,
           program="ptar", paths=_archive, by_root=True),
    Attack("a directory is mounted over in pwalk", _deep, OPEN_INNER, _is_mounted_over, ONE,
           _canary_is_reported, program="pwalk", paths=_source, by_root=True),
    Attack("a directory is mounted over in pchmod", _deep, OPEN_INNER, _is_mounted_over, (*ONE, "4755"),
           _canary_is_changed, program="pchmod", paths=_source, by_root=True),
    Attack("a directory is mounted over in pverify", _deep_in_both, OPEN_INNER, _is_mounted_over, COMPARE,
           _canary_is_reported, program="pverify", paths=_both, by_root=True),
    Attack("a directory of the second tree is mounted over in pverify", _deep_in_both, OPEN_INNER,
           _second_is_mounted_over, COMPARE, _canary_is_reported, program="pverify", paths=_both, by_root=True),
    Attack("a directory is mounted over in pverify of two trees", _deep_in_both, OPEN_INNER, _is_mounted_over, ONE,
           _canary_is_reported, program="pverify", paths=_both, by_root=True),
    Attack("a directory is mounted over in pcopy", _deep, OPEN_INNER, _is_mounted_over, ONE,
           _canary_is_copied, by_root=True),
    Attack("a directory is mounted over in prm", _deep, OPEN_INNER, _is_mounted_over, (*ONE, "-q", "--yes"),
           _canary_is_removed, program="prm", paths=_source, by_root=True),
    Attack("a new directory becomes another one with its inode's number", _inner(owner=0, content=None),
           Window("open", "inner", TARGET, 3), _gets_its_number, harm=_forged_is_given),
    Attack("a source file becomes a device with data", _victim, OPEN, _victim_becomes("device")),
    Attack("a file becomes a device with data in pverify", _victim, OPEN, _victim_becomes("device"), ONE,
           program="pverify", paths=_signature),
    Attack("a file becomes a device with data in ptar", _victim, OPEN, _victim_becomes("device"), PACK, program="ptar",
           paths=_archive),
    Attack("a file of a subdirectory becomes a device with data in ptar", _inner_victim, OPEN,
           _inner_victim_becomes("device"), PACK, program="ptar", paths=_archive),
    Attack("files that are compared become FIFOs", _victims_in_both, Window("open", "victim", SOURCE),
           _both_become_pipes, COMPARE, _pipes_are_read, program="pverify", paths=_both),
    Attack("a file is written again after it was read", _victim_of(OLD), Window("listxattr", "victim", SOURCE),
           _is_written_again, harm=_looks_like_a_copy),
    Attack("a file is written again between two pieces", _victim_of(bytes(PIECES)),
           Window("write", "victim", TARGET, when="after"), _is_written_again, harm=_has_two_versions),
    Attack("a file gets other attributes while they are copied", _with_attributes,
           Window("setxattr", "victim", TARGET, 41, "after"), _get_attributes, ONE, _has_mixed_attributes),
    Attack("a file is written again while its digest is computed", _victim_of(bytes(PIECES)), READ, _is_written_again,
           ONE, _signature_is_wrong, program="pverify",
           paths=_signature),
    Attack("files are written again while they are compared", _victims_in_both, READ, _both_are_written_again, COMPARE,
           _reported_as_different, program="pverify", paths=_both),
    Attack("a file is written again while it is packed", _victim_of(OLD), OPEN, _is_written_again, PACK,
           _member_has_old_time, in_c=Window("read", "victim", SOURCE), program="ptar", paths=_archive),
    Attack("a file of a subdirectory is written again while it is packed", _inner_victim_of(OLD), OPEN,
           _is_written_again, PACK, _member_has_old_time, in_c=Window("read", "victim", SOURCE), program="ptar",
           paths=_archive),
    Attack("a new directory becomes one with a default ACL", _for_root("inner/victim"), MKDIR, _target_becomes("own"),
           harm=_can_be_read),
    Attack("a new directory becomes one with a default ACL in ptar", _packed_for_root, MKDIR, _target_becomes("own"),
           UNPACK, _can_be_read, program="ptar", paths=_unpacked),
    Attack("a directory gets a default ACL before another is created in it", _for_root("inner/victim"),
           Window("mkdir", "inner", TARGET), _gives_acl, harm=_can_be_read),
    Attack("a directory gives its group to new files", _for_root("one", "two"), Window("create", "*", TARGET, 2),
           _gives_group, harm=_can_be_read),
    Attack("a set-id program is copied without its owner", _program, arguments=(*ONE, "--no-preserve", "ownership"),
           harm=_is_set_id),
    Attack("a set-gid directory is copied without its owner", _set_gid_directory,
           arguments=(*ONE, "--no-preserve", "ownership"), harm=_gives_wrong_group),
    Attack("a user unpacks a set-id program of another user", _packed_program, arguments=UNPACK,
           harm=_is_set_id_for_user, program="ptar", paths=_unpacked, user=NOBODY),
    Attack("the set-gid bit of a copy is dropped", _of_other_group("source"), harm=_lacks_set_gid("target"),
           wrap=WITHOUT_SET_GID),
    Attack("the set-gid bit of a file is dropped", _of_other_group("target"), arguments=(*ONE, "g+s"),
           harm=_lacks_set_gid("target"), program="pchmod", paths=lambda stage: (stage.target,), wrap=WITHOUT_SET_GID),
    Attack("a small temporary file is replaced before it is renamed", _existing,
           Window("rename", ".pcopy-*", TARGET), _temporary_is_forged, (*ONE, "--no-sync"), harm=_is_not_the_copy),
    Attack("a renamed copy becomes a link to it", _existing, Window("rename", ".pcopy-*", TARGET, when="after"),
           _copy_becomes_link, (*ONE, "--no-sync"), harm=_is_not_the_copy),
    Attack("a file is marked as half written", _marked, arguments=ONE, harm=_has_signature, program="pverify",
           paths=_signature),
    Attack("a file becomes a link in pchmod", _victim, OPEN, _victim_becomes("link"), (*ONE, "4755"), program="pchmod",
           paths=_source),
    Attack("a file becomes a hard link in pchmod", _victim, OPEN, _victim_becomes("linked"), (*ONE, "4755"),
           program="pchmod", paths=_source),
    Attack("a directory becomes a hard link to a file in pchmod", _inner(), OPEN_INNER, _inner_becomes_file,
           (*ONE, "4755"), program="pchmod", paths=lambda stage: (stage.source / "inner",)),
    Attack("a file system is mounted in prm", _deep, OPEN_INNER, _tmpfs_is_mounted_over, (*ONE, "--yes"),
           _canary_is_removed, program="prm", paths=_source, by_root=True),
    Attack("a file system is mounted in prm -q", _deep, OPEN_INNER, _tmpfs_is_mounted_over, (*ONE, "-q", "--yes"),
           _canary_is_removed, program="prm", paths=_source, by_root=True),
    Attack("a selected file becomes another one in prm", _chosen, Window("stat", "victim", SOURCE),
           _victim_becomes("recent"), (*ONE, "-q", "--yes", "--older-than", "2000-01-01"), _recent_is_removed,
           program="prm", paths=_source),
    Attack("a member leads out of the destination", _packed_outside, arguments=UNPACK, harm=_is_outside,
           program="ptar", paths=_unpacked),
)  # fmt: skip

STOPPED_BY_CALLER = (
    Attack("a listed directory becomes a hard link to a file in pchmod", _inner(), OPEN_INNER, _inner_becomes_file,
           (*ONE, "4755"), program="pchmod", paths=_source),
)  # fmt: skip
"""Attacks on items that C leaves to Python, whatever guards are disabled: Python must not do what C has not done."""
