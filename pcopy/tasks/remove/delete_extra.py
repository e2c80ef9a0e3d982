"""ExamineMounts, DeleteExtraItems, DeleteExtraNames: delete items that are only in the target (``--delete``).

Both sides of each directory are listed again after everything has been copied. Extra names of the target become
``RemoveNamedItems`` tasks, which prm also uses.

Rules:

- A name is deleted only if its source directory can be opened and listed and does not have that name. If a directory
  cannot be read on either side, it counts as failed, and nothing in it is deleted.
- Nothing is deleted if anything has failed in the job before the deletion begins (``CopyDirector`` checks that), or if,
  on any host, file systems were mounted or unmounted in the source since the job began. If a directory cannot be
  compared later, the rank that compares it stops deleting, and all others stop as soon as they are notified
  (``pcopy.tasks.remove.stop_deletion``).
- A directory of the target is entered only if it is still the one that was listed (same inode). File systems mounted in
  the target are never entered.
- A name that the target file system treats as another spelling of a name in the source (case folding) is not deleted.
- Directories that the job itself has created since it began are not examined: they contain nothing that the source
  lacks.
"""

from __future__ import annotations

import errno
import os
import stat
from array import array
from collections.abc import Callable, Container, Mapping
from functools import cache, partial

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.batches import ListNamesResult, StatNamesBatch
from pcopy.fsio.backend.columns import (
    MODE_COLUMN,
    BatchOutcomeColumns,
    OutcomeCode,
    column_of_zeros,
    pack_names,
    unpack_names,
)
from pcopy.fsio.backend.directory_batches import FAR_FUTURE_TIME
from pcopy.fsio.backend.walk_batches import CompareTreesBatch, RemainingItems
from pcopy.fsio.directories import DirectoriesBelowRoot, is_directory_empty, list_names_in_directory
from pcopy.fsio.identity import ItemIdentity, birth_time
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of_open_item
from pcopy.fsio.spelling import casefolded_name, has_other_spelling
from pcopy.tasks.base import counts
from pcopy.tasks.base.job_filters import JobFilter
from pcopy.tasks.base.kind import DirectoryTask, TaskSteps
from pcopy.tasks.base.rank import CALL_COST, CLOCK_GRACE, SCAN_COST, Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.sibling_directories import Siblings, spawn_tasks_for_siblings
from pcopy.tasks.base.tree_walk import may_enter_subtrees, remaining_rows, spawn_tasks_for_names, walk_rows
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, Place, unpack_numbers
from pcopy.tasks.directories.finish_dir import spawn_finish_dir_task, spawn_finish_dir_task_once
from pcopy.tasks.files.existing import item_status_or_none
from pcopy.tasks.remove.ledger import NO_WAITER
from pcopy.tasks.remove.removal_counts import RemovalCounts, is_only_counting
from pcopy.tasks.remove.remove_tree import (
    MOUNTED_HERE_TEXT,
    RemoveNamedItems,
    close_cached_directory,
    is_on_root_mount,
)
from pcopy.tasks.remove.stop_deletion import DeletionState
from pcopy.walk.listing import list_directory

EMPTY_SOURCE_TEXT = (
    "nothing was deleted: the source is empty; --delete-all deletes the contents of the target even then"
)
"""Message if the top directory of the source has no items: probably a file system is not mounted there."""

_DIRECTORY, _UNKNOWN = b"d?"
"""Type letters of a directory, and of an item of a type that has to be looked up."""

_NO_DIRECTORY_ERRNOS = (errno.ENOTDIR, errno.ELOOP, errno.ENOENT)
"""Errors of opening a target directory that mean that it no longer exists, so that nothing in it is to be deleted."""


class ExamineMounts(DirectoryTask, code=169, doing="examining the mounts below", is_note=False):
    """Task that finds out whether file systems were mounted or unmounted in a source tree since the start of the job.
    It runs on one host after another; the last one spawns ``DeleteExtraItems``. ``place`` is the top directory of the
    tree.

    Fields:

    - ``host_index``: index of the host that compares now, in ``Rank.first_ranks`` (one rank per host).
    - ``counted_before``: number of items that an earlier run has counted as to be deleted and not deleted;
      ``DeleteExtraItems`` needs it.

    If the mounts of any host differ, nothing is deleted on any host, because the hosts may see different sources.
    """

    counted_before: int = 0
    host_index: int = 0
    is_respawned_on_resume = True

    def run(self, rank: Rank, result: TaskResult) -> None:
        if _have_mounts_changed(rank, result, self.place):
            return
        following = self.host_index + 1
        if following < len(rank.first_ranks):
            result.spawn_task(self._replace(host_index=following), owner=rank.first_ranks[following])
        else:
            result.spawn_task(DeleteExtraItems(self.place, self.counted_before), SCAN_COST, expands=True)


class DeleteExtraItems(DirectoryTask, code=84, doing="deleting from", is_note=False):
    """Task that deletes the items that the target directory of ``place`` has and the source directory lacks. It spawns
    a task of the same kind for each sub-directory that both sides have.

    The inode number of the source directory (``source_id``) is unknown: whatever directory exists at this path in the
    source is accepted. In the phase COUNT, which precedes the phase that deletes, items are counted and not deleted.

    ``counted_before`` is the number of items that an earlier run of the job has counted as to be deleted and not
    deleted. The task first subtracts it from the counter, since these items are counted again.
    """

    counted_before: int = 0
    is_respawned_on_resume = True

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """List the directory on both sides. Spawn a task that deletes the extra names of the target, and tasks that
        compare the sub-directories that both sides have.
        """
        result.count(counts.TO_DELETE, -self.counted_before)
        if rank.shared_instance(DeletionState).is_stopped:
            return
        try:
            sides = _open_source_and_target(rank, result, self.place)
            if sides is None:
                return
            in_source = yield from list_directory(rank.backend, sides.source, detailed=True)
            in_target = yield from list_directory(rank.backend, sides.target, detailed=True, on_source=False)
            if not (in_source.name_count or self.place.path or rank.copy_options.delete_all):
                raise Problem("readdir", 0, on_source=True, text=EMPTY_SOURCE_TEXT)
            has_extra, is_changed = False, _may_lack_metadata(rank, sides)
            if in_source.may_have_more_batches or in_target.may_have_more_batches:
                make_task = partial(DeleteExtraNames, sides.place)
                yield from spawn_tasks_for_names(rank, result, in_target, make_task, needs_all=True)
            else:
                kinds = dict(
                    zip(unpack_names(in_source.names, in_source.name_count), in_source.listed.kinds, strict=True)
                )
                has_extra, below = _spawn_deletions(rank, result, sides, in_target.listed, kinds)
                yield from _compare_subdirectories(rank, result, sides, below)
        except Problem as problem:
            _report_uncompared_directory(rank, result, self.place, problem)
            return
        if is_changed or (has_extra and not is_only_counting(rank)):
            spawn_finish_dir_task(rank, result, sides.place, result.phase)


class DeleteExtraNames(DirectoryTask, code=85, doing="deleting from", is_note=False):
    """Task that deletes those of the ``names`` of a large target directory that its source lacks. The other names of
    the directory have their own tasks.

    ``names`` are packed; ``kinds`` are their types and ``inodes`` their inode numbers (8 bytes each), all from the
    listing of the target.
    """

    names: bytes
    kinds: bytes
    inodes: bytes
    is_respawned_on_resume = True

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Stat the names in the source. Spawn a task that deletes those that the source lacks, and tasks that compare
        the sub-directories that both sides have.
        """
        if rank.shared_instance(DeletionState).is_stopped:
            return
        try:
            source, target = rank.open_source_directory(self.place), rank.open_target_directory(self.place)
            batch = StatNamesBatch(source, self.names, MODE_COLUMN, on_source=True)
            stated = yield from rank.execute_batch(batch)
            names, verdicts = unpack_names(self.names), stated.verdicts
            for row, code in enumerate(verdicts.codes):
                if code != OutcomeCode.DONE and verdicts.errnos[row] != errno.ENOENT:
                    raise verdicts.problem(row)
        except Problem as problem:
            _report_uncompared_directory(rank, result, self.place, problem)
            return
        modes = stated.rows.mode
        source_kinds = {
            names[row]: _type_letter_of_mode(modes[row]) for row in verdicts.rows_with_code(OutcomeCode.DONE)
        }
        listed = ListNamesResult(verdicts, self.names, len(names), self.kinds, unpack_numbers(self.inodes))
        sides = _OpenSourceAndTarget(self.place, source, target)
        has_extra, below = _spawn_deletions(rank, result, sides, listed, source_kinds)
        yield from _compare_subdirectories(rank, result, sides, below)
        if has_extra and not is_only_counting(rank):
            spawn_finish_dir_task_once(rank, result, self.place, result.phase)


class _OpenSourceAndTarget(NamedTuple):
    """A directory of the source and the target: open descriptors of both (``source`` and ``target``), and its
    ``place``, which contains the inode numbers of both.
    """

    place: Place
    source: int
    target: int


def _may_lack_metadata(rank: Rank, sides: _OpenSourceAndTarget) -> bool:
    """Return True if an earlier run may have deleted items of the target directory without recording the task that
    sets the metadata of the directory afterwards: then this run finds nothing to delete in it.
    """
    return rank.job.run > 1 and rank.is_changed_since_job_start(status_of_open_item(sides.target))


def _report_uncompared_directory(rank: Rank, result: TaskResult, place: Place, problem: Problem) -> None:
    """Count the directory ``place`` as failed, since its target could not be compared with its source. If the error
    occurred in the source, stop the deletion on all ranks.
    """
    RemovalCounts(rank, result).report_failed_removal(place, b"", problem)
    if problem.on_source:
        rank.shared_instance(DeletionState).stop(result)


def _have_mounts_changed(rank: Rank, result: TaskResult, top: Place) -> bool:
    """Return True if file systems were mounted or unmounted in a source tree since the start of the job. ``top`` is the
    top directory of the tree. Each directory where that has happened counts as failed.

    The directories are opened anew, because cached descriptors would still lead to the old file systems. Mounts that
    filters exclude are not examined. With ``--one-file-system``, mounts that were added are not examined either.
    """
    source, selected = rank.sources[top.root], rank.shared_instance(JobFilter)
    paths, has_others = {*source.expected_mounts.expected_mount_paths}, False
    try:
        paths.update(() if rank.options.one_file_system else source.expected_mounts.mounted_paths())
    except Problem as problem:
        _report_uncompared_directory(rank, result, top, problem)
        return True
    for path in sorted(paths):
        if not (selected.has_filters and selected.excludes_path_or_ancestor(path + b"/")):
            differs = _changed_mount_problem(source, path)
            if differs is not None:
                has_others = True
                if len(rank.first_ranks) > 1:
                    differs.strerror = f"on {os.uname().nodename}: {differs.strerror}"
                _report_uncompared_directory(rank, result, top._replace(path=path), differs)
    return has_others


def _changed_mount_problem(source: DirectoriesBelowRoot, path: bytes) -> Problem | None:
    """Return a ``Problem`` if another file system is at ``path`` in the source than when the job began. Return None if
    it is the same one, or if the directory cannot be opened and was no mount point when the job began.
    """
    source.discard_directory(path)
    try:
        source.expected_mounts.check_mount_is_not_new(source.open(path))
    except Problem as problem:
        is_file = problem.errno == errno.ENOTDIR
        if problem.errno == errno.ESTALE or (path in source.expected_mounts and not is_file):
            return problem
    return None


def _open_source_and_target(rank: Rank, result: TaskResult, place: Place) -> _OpenSourceAndTarget | None:
    """Open the source and the target directory of ``place``, so that they can be compared. Return None if nothing in
    the target is to be deleted. Raise ``Problem`` if the two cannot be compared.

    If the source cannot be opened, or is another directory, ``Problem`` is raised even if the reason is a mount that
    was removed or added meanwhile: it is unknown then which items of the target are extra.
    """
    try:
        known_place = _place_with_identities(rank, place)
        rank.sources[place.root].expected_mounts.check_mount_is_not_new(rank.open_source_directory(known_place))
        target = rank.open_target_directory(known_place)
    except Problem as problem:
        is_missing = rank.options.dry_run and problem.errno == errno.ENOENT  # a dry run does not create it
        is_lost = problem.on_source and problem.errno == errno.ENOENT  # its names cannot be compared
        if is_lost or not (place.path or is_missing) or problem.errno not in _NO_DIRECTORY_ERRNOS:
            raise
        return None  # there is no such target directory any more, or there never was
    if not is_on_root_mount(rank, known_place, target):
        if not place.path:
            raise Problem("open", 0, text=MOUNTED_HERE_TEXT)
        close_cached_directory(rank, known_place)
        result.warn_about_item(place, b"", MOUNTED_HERE_TEXT)
        return None
    is_left_out = known_place.source_id.mount_code != rank.sources[place.root].identity_of_directory(b"").mount_code
    is_new = rank.job.began and birth_time(target) > rank.job.began
    # With --one-file-system the contents of mount points were not copied, so they are not compared either.
    if is_new or (is_left_out and rank.options.one_file_system):
        return None
    return _OpenSourceAndTarget(known_place, rank.open_source_directory(known_place), target)


def _place_with_identities(rank: Rank, place: Place) -> Place:
    """Return ``place`` with the inode numbers of its source and target directory. Where ``place`` lacks them, those of
    the directories that exist now are used. Raise ``Problem`` if a directory cannot be opened.
    """
    targets, path, target_id = rank.targets[place.root], rank.path_below_target(place.root, place.path), place.target_id
    if target_id == NO_DIRECTORY_IDENTITY:
        target_id = targets.identity_of_directory(path)
    elif place.path and not target_id.mark:  # it was listed: stat(2) may show another inode number
        target_id = targets.identity_of_listed_directory(
            path, target_id.inode, target_id.mount_code, accepts_mounts=True
        )
    return place._replace(source_id=rank.sources[place.root].identity_of_directory(place.path), target_id=target_id)


def _type_letter_of_mode(mode: int) -> int:
    """Return the type of an item with this ``st_mode`` as a letter: d (directory), l (symbolic link), or f (everything
    else, special files included).
    """
    return ord("d") if stat.S_ISDIR(mode) else ord("l") if stat.S_ISLNK(mode) else ord("f")


def _known_type_letter(directory: int, name: bytes, kind: int) -> int:
    """Return the type letter of an item; ``kind`` is the one in the listing. If the listing does not state the type
    (``?``), stat the item; raise ``Problem`` if that fails.
    """
    present = item_status_or_none(directory, name) if kind == ord("?") else None
    return kind if present is None else _type_letter_of_mode(present.st_mode)


def _must_be_deleted_for_source(rank: Rank, selected: JobFilter, path: bytes, kind: int) -> bool:
    """Return True if a directory of the target must be deleted because the source has an item of another type at the
    same ``path``, which cannot be copied before. ``kind`` is the type letter of the item in the source.

    Return False with ``--existing``, if existing items may stay. Return False, too, if filters may exclude the item in
    the source from the copy.
    """
    is_other = kind not in (b"dl" if rank.copy_options.dereference else b"d")
    select = selected.select
    chooses = (
        select.has_age_limit or select.has_size_limit or selected.excludes_path(path)
    )  # then filters may exclude the item from the copy
    return is_other and not rank.copy_options.keeps_existing and not chooses


class _ExtraAndCommonRows(NamedTuple):
    """Result of a comparison of a target directory with its source, as row numbers in the listing of the target:
    ``to_delete`` are extra items, ``to_compare`` are directories that both sides have.
    """

    to_delete: list[int]
    to_compare: list[int]


def _extra_and_common_rows(
    rank: Rank, sides: _OpenSourceAndTarget, names: list[bytes], kinds: bytes, source_kinds: Mapping[bytes, int]
) -> _ExtraAndCommonRows:
    """Find out which items of the target directory are to be deleted, and which are directories to compare with the
    source; return both as row numbers. Raise ``Problem`` if an item cannot be examined.

    Args:
        names, kinds: names and type letters of the items in the target directory.
        source_kinds: type letter of each name of the source directory.
    """
    extra: list[int] = []
    below: list[int] = []
    selected = rank.shared_instance(JobFilter)
    folded = cache(lambda: frozenset(map(casefolded_name, list_names_in_directory(sides.source))))
    for row, name in enumerate(names):
        if name not in source_kinds:
            if not _is_spelling_of_source_name(sides, name, folded):
                extra.append(row)
        elif _known_type_letter(sides.target, name, kinds[row]) == ord("d"):
            path = os.path.join(sides.place.path, name)
            if _must_be_deleted_for_source(
                rank, selected, path, _known_type_letter(sides.source, name, source_kinds[name])
            ):
                if _known_type_letter(sides.target, name, _UNKNOWN) != _DIRECTORY:
                    continue  # the directory lists a wrong type
                if not (
                    rank.options.dry_run and is_directory_empty(sides.target, name)
                ):  # a real run would have replaced this empty directory when it copied the item
                    extra.append(row)
            elif not selected.has_filters or selected.selects_directory(path):
                below.append(row)
    return _ExtraAndCommonRows(extra, below)


def _spawn_deletions(
    rank: Rank,
    result: TaskResult,
    sides: _OpenSourceAndTarget,
    listed: ListNamesResult,
    source_kinds: Mapping[bytes, int],
) -> tuple[bool, Siblings]:
    """Spawn tasks that delete the extra names of a target directory. Return True if any name is to be deleted, and the
    sub-directories that both sides have, with their inode numbers in the target.

    A name is extra if the source lacks it, or if it is a directory and the source has an item of another type with that
    name.

    Args:
        sides: the open source and target directory.
        listed: listing of the target directory.
        source_kinds: type letter of each name of the source directory.
    """
    place, names = sides.place, unpack_names(listed.names, len(listed.names))
    try:
        extra, below = _extra_and_common_rows(rank, sides, names, listed.kinds, source_kinds)
    except Problem as problem:
        _report_uncompared_directory(rank, result, place, problem)
        return False, Siblings(place, ())
    common = Siblings(place, names, listed.inodes).selected(below)
    if not extra:
        return False, common
    directory = place._replace(source_id=place.target_id, target_id=NO_DIRECTORY_IDENTITY)
    packed, kinds = pack_names(names[row] for row in extra), bytes(listed.kinds[row] for row in extra)
    inodes = b"".join(listed.inodes[row : row + 1].tobytes() for row in extra)
    result.spawn_task(
        RemoveNamedItems(directory, NO_WAITER, packed, kinds, inodes), len(extra) * CALL_COST, expands=True
    )
    return True, common


def _may_compare_subtrees(rank: Rank, place: Place) -> bool:
    """Return True if the backend may compare the names in and below the directories ``place`` of source and target.
    That is so if no link is followed, and no file system is mounted there or below. Of the filters only the patterns
    matter, which select directories to enter.
    """
    source, target = rank.sources[place.root], rank.targets[place.root]
    return not rank.copy_options.dereference and may_enter_subtrees(
        rank, (source, place.path), (target, rank.path_below_target(place.root, place.path)), limits_apply_to_rows=False
    )


def _compare_subdirectories(rank: Rank, result: TaskResult, sides: _OpenSourceAndTarget, below: Siblings) -> TaskSteps:
    """Compare sub-directories that source and target have, with everything below them, by one call of the backend, and
    spawn tasks that delete what only the target has. Spawn tasks for the sub-directories that the backend has not
    entered.

    Args:
        sides: the directory that contains them.
        below: the sub-directories, with their inode numbers in the target.
    """
    place = sides.place
    if below.names and _may_compare_subtrees(rank, place):
        batch = CompareTreesBatch(
            *walk_rows(rank, sides.target, rank.target_device(place), below),
            sides.source,
            column_of_zeros("Q", len(below.names)),
            rank.source_device(place) or 0,
            0,
            are_items=True,
            compares_names=True,
            created_since=rank.job.began or FAR_FUTURE_TIME,
            changed_since=rank.job.began - CLOCK_GRACE if rank.job.run > 1 else FAR_FUTURE_TIME,
        )
        compared = yield from rank.execute_batch(batch)
        for group in compared.remaining:
            _delete_remaining_items(rank, result, place, group)
        deferred, not_begun = remaining_rows(compared)
        spawn_tasks_for_siblings(rank, result, below.selected(not_begun), _task_for_names)
        below = below.selected(deferred)
    _spawn_directory_tasks(result, below)


def _task_for_names(found: Siblings) -> DeleteExtraNames:
    """Return a task that examines directories that source and target have."""
    place, names, inodes = found.packed()
    return DeleteExtraNames(place, names, found.letters, inodes)


def _spawn_directory_tasks(result: TaskResult, below: Siblings) -> None:
    """Spawn a task for each of the sub-directories ``below``, given with their inode numbers in the target."""
    for name, inode in zip(below.names, below.inodes, strict=True):
        place = _target_subdirectory(below.parent, name, inode)
        result.spawn_task(DeleteExtraItems(place), SCAN_COST, expands=True)


def _target_subdirectory(parent: Place, path: bytes, inode: int) -> Place:
    """Return the directory with this ``path`` relative to ``parent``, and this ``inode`` number in the target."""
    target_id = ItemIdentity(parent.target_id.mount_code, inode)
    return Place(parent.root, os.path.join(parent.path, path), NO_DIRECTORY_IDENTITY, target_id, False, False)


def _delete_remaining_items(rank: Rank, result: TaskResult, parent: Place, group: RemainingItems) -> None:
    """Spawn tasks that delete those items of a directory that only the target has, as the backend has found, and tasks
    for the sub-directories that it has not entered. ``parent`` contains the rows of the batch.
    """
    place = _target_subdirectory(parent, group.directory, group.directory_inode)
    try:
        sides = _open_source_and_target(rank, result, place)
    except Problem as problem:
        _report_uncompared_directory(rank, result, place, problem)
        return
    if sides is None:
        return
    found = Siblings(sides.place, group.names, group.inodes, kinds=group.kinds)
    not_entered, examined = found.divided_by_type()
    spawn_tasks_for_siblings(rank, result, not_entered, _task_for_names)
    names, kinds = examined.names, examined.kinds
    source_kinds = {name: _UNKNOWN for name, kind in zip(names, kinds, strict=True) if kind == _UNKNOWN}
    types, inodes = kinds.replace(b"?", b"d").lower(), array("Q", examined.inodes)
    listed = ListNamesResult(BatchOutcomeColumns(1), pack_names(names), len(names), types, inodes)
    has_extra, below = _spawn_deletions(rank, result, sides, listed, source_kinds)
    _spawn_directory_tasks(result, below)
    if has_extra and not is_only_counting(rank):
        spawn_finish_dir_task(rank, result, sides.place, result.phase)


def _is_spelling_of_source_name(
    sides: _OpenSourceAndTarget, name: bytes, folded: Callable[[], Container[bytes]]
) -> bool:
    """Return True if the target file system treats ``name`` as another spelling of a name that the source has. Raise
    ``Problem`` if the item cannot be examined.

    Args:
        folded: returns the case-folded names of the source directory.
    """
    present = item_status_or_none(sides.target, name)
    return present is not None and has_other_spelling(sides.target, name, present) and casefolded_name(name) in folded()
