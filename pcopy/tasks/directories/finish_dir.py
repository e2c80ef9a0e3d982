"""Tasks that *finish* target directories: they give them their final metadata (owner, mode, ACLs, times) once
everything in them was copied. They are ``FinishDir``, ``FinishDirLastNote`` and ``FinishDirsLast``.
``DirectoryFailedNote`` counts directories as failed.

Directories can be finished in any order, because setting the mode and times of a child does not change its parent. The
exception are directories whose final mode denies their owner the search permission. They are finished last, in the
phase SEAL, the deepest first.

If an item is created in a directory that was finished, its times change, so the directory is finished again. In a
resumed job, the tasks also check that items which earlier runs copied into the directory still exist (``lost_items``).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress

from pcopy.engine.task import TaskId
from pcopy.fsio.attributes import (
    ItemHandle,
    ItemMetadata,
    MetadataOutcome,
    apply_item_metadata,
    read_item_metadata,
    remove_extra_xattrs,
)
from pcopy.fsio.directories import entry_count, list_names_in_directory
from pcopy.fsio.nodes import call_with_descriptor_or_path
from pcopy.fsio.preserve import CAP_DAC_OVERRIDE, has_capability
from pcopy.fsio.problem import PackedProblem, Problem
from pcopy.fsio.source import status_of_open_item
from pcopy.signature.items import DIRECTORY
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import unpack_action
from pcopy.tasks.base.distribution import directory_depth, rank_digesting_directory
from pcopy.tasks.base.job_filters import JobFilter
from pcopy.tasks.base.kind import DirectoryTask, LeftoverLocation, NoteDiscardedOnResume, TaskKind, TaskSteps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank, SetSharedByTasks
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, Place
from pcopy.tasks.directories.access import (
    grant_owner_access_to_open_directory,
    must_restore_mode,
    regrant_owner_access,
    restore_mode,
)
from pcopy.tasks.files.existing import item_status_or_none, should_update_metadata


class FinishDir(DirectoryTask, code=3, doing="finishing", is_note=False):
    """Task that gives one target directory its final metadata (owner, mode, ACLs, times) after its contents are
    complete.

    Fields:
        place: the directory.
        attributes: metadata of the source as its scan found it; None if this task shall read it.
        counts_as_copied: True if this task counts the directory: as copied, or as skipped if ``place.is_unchanged``.
            False if the directory was counted before, as copied, skipped or failed.
        source_entries: number of names in the source directory; -1 if it need not be checked whether the target has
            more.
        is_again: True if the directory was finished before. If ``counts_as_copied`` is True as well, it has failed
            since then.
        earlier_mtime: the target's mtime in nanoseconds before the job wrote into it again; None if its mode had to be
            changed for that.
        action: packed action (``pack_action``) that is reported to the user for this directory.
        checks_below: True if a resumed job must check everything below the directory, because nothing had to be done
            there, so that no other task checks it.
    """

    attributes: ItemMetadata | None
    counts_as_copied: bool
    source_entries: int
    is_again: bool = False
    earlier_mtime: int | None = None
    action: int = 0
    checks_below: bool = False

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Give the directory its final metadata, count it and report it."""
        lost = None
        if rank.job.run > 1:
            from pcopy.tasks.directories.lost_items import lost_items_problem, warn_of_partial_files

            lost = yield from lost_items_problem(rank, self.place, checks_below=self.checks_below)
            yield from warn_of_partial_files(rank, result, self.place)
        _finish_directory(self, rank, result, lost)

    def locations_of_leftover_files(self, *, after_first_run: bool) -> Iterator[LeftoverLocation]:
        """Yield this directory, in which earlier runs may have left temporary files. Yield nothing if the job had only
        one run so far (``after_first_run``): then the other tasks of that run name the directories in which it has left
        some.

        Temporary files of earlier runs remain in a directory until it is finished.
        """
        if not after_first_run:
            yield from super().locations_of_leftover_files(after_first_run=after_first_run)


class FinishDirLastNote(TaskKind, code=4, doing="finishing", is_note=True):
    """Note (message in the form of a short task) to rank 0: the directory of ``finish`` must be finished (get its final
    metadata) last, because its final mode denies its owner the search permission.
    """

    finish: FinishDir

    def subject(self) -> tuple[Place, bytes]:
        return self.finish.subject()

    def run(self, rank: Rank, result: TaskResult) -> None:
        """Add the directory to those that the task ``FinishDirsLast`` will finish on this rank. This note is recorded
        as done when that task has finished them.
        """
        sealed = rank.shared_instance(DirectoriesToFinishLast)
        result.defer_task_completion()
        if not sealed:
            result.spawn_task(FinishDirsLast(), phase=max(Phase.SEAL, result.phase), owner=rank.number)
        sealed.append((result.id, self.finish))

    def locations_of_leftover_files(self, *, after_first_run: bool) -> Iterator[LeftoverLocation]:
        return self.finish.locations_of_leftover_files(after_first_run=after_first_run)


class FinishDirsLast(NoteDiscardedOnResume, code=5, doing="finishing directories"):
    """Task that gives all directories that ``FinishDirLastNote`` notes have named their final metadata, the deepest
    first.
    """

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Finish the directories, the deepest first. Their notes are recorded as done together with this task."""
        sealed = rank.shared_instance(DirectoriesToFinishLast)
        result.complete_deferred_tasks(task_id for task_id, _ in sealed)
        finishes = [finish for _, finish in sealed]
        deepest_first = sorted(finishes, key=lambda finish: directory_depth(finish.place.path), reverse=True)
        # An earlier run may have finished some of these, and stopped before that was recorded. Their modes are
        # changed from the top down, so that the deepest ones can be reached.
        if rank.job.run > 1:
            for finish in reversed(deepest_first):
                with suppress(Problem):  # ``FinishDir.run`` meets the error again and reports it
                    regrant_owner_access(rank, finish.place)
        for finish in deepest_first:
            yield from finish.run(rank, result)
            yield None
        sealed.clear()


class DirectoriesToFinishLast(list[tuple[TaskId, FinishDir]]):
    """The directories that the task ``FinishDirsLast`` must finish (give their final metadata) on this rank. Each is in
    the form of a ``FinishDir``, with the id of the ``FinishDirLastNote`` that named it.
    """

    def __init__(self, rank: Rank) -> None:
        super().__init__()


class DirectoryFailedNote(DirectoryTask, code=6, doing="finishing", is_note=True):
    """Note (message in the form of a short task) that a directory has failed with ``problem``. It goes to the rank that
    counts the failures of this directory.

    ``retry`` is the task with which a resumed job tries the directory again; None if it fails again in a resumed job.

    A directory may fail more than once but counts as failed once: the first note takes it from the copied or skipped
    items to the failed ones. So the directory must have been counted as one of these before the note arrives, or the
    note must run in a later phase. Otherwise a counter would fall below zero.
    """

    problem: PackedProblem
    retry: TaskKind | None

    def run(self, rank: Rank, result: TaskResult) -> None:
        """Count the directory as failed, unless it counts as failed already. Report the error in either case."""
        problem = Problem.from_packed_tuple(self.problem)
        failed = rank.shared_instance(FailedDirectories)
        if self.place.key in failed:
            result.report_failure(rank.path_for_display(self.place, b"", on_source=problem.on_source), problem)
            return
        failed.add(self.place.key)
        result.count(counts.directory_counter(self.place), -1, self.place)
        if self.retry is None:
            result.count_item_as_failed(self.place, b"", problem, retry=self)
        else:
            result.count_item_as_failed(self.place, b"", problem, retry=self.retry, retry_phase=Phase.FINISH)

    def assigned_rank(self, ranks: int) -> int:
        return rank_digesting_directory(self.place.path, ranks)

    def spawn_retry(self, rank: Rank, result: TaskResult, phase: int) -> None:
        """Retry the directory in a resumed job if no task can do so: count it as copied or skipped, and spawn this note
        again, which takes it to the failed ones.
        """
        result.count(counts.directory_counter(self.place), 1, self.place)
        result.spawn_task(self, phase=phase, expands=phase == 0)


class FailedDirectories(SetSharedByTasks[tuple[int, bytes]]):
    """The directories that this rank has counted as failed, as (index of the root, path). Each counts as failed only
    once.
    """


def report_failed_directory(
    result: TaskResult, place: Place, problem: Problem, retry: TaskKind | None = None, *, phase: int | None = None
) -> None:
    """Report that the directory ``place``, which counts as copied or skipped, failed with ``problem``.

    Args:
        retry: the task that a resumed job runs for the directory. Without one the directory fails again in the resumed
            job.
        phase: the phase in which the note to the owner of the directory runs; the current one by default.
    """
    result.spawn_task(DirectoryFailedNote(place, problem.problem_as_tuple, retry), phase=phase)


def _finish_directory(task: FinishDir, rank: Rank, result: TaskResult, lost: Problem | None) -> None:
    """Give one directory its final metadata, count it and report it. If that fails, count and report the failure.

    Args:
        lost: error which says that items that earlier runs copied into the directory are missing
            (``lost_items_problem``); else None.
    """
    place = task.place
    try:
        attributes = task.attributes or _current_source_metadata(rank, place)
        target = rank.open_target_directory(place)
        lost = _remove_leftover_temporary_files(rank, target) or lost
        existing = None if place.is_new else status_of_open_item(target)
        has_extra = _has_extra_items(
            task, rank, target
        )  # before the times are set: to list the directory changes its access time
        applied = _apply_metadata(rank, target, attributes, existing)
        # Only in these phases ``attributes.mode`` is the mode of an existing directory (``must_restore_mode``).
        if task.attributes and result.phase >= Phase.SEAL and must_restore_mode(rank, place, attributes):
            call_with_descriptor_or_path(target, lambda handle: restore_mode(handle, attributes.mode))
        if lost is not None:
            raise lost
        if not task.is_again:  # otherwise notices were reported and counted when the directory was first finished
            result.record_applied_metadata(place, b"", applied)
    except Problem as problem:
        if task.counts_as_copied:
            result.count(counts.directory_counter(place), 1, place)
            is_unread = task.attributes is not None and task.attributes.unread
            report_failed_directory(result, place, problem, task._replace(attributes=None) if is_unread else task)
        elif task.is_again and problem.on_source and task.earlier_mtime is not None and result.phase < Phase.SEAL:
            result.spawn_task(task, phase=Phase.SEAL)  # by then the first ``FinishDir`` of this directory has run
        elif task.is_again and problem.on_source and _has_unchanged_mtime(task, rank):
            pass  # nothing was written into the directory since it was finished: an error of its source does not matter
        elif task.is_again:
            phase = max(Phase.SEAL, result.phase)  # by then the directory is counted
            report_failed_directory(result, place, problem, task._replace(counts_as_copied=True), phase=phase)
        else:  # the directory has failed before and counts as failed once
            result.report_failure(rank.path_for_display(place, b"", on_source=False), problem)
        return
    if has_extra:
        result.count(counts.EXTRA, 1, place)
    if task.counts_as_copied:
        counter = counts.directory_counter(place)
        result.count(counter, 1, place)
        record_directory_outcome(result, place, task.action)
        is_kept = place.is_unchanged and rank.copy_options.existing in ("newer", "skip")  # kept items are not verified
        if rank.copy_options.verify and result.phase < Phase.REPAIR and not (task.is_again or is_kept):  # once for each
            result.collect_digest(place, b"", rank.job_item_hasher.placeholder_directory_info, counter)


def record_directory_outcome(result: TaskResult, place: Place, action: int) -> None:
    """Record, for the report of each item, what was done with a directory. ``action`` is packed (``pack_action``)."""
    done, differences = unpack_action(action)
    result.item_recorder.note_differences(place, b"", differences)
    result.item_recorder.record_item_outcome(done, place, b"", DIRECTORY)


def _apply_metadata(
    rank: Rank, target: int, attributes: ItemMetadata, existing: os.stat_result | None
) -> MetadataOutcome:
    """Set the metadata of the open directory ``target`` to ``attributes``. Raise ``Problem`` on failure.

    Args:
        existing: status of a directory that existed before the job; None for one that the job created.
    """
    return call_with_descriptor_or_path(
        target, lambda handle: _apply_metadata_to_handle(rank, handle, attributes, existing)
    )


def _apply_metadata_to_handle(
    rank: Rank, target: ItemHandle, attributes: ItemMetadata, existing: os.stat_result | None
) -> MetadataOutcome:
    """Set the metadata of the directory ``target`` to ``attributes``. ``target`` is a descriptor, or a path of the open
    directory. Raise ``Problem`` on failure.

    Args:
        existing: status of a directory that existed before the job; None for one that the job created.
    """
    preserve = rank.options.preserve
    if existing is not None and should_update_metadata(rank):
        from pcopy.fsio.metadata_update import metadata_difference, update_metadata

        lacks = metadata_difference(target, existing, attributes, preserve, rank.copy_options.modify_window)
        return update_metadata(target, existing, attributes, preserve, lacks)
    # After an earlier run created the directory, another process may have set ACLs on it.
    if existing is not None or rank.job.run > 1:
        remove_extra_xattrs(target, attributes, preserve)
    return apply_item_metadata(target, attributes, preserve, rank.options.umask, existing=existing)


def _remove_leftover_temporary_files(rank: Rank, target: int) -> Problem | None:
    """Remove temporary files that earlier runs of this job left in the open directory ``target``. Raise ``Problem`` on
    failure.

    The directory may already have its final mode, without write permission: an earlier run had finished it and was
    killed, and a power failure undid the removal of the files but not the change of the mode. So after EACCES the owner
    permissions are added and the removal is repeated.

    Return a ``Problem`` about a file that is not removed because it may be the user's, else None.
    """
    try:
        return rank.remove_leftover_files(target)
    except Problem as problem:
        if problem.errno != errno.EACCES:
            raise
        grant_owner_access_to_open_directory(target, status_of_open_item(target))
        return rank.remove_leftover_files(target)


def _current_source_metadata(rank: Rank, place: Place) -> ItemMetadata:
    """Return the metadata that the source directory of ``place`` has now. Raise ``Problem`` on failure."""
    source = rank.open_source_directory(place)
    return read_item_metadata(source, status_of_open_item(source, on_source=True), rank.options.preserve)


def _has_unchanged_mtime(task: FinishDir, rank: Rank) -> bool:
    """Return True if nothing was written into the target directory since the task was spawned: it still has the mtime
    that it had then (``earlier_mtime``).
    """
    try:
        return status_of_open_item(rank.open_target_directory(task.place)).st_mtime_ns == task.earlier_mtime
    except Problem:
        return False


def _has_extra_items(task: FinishDir, rank: Rank, target: int) -> bool:
    """Return True if the target directory contains items that the source lacks.

    If the target has no more names than the source, the answer is False without a comparison of the names. Otherwise
    sockets, and names in the source that belong to the job itself, are left out of the comparison. For DST itself
    return False if several sources are copied into it, because no task knows the names of all of them. Also return
    False if a directory cannot be read.
    """
    place = task.place
    shared = len(rank.job.roots) > 1 and not rank.path_below_target(place.root, place.path)
    if task.source_entries < 0 or shared:
        return False
    own_names = [os.path.basename(path) for root, path in rank.job.own if (root, os.path.dirname(path)) == place.key]
    try:
        if rank.shared_instance(JobFilter).has_filters:
            return _has_unselected_items(rank, place, target)
        if entry_count(target, counts_sockets=True) <= task.source_entries - len(own_names):
            return False
        source = rank.open_source_directory(place)
        expected = entry_count(source, counts_sockets=False) - sum(
            item_status_or_none(source, name) is not None for name in own_names
        )
        return entry_count(target, counts_sockets=False) > expected
    except (OSError, Problem):  # no read permission on one side: this check is only for a warning
        return False


def _has_unselected_items(rank: Rank, place: Place, target: int) -> bool:
    """Return True if the target has an item, other than a socket, that the source lacks or that the filters exclude.
    Raise ``Problem`` on failure.
    """
    source, selected = rank.open_source_directory(place), rank.shared_instance(JobFilter)
    for name in list_names_in_directory(target):
        present = item_status_or_none(target, name)
        if present is not None and not stat.S_ISSOCK(present.st_mode):
            status = item_status_or_none(source, name)
            if status is None or not selected.selects_item(place, name, status):
                return True
    return False


def spawn_finish_dir_task_once(rank: Rank, result: TaskResult, place: Place, phase: int) -> None:
    """Spawn a task that sets the metadata of the directory ``place`` again after ``phase``, because tasks of this phase
    may write into it and change its times.

    However often this is called, the task is spawned only once for each directory and each phase in which such tasks
    run.
    """
    key, done = (*place.key, int(_directory_finishing_phase(phase))), rank.shared_instance(DirectoriesToFinishAgain)
    if key not in done and spawn_finish_dir_task(rank, result, place, phase):
        done.add(key)


def spawn_finish_dir_task(rank: Rank, result: TaskResult, place: Place, phase: int) -> bool:
    """Spawn a task that sets the metadata of the directory ``place`` again after ``phase``, regardless of earlier
    calls. Return True if it was spawned.

    Return False if the directory is not copied, or if it cannot be opened: then it was reported as failed already.
    Missing owner permissions are added to the directory, so that the job can write into it.
    """
    if place.target_id == NO_DIRECTORY_IDENTITY or rank.job.roots[place.root].item:
        return False
    try:
        present = status_of_open_item(rank.open_target_directory(place))
    except Problem:
        return False
    keeps_mode = present.st_mode & 0o700 == 0o700 or has_capability(CAP_DAC_OVERRIDE)
    with suppress(Problem):  # tasks that then fail to create items in it report why
        regrant_owner_access(rank, place)
    was, attributes = present.st_mtime_ns if keeps_mode else None, None
    if not (keeps_mode or rank.options.preserve.mode):
        with suppress(Problem):  # the task reads the source again, and reports the error
            attributes = _current_source_metadata(rank, place)._replace(mode=present.st_mode)
    finish = FinishDir(place, attributes, False, -1, is_again=True, earlier_mtime=was)
    result.spawn_task(finish, phase=_directory_finishing_phase(phase))
    return True


def _directory_finishing_phase(phase: int) -> int:
    """Tasks of ``phase`` write into directories: return the phase in which these directories get their final metadata
    after that.
    """
    return int(Phase.REPAIR_FINISH if phase >= Phase.VERIFY else max(Phase.FINISH, phase))


class DirectoriesToFinishAgain(SetSharedByTasks[tuple[int, bytes, int]]):
    """The directories whose metadata will be set again because this rank has spawned another ``FinishDir`` for them, as
    (index of the root, path, phase in which that is done).
    """


def is_target_present(rank: Rank, place: Place) -> bool:
    """Return True if the target directory of ``place`` can be opened and has the expected identity."""
    try:
        rank.open_target_directory(place)
    except Problem:
        return False
    return True
