"""Attacks on items during their creation: mode and owner at every instant."""

from __future__ import annotations

import os
import stat

from tests.hostile.attack import Attack
from tests.hostile.stage import Stage
from tests.hostile.window import Ended, Window
from tests.support.attributes import DEFAULT_ACL, acl
from tests.support.users import NOBODY, as_user

MIB = 1 << 20
TARGET = "/target"


def _take(stage: Stage, name: str) -> None:
    """Try to use the name in the target as the attacker; any access is a success of the attack."""
    path = next(stage.target.rglob(name))
    try:
        if path.is_dir():
            os.listdir(path)
        else:
            os.close(os.open(path, os.O_RDONLY))
    except PermissionError:
        return
    (stage.lair / "taken").touch()


def _taken(stage: Stage, _ended: Ended) -> list[str]:
    return ["it could be read while it was made"] if (stage.lair / "taken").exists() else []


def _secret_file(stage: Stage) -> None:
    stage.owned(stage.source / "victim", b"for root", 0o600, 0)


def _secret_file_of_root(stage: Stage) -> None:
    stage.owned(stage.source / "inner", mode=0o755, owner=0)
    stage.owned(stage.target / "inner", mode=0o755, owner=0)
    stage.owned(stage.source / "inner/victim", b"for root", 0o600, 0)


def _large_secret_file(stage: Stage) -> None:
    stage.owned(stage.source / "victim", b"for root" + bytes(5 * MIB), 0o600, 0)


def _program(stage: Stage) -> None:
    """Create a set-id program of the attacker. The directory belongs to root, since small files take the fast path
    there."""
    stage.owned(stage.source / "victim", b"#!/bin/sh\n", 0o6755)
    os.chown(stage.target, 0, 0)


def _large_program(stage: Stage) -> None:
    stage.owned(stage.source / "victim", b"#!/bin/sh\n" + bytes(5 * MIB), 0o6755)


def _look_for_set_id(stage: Stage, name: str) -> None:
    status = (stage.target / name).lstat()
    if status.st_mode & (stat.S_ISUID | stat.S_ISGID) and (status.st_uid, status.st_gid) != (NOBODY, NOBODY):
        (stage.lair / "taken").touch()


def _private_directory(stage: Stage) -> None:
    stage.owned(stage.source / "inner", mode=0o755, owner=0)
    stage.owned(stage.source / "inner/victim", b"x", 0o644, 0)


def _existing_private_directory(stage: Stage) -> None:
    """Create a private directory that the attacker will own in the end; until then it contains items that the copy does
    not replace."""
    stage.owned(stage.target / "inner", mode=0o700, owner=0)
    stage.owned(stage.source / "inner", mode=0o777)
    stage.owned(stage.source / "inner/victim", b"x")


def _take_inner(stage: Stage, _name: str) -> None:
    _take(stage, "inner")


def _file_of_a_group(stage: Stage) -> None:
    stage.owned(stage.source / "inner")
    stage.owned(stage.target / "inner")
    stage.owned(stage.source / "inner/victim", b"for root's group", 0o640, 0)


def _give_acl(stage: Stage, _name: str) -> None:
    os.setxattr(stage.target / "inner", DEFAULT_ACL, acl(7, 7, 7, {NOBODY: 7}))


def _take_afterwards(stage: Stage, ended: Ended) -> list[str]:
    as_user(lambda: _take(stage, "victim"))
    return _taken(stage, ended)


BEFORE_CHOWN = Window("chown", "victim", TARGET)

PERMISSION_ATTACKS = (
    Attack("a new file is read before it has its metadata", _secret_file, BEFORE_CHOWN, _take, harm=_taken),
    Attack(
        "a new file in root's directory is read before it has its metadata",
        _secret_file_of_root,
        Window("chmod", "victim", TARGET),  # it may have its owner from the beginning
        _take,
        harm=_taken,
    ),
    Attack(
        "a temporary file is read before it has its metadata",
        _large_secret_file,
        Window("chown", ".pcopy-*", TARGET),
        _take,
        harm=_taken,
    ),
    Attack("a new file is set-id before it has its owner", _program, BEFORE_CHOWN, _look_for_set_id, harm=_taken),
    Attack(
        "a temporary file is set-id before it has its owner",
        _large_program,
        Window("chown", ".pcopy-*", TARGET),
        _look_for_set_id,
        harm=_taken,
    ),
    Attack(
        "a new directory is read before it is finished",
        _private_directory,
        Window("create", "victim", TARGET),
        _take_inner,
        harm=_taken,
    ),
    Attack(
        "an existing directory is read before it is finished",
        _existing_private_directory,
        Window("create", "victim", TARGET),
        _take_inner,
        harm=_taken,
    ),
    Attack(
        "a directory gets a default ACL after it was looked at",
        _file_of_a_group,
        Window("create", "victim", TARGET),
        _give_acl,
        harm=_take_afterwards,
    ),
)
