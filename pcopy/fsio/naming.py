"""Renaming of a temporary file to its final name, without replacing another item that may have that name.

There are three ways. They are tried in this order:

1. renameat2(2) with RENAME_NOREPLACE does it in one call. NFS, Lustre and some FUSE file systems refuse that flag.
2. link(2) gives the item its final name as a second link, which never replaces an item. Then the temporary name is
removed. If the process is killed between the two calls, the item has both names.
3. Some file systems have no hard links, or show a different inode number for each name of an inode (sshfs and others on
FUSE), so that the item cannot be recognised by its number. They still create a new file only where the name is free
(O_EXCL). So an empty file (placeholder) takes the name first, and rename(2) replaces it by the item. If the process is
killed between the two calls, the empty file remains (``is_placeholder``). ``Namer.needs_placeholders`` tells whether
such a file can come from this program.

A network file system may send a call twice. Then the first call succeeds, and the answer to the second one is that the
name is taken or that the old name does not exist. So after such an answer identities are compared.
"""

from __future__ import annotations

import errno
import os
from enum import Enum

from pcopy import libc
from pcopy.fsio.close import let_go
from pcopy.fsio.problem import LINK_REFUSALS, Problem
from pcopy.fsio.source import status_of
from pcopy.fsio.temporary import create, is_undressed, remove

_LINK = -1
"""Key for link(2) among the flags of renameat2(2) in ``NoReplaceRenamer._unsupported``."""

_UNKNOWN = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of renameat2(2) that mean that the file system does not support the flag."""


class Given(Enum):
    """Result of an attempt to give a temporary file its final name.

    - ``RENAMED``: it has the name.
    - ``NAME_TAKEN``: another item has the name.
    - ``SOURCE_MISSING``: the temporary file no longer exists.
    """

    GIVEN = "given"
    TAKEN = "taken"
    GONE = "gone"


class Namer:
    """Gives temporary files their final names, and remembers what each file system (by st_dev) supports.

    It records which flags of renameat2(2) are unsupported, and whether hard links can be used.
    """

    def __init__(self) -> None:
        self._unknown: set[tuple[int, int]] = set()
        self._linked: set[int] = set()

    def give(self, directory: int, temporary: bytes, device: int, name: bytes) -> Given:
        """Rename ``temporary`` in the open ``directory`` to ``name``, unless an item has that name. Raise ``Problem``.

        ``device`` is the st_dev of the directory.
        """
        result = self._give_at_once(directory, temporary, device, name)
        return result or _give_over_placeholder(directory, temporary, name)

    def needs_placeholders(self, directory: int, device: int, probe: bytes) -> bool:
        """Return True if no name can be given here without a placeholder file. Raise ``Problem``.

        ``probe`` is a temporary name that is free; a file of that name is created and removed.
        """
        let_go(create(directory, probe))
        other = probe + b"+"
        try:
            return self._give_at_once(directory, probe, device, other) is None
        finally:
            remove(directory, probe)
            remove(directory, other)

    def _give_at_once(self, directory: int, temporary: bytes, device: int, name: bytes) -> Given | None:
        """As ``rename``, but only by renameat2(2) or link(2). Return None if neither is supported.

        Raise ``Problem``.
        """
        try:
            if self._rename(libc.RENAME_NOREPLACE, directory, temporary, device, name):
                return Given.GIVEN
            if self._links_serve(directory, temporary, device) and _give_by_link(directory, temporary, name):
                return Given.GIVEN
        except FileExistsError:
            return Given.TAKEN
        except FileNotFoundError:
            return Given.GONE
        return None

    def _links_serve(self, directory: int, temporary: bytes, device: int) -> bool:
        """Return True if a hard link to ``temporary`` shows the same inode number as the first name. Raise ``Problem``.

        Also return True if no link can be made to find out: the link to the final name fails in the same way then.
        """
        if device in self._linked or (device, _LINK) in self._unknown:
            return device in self._linked
        probe = temporary + b"+"
        try:
            first = os.stat(temporary, dir_fd=directory, follow_symlinks=False)
            os.link(temporary, probe, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
        except OSError:
            return True
        try:
            has_same_inode = os.path.samestat(first, os.stat(probe, dir_fd=directory, follow_symlinks=False))
        except OSError as error:
            raise Problem.of("stat", error) from error
        finally:
            remove(directory, probe)
        if has_same_inode:
            self._linked.add(device)
        else:
            self._unknown.add((device, _LINK))
        return has_same_inode

    def exchanges(self, device: int) -> bool:
        """Return True unless RENAME_EXCHANGE is known to be unsupported on this device."""
        return (device, libc.RENAME_EXCHANGE) not in self._unknown

    def exchange(self, directory: int, temporary: bytes, device: int, name: bytes) -> bool:
        """Exchange the names of the two items atomically; return False if the file system does not support that.

        Raise ``Problem``, or ``FileNotFoundError`` if one of the items no longer exists.
        """
        return self._rename(libc.RENAME_EXCHANGE, directory, temporary, device, name)

    def _rename(self, flag: int, directory: int, temporary: bytes, device: int, name: bytes) -> bool:
        """Call renameat2(2) with ``flag``; return False if the file system does not support it.

        Raise ``Problem``, and ``FileExistsError`` or ``FileNotFoundError``, which callers handle.
        """
        if (device, flag) in self._unknown:
            return False
        try:
            libc.renameat2(directory, temporary, name, flag)
        except (FileExistsError, FileNotFoundError):
            raise
        except OSError as error:
            if error.errno not in _UNKNOWN:
                raise Problem.of("rename", error) from error
            self._unknown.add((device, flag))
            return False
        return True


def is_placeholder(status: os.stat_result) -> bool:
    """Return True if a file with this ``status`` can be a placeholder: empty and private.

    No contents are lost if it is removed.
    """
    return is_undressed(status) and not status.st_size


def _give_over_placeholder(directory: int, temporary: bytes, name: bytes) -> Given:
    """Create an empty file as ``name``, and rename ``temporary`` over it. Raise ``Problem``."""
    try:
        placeholder = create(directory, name)
    except Problem as problem:
        if problem.errno == errno.EEXIST:
            return Given.TAKEN
        raise
    try:
        if not _is_called(placeholder, directory, name):
            return Given.TAKEN
        try:
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError as error:
            if _is_called(placeholder, directory, name):
                remove(directory, name)
            if error.errno == errno.ENOENT:
                return Given.GONE
            raise Problem.of("rename", error) from error
    finally:
        let_go(placeholder)
    return Given.GIVEN


def _is_called(descriptor: int, directory: int, name: bytes) -> bool:
    """Return True if ``name`` is still a name of the open file ``descriptor``. Raise ``Problem``."""
    try:
        return os.path.samestat(status_of(descriptor), os.stat(name, dir_fd=directory, follow_symlinks=False))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise Problem.of("stat", error) from error


def _give_by_link(directory: int, temporary: bytes, name: bytes) -> bool:
    """Rename ``temporary`` to ``name`` by link(2) and unlink(2); return False if hard links are not supported.

    Raise ``Problem``, and ``FileExistsError`` or ``FileNotFoundError``, which callers handle.
    """
    try:
        os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError as error:
        if error.errno in LINK_REFUSALS:
            return False
        raise Problem.of("link", error) from error
    remove(directory, temporary)  # It may not exist any longer: the server may have received the call twice.
    return True
