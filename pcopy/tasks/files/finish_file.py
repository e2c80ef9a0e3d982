"""``FinishFile`` sets the metadata and the final name of a large file after all of its chunks were copied."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Generator
from contextlib import suppress

from pcopy.engine.task import Task
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.attributes import ItemMetadata, apply_item_metadata, read_item_metadata
from pcopy.fsio.close import closing_descriptor
from pcopy.fsio.identity import IdentityComparison, identity_of_open_item
from pcopy.fsio.layout import DEFAULT_LAYOUT_RECIPE, LayoutRecipe, TargetDirectory
from pcopy.fsio.new_file import NewFile
from pcopy.fsio.nodes import open_o_path_descriptor, proc_path_of_descriptor
from pcopy.fsio.problem import MetadataProblem, Problem
from pcopy.fsio.source import check_file_is_unchanged, status_of_open_item
from pcopy.fsio.temporary import remove_item_if_present, run_and_rank_in_temporary_name
from pcopy.signature.items import FILE
from pcopy.tasks.base.actions import ItemAction, TimedCopyAction
from pcopy.tasks.base.kind import MissingDirectories, TaskKind, TaskSteps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import ChunkedFile, ContentInfo, Item, ItemCopy, Place, UnnamedCopy
from pcopy.tasks.files.existing import (
    ExistingItem,
    find_existing_item,
    inherits_acl,
    item_status_or_none,
    may_have_incomplete_mark,
    should_update_metadata,
)
from pcopy.tasks.files.layouts import count_files_with_layout, target_layout_policy
from pcopy.tasks.files.name_items import spawn_naming_task
from pcopy.tasks.links.make_links import handle_first_name_failure, spawn_link_task


class ChunkedFileTask(TaskKind):
    """Base class of tasks about a large file that is copied in chunks (parts). ``file`` describes the source and the
    temporary file.
    """

    file: ChunkedFile

    def subject(self) -> tuple[Place, bytes]:
        return self.file.item.names[0]

    @property
    def uncopied_item(self) -> Item:
        return self.file.item

    def register_for_resume(self, task: Task, missing: MissingDirectories) -> None:
        """Record in ``missing`` the directories of all names of the file. The tasks that copy its chunks know only the
        first name.
        """
        missing.add_large_file(self.file.temporary, self.contained_directory_places(), task.phase)


class FinishFile(ChunkedFileTask, code=16, doing="finishing", is_note=True):
    """Task that sets the metadata and the final name of a large file whose chunks are all copied.

    Fields:
        file: the file and its temporary file.
        digest: digest of the contents; empty if the job computes none.
        chunk: size of the chunks in bytes.
        writers: number of the host that wrote each chunk, one byte each.
    """

    digest: bytes
    chunk: int
    writers: bytes

    is_dropped_on_stop = True

    @property
    def attempt(self) -> int:
        return self.file.item.attempt

    def remove_temporary_files(self, rank: Rank, since: int) -> None:
        if run_and_rank_in_temporary_name(self.file.temporary)[0] >= since:
            remove_temporary_file(rank, self.file)

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Bring the contents of the file to stable storage; then set its metadata and give it its name, without a yield
        between. The source must still have the version (inode, size, mtime, ctime) that was copied.
        """
        file, item = self.file, self.file.item
        known = ContentInfo(FILE, file.version.size, self.digest, file.version)
        copy = ItemCopy(file.identity, known, self.chunk, self.writers)
        now = time.monotonic_ns()
        began, differences = rank.shared_instance(LargeFileOpenings).pop(file.temporary, (now, 0))
        took = now - began
        result.item_recorder.note_differences(item.place, item.name, differences)
        try:
            unnamed, shortcoming, action = yield from _finish_file(self, rank, result)
        except MetadataProblem as problem:  # the copy is complete and has its final name
            spawn_link_task(rank, result, item, copy, metadata_problem=problem)
        except Problem as problem:
            handle_failure_of_opened_file(rank, result, file, problem)
        else:
            if unnamed is not None:
                spawn_naming_task(result, item, unnamed, copy, metadata_problem=shortcoming, duration_ns=took)
                return
            chunk, writers, how = self.chunk, self.writers, TimedCopyAction(action, took)
            result.count_copied_item(
                item.place, item.name, known, is_only_name=not item.links, chunk=chunk, writers=writers, how=how
            )
            spawn_link_task(rank, result, item, copy)


class LargeFileOpenings(dict[bytes, tuple[int, int]]):
    """For each large file whose chunks this rank counts, by the name of the temporary file: the time
    (time.monotonic_ns()) at which it created that file, and what differs from the existing item that will be replaced
    (``DifferingProperty`` bits). They are used for the report of the item; files that are not reported have no entry.
    """

    def __init__(self, rank: Rank) -> None:
        super().__init__()


def remove_temporary_file(rank: Rank, file: ChunkedFile) -> None:
    """Remove the temporary file of ``file``, if its directory still exists. An existing file that is being overwritten
    (``--inplace``) is not removed.
    """
    if file.overwritten_owner:
        return
    with suppress(Problem):  # no error if the directory was removed or replaced: its items fail for that reason anyway
        remove_item_if_present(rank.open_target_directory(file.item.place), file.temporary)


def handle_failure_of_opened_file(rank: Rank, result: TaskResult, file: ChunkedFile, problem: Problem) -> None:
    """Handle the failure (``problem``) of a large file whose temporary file was created, but that could not be copied
    completely: it is tried again or counted as failed.

    If an earlier run created the temporary file, the failure does not count as an attempt of this run. The source may
    have changed since; or that run may have renamed the copy and stopped before this was recorded.
    """
    item = file.item
    if problem.may_retry and run_and_rank_in_temporary_name(file.temporary)[0] < rank.job.run:
        item = item._replace(attempt=0)
        if problem.changed:
            text = "has changed since the job was interrupted; its copy begins anew"
            result.warn_about_item(item.place, item.name, text, on_source=True)
    elif file.overwritten_owner and not problem.changed:
        problem.may_retry = False  # another item has replaced the file during this run: it must not be overwritten
    handle_first_name_failure(rank, result, item, problem)


def _finish_renamed_copy(rank: Rank, result: TaskResult, file: ChunkedFile, target: int, name: bytes) -> bool:
    """If an earlier run has already renamed the copy to ``name`` and stopped before that was recorded, set its metadata
    again and return True. Raise ``Problem`` on failure.

    The metadata is set again because a power failure may have preserved the rename and lost what was done before it. If
    the identity of the copy is not certain, return False: the file is copied again. ``target`` is a descriptor of the
    target directory.
    """
    if (
        rank.job.run == 1
        or file.overwritten_owner
        or item_status_or_none(target, file.temporary) is not None
        or item_status_or_none(target, name) is None
    ):
        return False
    options, attributes = rank.options, _read_source_state(rank, file).attributes
    with closing_descriptor(open_o_path_descriptor(target, name, on_source=False)) as descriptor:
        status = status_of_open_item(descriptor)
        same = (
            file.identity.compare_with_identity(
                identity_of_open_item(descriptor, status, file.identity.mount_code, created_by_job=True)
            )
            is IdentityComparison.SAME
        )
        whole = stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_size == file.version.size
        owners = os.geteuid(), attributes.uid, options.preserve.chown[0], *file.server_status[1:]
        if not (same and whole and status.st_uid in owners):
            return False
        applied = apply_item_metadata(
            proc_path_of_descriptor(descriptor), attributes, options.preserve, options.umask, inherits_acl=True
        )
        result.record_applied_metadata(file.item.place, file.item.name, applied)
    return True


class _SourceState(NamedTuple):
    """The source of a large file, as it is when the copy is finished: its status, its metadata, and the recipe (the way
    to create a copy so that it gets its Lustre layout).
    """

    status: os.stat_result
    attributes: ItemMetadata
    recipe: LayoutRecipe


def _read_source_state(rank: Rank, file: ChunkedFile) -> _SourceState:
    """Return status, metadata and recipe of the source. Raise ``Problem`` if its version (inode, size, mtime, ctime) is
    not the one that was copied.
    """
    place, preserve = file.item.place, rank.options.preserve
    target = TargetDirectory(rank.open_target_directory(place), place.target_id.inode)
    with rank.open_source_file(place, file.item.name) as reading:
        check_file_is_unchanged(reading, file.version)
        status = status_of_open_item(reading, on_source=True)
        recipe = (
            DEFAULT_LAYOUT_RECIPE
            if file.overwritten_owner
            else target_layout_policy(rank, place).layout_recipe_for_file(reading, status, target)
        )
        return _SourceState(status, read_item_metadata(reading, status, preserve), recipe)


def _is_existing_item_replaced(present: ExistingItem, name: bytes, source: os.stat_result) -> bool:
    """Return True if the existing item ``present`` may be replaced by the copy. ``name`` and ``source`` are name and
    status of the source. Raise ``Problem`` on failure.

    If its contents had to be compared, that was done before the file was divided into chunks, and they differed. Its
    metadata was not updated then.
    """
    if present.may_be_replaced(source) or present.needs_content_comparison(source):
        return True
    if not should_update_metadata(present.rank):
        return False
    from pcopy.tasks.files.update_metadata import has_source_metadata

    return not has_source_metadata(present.rank, present.place, name, source, present)


def _finish_file(
    task: FinishFile, rank: Rank, result: TaskResult
) -> Generator[None, None, tuple[UnnamedCopy | None, MetadataProblem | None, ItemAction]]:
    """Set the metadata of a large file, and give it its final name unless it is named in the phase NAME.

    Return three values: the copy with its temporary name, or None if it has its final name; the error because of which
    not all metadata could be set, or None; and the action, COPY or REPLACE, for the report. Raise ``Problem`` on
    failure.
    """
    file = task.file
    place, name = file.item.place, file.item.name
    target = rank.open_target_directory(place)
    new_name = rank.target_name(place, name)
    options = rank.options
    rank.detect_times_set_on_close(target, rank.target_device(place), result.notices)
    named_later = rank.names_late and not file.overwritten_owner
    if not named_later and _finish_renamed_copy(rank, result, file, target, new_name):
        return None, None, ItemAction.COPY
    with NewFile.from_file_of_other_task(
        target, rank.name_while_written(file), file.identity, file.overwritten_owner
    ) as new:
        new.reopen(file.version.size, file.server_status, extended=not file.is_cloned)
        sync = rank.syncs_each_file(place)
        if not (file.overwritten_owner or named_later or sync):
            from pcopy.tasks.base.storing import wait_until_file_is_stored  # only here: most files are not split

            # Before the rename, so that after a power failure no file has its final name without its contents.
            yield from wait_until_file_is_stored(rank, new)
        source = _read_source_state(rank, file)
        present = None if file.overwritten_owner else find_existing_item(rank, place, name)
        present_status = None if present is None else present.status
        if present is not None and not named_later and not _is_existing_item_replaced(present, name, source.status):
            raise Problem(
                "create", errno.EEXIST
            )  # the existing item was created after the file was split, and was not compared
        layout = ""
        if not file.overwritten_owner:
            around = TargetDirectory(target, place.target_id.inode)
            layout = target_layout_policy(rank, place).layout_description_of_file(new.descriptor, source.recipe, around)
        inherits = not file.overwritten_owner and inherits_acl(rank, place, target)
        applied = new.apply_metadata(
            source.attributes, options.preserve, options.umask, existing=present_status, inherits_acl=inherits
        )
        if file.overwritten_owner or named_later:
            new.close_without_removing(sync=sync)
        else:
            if present is not None:
                present.back_up_item(source.status)
            new.commit(
                new_name,
                present_status,
                sync=sync,
                store=options.sync,
                has_sidecar=may_have_incomplete_mark(rank, present),
            )
    item = UnnamedCopy(file.temporary, file.identity.inode, file.identity.mark) if named_later else None
    if file.overwritten_owner:
        result.record_overwritten_file(
            place, name, file.identity.inode, lacks_metadata=new.metadata_problem is not None
        )
    if new.metadata_problem is not None and item is None:
        raise new.metadata_problem
    if layout:
        count_files_with_layout(rank, result, layout)
    result.record_applied_metadata(
        place, name, applied
    )  # only now: if the copy fails, it is tried again, and its notices would be shown twice
    return (
        item,
        new.metadata_problem,
        ItemAction.REPLACE if file.overwritten_owner or present is not None else ItemAction.COPY,
    )
