"""ExamineMounts, DeleteExtra, DeleteAmong: what a target directory has and its source lacks is deleted (``--delete``).

Both sides are listed anew, when all that is to be copied is there. What is deleted becomes ``RemoveNames``, as in prm.

Rules:
- A name is deleted only if the source directory, which is open and is the one that was found, was asked for it and has
  none. What can't be read on either side has failed, and of that directory nothing is deleted.
- Nothing is deleted in a job of which anything has failed when the phase begins (``CopyDirector``), or in whose source
  mounts have been removed or added by then, on any host. If a directory cannot be compared later, its rank deletes
  nothing more, nor do the others as soon as they are notified (``pcopy.tasks.remove.stopping``).
- A directory of the target is entered only if it is the one that was listed, and never what is mounted there.
- A name that the target takes for another one of the source (it folds case) stays.
- What the job itself has made since it began holds nothing that the source lacks: nobody looks into it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Container, Mapping
from functools import cache

from pcopy.fsio.directories import Directories, is_empty, list_names
from pcopy.fsio.identity import Identity, birth_of
from pcopy.fsio.kernel.batches import Listed, Stat
from pcopy.fsio.kernel.columns import MODE, Code, pack_names, unpack_names
from pcopy.fsio.problem import Problem
from pcopy.fsio.spelling import answers_to_another, fold
from pcopy.named import NamedTuple
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import OfPlace, Steps
from pcopy.tasks.base.rank import CALL_COST, SCAN_COST, Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.selected import Selected
from pcopy.tasks.base.values import NOWHERE, Place, unpack_numbers
from pcopy.tasks.directories.finish_dir import finish_again, finish_once_more
from pcopy.tasks.files.existing import look
from pcopy.tasks.remove.removal_counts import RemovalCounts, only_looks
from pcopy.tasks.remove.remove_tree import ELSEWHERE, NOBODY, RemoveNames, forget, is_within
from pcopy.tasks.remove.stopping import Deletion
from pcopy.walk.listing import NAMES_AT_ONCE, Listing, NamesSpool, begin_list, spread, unpack_listed

EMPTY = "nothing was deleted: the source is empty (--delete-all deletes all the same)"

_NO_DIRECTORY = (errno.ENOTDIR, errno.ELOOP, errno.ENOENT)
"""Why a name in the target cannot be opened if no directory has it any more: then nothing in it is to be deleted."""


class ExamineMounts(OfPlace, code=169, doing="examining the mounts below", is_note=False):
    """Examines the mounts below the source ``place``, on one host after another; then ``DeleteExtra`` begins.

    ``number`` counts the hosts, as ``Rank.leaders`` does. If the mounts of one are not those with which the job began,
    nothing is deleted on any: its source and that of the other hosts differ. ``counted`` is for ``DeleteExtra``.
    """

    counted: int = 0
    number: int = 0
    is_found_anew = True

    def run(self, rank: Rank, result: Result) -> None:
        if _has_other_mounts(rank, result, self.place):
            return
        following = self.number + 1
        if following < len(rank.leaders):
            result.spawn(self._replace(number=following), owner=rank.leaders[following])
        else:
            result.spawn(DeleteExtra(self.place, self.counted), SCAN_COST, expands=True)


class DeleteExtra(OfPlace, code=84, doing="deleting from", is_note=False):
    """Deletes what the target of ``place`` has and its source lacks, there and in all directories below that both have.

    The ``source_id`` is NOWHERE: whatever is there now is the source. In COUNT what would go is counted; ``counted`` is
    what counts no more of what an earlier run has counted: all but what was deleted.
    """

    counted: int = 0
    is_found_anew = True

    def run(self, rank: Rank, result: Result) -> Steps:
        result.count(counts.TO_DELETE, -self.counted)
        if rank.own(Deletion).is_stopped:
            return
        try:
            sides = _enter(rank, result, self.place)
            if sides is None:
                return
            ours = yield from begin_list(rank.kernel, sides.source, detailed=True)
            there = yield from begin_list(rank.kernel, sides.target, detailed=True, on_source=False)
            if not (ours.number or self.place.path or rank.options.delete_all):
                raise Problem("readdir", 0, on_source=True, text=EMPTY)
            has_extra = False
            if ours.is_large or there.is_large:
                yield from self._spread(rank, result, there, sides.place)
            else:
                kinds = dict(zip(unpack_names(ours.names, ours.number), ours.listed.kinds, strict=True))
                has_extra = _sort(rank, result, sides, there.listed, kinds)
        except Problem as problem:
            _not_compared(rank, result, self.place, problem)
            return
        if has_extra and not only_looks(rank):
            finish_once_more(rank, result, sides.place, result.phase)

    def _spread(self, rank: Rank, result: Result, listing: Listing, place: Place) -> Steps:
        spool = NamesSpool(rank.open_spool)
        yield from spread(listing, spool)
        tasks = (DeleteAmong(place, *each) for each in map(unpack_listed, spool))
        result.spawn_each(tasks, NAMES_AT_ONCE * CALL_COST, expands=True)


class DeleteAmong(OfPlace, code=85, doing="deleting from", is_note=False):
    """As ``DeleteExtra``, of these ``names`` of a large directory, with ``kinds`` and ``inodes`` as in ``Listed``."""

    names: bytes
    kinds: bytes
    inodes: bytes
    is_found_anew = True

    def run(self, rank: Rank, result: Result) -> Steps:
        if rank.own(Deletion).is_stopped:
            return
        try:
            source, target = rank.open_source(self.place), rank.open_target(self.place)
            batch = Stat(source, self.names, MODE, on_source=True)
            stated = yield from rank.done(batch)
            names, verdicts = unpack_names(self.names), stated.verdicts
            for row, code in enumerate(verdicts.codes):
                if code != Code.DONE and verdicts.errnos[row] != errno.ENOENT:
                    raise verdicts.problem(row)
        except Problem as problem:
            _not_compared(rank, result, self.place, problem)
            return
        modes = stated.rows.mode
        ours = {names[row]: _kind_of(modes[row]) for row in verdicts.rows(Code.DONE)}
        listed = Listed(verdicts, self.names, len(names), self.kinds, unpack_numbers(self.inodes))
        if _sort(rank, result, _Sides(self.place, source, target), listed, ours) and not only_looks(rank):
            finish_again(rank, result, self.place, result.phase)


class _Sides(NamedTuple):
    """A directory that is open on both sides; ``place`` has both identities."""

    place: Place
    source: int
    target: int


def _not_compared(rank: Rank, result: Result, place: Place, problem: Problem) -> None:
    """Count the directory ``place`` as failed; if the source is the reason, nothing more is deleted."""
    RemovalCounts(rank, result).failed(place, b"", problem)
    if problem.on_source:
        rank.own(Deletion).stop(result)


def _has_other_mounts(rank: Rank, result: Result, top: Place) -> bool:
    """Return True if the source ``top`` does not have the mounts that it had when the job began; each that differs
    counts as failed.

    Directories that are open already do not show that. Mounts that filters exclude are not examined; nor, with
    ``--one-file-system``, those that were added.
    """
    source, selected = rank.sources[top.root], rank.own(Selected)
    paths, has_others = {*source.mounted.paths}, False
    try:
        paths.update(() if rank.options.one_file_system else source.mounted.points())
    except Problem as problem:
        _not_compared(rank, result, top, problem)
        return True
    for path in sorted(paths):
        if not (selected.anything and selected.excludes_below(path + b"/")):
            differs = _mount_problem(source, path)
            if differs is not None:
                has_others = True
                if len(rank.leaders) > 1:
                    differs.strerror = f"on {os.uname().nodename}: {differs.strerror}"
                _not_compared(rank, result, top._replace(path=path), differs)
    return has_others


def _mount_problem(source: Directories, path: bytes) -> Problem | None:
    """Return why the directory ``path`` of the source is not what was there when the job began; None if it is, or if
    nothing had to be mounted there and it cannot be opened."""
    source.forget(path)
    try:
        source.mounted.check_mount(source.open(path))
    except Problem as problem:
        is_file = problem.errno == errno.ENOTDIR
        if problem.errno == errno.ESTALE or (path in source.mounted and not is_file):
            return problem
    return None


def _enter(rank: Rank, result: Result, place: Place) -> _Sides | None:
    """Return None if nothing in it is to be deleted; raise ``Problem`` if the two sides cannot be compared.

    A source that cannot be opened, or is another one, raises it also where a mount was removed or added meanwhile: what
    the target has below it may be extra, or not.
    """
    try:
        here = _identified(rank, place)
        rank.sources[place.root].mounted.check_mount(rank.open_source(here))
        target = rank.open_target(here)
    except Problem as problem:
        is_missing = rank.options.dry_run and problem.errno == errno.ENOENT  # then nothing has made it
        is_lost = problem.on_source and problem.errno == errno.ENOENT  # its names were never compared
        if is_lost or not (place.path or is_missing) or problem.errno not in _NO_DIRECTORY:
            raise
        return None  # it is no directory any more, or was none
    if not is_within(rank, here, target):
        if not place.path:
            raise Problem("open", 0, text=ELSEWHERE)
        forget(rank, here)
        result.warn(place, b"", ELSEWHERE)
        return None
    is_left_out = here.source_id.mount != rank.sources[place.root].identity(b"").mount
    is_new = rank.job.began and birth_of(target) > rank.job.began
    if is_new or (is_left_out and rank.options.one_file_system):  # of a mount point nothing is copied but itself
        return None
    return _Sides(here, rank.open_source(here), target)


def _identified(rank: Rank, place: Place) -> Place:
    """With the identities of what is there, as far as they are not known; raises ``Problem``."""
    targets, path, target_id = rank.targets[place.root], rank.below_target(place.root, place.path), place.target_id
    if target_id == NOWHERE:
        target_id = targets.identity(path)
    elif place.path and not target_id.mark:  # its inode number is that of a listing
        target_id = targets.listed_identity(path, target_id.inode, target_id.mount, mounts=True)
    return place._replace(source_id=rank.sources[place.root].identity(place.path), target_id=target_id)


def _kind_of(mode: int) -> int:
    """As a listing tells it."""
    return ord("d") if stat.S_ISDIR(mode) else ord("l") if stat.S_ISLNK(mode) else ord("f")  # or a special file


def _resolved(directory: int, name: bytes, kind: int) -> int:
    """The kind of a listed item, also where the directory does not tell it; raises ``Problem``."""
    present = look(directory, name) if kind == ord("?") else None
    return kind if present is None else _kind_of(present.st_mode)


def _gives_way(rank: Rank, selected: Selected, path: bytes, kind: int) -> bool:
    """Return True if a directory is deleted because an item of the source, of this ``kind``, has the same ``path``.

    The item waits for that (``Result.fail``), unless ``--existing`` says that what exists may have to be kept: then no
    name is deleted that the source has.
    """
    is_other = kind not in (b"dl" if rank.options.dereference else b"d")
    select = selected.select
    chooses = select.by_age or select.by_size or selected.excludes(path)  # the item may be none that is copied
    return is_other and not rank.options.keeps and not chooses


class _Sorted(NamedTuple):
    """Rows of what is in the target: what is to go, and the directories that are looked into."""

    going: list[int]
    below: list[int]


def _sorted(rank: Rank, sides: _Sides, names: list[bytes], kinds: bytes, ours: Mapping[bytes, int]) -> _Sorted:
    """Raises ``Problem``."""
    going: list[int] = []
    below: list[int] = []
    selected = rank.own(Selected)
    folded = cache(lambda: frozenset(map(fold, list_names(sides.source))))
    for row, name in enumerate(names):
        if name not in ours:
            if not _is_ours(sides, name, folded):
                going.append(row)
        elif _resolved(sides.target, name, kinds[row]) == ord("d"):
            path = os.path.join(sides.place.path, name)
            if _gives_way(rank, selected, path, _resolved(sides.source, name, ours[name])):
                if not (rank.options.dry_run and is_empty(sides.target, name)):  # which a copy would have replaced
                    going.append(row)
            elif not selected.anything or selected.takes_directory(path):
                below.append(row)
    return _Sorted(going, below)


def _sort(rank: Rank, result: Result, sides: _Sides, there: Listed, ours: Mapping[bytes, int]) -> bool:
    """Of what is ``there`` in the target, names that are not ``ours`` go; directories that are, are looked into. Does
    anything go?

    So do directories in the way of other items. ``ours`` has the kind of each, as a listing tells it.
    """
    place, names = sides.place, unpack_names(there.names, len(there.names))
    try:
        extra, below = _sorted(rank, sides, names, there.kinds, ours)
    except Problem as problem:
        _not_compared(rank, result, place, problem)
        return False
    for row in below:
        target_id = Identity(place.target_id.mount, there.inodes[row])
        path = os.path.join(place.path, names[row])
        result.spawn(DeleteExtra(Place(place.root, path, NOWHERE, target_id, False, False)), SCAN_COST, expands=True)
    if not extra:
        return False
    at = place._replace(source_id=place.target_id, target_id=NOWHERE)
    packed, kinds = pack_names(names[row] for row in extra), bytes(there.kinds[row] for row in extra)
    inodes = b"".join(there.inodes[row : row + 1].tobytes() for row in extra)
    result.spawn(RemoveNames(at, NOBODY, packed, kinds, inodes), len(extra) * CALL_COST, expands=True)
    return True


def _is_ours(sides: _Sides, name: bytes, folded: Callable[[], Container[bytes]]) -> bool:
    """Does the target take it for another name, which the source has? ``folded`` are those of the source. Raises
    ``Problem``."""
    present = look(sides.target, name)
    return present is not None and answers_to_another(sides.target, name, present) and fold(name) in folded()
