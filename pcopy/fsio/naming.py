"""Renaming of a temporary file to its final name, without replacing another item that may have that name.

There are three ways. They are tried in this order:

1. renameat2(2) with RENAME_NOREPLACE does it in one call. NFS, Lustre and some FUSE file systems refuse that flag.
2. link(2) gives the item its final name as a second link, which never replaces an item. Then the temporary name is
removed. If the process is killed between the two calls, the item has both names.
3. Some file systems have no hard links, or show a different inode number for each name of an inode (sshfs and others on
FUSE), so that the item cannot be recognised by its number. They still create a new file only where the name is free
(O_EXCL). So first an empty file (placeholder) is created under the final name, and rename(2) replaces it by the item.
If the process is killed between the two calls, the empty file remains. A later run recognises it with
``is_placeholder_file``, if ``NonReplacingRenamer.needs_placeholders`` shows that pcopy needs placeholders on this file
system.

A network file system may send a request twice. Then the first request succeeds, and the second one fails: the final
name exists already, or the old name does not exist any longer. So after such an error callers compare identities.
"""

from __future__ import annotations

import errno
import os
from enum import Enum

from pcopy import libc
from pcopy.fsio.close import close_ignoring_errors
from pcopy.fsio.problem import HARD_LINK_UNSUPPORTED_ERRNOS, Problem
from pcopy.fsio.source import status_of_open_item
from pcopy.fsio.temporary import create_private_file, is_private_file, remove_item_if_present

_HARD_LINK_KEY = -1
"""Stands for link(2) in ``NonReplacingRenamer._unsupported``, a record of what file systems do not support. Its other
keys are flags of renameat2(2).
"""

_UNSUPPORTED_ERRNOS = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of renameat2(2) that mean that the file system does not support the flag."""


class RenameResult(Enum):
    """Result of an attempt to give a temporary file its final name.

    - ``RENAMED``: the file has its final name.
    - ``NAME_TAKEN``: another item has that name; the temporary file is unchanged.
    - ``SOURCE_MISSING``: the temporary file no longer exists.
    """

    RENAMED = "given"
    NAME_TAKEN = "taken"
    SOURCE_MISSING = "gone"


class NonReplacingRenamer:
    """Gives temporary files their final names, and remembers what each file system (by st_dev) supports.

    Remembered are the flags of renameat2(2) that are not supported, and whether hard links can be used.
    """

    def __init__(self) -> None:
        self._unsupported: set[tuple[int, int]] = set()
        self._devices_with_links: set[int] = set()

    def rename(self, directory: int, temporary: bytes, device: int, name: bytes) -> RenameResult:
        """Rename ``temporary`` in the open ``directory`` to ``name``, unless an item has that name. Raise ``Problem``.

        ``device`` is the st_dev of the directory.
        """
        result = self._rename_without_placeholder(directory, temporary, device, name)
        return result or _rename_over_placeholder(directory, temporary, name)

    def needs_placeholders(self, directory: int, device: int, probe: bytes) -> bool:
        """Return True if no name can be given here without a placeholder file. Raise ``Problem``.

        ``device``: st_dev of the directory. ``probe``: a free temporary name; a file with that name is created and
        removed.
        """
        close_ignoring_errors(create_private_file(directory, probe))
        other = probe + b"+"
        try:
            return self._rename_without_placeholder(directory, probe, device, other) is None
        finally:
            remove_item_if_present(directory, probe)
            remove_item_if_present(directory, other)

    def _rename_without_placeholder(
        self, directory: int, temporary: bytes, device: int, name: bytes
    ) -> RenameResult | None:
        """Rename ``temporary`` to ``name``, unless an item has that name, without a placeholder file: by renameat2(2)
        or link(2). Return None if the file system supports neither. ``device`` is the st_dev of the open ``directory``.

        Raise ``Problem``.
        """
        try:
            if self._renameat2(libc.RENAME_NOREPLACE, directory, temporary, device, name):
                return RenameResult.RENAMED
            if self._can_rename_by_link(directory, temporary, device) and _rename_by_link(directory, temporary, name):
                return RenameResult.RENAMED
        except FileExistsError:
            return RenameResult.NAME_TAKEN
        except FileNotFoundError:
            return RenameResult.SOURCE_MISSING
        return None

    def _can_rename_by_link(self, directory: int, temporary: bytes, device: int) -> bool:
        """Return True if a file can be renamed by a hard link here: the second link has the same inode number as the
        first. Raise ``Problem``.

        The result is found out once for each file system (``device``), with a second link to ``temporary`` that is
        removed again. Also return True if that link cannot be created: link(2) to the final name then fails in the same
        way.
        """
        if device in self._devices_with_links or (device, _HARD_LINK_KEY) in self._unsupported:
            return device in self._devices_with_links
        probe = temporary + b"+"
        try:
            first = os.stat(temporary, dir_fd=directory, follow_symlinks=False)
            os.link(temporary, probe, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
        except OSError:
            return True
        try:
            has_same_inode = os.path.samestat(first, os.stat(probe, dir_fd=directory, follow_symlinks=False))
        except OSError as error:
            raise Problem.from_error("stat", error) from error
        finally:
            remove_item_if_present(directory, probe)
        if has_same_inode:
            self._devices_with_links.add(device)
        else:
            self._unsupported.add((device, _HARD_LINK_KEY))
        return has_same_inode

    def may_support_name_exchange(self, device: int) -> bool:
        """Return True unless the file system with the st_dev ``device`` is known not to support the exchange of two
        names (RENAME_EXCHANGE).
        """
        return (device, libc.RENAME_EXCHANGE) not in self._unsupported

    def exchange_names(self, directory: int, temporary: bytes, device: int, name: bytes) -> bool:
        """Exchange the names of the items ``temporary`` and ``name`` in the open ``directory`` atomically; return False
        if the file system does not support that. ``device`` is the st_dev of the directory.

        Raise ``Problem``, or ``FileNotFoundError`` if one of the items no longer exists.
        """
        return self._renameat2(libc.RENAME_EXCHANGE, directory, temporary, device, name)

    def _renameat2(self, flag: int, directory: int, temporary: bytes, device: int, name: bytes) -> bool:
        """Rename ``temporary`` to ``name`` by renameat2(2) with ``flag``; return False if the file system does not
        support that flag. ``device`` is the st_dev of the open ``directory``.

        Raise ``Problem``, and ``FileExistsError`` or ``FileNotFoundError``, which callers handle.
        """
        if (device, flag) in self._unsupported:
            return False
        try:
            libc.renameat2(directory, temporary, name, flag)
        except (FileExistsError, FileNotFoundError):
            raise
        except OSError as error:
            if error.errno not in _UNSUPPORTED_ERRNOS:
                raise Problem.from_error("rename", error) from error
            self._unsupported.add((device, flag))
            return False
        return True


def is_placeholder_file(status: os.stat_result) -> bool:
    """Return True if a file with this ``status`` can be a placeholder, an empty file that pcopy created to reserve a
    final name: empty, mode 0600, owned by this user.

    No contents are lost if the file is removed.
    """
    return is_private_file(status) and not status.st_size


def _rename_over_placeholder(directory: int, temporary: bytes, name: bytes) -> RenameResult:
    """Reserve ``name`` by creating an empty file, and rename ``temporary`` over it; return the result. Raise
    ``Problem``.
    """
    try:
        placeholder = create_private_file(directory, name)
    except Problem as problem:
        if problem.errno == errno.EEXIST:
            return RenameResult.NAME_TAKEN
        raise
    try:
        if not _is_name_of_open_file(placeholder, directory, name):
            return RenameResult.NAME_TAKEN
        try:
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError as error:
            if _is_name_of_open_file(placeholder, directory, name):
                remove_item_if_present(directory, name)
            if error.errno == errno.ENOENT:
                return RenameResult.SOURCE_MISSING
            raise Problem.from_error("rename", error) from error
    finally:
        close_ignoring_errors(placeholder)
    return RenameResult.RENAMED


def _is_name_of_open_file(descriptor: int, directory: int, name: bytes) -> bool:
    """Return True if ``name`` is still a name of the open file ``descriptor``. Raise ``Problem``."""
    try:
        return os.path.samestat(status_of_open_item(descriptor), os.stat(name, dir_fd=directory, follow_symlinks=False))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise Problem.from_error("stat", error) from error


def _rename_by_link(directory: int, temporary: bytes, name: bytes) -> bool:
    """Rename ``temporary`` to ``name`` by link(2) and unlink(2); return False if hard links are not supported.

    Raise ``Problem``, and ``FileExistsError`` or ``FileNotFoundError``, which callers handle.
    """
    try:
        os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError as error:
        if error.errno in HARD_LINK_UNSUPPORTED_ERRNOS:
            return False
        raise Problem.from_error("link", error) from error
    remove_item_if_present(
        directory, temporary
    )  # It may not exist any longer: the server may have received the call twice.
    return True
