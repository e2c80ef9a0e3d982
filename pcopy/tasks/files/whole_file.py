"""Copies one regular file by one rank, usually under a temporary name: files that the batches of the backend leave to
Python, such as files with holes, files that replace existing ones, and files of medium size.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.attributes import read_item_metadata
from pcopy.fsio.close import close_after_read, close_ignoring_errors
from pcopy.fsio.existing import has_same_contents, looks_like_copy
from pcopy.fsio.identity import ItemIdentity, identity_mark_of
from pcopy.fsio.new_file import NewFile
from pcopy.fsio.problem import MetadataProblem, TargetChangedProblem
from pcopy.fsio.source import (
    FileContentVersion,
    check_file_is_unchanged,
    check_is_file_found_by_scan,
    open_source_file_to_read,
    status_of_open_item,
)
from pcopy.signature.items import FILE
from pcopy.signature.tree import ContentHasher
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import UNTIMED_NEW_COPY, DifferingProperty, ItemAction, TimedCopyAction
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import UNCREATED_TARGET_IDENTITY, ContentInfo, Item, UnnamedCopy
from pcopy.tasks.files.existing import (
    MAX_EXAMINATIONS,
    ExistingItem,
    find_existing_item,
    inherits_acl,
    may_have_incomplete_mark,
    mention_removal_in_problem,
    overwritten_file_or_layout_recipe,
    prepare_new_name,
    should_update_metadata,
)
from pcopy.tasks.files.layouts import count_files_created_by_recipe
from pcopy.tasks.verify.read_items import count_skipped_or_spawn_read

if TYPE_CHECKING:
    from pcopy.tasks.base.storing import FileSyncBatch


class ItemResult(NamedTuple):
    """Outcome of an item that was copied or skipped. Unless ``unnamed`` is set, the item was counted already.

    Fields:
        known: type, size, digest and version of the source.
        identity: identity of the item in the target, if other names (hard links) of the source may be linked to it;
            else None. For a skipped item it is None unless the item in the target equals the source.
        unnamed: the copy, if it still has its temporary name; else None.
        metadata_problem: the error because of which not all metadata could be set, or None.
        how: whether an existing item was replaced, and duration of the copy.
    """

    known: ContentInfo
    identity: ItemIdentity | None
    unnamed: UnnamedCopy | None = None
    metadata_problem: MetadataProblem | None = None
    how: TimedCopyAction = UNTIMED_NEW_COPY

    @property
    def is_existing_kept(self) -> bool:
        """True if an existing item was kept that must not get other names of the source as hard links.

        Valid only for the outcome of a call with ``may_get_links``: otherwise a new copy has no ``identity`` either.
        """
        return self.unnamed is None and self.identity is None


def dry_run_result(known: ContentInfo) -> ItemResult:
    """Return the outcome, in a dry run, of an item that would be created. ``known`` describes the source."""
    return ItemResult(known, UNCREATED_TARGET_IDENTITY)


def copy_file(
    rank: Rank, result: TaskResult, item: Item, *, may_get_links: bool, storage_batch: FileSyncBatch | None = None
) -> Generator[None, None, ItemResult]:
    """Copy the file ``item``, by its first name, unless an existing item is kept. Return the outcome. On failure raise
    ``Problem``; an existing item is unchanged then.

    Args:
        item: the file. If it has several names (hard links), the copy is verified later, together with the other names.
        may_get_links: True if other names of the inode may be found later, so that the identity of the copy is needed.
        storage_batch: if given, a small file that must be on stable storage before it gets its name is added to it.
            Then the caller must store the files of the batch before it takes the next step of this generator.
    """
    began = time.monotonic_ns()
    with _open_checked_source(rank, item) as opened:
        reading, status = opened.descriptor, opened.status
        present = find_existing_item(rank, item.place, item.name)
        present, stays = yield from result_if_existing_kept(
            result, item.name, present, reading, status, may_get_links=may_get_links
        )
        if stays is not None:
            opened.ignores_close_error = True
            return stays
        if present is not None and result.item_recorder.is_recording:
            from pcopy.tasks.files.differences import note_differences

            note_differences(result, item.name, status, present)
        if rank.options.dry_run:
            item_result = dry_run_result(ContentInfo(FILE, status.st_size, b"", FileContentVersion.from_status(status)))
        else:
            place, source = item.place, (reading, status)
            rank.detect_times_set_on_close(rank.open_target_directory(place), rank.target_device(place), result.notices)
            present_status = None if present is None else present.status
            with mention_removal_in_problem(
                rank, rank.open_target_directory(place), rank.target_name(place, item.name), present_status
            ):
                item_result = yield from _write_copy(
                    rank, result, item, source, present, may_get_links=may_get_links, storage_batch=storage_batch
                )
    took = 0 if rank.options.dry_run else time.monotonic_ns() - began
    item_result = item_result._replace(how=TimedCopyAction.action_given_existing_item(present, took))
    if item_result.unnamed is None:
        result.count_copied_item(
            item.place, item.name, item_result.known, is_only_name=not item.links, how=item_result.how
        )
    return item_result


class _OpenSourceFile:
    """A file of the source that is open for reading, within the block of a context manager.

    ``ignores_close_error`` is True if an existing item was kept and the file was counted as skipped. Then an error of
    close(2) must not fail the file.
    """

    def __init__(self, descriptor: int, status: os.stat_result) -> None:
        self.descriptor = descriptor
        self.status = status
        self.ignores_close_error = False


@contextmanager
def _open_checked_source(rank: Rank, item: Item) -> Generator[_OpenSourceFile, None, None]:
    """Context manager: open the file ``item`` for reading, and close it at the end. Raise ``Problem`` if another file
    has its name than the one that the scan found.
    """
    reading = open_source_file_to_read(
        rank.open_source_directory(item.place), item.name, follow=rank.copy_options.dereference
    )
    stays = False
    try:
        status = status_of_open_item(reading, on_source=True)
        check_is_file_found_by_scan(status, rank.source_device(item.place, item.mount), item.inode)
        opened = _OpenSourceFile(reading, status)
        yield opened
        stays = opened.ignores_close_error
    finally:
        (close_ignoring_errors if stays else close_after_read)(reading)


def keep_existing_if_equal(rank: Rank, result: TaskResult, item: Item) -> Generator[None, None, ItemResult | None]:
    """If an existing item is kept, count ``item`` as skipped and return the outcome. Return None if the file must be
    copied. Raise ``Problem`` on failure.
    """
    with _open_checked_source(rank, item) as opened:
        opened.ignores_close_error = True  # an error of close(2) does not matter: a file that is copied is opened again
        present = find_existing_item(rank, item.place, item.name)
        reading, status = opened.descriptor, opened.status
        return (yield from result_if_existing_kept(result, item.name, present, reading, status, may_get_links=True))[1]


def result_if_existing_kept(
    result: TaskResult,
    name: bytes,
    present: ExistingItem | None,
    reading: int,
    status: os.stat_result,
    *,
    may_get_links: bool,
) -> Generator[None, None, tuple[ExistingItem | None, ItemResult | None]]:
    """Decide whether the existing item ``present`` is kept instead of a copy of the file ``name``. If it has changed
    since it was examined, examine it again. Raise ``Problem`` on failure.

    Args:
        present: the existing item of the target, or None.
        reading, status: descriptor and status of the file in the source.
        may_get_links: True if other names (hard links) of the file may be found later.

    Return the existing item as it was examined last, or None; and the outcome if it is kept (the file is counted as
    skipped then), or None if the file must be copied.
    """
    for examination in range(1, MAX_EXAMINATIONS + 1):
        if present is None or present.may_be_replaced(status):
            break
        try:
            return present, (
                yield from _skip_if_existing_item_kept(
                    result, name, present, reading, status, may_get_links=may_get_links
                )
            )
        except TargetChangedProblem:
            if examination == MAX_EXAMINATIONS:
                raise
        present = present.item_with_current_status()
    return present, None


def _skip_if_existing_item_kept(
    result: TaskResult, name: bytes, present: ExistingItem, reading: int, status: os.stat_result, *, may_get_links: bool
) -> Generator[None, None, ItemResult | None]:
    """If the existing item ``present`` is kept, which may depend on its contents, update its metadata, count the file
    as skipped, and return the outcome. Return None if the file must be copied. Raise ``TargetChangedProblem`` if the
    existing item must be examined again.

    Args:
        reading, status: descriptor and status of the file in the source.
        may_get_links: True if other names (hard links) of the file may be found later.
    """
    rank, options = present.rank, present.rank.copy_options
    known = ContentInfo(FILE, status.st_size, b"", FileContentVersion.from_status(status))
    if present.needs_content_comparison(status):
        same = yield from has_same_contents(
            reading, status, present.directory, present.name, present.status, rank.throttle
        )
        if not same:
            if status.st_size == present.status.st_size:
                result.item_recorder.note_differences(present.place, name, DifferingProperty.CONTENT)
            return None
    else:
        same = options.compares_existing and looks_like_copy(status, present.status, options.modify_window)
    # Decided before the item's metadata is updated: the update may make the item look safe, although another user
    # has opened it for writing before.
    may_link = may_get_links and same and present.may_get_hard_links(status)
    action = ItemAction.SKIP
    if should_update_metadata(rank):
        from pcopy.tasks.files.update_metadata import (
            has_source_metadata,
            is_copied_again_for_links,
            update_existing_metadata,
        )

        if not has_source_metadata(rank, present.place, name, status, present):
            if may_get_links and same and not may_link and is_copied_again_for_links(present, status):
                return None
            updated = update_existing_metadata(
                result, name, present, read_item_metadata(reading, status, rank.options.preserve)
            )
            if updated is None:
                return None
            present, action = updated
    made = present.item_identity() if may_link else None
    count_skipped_or_spawn_read(rank, result, present.place, name, known, action)
    return ItemResult(known, made)


def _write_copy(
    rank: Rank,
    result: TaskResult,
    item: Item,
    source: tuple[int, os.stat_result],
    present: ExistingItem | None,
    *,
    may_get_links: bool,
    storage_batch: FileSyncBatch | None,
) -> Generator[None, None, ItemResult]:
    """Copy the file, and return the outcome. Raise ``Problem`` on failure.

    Args:
        source: descriptor and status of the file in the source.
        present: the existing item of the target, or None.
        may_get_links: True if other names (hard links) of the file may be found later.
        storage_batch: if given, a small file that must be on stable storage before it gets its name is added to it.
    """
    reading, status = source
    (place, name), version = item.names[0], FileContentVersion.from_status(status)
    options = rank.options
    target, new_name = rank.open_target_directory(place), rank.target_name(place, name)
    present_status = None if present is None else present.status
    kept = None if present is None else present.status_with_kept_mode(status)
    temporary = prepare_new_name(rank, target, new_name, present_status, status)
    over, recipe = overwritten_file_or_layout_recipe(
        rank, place, None if kept is None else present, reading, status, temporary
    )
    with NewFile.create_temporary_file(target, temporary, layout=recipe, over=over) as new:
        made = new.file_identity(place.target_id.mount_code) if may_get_links else None
        hasher, size = yield from _fill_new_file(rank, reading, status, new)
        attributes = read_item_metadata(reading, status, options.preserve)
        check_file_is_unchanged(reading, version)
        inherits = over is None and inherits_acl(rank, place, target)
        applied = new.apply_metadata(attributes, options.preserve, options.umask, existing=kept, inherits_acl=inherits)
        inode, sync = new.status.st_ino, rank.syncs_each_file(place)
        named_later = rank.names_late and over is None
        unnamed = (
            UnnamedCopy(temporary, inode, identity_mark_of(new.descriptor, created_by_job=True))
            if named_later
            else None
        )
        if over is None and unnamed is None:
            if not sync and new.needs_sync:
                from pcopy.tasks.base.storing import wait_until_file_is_stored  # only here: few files have holes

                yield from wait_until_file_is_stored(rank, new, storage_batch)
            if present is not None:
                present.back_up_item(status)
            new.commit(
                new_name,
                present_status,
                sync=sync,
                store=options.sync,
                has_sidecar=may_have_incomplete_mark(rank, present),
            )
        else:
            new.close_without_removing(sync=sync)
    if over is not None:
        result.record_overwritten_file(place, name, inode, lacks_metadata=new.metadata_problem is not None)
    shortcoming = new.metadata_problem
    if shortcoming is not None and unnamed is None:
        shortcoming.identity = made
        raise shortcoming  # the contents are complete and under their final name
    if over is None:
        count_files_created_by_recipe(rank, result, place, new.recipe if new.layout_reason else recipe, target, 1)
    result.record_applied_metadata(
        place, name, applied
    )  # only now: if the copy fails, it is tried again, and its notices would be shown twice
    known = ContentInfo(FILE, size, rank.job_item_hasher.digest_of_file(hasher) if hasher is not None else b"", version)
    return ItemResult(known, made, unnamed, shortcoming)


def _fill_new_file(
    rank: Rank, reading: int, status: os.stat_result, new: NewFile
) -> Generator[None, None, tuple[ContentHasher | None, int]]:
    """Write the contents of the source into the file ``new``. Return the hasher that has received them, or None if the
    job computes no digests; and the size in bytes. Raise ``Problem`` on failure.

    ``status`` is the status of the source. The returned size may differ from that in ``status`` if the file is
    generated when it is read (/proc).
    """
    devices, hasher, size = (status.st_dev, new.status.st_dev), rank.new_hasher(), 0
    with closing(
        rank.mover.copy_all_contents(reading, new.descriptor, status, devices, hasher, extend=new.extend_to_size)
    ) as steps:
        for moved in steps:  # if a thread copies, it ends here, before the files are closed
            rank.counters[counts.MOVED] += moved
            size += moved
            yield
    return hasher, size
