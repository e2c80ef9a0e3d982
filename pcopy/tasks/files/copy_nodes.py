"""``CopySpecialFiles`` copies symbolic links, FIFOs, sockets and devices of one directory. The code calls these four
types nodes.
"""

from __future__ import annotations

import os
import stat
import time

from pcopy.fsio.backend.columns import unpack_names
from pcopy.fsio.existing import has_same_symlink_text, looks_like_copy
from pcopy.fsio.identity import ItemIdentity, identity_mark_of
from pcopy.fsio.new_file import NewLinkOrSpecialFile
from pcopy.fsio.nodes import read_link_or_special_file
from pcopy.fsio.problem import Problem, TargetChangedProblem, source_changed_problem
from pcopy.fsio.source import FileContentVersion, source_item_status
from pcopy.tasks.base.actions import ItemAction, TimedCopyAction
from pcopy.tasks.base.attempts import fail_or_retry
from pcopy.tasks.base.hashing import item_type_byte
from pcopy.tasks.base.kind import DivisibleTask, TaskSteps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import ContentInfo, Item, UnnamedCopy, unpack_numbers
from pcopy.tasks.files.existing import (
    MAX_EXAMINATIONS,
    ExistingItem,
    find_existing_item,
    inherits_acl,
    may_have_incomplete_mark,
    prepare_new_name,
    should_update_metadata,
)
from pcopy.tasks.files.name_items import UnnamedCopies
from pcopy.tasks.files.whole_file import ItemResult, dry_run_result
from pcopy.tasks.verify.read_items import count_skipped_or_spawn_read


class CopySpecialFiles(DivisibleTask, code=11, doing="copying links and nodes of", is_note=False):
    """Task that copies symbolic links, FIFOs, sockets and devices of one directory.

    Fields:
        place: the directory.
        names: names of the items, joined by slashes.
        inodes: inode numbers that the scan found, packed.
        attempt: number of earlier attempts in this run, from 0.
    """

    inodes: bytes
    attempt: int

    columns = ("inodes",)

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Copy the items one by one.

        Each is created by one system call. So a new item is complete at once and needs no temporary name, unless copies
        get their names only in the phase NAME.
        """
        place = self.place
        waiting = UnnamedCopies(rank, place, self.attempt)
        with waiting.spawn_naming_task_at_end(result):
            for name, inode in zip(unpack_names(self.names), unpack_numbers(self.inodes), strict=True):
                item = Item(place.source_id.mount_code, inode, 0, ((place, name),), self.attempt)
                try:
                    item_result = copy_special_file(rank, result, item, may_get_links=False)
                    if item_result.unnamed is not None:
                        waiting.add(result, item, item_result)
                except Problem as problem:
                    fail_or_retry(result, place, name, problem, self.attempt)
                yield None


def copy_special_file(rank: Rank, result: TaskResult, item: Item, *, may_get_links: bool) -> ItemResult:
    """Copy one symbolic link, FIFO, socket or device. Count it as copied or skipped, unless it still has a temporary
    name (``ItemResult.unnamed``). On failure raise ``Problem``; an existing item is unchanged then.

    Args:
        item: the item. If it has several names (hard links), the copy is verified later, together with the other names.
        may_get_links: True if other names of the inode may be found later, so that the identity of the copy is needed.
    """
    began, (place, name) = time.monotonic_ns(), item.names[0]
    source, new_name = rank.open_source_directory(place), rank.target_name(place, name)
    options, follow = rank.options, rank.copy_options.dereference
    status = source_item_status(source, name, follow=follow)
    if status.st_ino != item.inode or stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
        raise source_changed_problem("stat", "another item has taken its name since the scan")
    present = find_existing_item(rank, place, name)
    present, stays = _result_if_existing_item_kept(result, item, present, source, status, may_get_links=may_get_links)
    if stays is not None:
        return stays
    present_status = None if present is None else present.status
    if options.dry_run:
        known = ContentInfo(item_type_byte(status), 0, b"", FileContentVersion.from_status(status))
        result.count_copied_item(place, name, known, how=TimedCopyAction.action_given_existing_item(present))
        return dry_run_result(known)
    target = rank.open_target_directory(place)
    is_alike = present_status is not None and stat.S_IFMT(present_status.st_mode) == stat.S_IFMT(status.st_mode)
    kept = present.status_with_kept_mode(status) if present is not None and is_alike else None
    inherits = inherits_acl(rank, place, target)
    node = read_link_or_special_file(source, name, item.inode, options.preserve, follow=follow)
    is_new = present is None and not rank.names_late
    made_as = new_name if is_new else prepare_new_name(rank, target, new_name, present_status, status)
    with NewLinkOrSpecialFile.create_link_or_special_file(
        target, made_as, node, is_temporary=made_as != new_name
    ) as new:
        mark = identity_mark_of(new.descriptor, created_by_job=True) if may_get_links or rank.names_late else b""
        applied = new.apply_metadata(
            node.attributes, options.preserve, options.umask, existing=kept, inherits_acl=inherits
        )
        if present is None or rank.names_late or made_as == new_name:
            new.close_without_removing()
        else:
            _replace_existing_item(new, new_name, present, status)
    identity = ItemIdentity(place.target_id.mount_code, new.status.st_ino, mark)
    unnamed = UnnamedCopy(made_as, identity.inode, mark) if rank.names_late else None
    if new.metadata_problem is not None and unnamed is None:
        new.metadata_problem.identity = identity
        raise new.metadata_problem
    result.record_applied_metadata(place, name, applied)
    rank.record_write_success()
    digest = (
        rank.job_item_hasher.digest_of_special_file(node.status, node.link_target) if rank.computes_digests else b""
    )
    known = ContentInfo(item_type_byte(node.status), 0, digest, FileContentVersion.from_status(node.status))
    how = TimedCopyAction.action_given_existing_item(present, time.monotonic_ns() - began)
    if unnamed is None:
        result.count_copied_item(place, name, known, is_only_name=not item.links, how=how)
    return ItemResult(known, identity, unnamed, new.metadata_problem, how)


def _replace_existing_item(
    new: NewLinkOrSpecialFile, name: bytes, present: ExistingItem, source: os.stat_result
) -> None:
    """Give the new item its final ``name``. This replaces the existing item ``present``, which is backed up before if
    the user wants that. ``source`` is the status of the source. Raise ``Problem`` on failure.
    """
    present.back_up_item(source)
    new.commit(name, present.status, has_sidecar=may_have_incomplete_mark(present.rank, present))


def _result_if_existing_item_kept(
    result: TaskResult,
    item: Item,
    present: ExistingItem | None,
    source: int,
    status: os.stat_result,
    *,
    may_get_links: bool,
) -> tuple[ExistingItem | None, ItemResult | None]:
    """Decide whether the existing item ``present`` is kept. If it has changed since it was examined, examine it again.
    Raise ``Problem`` on failure.

    Args:
        source: descriptor of the source directory.
        status: status of the item in the source.
        may_get_links: True if other names (hard links) of the inode may be found later.

    Return the existing item as it was examined last, or None; and the outcome if it is kept (the item counts as skipped
    then), or None.
    """
    for examination in range(1, MAX_EXAMINATIONS + 1):
        if present is None:
            break
        try:
            stays = _skip_if_existing_item_kept(result, item, present, source, status, may_get_links=may_get_links)
            if stays is None and result.item_recorder.is_recording:
                from pcopy.tasks.files.differences import note_differences

                note_differences(result, item.name, status, present)
            return present, stays
        except TargetChangedProblem:
            if examination == MAX_EXAMINATIONS:
                raise
        present = present.item_with_current_status()
    return None, None


def _skip_if_existing_item_kept(
    result: TaskResult, item: Item, present: ExistingItem, source: int, status: os.stat_result, *, may_get_links: bool
) -> ItemResult | None:
    """If the existing item ``present`` is kept, count the item as skipped and return the outcome; return None if it is
    replaced. Raise ``Problem`` on failure, and ``TargetChangedProblem`` if the existing item must be examined again.

    Args:
        source: descriptor of the source directory.
        status: status of the item in the source.
        may_get_links: True if other names (hard links) of the inode may be found later.
    """
    (place, name), rank, options = item.names[0], present.rank, present.rank.copy_options
    if _is_existing_item_replaced(present, source, name, status):
        return None
    is_link = stat.S_ISLNK(status.st_mode)  # the target texts of both links were compared already, and are equal
    same = options.compares_existing and (is_link or looks_like_copy(status, present.status, options.modify_window))
    may_link = (
        may_get_links and same and present.may_get_hard_links(status)
    )  # decided before its metadata is updated, which may hide that others could write to it
    action = ItemAction.SKIP
    if should_update_metadata(rank):
        from pcopy.tasks.files.update_metadata import (
            has_source_metadata,
            is_copied_again_for_links,
            update_existing_metadata,
        )

        if not has_source_metadata(rank, place, name, status, present):
            if may_get_links and same and not may_link and is_copied_again_for_links(present, status):
                return None
            preserve = rank.options.preserve
            node = read_link_or_special_file(source, name, item.inode, preserve, follow=options.dereference)
            updated = update_existing_metadata(result, name, present, node.attributes)
            if updated is None:
                return None
            present, action = updated
    made = present.item_identity() if may_link else None
    known = ContentInfo(item_type_byte(status), 0, b"", FileContentVersion.from_status(status))
    count_skipped_or_spawn_read(rank, result, place, name, known, action)
    return ItemResult(known, made)


def _is_existing_item_replaced(present: ExistingItem, source: int, name: bytes, status: os.stat_result) -> bool:
    """Return True if the existing item ``present`` is replaced by the item ``name`` of the open directory ``source``.
    Raise ``Problem`` on failure.

    A symbolic link that would be kept is replaced if its target text differs: its length and time do not show that.
    """
    if not present.may_be_replaced(status):
        return present.has_other_link_text(status, source, name)
    is_link = stat.S_ISLNK(status.st_mode) and stat.S_ISLNK(present.status.st_mode)
    if not is_link or not should_update_metadata(present.rank) or present.is_from_earlier_run():
        return True
    return not has_same_symlink_text(
        source, name, present.directory, present.name
    )  # if the texts are equal, only the time differs
