"""The files of the configuration: read, and trusted.

Rule: what is there and cannot be read, or may be another user's work, is refused and never passed over. As root only
files count that root owns and nobody else may write, reached through directories and links of which the same is true:
whoever may change such a file decides what root copies.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from pcopy.errors import Refused
from pcopy.fsio.close import held_open
from pcopy.fsio.named_file import NotTrusted, WrongKind, open_to_read
from pcopy.jobs.meant import meant
from pcopy.signature.plain_yaml import Flaw, Value, load
from pcopy.text import harmless, shown

LARGEST = 1 << 20
"""Bytes of a file: there are some hundred keys, and patterns by the thousand have files of their own."""
_MOST_LINKS = 40  # the kernel follows no more
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def read(path: bytes) -> dict[str, Value]:
    """What is in the file; raises ``Refused``, with its name and the line, for whatever is wrong with it."""
    try:
        is_root = os.geteuid() == 0  # of whom more is wanted
        with held_open(open_to_read(path, regular=True, trust_links=is_root).descriptor) as descriptor:
            if is_root:
                _refuse_others(path, os.fstat(descriptor))
            contents = _contents(descriptor)
    except OSError as error:
        raise _unreadable(path, error) from None
    if len(contents) > LARGEST:
        raise Refused(f"{shown(path)}: has more than {LARGEST >> 20} MiB, and cannot be the configuration")
    try:
        return load(contents, by_hand=True)
    except Flaw as flaw:
        line = f":{flaw.line}" if flaw.line else ""
        raise Refused(f"{shown(path)}{line}: {harmless(str(flaw))}") from None


def _contents(descriptor: int) -> bytes:
    parts: list[bytes] = []
    while (part := os.read(descriptor, LARGEST)) and len(parts) <= 1:
        parts.append(part)
    return b"".join(parts)


def _unreadable(path: bytes, error: OSError) -> Refused:
    if isinstance(error, FileNotFoundError) and not os.path.lexists(path):
        return Refused(f"{shown(path)}: does not exist; {meant(path) or 'check the name after --config'}")
    if isinstance(error, WrongKind):
        return Refused(f"{shown(path)}: is no regular file, and cannot be the configuration")
    if isinstance(error, NotTrusted):
        return Refused(f"{shown(path)}: cannot be the configuration: {error.strerror}")
    if isinstance(error, FileNotFoundError):
        return Refused(f"{shown(path)}: the configuration is a symbolic link that leads nowhere; remove or mend it")
    advice = ", or set XDG_CONFIG_HOME to another directory" if _is_of_user(path) else ""
    text = f"{shown(path)}: the configuration cannot be read: {error.strerror}"
    return Refused(f"{text}; remove the cause{advice}")


def _is_of_user(path: bytes) -> bool:
    """Return True if ``path`` is the user's default file (``pcopy.cli.program.default_files``)."""
    directory = os.environb.get(b"XDG_CONFIG_HOME", b"")
    if not directory.startswith(b"/"):
        directory = os.path.expanduser(b"~/.config")
    return path == os.path.join(directory, b"pcopy.yaml")


def _refuse_others(path: bytes, status: os.stat_result) -> None:
    """Raises ``Refused`` if another user than root could have made what ``path`` leads to, or can change it."""
    trouble, seen = "", status
    for name, seen in _way(path):
        if trouble := _trouble(name, seen):
            break
    if not trouble and (seen.st_dev, seen.st_ino) != (status.st_dev, status.st_ino):
        trouble = "it has just been replaced"
    if trouble:
        advice = ", or name another place by XDG_CONFIG_HOME (sudo -H takes root's own)" if _is_of_user(path) else ""
        text = f"{shown(path)}: {trouble}, and root takes its configuration from nobody else"
        raise Refused(f"{text}: chown root and chmod go-w what is root's{advice}")


def _way(path: bytes) -> Iterator[tuple[bytes, os.stat_result]]:
    """All directories and links that the system goes through to ``path``, and the file; raises ``OSError``."""
    here, ahead, links = b"/", os.path.join(os.getcwdb(), path).split(b"/")[::-1], 0
    yield here, os.lstat(here)
    while ahead:
        part = ahead.pop()
        if part in (b"", b".", b".."):
            here = os.path.dirname(here) if part == b".." else here
            continue
        name = os.path.join(here, part)
        seen = os.lstat(name)
        yield name, seen
        if not stat.S_ISLNK(seen.st_mode):
            here = name
            continue
        if (links := links + 1) > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target = os.readlink(name)
        here = b"/" if target.startswith(b"/") else here
        ahead += target.split(b"/")[::-1]


def _trouble(path: bytes, status: os.stat_result) -> str:
    """Why somebody else than root decides what this item is; nothing if nobody does."""
    if status.st_uid:
        return f"{shown(path)} belongs to user {status.st_uid}"
    if stat.S_ISLNK(status.st_mode) or (stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX):
        return ""
    if status.st_mode & _OTHERS_MAY_WRITE:
        return f"others may write to {shown(path)} (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""
