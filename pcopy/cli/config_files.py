"""Reading of configuration files, with a check that another user cannot have written them.

Rules:

- A file that exists but cannot be read or is not trusted is an error. It is never skipped.
- A process of root trusts a file only if root owns the file and no other user may write to it, and the same holds for
  all directories and symbolic links on its path: a user who may change the file decides what root copies.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from pcopy.errors import RequestRefused, path_refused
from pcopy.fsio.close import closing_descriptor
from pcopy.fsio.named_file import UntrustedFileError, WrongFileTypeError, open_named_file_to_read
from pcopy.jobs.suggestions import suggestion_for_missing_path
from pcopy.signature.plain_yaml import YamlError, YamlValue, load_yaml
from pcopy.text import printable_path, printable_text

MAX_CONFIG_SIZE = 1 << 20
"""The maximum size of a configuration file in bytes; a larger one is refused.

That is far more than a hundred keys need; long lists of patterns belong into pattern files (``exclude-from``).
"""
_MAX_LINKS = 40  # Linux follows at most 40 symbolic links in one path
_GROUP_OR_OTHER_WRITE = stat.S_IWGRP | stat.S_IWOTH


def read_config_file(path: bytes) -> dict[str, YamlValue]:
    """Return the contents of the configuration file ``path`` as keys and values.

    Raise ``RequestRefused``, with the file's name and the line, if it cannot be read, is not trusted or is no valid
    YAML.
    """
    try:
        is_root = (
            os.geteuid() == 0
        )  # For root ``_refuse_untrusted_config`` checks links; else ``open_named_file_to_read`` does.
        with closing_descriptor(
            open_named_file_to_read(path, regular=True, trust_links=is_root).descriptor
        ) as descriptor:
            if is_root:
                _refuse_untrusted_config(path, os.fstat(descriptor))
            contents = _read_up_to_limit(descriptor)
    except OSError as error:
        raise _unreadable_config_error(path, error) from None
    if len(contents) > MAX_CONFIG_SIZE:
        raise path_refused(path, f"is larger than {MAX_CONFIG_SIZE >> 20} MiB, the limit for a configuration file")
    try:
        return load_yaml(contents, is_handwritten=True)
    except YamlError as flaw:
        line = f":{flaw.line}" if flaw.line else ""
        raise RequestRefused(f"{printable_path(path)}{line}: {printable_text(str(flaw))}", path=path) from None


def _read_up_to_limit(descriptor: int) -> bytes:
    """Return the contents of an open file, or the beginning of one that is larger than ``MAX_CONFIG_SIZE``.

    The caller refuses a result that is larger.
    """
    parts: list[bytes] = []
    while (part := os.read(descriptor, MAX_CONFIG_SIZE)) and len(parts) <= 1:
        parts.append(part)
    return b"".join(parts)


def _unreadable_config_error(path: bytes, error: OSError) -> RequestRefused:
    """Return the exception whose message says why the configuration file ``path`` cannot be read, and what to do."""
    if isinstance(error, FileNotFoundError) and not os.path.lexists(path):
        return RequestRefused(
            f"--config: {printable_path(path)} does not exist; {suggestion_for_missing_path(path) or 'check the name'}",
            path=path,
        )
    if isinstance(error, WrongFileTypeError):
        return path_refused(path, "is not a regular file, as a configuration file has to be")
    if isinstance(error, UntrustedFileError):
        return path_refused(path, f"cannot be used as configuration file: {error.strerror}")
    if isinstance(error, FileNotFoundError):
        return path_refused(path, "the configuration is a symbolic link that leads nowhere; remove or correct it")
    advice = ", or set XDG_CONFIG_HOME to another directory" if _is_default_user_config(path) else ""
    text = f"{printable_path(path)}: the configuration cannot be read: {error.strerror}"
    return RequestRefused(f"{text}; remove the cause{advice}")


def _is_default_user_config(path: bytes) -> bool:
    """Return True if ``path`` is the user's default file: ``pcopy.yaml`` in ``$XDG_CONFIG_HOME`` or ``~/.config``."""
    directory = os.environb.get(b"XDG_CONFIG_HOME", b"")
    if not directory.startswith(b"/"):
        directory = os.path.expanduser(b"~/.config")
    return path == os.path.join(directory, b"pcopy.yaml")


def _refuse_untrusted_config(path: bytes, status: os.stat_result) -> None:
    """Raise ``RequestRefused`` if a user other than root may have created, or can change, the file to which ``path``
    leads.

    ``status`` is the status of the file that was opened and will be read.
    """
    # The checks below follow the path, after the file was opened. If they end at another inode than ``status``, the
    # file was replaced in between, and they say nothing about the opened file.
    trouble, seen = "", status
    for name, seen in _components_with_status(path):
        if trouble := _distrust_reason(name, seen):
            break
    if not trouble and (seen.st_dev, seen.st_ino) != (status.st_dev, status.st_ino):
        trouble = "it has just been replaced"
    if trouble:
        advice = (
            ", or set XDG_CONFIG_HOME to another directory (sudo -H uses root's own)"
            if _is_default_user_config(path)
            else ""
        )
        text = f"{printable_path(path)}: {trouble}, and root reads only a configuration that no other user can change"
        raise RequestRefused(f"{text}: chown root and chmod go-w it{advice}")


def _components_with_status(path: bytes) -> Iterator[tuple[bytes, os.stat_result]]:
    """Yield path and status (lstat) of each directory and symbolic link through which ``path`` leads, and of the file.

    Raise ``OSError`` if lstat fails or if there are too many symbolic links.
    """
    current, remaining, links = b"/", os.path.join(os.getcwdb(), path).split(b"/")[::-1], 0
    yield current, os.lstat(current)
    while remaining:
        part = remaining.pop()
        # ``current`` contains no symbolic links, so that ".." is its parent, as for the system.
        if part in (b"", b".", b".."):
            current = os.path.dirname(current) if part == b".." else current
            continue
        name = os.path.join(current, part)
        seen = os.lstat(name)
        yield name, seen
        if not stat.S_ISLNK(seen.st_mode):
            current = name
            continue
        if (links := links + 1) > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target = os.readlink(name)
        # The target is resolved component by component, too: each of its directories must be trusted.
        current = b"/" if target.startswith(b"/") else current
        remaining += target.split(b"/")[::-1]


def _distrust_reason(path: bytes, status: os.stat_result) -> str:
    """Return the reason why a user other than root can change the item with this status; empty if none can.

    A directory with the sticky bit counts as safe: users cannot rename or remove other users' files in it.
    """
    if status.st_uid:
        return f"{printable_path(path)} belongs to user {status.st_uid}"
    if stat.S_ISLNK(status.st_mode) or (stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX):
        return ""
    if status.st_mode & _GROUP_OR_OTHER_WRITE:
        return f"others may write to {printable_path(path)} (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""
