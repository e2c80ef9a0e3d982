"""Gives an item with a temporary name its final one, without replacing another item that may have that name.

renameat2(2) with RENAME_NOREPLACE does it in one call. NFS, Lustre and some FUSE file systems refuse that flag: there
the item gets the name as a further link, which never replaces anything, and loses the temporary one. If the process is
killed between the two, the item has both names. A network file system may send a call twice: the first one gives the
name, the second one answers that the name is taken, or that the old one is gone. So after such an answer identities are
compared.

Some file systems have no links either, or give each name of an inode a number of its own (sshfs and others on FUSE), so
that nobody could know the item by its number. They still make a new file only where the name is free: an empty file of
ours takes the name first, and the item replaces that. If the process is killed between the two, the empty file is left
(``is_placeholder``); ``Namer.needs_placeholders`` tells whether such a file can be ours.
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
"""Stands for link(2) among the flags of renameat2(2)."""

_UNKNOWN = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


class Given(Enum):
    """What became of a name."""

    GIVEN = "given"
    TAKEN = "taken"
    GONE = "gone"


class Namer:
    """Remembers on which file systems, by st_dev, which flag of renameat2(2) is not known, and whether links serve."""

    def __init__(self) -> None:
        self._unknown: set[tuple[int, int]] = set()
        self._linked: set[int] = set()

    def give(self, directory: int, temporary: bytes, device: int, name: bytes) -> Given:
        """Calls ``temporary`` in the open ``directory``, which is on ``device``, ``name``.

        Raises ``Problem``.
        """
        given = self._give_at_once(directory, temporary, device, name)
        return given or _give_over_placeholder(directory, temporary, name)

    def needs_placeholders(self, directory: int, device: int, probe: bytes) -> bool:
        """Can no name be given without replacing? ``probe`` is a temporary name that is free. Raises ``Problem``."""
        let_go(create(directory, probe))
        other = probe + b"+"
        try:
            return self._give_at_once(directory, probe, device, other) is None
        finally:
            remove(directory, probe)
            remove(directory, other)

    def _give_at_once(self, directory: int, temporary: bytes, device: int, name: bytes) -> Given | None:
        """None where that can't be done; raises ``Problem``."""
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
        """Has a further name of ``temporary`` its inode's number? True, too, as long as that can't be asked: whoever
        makes the link then meets the same. Raises ``Problem``."""
        if device in self._linked or (device, _LINK) in self._unknown:
            return device in self._linked
        probe = temporary + b"+"
        try:
            first = os.stat(temporary, dir_fd=directory, follow_symlinks=False)
            os.link(temporary, probe, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
        except OSError:
            return True
        try:
            serve = os.path.samestat(first, os.stat(probe, dir_fd=directory, follow_symlinks=False))
        except OSError as error:
            raise Problem.of("stat", error) from error
        finally:
            remove(directory, probe)
        if serve:
            self._linked.add(device)
        else:
            self._unknown.add((device, _LINK))
        return serve

    def exchanges(self, device: int) -> bool:
        """May ``exchange`` be known on this device?"""
        return (device, libc.RENAME_EXCHANGE) not in self._unknown

    def exchange(self, directory: int, temporary: bytes, device: int, name: bytes) -> bool:
        """Both items change their names, at once; False where that is not known.

        Raises ``Problem``, and ``FileNotFoundError`` if one of them is gone.
        """
        return self._rename(libc.RENAME_EXCHANGE, directory, temporary, device, name)

    def _rename(self, flag: int, directory: int, temporary: bytes, device: int, name: bytes) -> bool:
        """False where the flag is not known; raises ``Problem``, or what the callers know."""
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
    """Can it be the empty file that was to be replaced at once? Who loses such a file loses no contents."""
    return is_undressed(status) and not status.st_size


def _give_over_placeholder(directory: int, temporary: bytes, name: bytes) -> Given:
    try:
        made = create(directory, name)
    except Problem as problem:
        if problem.errno == errno.EEXIST:
            return Given.TAKEN
        raise
    try:
        if not _is_called(made, directory, name):
            return Given.TAKEN
        try:
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError as error:
            if _is_called(made, directory, name):
                remove(directory, name)
            if error.errno == errno.ENOENT:
                return Given.GONE
            raise Problem.of("rename", error) from error
    finally:
        let_go(made)
    return Given.GIVEN


def _is_called(held: int, directory: int, name: bytes) -> bool:
    """Is what is open still called so? Raises ``Problem``."""
    try:
        return os.path.samestat(status_of(held), os.stat(name, dir_fd=directory, follow_symlinks=False))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise Problem.of("stat", error) from error


def _give_by_link(directory: int, temporary: bytes, name: bytes) -> bool:
    """False where that can't be done; raises as ``Namer._rename``."""
    try:
        os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError as error:
        if error.errno in LINK_REFUSALS:
            return False
        raise Problem.of("link", error) from error
    remove(directory, temporary)  # it may have gone: the call may have been sent twice
    return True
