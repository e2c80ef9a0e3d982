"""Updates the metadata of existing items that are kept (``--existing changed``), if it differs from their source's.

No data is copied to change an owner, mode, ACL or extended attribute, nor to change a time if the contents are equal.
``pcopy.fsio.metadata_update`` describes how this is done and when the item is copied instead. An item of another user,
whose time this user cannot set, is also replaced by a copy, which belongs to this user.
"""

from __future__ import annotations

import errno
import os
import stat

from pcopy.fsio.attributes import ItemHandle, ItemMetadata, unread_xattrs_problem
from pcopy.fsio.metadata_update import (
    MetadataDifference,
    has_metadata_of_source,
    has_same_xattrs,
    metadata_difference,
    update_metadata,
)
from pcopy.fsio.nodes import proc_path_of_descriptor
from pcopy.fsio.preserve import CAP_FOWNER, has_capability
from pcopy.fsio.problem import MetadataProblem
from pcopy.fsio.server import new_file_status
from pcopy.fsio.source import status_of_open_item
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import ItemAction
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import Place
from pcopy.tasks.files.existing import ExistingItem, item_status_or_none


def has_source_metadata(rank: Rank, place: Place, name: bytes, source: os.stat_result, present: ExistingItem) -> bool:
    """Return True if the existing item ``present`` has all metadata of the item ``name`` of the source. Raise
    ``Problem`` on failure.

    No item is opened. False may also mean that the metadata cannot be compared in this way.

    Args:
        source: status of the item of the source.
    """
    preserve, window = rank.options.preserve, rank.copy_options.modify_window
    if not has_metadata_of_source(source, present.status, preserve, window):
        return False
    if not (preserve.xattr or preserve.acl):
        return True
    around = proc_path_of_descriptor(rank.open_source_directory(place)), proc_path_of_descriptor(present.directory)
    try:
        follow = rank.copy_options.dereference
        return has_same_xattrs(
            b"/".join((around[0], name)), b"/".join((around[1], present.name)), preserve, follow=follow
        )
    except OSError:
        return False


def update_existing_metadata(
    result: TaskResult, name: bytes, present: ExistingItem, attributes: ItemMetadata
) -> tuple[ExistingItem, ItemAction] | None:
    """Set that metadata of the existing item ``present`` which differs from ``attributes``, and count the item as
    updated if something changed. ``name`` is its name in the source.

    Return the item as it is afterwards, and the action (META or SKIP). Return None if the item must be copied instead.
    Raise ``Problem`` on failure.
    """
    rank, place = present.rank, present.place
    with present.open_if_unchanged() as descriptor:
        before = status_of_open_item(descriptor)
        lacks = _metadata_difference_settable_in_place(present, proc_path_of_descriptor(descriptor), before, attributes)
        if lacks is None:
            return None
        if not lacks.is_update_needed:
            if (problem := unread_xattrs_problem(attributes.unread)) is not None:
                raise problem
            return present, ItemAction.SKIP
        if result.item_recorder.is_recording:
            from pcopy.tasks.files.differences import differences_of_metadata

            result.item_recorder.note_differences(place, name, differences_of_metadata(lacks))
        if rank.options.dry_run:
            result.count(counts.MENDED, 1, place)
            return present, ItemAction.META
        try:
            applied = update_metadata(
                proc_path_of_descriptor(descriptor), before, attributes, rank.options.preserve, lacks
            )
        except MetadataProblem as problem:
            is_refused = problem.errno in (errno.EPERM, errno.EACCES) and not problem.on_source
            if is_refused and _is_replaced_by_copy(present, before, lacks):
                return None
            raise
        has_changed = status_of_open_item(descriptor).st_ctime_ns != before.st_ctime_ns
    result.record_applied_metadata(place, name, applied)
    if has_changed:
        rank.record_write_success()
        result.count(counts.MENDED, 1, place)
    updated = item_status_or_none(present.directory, present.name)
    if updated is None:
        return None
    return present._replace(status=updated), ItemAction.META if has_changed else ItemAction.SKIP


def _metadata_difference_settable_in_place(
    present: ExistingItem, handle: ItemHandle, status: os.stat_result, attributes: ItemMetadata
) -> MetadataDifference | None:
    """Return those differences between the metadata of the existing item and ``attributes`` that can be set without a
    copy. Return None if the item must be copied instead, as far as that is known before anything is set. Raise
    ``Problem`` on failure.

    Args:
        handle, status: a path of the open item, and its status.
        attributes: the metadata of the source.
    """
    rank = present.rank
    is_on_target = status.st_dev == rank.target_device(present.place)
    lacks = metadata_difference(handle, status, attributes, rank.options.preserve, rank.copy_options.modify_window)
    if lacks.is_update_needed and not (is_on_target and lacks.can_update_in_place(attributes, status)):
        lacks = _real_metadata_difference(present, lacks, attributes)
    if not lacks.is_update_needed:
        return lacks
    is_refused = (
        rank.options.dry_run and not has_capability(CAP_FOWNER) and _is_replaced_by_copy(present, status, lacks)
    )
    return lacks if is_on_target and lacks.can_update_in_place(attributes, status) and not is_refused else None


def _is_replaced_by_copy(present: ExistingItem, status: os.stat_result, difference: MetadataDifference) -> bool:
    """Return True if the existing item ``present``, whose metadata this user may not set, is replaced by a copy.
    ``difference`` says what differs from the source. Raise ``Problem`` on failure.

    All of these must hold:
    - Its time differs; its contents were compared for that reason.
    - It is a regular file or symbolic link of another user.
    - This user may replace it in its directory.
    - ``--inplace`` is not given, because with it no file gets another inode only for its metadata.
    """
    user = os.geteuid()
    is_simple = stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)
    if present.rank.copy_options.inplace or not (difference.times and is_simple) or status.st_uid == user:
        return False
    directory = status_of_open_item(present.directory)
    if directory.st_mode & stat.S_ISVTX and directory.st_uid != user and not has_capability(CAP_FOWNER):
        return False
    return os.access(proc_path_of_descriptor(present.directory), os.W_OK | os.X_OK, effective_ids=True)


def _real_metadata_difference(
    present: ExistingItem, difference: MetadataDifference, attributes: ItemMetadata
) -> MetadataDifference:
    """Return ``difference``, what differs between an existing item and its source. If the file system shows the same
    mode or owner for all files, a difference in mode or owner is removed from it.

    CIFS and FUSE with fixed modes or owners do so, and NFS with root_squash. A new copy would show no better mode or
    owner there than the existing item, so nothing is copied for them. A dry run does not find this out, because it
    creates no file. Raise ``Problem`` on failure.
    """
    if present.rank.options.dry_run:
        return difference
    shown = new_file_status(present.directory, present.rank.temporary_names.next_name())
    is_equal = stat.S_IMODE(present.status.st_mode) == stat.S_IMODE(attributes.mode)  # including the set-id bits
    has_mode = shown.has_unexpected_mode or (shown.has_unexpected_owner and is_equal)
    return difference._replace(
        owner=difference.owner and not shown.has_unexpected_owner, mode=difference.mode and not has_mode
    )


def is_copied_again_for_links(present: ExistingItem, source: os.stat_result) -> bool:
    """Return True if an existing item that would be kept is copied again, so that the other names of its source can
    become hard links to the copy. The existing item itself must not get hard links.

    Return False if a new copy could not get them either, because the file system shows another owner or mode. Raise
    ``Problem`` on failure.

    Args:
        present: the existing item.
        source: status of the source.
    """
    if not present.has_other_names_to_link(source) or present.rank.options.dry_run:
        return present.has_other_names_to_link(source)
    shown = new_file_status(present.directory, present.rank.temporary_names.next_name())
    return not (shown.has_unexpected_owner or shown.has_unexpected_mode)
