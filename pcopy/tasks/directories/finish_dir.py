"""FinishDir, SealDir and SealDirs set the metadata of target directories once their contents are complete; FailDir
counts directories as failed.

Directories can be finished in any order, because setting the mode and times of a child does not change its parent. The
exception are directories whose final mode denies their owner the search permission: they are finished last, the deepest
first (phase SEAL).

Creating an item in a finished directory changes the directory's times, so the directory is then finished again. A
resumed job also checks there that items which earlier runs copied still exist (``lost_items``).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress

from pcopy.engine.task import TaskId
from pcopy.fsio.attributes import Applied, Attributes, Handle, apply_attributes, drop_other_xattrs, read_attributes
from pcopy.fsio.directories import count_entries, list_names
from pcopy.fsio.nodes import with_handle
from pcopy.fsio.preserve import CAP_DAC_OVERRIDE, capable
from pcopy.fsio.problem import Plain, Problem
from pcopy.fsio.source import status_of
from pcopy.signature.items import DIRECTORY
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import Action
from pcopy.tasks.base.kind import Again, Kind, Left, OfPlace, Steps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank, RankSet
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.selected import Selected
from pcopy.tasks.base.spreading import depth_of, owner_of
from pcopy.tasks.base.values import NOWHERE, Place
from pcopy.tasks.directories.access import let_us_into, open_up
from pcopy.tasks.files.existing import look, mends


class FinishDir(OfPlace, code=3, doing="finishing", is_note=False):
    """Sets the metadata of one target directory after its contents are complete.

    Fields:

    - ``attributes``: the source's attributes when it was scanned; None means that they are read when the task runs.
    - ``counted``: True if the directory counts as copied when this task ends. It is False once the directory has
      failed.
    - ``entries``: number of names in the source directory, or -1 if the target need not be checked for additional
      items.
    - ``again``: the directory has been finished before. Together with ``counted`` it has also failed since then.
    - ``was``: the target's mtime (ns) before the job wrote into it again; None if its mode had to be changed for that.
    - ``action``: the ``Action`` that is reported to the user for this directory.
    """

    attributes: Attributes | None
    counted: bool
    entries: int
    again: bool = False
    was: int | None = None
    action: int = 0

    def run(self, rank: Rank, result: Result) -> Steps:
        lost = None
        if rank.job.run > 1:
            from pcopy.tasks.directories.lost_items import lost_since, warn_of_strays

            lost = yield from lost_since(rank, self.place)
            yield from warn_of_strays(rank, result, self.place)
        _finish(self, rank, result, lost)

    def leftovers(self, *, first: bool) -> Iterator[Left]:
        """Yield this directory, where earlier runs may have left temporary files, unless the job had only one run so
        far (``first``).

        Temporary files of earlier runs stay until the directory is finished. Those of the first run are named by its
        other tasks.
        """
        if not first:
            yield from super().leftovers(first=first)


class SealDir(Kind, code=4, doing="finishing", is_note=True):
    """A note for rank 0: a directory that must be finished last, because its final mode denies its owner the search
    permission.
    """

    finish: FinishDir

    def about(self) -> tuple[Place, bytes]:
        return self.finish.about()

    def run(self, rank: Rank, result: Result) -> None:
        """Record the directory for ``SealDirs``. The note stays pending until ``SealDirs`` has
        finished the directory.
        """
        sealed = rank.own(Sealed)
        result.hold()
        if not sealed:
            result.spawn(SealDirs(), phase=max(Phase.SEAL, result.phase), owner=rank.number)
        sealed.append((result.id, self.finish))

    def leftovers(self, *, first: bool) -> Iterator[Left]:
        return self.finish.leftovers(first=first)


class SealDirs(Again, code=5, doing="finishing directories"):
    """Finishes all directories that ``SealDir`` notes have recorded, the deepest first."""

    def run(self, rank: Rank, result: Result) -> Steps:
        """Finish the recorded directories, the deepest first, and complete their notes."""
        sealed = rank.own(Sealed)
        result.settle(task_id for task_id, _ in sealed)
        finishes = [finish for _, finish in sealed]
        deepest_first = sorted(finishes, key=lambda finish: depth_of(finish.place.path), reverse=True)
        # An earlier run may have sealed some directories, and stopped before that was recorded. Their modes are
        # changed from the top down, so that the deepest ones can be reached.
        if rank.job.run > 1:
            for finish in reversed(deepest_first):
                with suppress(Problem):  # ``FinishDir.run`` meets it again and reports it
                    let_us_into(rank, finish.place)
        for finish in deepest_first:
            yield from finish.run(rank, result)
            yield None
        sealed.clear()


class Sealed(list[tuple[TaskId, FinishDir]]):
    """The directories that this rank must seal, each with the id of the ``SealDir`` note that recorded it."""

    def __init__(self, rank: Rank) -> None:
        super().__init__()


class FailDir(OfPlace, code=6, doing="finishing", is_note=True):
    """A note for the owner of a directory: the directory has failed with ``problem``.

    ``retry`` is the task with which a resumed job tries it again.

    A directory may fail more than once but counts as failed once: on the first note its owner moves it from the copied
    items to the failed ones. Therefore the directory must have been counted as copied before the note arrives, or the
    note must run in a later phase; otherwise a counter would fall below zero.
    """

    problem: Plain
    retry: Kind | None

    def run(self, rank: Rank, result: Result) -> None:
        """Count the directory as failed, unless it counts as failed already. Report the problem in either case."""
        problem = Problem.from_plain(self.problem)
        failed = rank.own(FailedDirectories)
        if self.place.directory in failed:
            result.report(rank.shown(self.place, b"", on_source=problem.on_source), problem)
            return
        failed.add(self.place.directory)
        result.count(counts.DIRECTORIES, -1, self.place)
        if self.retry is None:
            result.fail(self.place, b"", problem, retry=self)
        else:
            result.fail(self.place, b"", problem, retry=self.retry, retry_in=Phase.FINISH)

    def home(self, ranks: int) -> int:
        return owner_of(self.place.path, ranks)

    def try_again(self, rank: Rank, result: Result, phase: int) -> None:
        """Count the directory as copied, and spawn the note, which moves it to the failed ones again."""
        result.count(counts.DIRECTORIES, 1, self.place)
        result.spawn(self, phase=phase, expands=phase == 0)


class FailedDirectories(RankSet[tuple[int, bytes]]):
    """Root number and path of the directories that this rank owns and has counted as failed."""


def directory_failed(
    result: Result, place: Place, problem: Problem, retry: Kind | None = None, *, phase: int | None = None
) -> None:
    """Report that the directory ``place`` failed with ``problem``.

    Args:
        retry: the task that a resumed job runs for the directory. Without one it fails again in the resumed job.
        phase: the phase in which the note to the owner runs; the current one by default.
    """
    result.spawn(FailDir(place, problem.plain, retry), phase=phase)


def _finish(task: FinishDir, rank: Rank, result: Result, lost: Problem | None) -> None:
    """Set the metadata of one directory, count it, and report it. Report and count a ``Problem`` instead of raising it.

    Args:
        lost: the problem found by ``lost_since``, if items of earlier runs are missing.
    """
    place = task.place
    try:
        attributes = task.attributes or _attributes_now(rank, place)
        target = rank.open_target(place)
        lost = _remove_leftovers(rank, target) or lost
        existing = None if place.fresh else status_of(target)
        has_extra = _holds_more(task, rank, target)  # before its times are set: listing changes the access time
        applied = _dress(rank, target, attributes, existing)
        if lost is not None:
            raise lost
        if not task.again:  # else notices were reported, and counted, when it was first finished
            result.applied(place, b"", applied)
    except Problem as problem:
        if task.counted:
            result.count(counts.DIRECTORIES, 1, place)
            is_unread = task.attributes is not None and task.attributes.unread
            directory_failed(result, place, problem, task._replace(attributes=None) if is_unread else task)
        elif task.again and problem.on_source and task.was is not None and result.phase < Phase.SEAL:
            result.spawn(task, phase=Phase.SEAL)  # the first ``FinishDir`` of this directory has run by then
        elif task.again and problem.on_source and _is_as_it_was(task, rank):
            pass  # the job wrote nothing into it since it was finished, so its source does not matter any more
        elif task.again:
            phase = max(Phase.SEAL, result.phase)  # the directory is counted as copied by then
            directory_failed(result, place, problem, task._replace(counted=True), phase=phase)
        else:  # the directory has failed before and counts as failed once
            result.report(rank.shown(place, b"", on_source=False), problem)
        return
    if has_extra:
        result.count(counts.EXTRA, 1, place)
    if task.counted:
        result.count(counts.DIRECTORIES, 1, place)
        result.items.did(Action(task.action), place, b"", DIRECTORY)
        if rank.options.verify and result.phase < Phase.REPAIR and not task.again:  # verified once
            result.digested(place, b"", rank.hashing.directory, counts.DIRECTORIES)


def _dress(rank: Rank, target: int, attributes: Attributes, existing: os.stat_result | None) -> Applied:
    """Set the metadata of the open directory ``target``; raise ``Problem``.

    Args:
        existing: status of a directory that existed before the job; None for one that the job created.
    """
    return with_handle(target, lambda handle: _dressed(rank, handle, attributes, existing))


def _dressed(rank: Rank, target: Handle, attributes: Attributes, existing: os.stat_result | None) -> Applied:
    """Set the metadata of a directory by its ``Handle``; see ``_dress``."""
    preserve = rank.options.preserve
    if existing is not None and mends(rank):
        from pcopy.fsio.mending import lacking, mend

        lacks = lacking(target, existing, attributes, preserve, rank.options.modify_window)
        return mend(target, existing, attributes, preserve, lacks)
    # Since an earlier run created it, another process may have set ACLs.
    if existing is not None or rank.job.run > 1:
        drop_other_xattrs(target, attributes, preserve)
    return apply_attributes(target, attributes, preserve, rank.options.umask, kept=existing)


def _remove_leftovers(rank: Rank, target: int) -> Problem | None:
    """Remove temporary files that earlier runs of this job left in ``target``; raise ``Problem``.

    The directory may have its final mode already, without write permission: a killed run had finished it, and a power
    loss undid the removal but not the change of mode. On EACCES its mode is therefore opened up and the removal
    repeated.

    Return a problem to report about a file that is not removed because it may be the user's, else None.
    """
    try:
        return rank.remove_leftovers(target)
    except Problem as problem:
        if problem.errno != errno.EACCES:
            raise
        open_up(target, status_of(target))
        return rank.remove_leftovers(target)


def _attributes_now(rank: Rank, place: Place) -> Attributes:
    """Return the current attributes of the source directory; raise ``Problem``."""
    source = rank.open_source(place)
    return read_attributes(source, status_of(source, on_source=True), rank.options.preserve)


def _is_as_it_was(task: FinishDir, rank: Rank) -> bool:
    """Return True if the target directory still has the mtime that it had before the job was to write into it
    (``was``).
    """
    try:
        return status_of(rank.open_target(task.place)).st_mtime_ns == task.was
    except Problem:
        return False


def _holds_more(task: FinishDir, rank: Rank, target: int) -> bool:
    """Return True if the target directory holds items that the source does not have.

    Sockets, and files in the source that belong to the job, are not part of the dataset. They are distinguished only if
    the target has more names in total. For DST itself the answer is False if several sources are copied into it, since
    no task knows the names of all of them. The answer is also False if a directory cannot be read.
    """
    place = task.place
    shared = len(rank.job.roots) > 1 and not rank.below_target(place.root, place.path)
    if task.entries < 0 or shared:
        return False
    own_names = [
        os.path.basename(path) for root, path in rank.job.own if (root, os.path.dirname(path)) == place.directory
    ]
    try:
        if rank.own(Selected).anything:
            return _holds_unselected(rank, place, target)
        if count_entries(target, sockets=True) <= task.entries - len(own_names):
            return False
        source = rank.open_source(place)
        expected = count_entries(source, sockets=False) - sum(look(source, name) is not None for name in own_names)
        return count_entries(target, sockets=False) > expected
    except (OSError, Problem):  # no read permission on one side: this check is only for a warning
        return False


def _holds_unselected(rank: Rank, place: Place, target: int) -> bool:
    """Return True if the target has an item, other than a socket, that the filters do not select in the source; raise
    ``Problem``.
    """
    source, selected = rank.open_source(place), rank.own(Selected)
    for name in list_names(target):
        present = look(target, name)
        if present is not None and not stat.S_ISSOCK(present.st_mode):
            status = look(source, name)
            if status is None or not selected.takes_found(place, name, status):
                return True
    return False


def finish_again(rank: Rank, result: Result, place: Place, phase: int) -> None:
    """Spawn a task that finishes the directory ``place`` again after ``phase``, because this phase may write into it.

    Does this once for each directory and finishing phase, however often it is called.
    """
    key, done = (*place.directory, int(_finished_in(phase))), rank.own(FinishedAgain)
    if key not in done and finish_once_more(rank, result, place, phase):
        done.add(key)


def finish_once_more(rank: Rank, result: Result, place: Place, phase: int) -> bool:
    """Spawn a task that finishes the directory ``place`` again, regardless of earlier calls; return True if it was
    spawned.

    Return False if the directory is not copied, or cannot be opened: it has been reported as failed already. The
    directory's permissions are opened up, so that the job can write into it.
    """
    if place.target_id == NOWHERE or rank.job.roots[place.root].item:
        return False
    try:
        present = status_of(rank.open_target(place))
    except Problem:
        return False
    keeps_mode = present.st_mode & 0o700 == 0o700 or capable(CAP_DAC_OVERRIDE)
    with suppress(Problem):  # tasks that then fail to create items in it report why
        let_us_into(rank, place)
    was = present.st_mtime_ns if keeps_mode else None
    result.spawn(FinishDir(place, None, False, -1, again=True, was=was), phase=_finished_in(phase))
    return True


def _finished_in(phase: int) -> int:
    """Return the phase in which directories that ``phase`` writes into are finished."""
    return int(Phase.REPAIR_FINISH if phase >= Phase.VERIFY else max(Phase.FINISH, phase))


class FinishedAgain(RankSet[tuple[int, bytes, int]]):
    """Root number and path of each directory that this rank has spawned a further ``FinishDir`` for, with the phase."""


def is_there(rank: Rank, place: Place) -> bool:
    """Return True if the target directory of ``place`` can be opened and is the expected one."""
    try:
        rank.open_target(place)
    except Problem:
        return False
    return True
