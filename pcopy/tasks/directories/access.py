"""Gives this process temporary permissions in existing target directories that it owns.

If a target directory belongs to the effective user and lacks owner permissions (0700), they are added until the
directory gets its final metadata. A directory of another user is never changed. A process with CAP_DAC_OVERRIDE needs
no permissions.
"""

from __future__ import annotations

import os
import stat

from pcopy.fsio.attributes import ItemHandle, ItemMetadata
from pcopy.fsio.close import closing_descriptor
from pcopy.fsio.nodes import open_o_path_descriptor, proc_path_of_descriptor
from pcopy.fsio.preserve import CAP_DAC_OVERRIDE, has_capability
from pcopy.fsio.problem import errors_as_problem
from pcopy.fsio.source import status_of_open_item
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.values import Place
from pcopy.tasks.files.existing import item_status_or_none


def grant_owner_access(parent: int, name: bytes, present: os.stat_result | None = None) -> None:
    """Add missing owner permissions (0700) to the directory ``name``, if it exists and this process owns it. Raise
    ``Problem`` if the mode cannot be changed.

    The mode is changed through a descriptor: if another process replaces the directory by a symbolic link, the target
    of that link is not changed. Nothing is done if CAP_DAC_OVERRIDE is effective or another user owns the directory.

    Args:
        parent: descriptor of the directory that contains ``name``.
        present: status of ``name``; None if it is not known.
    """
    if has_capability(CAP_DAC_OVERRIDE):
        return
    present = present or item_status_or_none(parent, name)
    if present is None or present.st_mode & 0o700 == 0o700 or present.st_uid != os.geteuid():
        return
    with closing_descriptor(open_o_path_descriptor(parent, name, on_source=False)) as node:
        status = status_of_open_item(node)
        if stat.S_ISDIR(status.st_mode):
            grant_owner_access_to_open_directory(proc_path_of_descriptor(node), status)


def grant_owner_access_to_open_directory(target: int | bytes, status: os.stat_result) -> None:
    """Add missing owner permissions (0700) to an open target directory, if this process owns it. Raise ``Problem`` if
    the mode cannot be changed.

    Nothing is done if CAP_DAC_OVERRIDE is effective or another user owns the directory.

    Args:
        target: descriptor of the directory, or a path that leads to it.
        status: status of the directory.
    """
    if has_capability(CAP_DAC_OVERRIDE) or status.st_uid != os.geteuid():
        return
    with errors_as_problem("chmod"):
        os.chmod(target, stat.S_IMODE(status.st_mode) | 0o700)


def must_restore_mode(rank: Rank, place: Place, attributes: ItemMetadata) -> bool:
    """Return True if the target directory of ``place`` existed before, keeps its mode (``attributes.mode``) because
    modes are not preserved, and was given missing owner permissions.
    """
    is_kept = not (place.is_new or rank.options.preserve.mode)
    return is_kept and attributes.mode & 0o700 != 0o700 and not has_capability(CAP_DAC_OVERRIDE)


def restore_mode(target: ItemHandle, mode: int) -> None:
    """Give the directory ``target`` the permission bits ``mode`` again, if it has the owner permissions in addition.
    Raise ``Problem`` on failure.
    """
    with errors_as_problem("chmod"):
        if stat.S_IMODE(os.stat(target).st_mode) == stat.S_IMODE(mode) | 0o700:
            os.chmod(target, stat.S_IMODE(mode))


def regrant_owner_access(rank: Rank, place: Place) -> None:
    """Add missing owner permissions to the target directory of ``place``, which has its final mode already and must be
    written to again.

    Raise ``Problem`` if its mode cannot be changed, or if its parent directory cannot be opened.
    """
    path = rank.path_below_target(place.root, place.path)
    if has_capability(CAP_DAC_OVERRIDE) or not path:
        return
    targets = rank.targets[place.root]
    above, _, name = path.rpartition(b"/")
    grant_owner_access(targets.open(above), name)
    targets.discard_directory(path)
