"""FinishDir, SealDir and SealDirs give directories their metadata when everything in them is there; FailDir: some fail.

The order among directories doesn't matter (a child's mode and times don't touch its parent's), but for those that
their owner can't enter any more: they come last, the deepest first.

What is put into a finished directory anew changes its times: it is to be finished once more. What earlier runs have
copied is looked at once more then (``lost_items``).
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
    """Gives a directory its metadata; ``counted`` if it counts as copied then (it doesn't once it has failed).

    ``attributes`` are the source's when it was scanned; None stands for those that it has when it is finished.
    ``entries`` is the number of names in the source, -1 where nobody asks whether the target holds more. ``again``: it
    has been finished before; with ``counted`` it has failed since. ``was`` is the target's mtime before anything was
    put into it anew, None where its mode had to be changed for that. ``action``: what users are told of it.
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
        """Those of earlier runs are there until the directory is finished; a first run has left none then."""
        if not first:
            yield from super().leftovers(first=first)


class SealDir(Kind, code=4, doing="finishing", is_note=True):
    """A directory that comes last, because its owner can't enter it afterwards."""

    finish: FinishDir

    def about(self) -> tuple[Place, bytes]:
        return self.finish.about()

    def run(self, rank: Rank, result: Result) -> None:
        sealed = rank.own(Sealed)
        result.hold()
        if not sealed:
            result.spawn(SealDirs(), phase=max(Phase.SEAL, result.phase), owner=rank.number)
        sealed.append((result.id, self.finish))

    def leftovers(self, *, first: bool) -> Iterator[Left]:
        return self.finish.leftovers(first=first)


class SealDirs(Again, code=5, doing="finishing directories"):
    """Finishes what was told by ``SealDir``, deepest first."""

    def run(self, rank: Rank, result: Result) -> Steps:
        sealed = rank.own(Sealed)
        result.settle(task_id for task_id, _ in sealed)
        finishes = [finish for _, finish in sealed]
        deepest_first = sorted(finishes, key=lambda finish: depth_of(finish.place.path), reverse=True)
        if rank.job.run > 1:  # an earlier run may have sealed some, and was stopped before that was on record
            for finish in reversed(deepest_first):
                with suppress(Problem):  # which will be met again, and told
                    let_us_into(rank, finish.place)
        for finish in deepest_first:
            yield from finish.run(rank, result)
            yield None
        sealed.clear()


class Sealed(list[tuple[TaskId, FinishDir]]):
    """The directories that this rank has been told to seal, and by which tasks."""

    def __init__(self, rank: Rank) -> None:
        super().__init__()


class FailDir(OfPlace, code=6, doing="finishing", is_note=True):
    """Tells the rank that a directory belongs to what it has met; ``retry`` is for a job that is resumed.

    A directory may fail more than once, and counts as failed once: the first time its owner moves it from the copied
    items to the failed ones. So before the owner is told, the directory must have been counted as copied, or the note
    runs in a later phase: no count falls below zero.
    """

    problem: Plain
    retry: Kind | None

    def run(self, rank: Rank, result: Result) -> None:
        """Counts the directory as failed, unless it does already; tells of the problem in any case."""
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
        """It takes the directory from the copied ones, where it counts until then."""
        result.count(counts.DIRECTORIES, 1, self.place)
        result.spawn(self, phase=phase, expands=phase == 0)


class FailedDirectories(RankSet[tuple[int, bytes]]):
    """Root and path of those that belong to this rank and count as failed."""


def directory_failed(
    result: Result, place: Place, problem: Problem, retry: Kind | None = None, *, phase: int | None = None
) -> None:
    """The directory has met ``problem``; a job that is resumed tries ``retry``. Without one it fails again then."""
    result.spawn(FailDir(place, problem.plain, retry), phase=phase)


def _finish(task: FinishDir, rank: Rank, result: Result, lost: Problem | None) -> None:
    place = task.place
    try:
        attributes = task.attributes or _attributes_now(rank, place)
        target = rank.open_target(place)
        lost = _remove_leftovers(rank, target) or lost
        kept = None if place.fresh else status_of(target)
        more = _holds_more(task, rank, target)  # before its times are set: looking changes them
        applied = _dress(rank, target, attributes, kept)
        if lost is not None:
            raise lost
        if not task.again:  # else it was told, and counted, when it was finished first
            result.applied(place, b"", applied)
    except Problem as problem:
        if task.counted:
            result.count(counts.DIRECTORIES, 1, place)
            is_unread = task.attributes is not None and task.attributes.unread
            directory_failed(result, place, problem, task._replace(attributes=None) if is_unread else task)
        elif task.again and problem.on_source and task.was is not None and result.phase < Phase.SEAL:
            result.spawn(task, phase=Phase.SEAL)  # by then it has been finished first
        elif task.again and problem.on_source and _is_as_it_was(task, rank):
            pass  # nothing was put into it, and whatever its source is now, it has been finished
        elif task.again:
            phase = max(Phase.SEAL, result.phase)  # by then it is counted as copied
            directory_failed(result, place, problem, task._replace(counted=True), phase=phase)
        else:  # the item has failed before, and counts once
            result.report(rank.shown(place, b"", on_source=False), problem)
        return
    if more:
        result.count(counts.EXTRA, 1, place)
    if task.counted:
        result.count(counts.DIRECTORIES, 1, place)
        result.items.did(Action(task.action), place, b"", DIRECTORY)
        if rank.options.verify and result.phase < Phase.REPAIR and not task.again:  # once is enough
            result.digested(place, b"", rank.hashing.directory, counts.DIRECTORIES)


def _dress(rank: Rank, target: int, attributes: Attributes, kept: os.stat_result | None) -> Applied:
    """Gives the open directory its metadata; raises ``Problem``."""
    return with_handle(target, lambda handle: _dressed(rank, handle, attributes, kept))


def _dressed(rank: Rank, target: Handle, attributes: Attributes, kept: os.stat_result | None) -> Applied:
    preserve = rank.options.preserve
    if kept is not None and mends(rank):
        from pcopy.fsio.mending import lacking, mend

        lacks = lacking(target, kept, attributes, preserve, rank.options.modify_window)
        return mend(target, kept, attributes, preserve, lacks)
    if kept is not None or rank.job.run > 1:  # since it was made, anybody may have given it ACLs
        drop_other_xattrs(target, attributes, preserve)
    return apply_attributes(target, attributes, preserve, rank.options.umask, kept=kept)


def _remove_leftovers(rank: Rank, target: int) -> Problem | None:
    """What earlier runs left goes, from a directory that may have its mode by now.

    A run that was killed has finished it then, and a loss of power has taken the removal, but not the mode.
    """
    try:
        return rank.remove_leftovers(target)
    except Problem as problem:
        if problem.errno != errno.EACCES:
            raise
        open_up(target, status_of(target))
        return rank.remove_leftovers(target)


def _attributes_now(rank: Rank, place: Place) -> Attributes:
    source = rank.open_source(place)
    return read_attributes(source, status_of(source, on_source=True), rank.options.preserve)


def _is_as_it_was(task: FinishDir, rank: Rank) -> bool:
    try:
        return status_of(rank.open_target(task.place)).st_mtime_ns == task.was
    except Problem:
        return False


def _holds_more(task: FinishDir, rank: Rank, target: int) -> bool:
    """Are there more entries than the source has? Of DST itself no task knows, if several sources go into it.

    Sockets, and what is the job's own in the source, are no part of a dataset. They are told apart only where there are
    more names in all.
    """
    place = task.place
    shared = len(rank.job.roots) > 1 and not rank.below_target(place.root, place.path)
    if task.entries < 0 or shared:
        return False
    own = [os.path.basename(path) for root, path in rank.job.own if (root, os.path.dirname(path)) == place.directory]
    try:
        if rank.own(Selected).anything:
            return _holds_unselected(rank, place, target)
        if count_entries(target, sockets=True) <= task.entries - len(own):
            return False
        source = rank.open_source(place)
        expected = count_entries(source, sockets=False) - sum(look(source, name) is not None for name in own)
        return count_entries(target, sockets=False) > expected
    except (OSError, Problem):  # one may not be read
        return False


def _holds_unselected(rank: Rank, place: Place, target: int) -> bool:
    """Are there items in the target that are no sockets, and are not selected in the source?"""
    source, selected = rank.open_source(place), rank.own(Selected)
    for name in list_names(target):
        present = look(target, name)
        if present is not None and not stat.S_ISSOCK(present.st_mode):
            status = look(source, name)
            if status is None or not selected.takes_found(place, name, status):
                return True
    return False


def finish_again(rank: Rank, result: Result, place: Place, phase: int) -> None:
    """The directory ``place`` may be written in ``phase``, and gets its metadata again after it, once."""
    known, done = (*place.directory, int(_finished_in(phase))), rank.own(FinishedAgain)
    if known not in done and finish_once_more(rank, result, place, phase):
        done.add(known)


def finish_once_more(rank: Rank, result: Result, place: Place, phase: int) -> bool:
    """The same, whether or not another task has said so. Is it to be finished? One that is gone has failed already."""
    if place.target_id == NOWHERE or rank.job.roots[place.root].item:
        return False
    try:
        present = status_of(rank.open_target(place))
    except Problem:
        return False
    stays = present.st_mode & 0o700 == 0o700 or capable(CAP_DAC_OVERRIDE)
    with suppress(Problem):  # what can't be put into it tells why
        let_us_into(rank, place)
    was = present.st_mtime_ns if stays else None
    result.spawn(FinishDir(place, None, False, -1, again=True, was=was), phase=_finished_in(phase))
    return True


def _finished_in(phase: int) -> int:
    return int(Phase.REPAIR_FINISH if phase >= Phase.VERIFY else max(Phase.FINISH, phase))


class FinishedAgain(RankSet[tuple[int, bytes, int]]):
    """Root and path of the directories that this rank has finished again, and the phase."""


def is_there(rank: Rank, place: Place) -> bool:
    try:
        rank.open_target(place)
    except Problem:
        return False
    return True
