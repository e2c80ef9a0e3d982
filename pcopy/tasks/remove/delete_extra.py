"""ExamineMounts, DeleteExtra, DeleteAmong: delete what a target directory has and its source lacks (``--delete``).

Both sides are listed again after everything has been copied. Names to delete become ``RemoveNames`` tasks, as in prm.

Rules:

- A name is deleted only if the source directory is open, is the one that was found, and does not have that name. A
  directory that cannot be read on either side has failed, and nothing in it is deleted.
- Nothing is deleted if anything has failed in the job when the phase begins (``CopyDirector``), or if mounts in its
  source have been removed or added by then, on any host. If a directory cannot be compared later, its rank deletes
  nothing more, nor do the others as soon as they are notified (``pcopy.tasks.remove.stop_deletion``).
- A directory of the target is entered only if it is the one that was listed. File systems mounted in the target are
  never entered.
- A name that the target file system treats as another name of the source (case folding) is not deleted.
- Directories that the job itself has created since it began are not examined: they contain nothing that the source
  lacks.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Container, Mapping
from functools import cache

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.batches import ListResult, StatNames
from pcopy.fsio.backend.columns import MODE, RowCode, pack_names, unpack_names
from pcopy.fsio.directories import RootDirectories, is_directory_empty, list_names
from pcopy.fsio.identity import Identity, birth_time
from pcopy.fsio.problem import Problem
from pcopy.fsio.spelling import folded_name, has_other_spelling
from pcopy.tasks.base import counts
from pcopy.tasks.base.job_filters import JobFilter
from pcopy.tasks.base.kind import DirectoryTask, Steps
from pcopy.tasks.base.rank import CALL_COST, SCAN_COST, Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import NO_DIRECTORY, Place, unpack_numbers
from pcopy.tasks.directories.finish_dir import spawn_finish, spawn_finish_once
from pcopy.tasks.files.existing import status_or_none
from pcopy.tasks.remove.removal_counts import RemovalCounts, is_only_counting
from pcopy.tasks.remove.remove_tree import MOUNTED_HERE_TEXT, NO_WAITER, RemoveNames, close_cached, is_on_root_mount
from pcopy.tasks.remove.stop_deletion import DeletionState
from pcopy.walk.listing import NAMES_PER_BATCH, DirectoryListing, NameQueue, list_directory, spool_names, unpack_listed

EMPTY_SOURCE_TEXT = "nothing was deleted: the source is empty (--delete-all deletes all the same)"

_NO_DIRECTORY_ERRNOS = (errno.ENOTDIR, errno.ELOOP, errno.ENOENT)
"""Errors of opening a target directory that mean that it no longer exists, so that nothing in it is to be deleted."""


class ExamineMounts(DirectoryTask, code=169, doing="examining the mounts below", is_note=False):
    """Compares the mounts below the source ``place`` with those at the start of the job, on one host after another;
    then spawns ``DeleteExtra``.

    Fields:

    - ``host_index``: index of the host, as in ``Rank.leaders``.
    - ``counted_before``: passed on to ``DeleteExtra``.

    If the mounts of one host differ, nothing is deleted on any host, because the hosts see different sources.
    """

    counted_before: int = 0
    host_index: int = 0
    is_respawned_on_resume = True

    def run(self, rank: Rank, result: TaskResult) -> None:
        if _have_mounts_changed(rank, result, self.place):
            return
        following = self.host_index + 1
        if following < len(rank.leaders):
            result.spawn(self._replace(host_index=following), owner=rank.leaders[following])
        else:
            result.spawn(DeleteExtra(self.place, self.counted_before), SCAN_COST, expands=True)


class DeleteExtra(DirectoryTask, code=84, doing="deleting from", is_note=False):
    """Deletes what the target of ``place`` has and its source lacks, there and in all directories below that both sides
    have.

    The ``source_id`` is ``NOWHERE``: whatever directory exists now is the source. In the phase COUNT, items to delete
    are only counted. ``counted_before`` is the number of items that an earlier run has counted and not deleted; it is
    subtracted from the counter first.
    """

    counted_before: int = 0
    is_respawned_on_resume = True

    def run(self, rank: Rank, result: TaskResult) -> Steps:
        """List both sides of the directory; spawn tasks that delete extra names and compare common sub-directories."""
        result.count(counts.TO_DELETE, -self.counted_before)
        if rank.instance(DeletionState).is_stopped:
            return
        try:
            sides = _open_sides(rank, result, self.place)
            if sides is None:
                return
            in_source = yield from list_directory(rank.backend, sides.source, detailed=True)
            in_target = yield from list_directory(rank.backend, sides.target, detailed=True, on_source=False)
            if not (in_source.number or self.place.path or rank.options.delete_all):
                raise Problem("readdir", 0, on_source=True, text=EMPTY_SOURCE_TEXT)
            has_extra = False
            if in_source.may_have_more or in_target.may_have_more:
                yield from self._spawn_names(rank, result, in_target, sides.place)
            else:
                kinds = dict(zip(unpack_names(in_source.names, in_source.number), in_source.listed.kinds, strict=True))
                has_extra = _spawn_deletions(rank, result, sides, in_target.listed, kinds)
        except Problem as problem:
            _report_not_compared(rank, result, self.place, problem)
            return
        if has_extra and not is_only_counting(rank):
            spawn_finish(rank, result, sides.place, result.phase)

    def _spawn_names(self, rank: Rank, result: TaskResult, listing: DirectoryListing, place: Place) -> Steps:
        spool = NameQueue(rank.open_spool)
        yield from spool_names(listing, spool)
        tasks = (DeleteExtraNames(place, *each) for each in map(unpack_listed, spool))
        result.spawn_each(tasks, NAMES_PER_BATCH * CALL_COST, expands=True)


class DeleteExtraNames(DirectoryTask, code=85, doing="deleting from", is_note=False):
    """As ``DeleteExtra``, for some ``names`` of a large target directory; ``kinds`` and ``inodes`` as in ``Listed``."""

    names: bytes
    kinds: bytes
    inodes: bytes
    is_respawned_on_resume = True

    def run(self, rank: Rank, result: TaskResult) -> Steps:
        """Stat the names in the source; spawn tasks that delete those it lacks and compare common sub-directories."""
        if rank.instance(DeletionState).is_stopped:
            return
        try:
            source, target = rank.open_source(self.place), rank.open_target(self.place)
            batch = StatNames(source, self.names, MODE, on_source=True)
            stated = yield from rank.execute(batch)
            names, verdicts = unpack_names(self.names), stated.verdicts
            for row, code in enumerate(verdicts.codes):
                if code != RowCode.DONE and verdicts.errnos[row] != errno.ENOENT:
                    raise verdicts.problem(row)
        except Problem as problem:
            _report_not_compared(rank, result, self.place, problem)
            return
        modes = stated.rows.mode
        source_kinds = {names[row]: _listed_kind(modes[row]) for row in verdicts.rows_with_code(RowCode.DONE)}
        listed = ListResult(verdicts, self.names, len(names), self.kinds, unpack_numbers(self.inodes))
        if _spawn_deletions(
            rank, result, _Sides(self.place, source, target), listed, source_kinds
        ) and not is_only_counting(rank):
            spawn_finish_once(rank, result, self.place, result.phase)


class _Sides(NamedTuple):
    """A directory that is open on both sides (two descriptors); ``place`` has both identities."""

    place: Place
    source: int
    target: int


def _report_not_compared(rank: Rank, result: TaskResult, place: Place, problem: Problem) -> None:
    """Count the directory ``place`` as failed; if the source is the reason, nothing more is deleted."""
    RemovalCounts(rank, result).report_failed(place, b"", problem)
    if problem.on_source:
        rank.instance(DeletionState).stop(result)


def _have_mounts_changed(rank: Rank, result: TaskResult, top: Place) -> bool:
    """Return True if the source ``top`` does not have the mounts that it had when the job began; each that differs
    counts as failed.

    Directories that are open already do not show that. Mounts that filters exclude are not examined; nor, with
    ``--one-file-system``, those that were added.
    """
    source, selected = rank.sources[top.root], rank.instance(JobFilter)
    paths, has_others = {*source.expected_mounts.paths}, False
    try:
        paths.update(() if rank.options.one_file_system else source.expected_mounts.mounted_paths())
    except Problem as problem:
        _report_not_compared(rank, result, top, problem)
        return True
    for path in sorted(paths):
        if not (selected.has_filters and selected.excludes_below(path + b"/")):
            differs = _mount_problem(source, path)
            if differs is not None:
                has_others = True
                if len(rank.leaders) > 1:
                    differs.strerror = f"on {os.uname().nodename}: {differs.strerror}"
                _report_not_compared(rank, result, top._replace(path=path), differs)
    return has_others


def _mount_problem(source: RootDirectories, path: bytes) -> Problem | None:
    """Return why the directory ``path`` of the source is not what was there when the job began; None if it is, or if
    nothing had to be mounted there and it cannot be opened."""
    source.discard(path)
    try:
        source.expected_mounts.check_mount(source.open(path))
    except Problem as problem:
        is_file = problem.errno == errno.ENOTDIR
        if problem.errno == errno.ESTALE or (path in source.expected_mounts and not is_file):
            return problem
    return None


def _open_sides(rank: Rank, result: TaskResult, place: Place) -> _Sides | None:
    """Open both sides of a directory; return None if nothing in it is to be deleted. Raise ``Problem`` if they cannot
    be compared.

    If the source cannot be opened, or is another directory, ``Problem`` is raised even if a mount was removed or added
    meanwhile: what the target has below it may or may not be extra.
    """
    try:
        known_place = _with_identities(rank, place)
        rank.sources[place.root].expected_mounts.check_mount(rank.open_source(known_place))
        target = rank.open_target(known_place)
    except Problem as problem:
        is_missing = rank.options.dry_run and problem.errno == errno.ENOENT  # a dry run has not created it
        is_lost = problem.on_source and problem.errno == errno.ENOENT  # its names were never compared
        if is_lost or not (place.path or is_missing) or problem.errno not in _NO_DIRECTORY_ERRNOS:
            raise
        return None  # the target has no directory of this name any more, or never had one
    if not is_on_root_mount(rank, known_place, target):
        if not place.path:
            raise Problem("open", 0, text=MOUNTED_HERE_TEXT)
        close_cached(rank, known_place)
        result.warn(place, b"", MOUNTED_HERE_TEXT)
        return None
    is_left_out = known_place.source_id.mount_code != rank.sources[place.root].identity(b"").mount_code
    is_new = rank.job.began and birth_time(target) > rank.job.began
    # With --one-file-system the contents of mount points are not copied.
    if is_new or (is_left_out and rank.options.one_file_system):
        return None
    return _Sides(known_place, rank.open_source(known_place), target)


def _with_identities(rank: Rank, place: Place) -> Place:
    """Return ``place`` with the identities of the directories that exist now, as far as they are not known; raise
    ``Problem``.
    """
    targets, path, target_id = rank.targets[place.root], rank.path_below_target(place.root, place.path), place.target_id
    if target_id == NO_DIRECTORY:
        target_id = targets.identity(path)
    elif place.path and not target_id.mark:  # its inode number comes from a listing, which may differ from stat(2)
        target_id = targets.listed_identity(path, target_id.inode, target_id.mount_code, accepts_mounts=True)
    return place._replace(source_id=rank.sources[place.root].identity(place.path), target_id=target_id)


def _listed_kind(mode: int) -> int:
    """Return the kind of an item with this mode, as a directory listing gives it; special files count as ``f``."""
    return ord("d") if stat.S_ISDIR(mode) else ord("l") if stat.S_ISLNK(mode) else ord("f")  # or a special file


def _resolved_kind(directory: int, name: bytes, kind: int) -> int:
    """Return the kind of a listed item, statting it if the directory does not give its kind
    (``?``); raise ``Problem``.
    """
    present = status_or_none(directory, name) if kind == ord("?") else None
    return kind if present is None else _listed_kind(present.st_mode)


def _must_make_way(rank: Rank, selected: JobFilter, path: bytes, kind: int) -> bool:
    """Return True if a target directory is deleted because an item of the source, of this ``kind``, has the same
    ``path``.

    Copying that item waits for the deletion (``Result.fail``). If ``--existing`` may keep existing items, no name is
    deleted that the source has.
    """
    is_other = kind not in (b"dl" if rank.options.dereference else b"d")
    select = selected.select
    chooses = select.by_age or select.by_size or selected.excludes(path)  # then the item may not be copied at all
    return is_other and not rank.options.keeps_existing and not chooses


class _SortedRows(NamedTuple):
    """Row numbers of a listing of the target: ``to_delete`` are to be deleted, ``to_compare`` are directories to
    compare.
    """

    to_delete: list[int]
    to_compare: list[int]


def _sort_rows(
    rank: Rank, sides: _Sides, names: list[bytes], kinds: bytes, source_kinds: Mapping[bytes, int]
) -> _SortedRows:
    """Return which rows are to be deleted, and which are directories to compare; raise ``Problem``.

    Args: names, kinds: the listing of the target.
        source_kinds: kind of each name of the source, as a listing gives it.
    """
    extra: list[int] = []
    below: list[int] = []
    selected = rank.instance(JobFilter)
    folded = cache(lambda: frozenset(map(folded_name, list_names(sides.source))))
    for row, name in enumerate(names):
        if name not in source_kinds:
            if not _is_source_name(sides, name, folded):
                extra.append(row)
        elif _resolved_kind(sides.target, name, kinds[row]) == ord("d"):
            path = os.path.join(sides.place.path, name)
            if _must_make_way(rank, selected, path, _resolved_kind(sides.source, name, source_kinds[name])):
                if not (
                    rank.options.dry_run and is_directory_empty(sides.target, name)
                ):  # a copy would have replaced it
                    extra.append(row)
            elif not selected.has_filters or selected.selects_directory(path):
                below.append(row)
    return _SortedRows(extra, below)


def _spawn_deletions(
    rank: Rank, result: TaskResult, sides: _Sides, listed: ListResult, source_kinds: Mapping[bytes, int]
) -> bool:
    """Spawn tasks that delete the extra names of the target and compare common directories; return True if any name is
    deleted.

    Names are extra if the source does not have them, or if a directory is in the way of another item.

    Args:
        listed: listing of the target.
        source_kinds: kind of each name of the source, as a listing gives it.
    """
    place, names = sides.place, unpack_names(listed.names, len(listed.names))
    try:
        extra, below = _sort_rows(rank, sides, names, listed.kinds, source_kinds)
    except Problem as problem:
        _report_not_compared(rank, result, place, problem)
        return False
    for row in below:
        target_id = Identity(place.target_id.mount_code, listed.inodes[row])
        path = os.path.join(place.path, names[row])
        result.spawn(
            DeleteExtra(Place(place.root, path, NO_DIRECTORY, target_id, False, False)), SCAN_COST, expands=True
        )
    if not extra:
        return False
    directory = place._replace(source_id=place.target_id, target_id=NO_DIRECTORY)
    packed, kinds = pack_names(names[row] for row in extra), bytes(listed.kinds[row] for row in extra)
    inodes = b"".join(listed.inodes[row : row + 1].tobytes() for row in extra)
    result.spawn(RemoveNames(directory, NO_WAITER, packed, kinds, inodes), len(extra) * CALL_COST, expands=True)
    return True


def _is_source_name(sides: _Sides, name: bytes, folded: Callable[[], Container[bytes]]) -> bool:
    """Return True if the target file system treats ``name`` as another name, which the source has. Raise ``Problem``.

    Args:
        folded: returns the case-folded names of the source.
    """
    present = status_or_none(sides.target, name)
    return present is not None and has_other_spelling(sides.target, name, present) and folded_name(name) in folded()
