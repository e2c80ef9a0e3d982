"""Existing items that ``ptar -x`` replaces or updates, and what differs between them and the members of the archive.

A member always replaces an existing item of its name, except that an existing directory is kept and gets the metadata
of its member. If the user or a report needs the outcomes of items, what differs is found out before the change.
"""

from __future__ import annotations

import errno
import os

from pcopy.archive.member import HARD_LINK_MEMBER, SYMLINK
from pcopy.fsio.attributes import is_xattr_copied
from pcopy.fsio.metadata_update import kinds_of_xattrs_to_change
from pcopy.fsio.nodes import proc_path_of_descriptor
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of_open_item
from pcopy.tasks.archive.members_to_extract import MemberToExtract, directory_place_in_target
from pcopy.tasks.archive.open_archive import extracted_member_metadata, owner_id_lookup
from pcopy.tasks.base.actions import DifferingProperty, ItemAction, pack_action
from pcopy.tasks.base.job import ArchiveOptions
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.files.differences import differences_of_status, differences_of_xattr_kinds
from pcopy.tasks.files.existing import item_status_or_none


def note_existing_item(
    rank: Rank, result: TaskResult, directory: int, each: MemberToExtract, present: os.stat_result | None
) -> None:
    """Note what differs between the member ``each`` and the item that it will replace, for the report of the member.

    Args:
        directory: descriptor of the directory of the item.
        present: status of the item; None if no item has the name of the member.
    """
    if present is not None and result.item_recorder.is_recording:
        path = proc_path_of_descriptor(directory) + b"/" + each.name
        differences = _differences_of_member(rank, each, path, present)
        result.item_recorder.note_differences(directory_place_in_target(each.path), each.name, differences)


def action_for_existing_name(rank: Rank, each: MemberToExtract) -> tuple[ItemAction, int]:
    """Return how the extraction of the member ``each`` would be reported now: the action, and what differs between the
    member and an existing item, as ``DifferingProperty`` bits.
    """
    if not each.name:
        return _action_for_directory(rank, each)
    try:
        directory = rank.targets[0].open(each.path)
        present = item_status_or_none(directory, each.name)
    except Problem:  # the directory does not exist yet, or its own member fails
        return ItemAction.COPY, 0
    if present is None:
        return ItemAction.COPY, 0
    path = proc_path_of_descriptor(directory) + b"/" + each.name
    return ItemAction.REPLACE, _differences_of_member(rank, each, path, present)


def _action_for_directory(rank: Rank, each: MemberToExtract) -> tuple[ItemAction, int]:
    """Return the same as ``action_for_existing_name``, for the member ``each``, a directory."""
    try:
        directory = rank.targets[0].open(each.path)
        path = proc_path_of_descriptor(directory) + b"/."
        differences = _differences_of_member(rank, each, path, status_of_open_item(directory))
        return ItemAction.META if differences else ItemAction.SKIP, differences
    except Problem as problem:
        if problem.errno in (errno.ENOTDIR, errno.ELOOP) and _has_item_at_path(rank, each.path):
            return ItemAction.REPLACE, DifferingProperty.TYPE
        return ItemAction.COPY, 0


def _has_item_at_path(rank: Rank, path: bytes) -> bool:
    """Return True if an item exists at ``path`` below the target, in a directory that can be opened."""
    parent, _, name = path.rpartition(b"/")
    try:
        return item_status_or_none(rank.targets[0].open(parent), name) is not None
    except Problem:
        return False


def _differences_of_member(rank: Rank, each: MemberToExtract, path: bytes, present: os.stat_result) -> int:
    """Return what differs between the member ``each`` and the existing item with the status ``present``, as
    ``DifferingProperty`` bits. The contents of files are not compared, and neither are hard links.

    Args:
        path: path of the item, for system calls that take no directory descriptor.
    """
    member, options = each.member, rank.options
    metadata = extracted_member_metadata(
        owner_id_lookup(numeric=rank.program_options(ArchiveOptions).numeric_owner), member
    )
    size = present.st_size if member.kind == HARD_LINK_MEMBER else len(member.link) or member.size
    fields = (member.st_mode, 0, 0, 1, metadata.uid, metadata.gid, size, 0, 0, 0)
    wanted = os.stat_result(fields, {"st_rdev": member.device, "st_mtime_ns": member.mtime})
    found = differences_of_status(rank, wanted, present)
    if found & DifferingProperty.TYPE:
        return found
    try:
        if member.kind == SYMLINK and os.readlink(path) != member.link:
            found |= DifferingProperty.CONTENT
        if options.preserve.xattr or options.preserve.acl:
            xattrs = {name: value for name, value in member.xattrs if is_xattr_copied(name, options.preserve)}
            found |= differences_of_xattr_kinds(kinds_of_xattrs_to_change(xattrs, path, options.preserve))
    except OSError:  # the extraction meets the error again and reports it, or replaces the item
        return found
    return found


class ExistingDirectories(dict[bytes, int]):
    """The directories of members that this rank owns and that existed before the job extracted anything. The key is the
    path below the target. The value is made of the action and of what differs
    (``pcopy.tasks.base.actions.pack_action``).

    A directory is created for its contents before its own member is extracted, perhaps by another rank. So it is
    examined before that, by the rank that owns it; and this rank extracts its member. It is empty if nobody needs the
    outcomes of items.
    """

    def __init__(self, rank: Rank) -> None:
        super().__init__()
        self._rank = rank

    def examine(self, each: MemberToExtract) -> None:
        """Remember how the member ``each``, a directory, is to be reported, if an item has its name."""
        action, differences = action_for_existing_name(self._rank, each)
        if action != ItemAction.COPY:
            self[each.path] = pack_action(action, differences)
