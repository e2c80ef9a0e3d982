"""``--chown``: whose everything becomes."""

from __future__ import annotations

import os

from pcopy.fsio.preserve import CAP_CHOWN, capable

_LARGEST = (1 << 32) - 2  # the next number stands for "as it is"
_AS_IT_IS = -1


def parse_owner(text: str) -> tuple[int, int]:
    """Uid and gid of ``USER:GROUP``, ``USER``, ``:GROUP`` or ``USER:`` (that user's login group); -1: not named.

    A name counts before a number, as with chown(1). Raises ``ValueError`` for what is unknown, or not this process's
    to give away.
    """
    user, colon, group = text.partition(":")
    if not (user or group):
        raise ValueError("names neither a user nor a group")
    uid = _user(user) if user else _AS_IT_IS
    gid = _group(group) if group else _login_group(uid, user) if colon else _AS_IT_IS
    if not capable(CAP_CHOWN):
        if uid not in (_AS_IT_IS, os.geteuid()):
            raise ValueError("only root may give files to another user")
        if gid not in (_AS_IT_IS, os.getegid(), *os.getgroups()):
            raise ValueError("only root may give files to a group that he is not in")
    return uid, gid


def _user(name: str) -> int:
    import pwd

    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return _number(name, "user")


def _group(name: str) -> int:
    import grp

    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return _number(name, "group")


def _login_group(uid: int, name: str) -> int:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        raise ValueError(f"user {name} has no login group here") from None


def _number(text: str, kind: str) -> int:
    digits = text.removeprefix("+")
    if not (digits.isascii() and digits.isdigit()) or int(digits) > _LARGEST:
        raise ValueError(f"there is no {kind} {text}")
    return int(digits)
