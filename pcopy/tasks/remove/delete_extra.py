"""ExamineMounts, DeleteExtra, DeleteAmong: delete what a target directory has and its source lacks (``--delete``).

Both sides are listed again after everything has been copied. Names to delete become ``RemoveNames`` tasks, as in prm.

Rules:

- A name is deleted only if the source directory is open, is the one that was found, and does not have that name. A
  directory that cannot be read on either side has failed, and nothing in it is deleted.
- Nothing is deleted if anything has failed in the job when the phase begins (``CopyDirector``), or if mounts in its
  source have been removed or added by then, on any host. If a directory cannot be compared later, its rank deletes
  nothing more, nor do the others as soon as they are notified (``pcopy.tasks.remove.stopping``).
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
"""Errors of opening a target directory that mean that it no longer exists, so that nothing in it is to be deleted."""


class ExamineMounts(OfPlace, code=169, doing="examining the mounts below", is_note=False):
    """Compares the mounts below the source ``place`` with those at the start of the job, on one host after another;
    then spawns ``DeleteExtra``.

    Fields:

    - ``number``: index of the host, as in ``Rank.leaders``.
    - ``counted``: passed on to ``DeleteExtra``.

    If the mounts of one host differ, nothing is deleted on any host, because the hosts see different sources.
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
    """Deletes what the target of ``place`` has and its source lacks, there and in all directories below that both sides
    have.

    The ``source_id`` is ``NOWHERE``: whatever directory exists now is the source. In the phase COUNT, items to delete
    are only counted. ``counted`` is the number of items that an earlier run has counted and not deleted; it is
    subtracted from the counter first.
    """

    counted: int = 0
    is_found_anew = True

    def run(self, rank: Rank, result: Result) -> Steps:
        """List both sides of the directory; spawn tasks that delete extra names and compare common sub-directories."""
        result.count(counts.TO_DELETE, -self.counted)
        if rank.own(Deletion).is_stopped:
            return
        try:
            sides = _enter(rank, result, self.place)
            if sides is None:
                return
            in_source = yield from begin_list(rank.kernel, sides.source, detailed=True)
            in_target = yield from begin_list(rank.kernel, sides.target, detailed=True, on_source=False)
            if not (in_source.number or self.place.path or rank.options.delete_all):
                raise Problem("readdir", 0, on_source=True, text=EMPTY)
            has_extra = False
            if in_source.is_large or in_target.is_large:
                yield from self._spread(rank, result, in_target, sides.place)
            else:
                kinds = dict(zip(unpack_names(in_source.names, in_source.number), in_source.listed.kinds, strict=True))
                has_extra = _sort(rank, result, sides, in_target.listed, kinds)
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
    """As ``DeleteExtra``, for some ``names`` of a large target directory; ``kinds`` and ``inodes`` as in ``Listed``."""

    names: bytes
    kinds: bytes
    inodes: bytes
    is_found_anew = True

    def run(self, rank: Rank, result: Result) -> Steps:
        """Stat the names in the source; spawn tasks that delete those it lacks and compare common sub-directories."""
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
        source_kinds = {names[row]: _kind_of(modes[row]) for row in verdicts.rows(Code.DONE)}
        listed = Listed(verdicts, self.names, len(names), self.kinds, unpack_numbers(self.inodes))
        if _sort(rank, result, _Sides(self.place, source, target), listed, source_kinds) and not only_looks(rank):
            finish_again(rank, result, self.place, result.phase)


class _Sides(NamedTuple):
    """A directory that is open on both sides (two descriptors); ``place`` has both identities."""

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
    """Open both sides of a directory; return None if nothing in it is to be deleted. Raise ``Problem`` if they cannot
    be compared.

    If the source cannot be opened, or is another directory, ``Problem`` is raised even if a mount was removed or added
    meanwhile: what the target has below it may or may not be extra.
    """
    try:
        known_place = _identified(rank, place)
        rank.sources[place.root].mounted.check_mount(rank.open_source(known_place))
        target = rank.open_target(known_place)
    except Problem as problem:
        is_missing = rank.options.dry_run and problem.errno == errno.ENOENT  # a dry run has not created it
        is_lost = problem.on_source and problem.errno == errno.ENOENT  # its names were never compared
        if is_lost or not (place.path or is_missing) or problem.errno not in _NO_DIRECTORY:
            raise
        return None  # the target has no directory of this name any more, or never had one
    if not is_within(rank, known_place, target):
        if not place.path:
            raise Problem("open", 0, text=ELSEWHERE)
        forget(rank, known_place)
        result.warn(place, b"", ELSEWHERE)
        return None
    is_left_out = known_place.source_id.mount != rank.sources[place.root].identity(b"").mount
    is_new = rank.job.began and birth_of(target) > rank.job.began
    # With --one-file-system the contents of mount points are not copied.
    if is_new or (is_left_out and rank.options.one_file_system):
        return None
    return _Sides(known_place, rank.open_source(known_place), target)


def _identified(rank: Rank, place: Place) -> Place:
    """Return ``place`` with the identities of the directories that exist now, as far as they are not known; raise
    ``Problem``.
    """
    targets, path, target_id = rank.targets[place.root], rank.below_target(place.root, place.path), place.target_id
    if target_id == NOWHERE:
        target_id = targets.identity(path)
    elif place.path and not target_id.mark:  # its inode number comes from a listing, which may differ from stat(2)
        target_id = targets.listed_identity(path, target_id.inode, target_id.mount, mounts=True)
    return place._replace(source_id=rank.sources[place.root].identity(place.path), target_id=target_id)


def _kind_of(mode: int) -> int:
    """Return the kind of an item with this mode, as a directory listing gives it; special files count as ``f``."""
    return ord("d") if stat.S_ISDIR(mode) else ord("l") if stat.S_ISLNK(mode) else ord("f")  # or a special file


def _resolved(directory: int, name: bytes, kind: int) -> int:
    """Return the kind of a listed item, statting it if the directory does not give its kind
    (``?``); raise ``Problem``.
    """
    present = look(directory, name) if kind == ord("?") else None
    return kind if present is None else _kind_of(present.st_mode)


def _gives_way(rank: Rank, selected: Selected, path: bytes, kind: int) -> bool:
    """Return True if a target directory is deleted because an item of the source, of this ``kind``, has the same
    ``path``.

    Copying that item waits for the deletion (``Result.fail``). If ``--existing`` may keep existing items, no name is
    deleted that the source has.
    """
    is_other = kind not in (b"dl" if rank.options.dereference else b"d")
    select = selected.select
    chooses = select.by_age or select.by_size or selected.excludes(path)  # then the item may not be copied at all
    return is_other and not rank.options.keeps and not chooses


class _Sorted(NamedTuple):
    """Row numbers of a listing of the target: ``going`` are to be deleted, ``below`` are directories to compare."""

    going: list[int]
    below: list[int]


def _sorted(rank: Rank, sides: _Sides, names: list[bytes], kinds: bytes, source_kinds: Mapping[bytes, int]) -> _Sorted:
    """Return which rows are to be deleted, and which are directories to compare; raise ``Problem``.

    Args: names, kinds: the listing of the target.
        source_kinds: kind of each name of the source, as a listing gives it.
    """
    extra: list[int] = []
    below: list[int] = []
    selected = rank.own(Selected)
    folded = cache(lambda: frozenset(map(fold, list_names(sides.source))))
    for row, name in enumerate(names):
        if name not in source_kinds:
            if not _is_ours(sides, name, folded):
                extra.append(row)
        elif _resolved(sides.target, name, kinds[row]) == ord("d"):
            path = os.path.join(sides.place.path, name)
            if _gives_way(rank, selected, path, _resolved(sides.source, name, source_kinds[name])):
                if not (rank.options.dry_run and is_empty(sides.target, name)):  # a copy would have replaced it
                    extra.append(row)
            elif not selected.anything or selected.takes_directory(path):
                below.append(row)
    return _Sorted(extra, below)


def _sort(rank: Rank, result: Result, sides: _Sides, listed: Listed, source_kinds: Mapping[bytes, int]) -> bool:
    """Spawn tasks that delete the extra names of the target and compare common directories; return True if any name is
    deleted.

    Names are extra if the source does not have them, or if a directory is in the way of another item.

    Args:
        listed: listing of the target.
        source_kinds: kind of each name of the source, as a listing gives it.
    """
    place, names = sides.place, unpack_names(listed.names, len(listed.names))
    try:
        extra, below = _sorted(rank, sides, names, listed.kinds, source_kinds)
    except Problem as problem:
        _not_compared(rank, result, place, problem)
        return False
    for row in below:
        target_id = Identity(place.target_id.mount, listed.inodes[row])
        path = os.path.join(place.path, names[row])
        result.spawn(DeleteExtra(Place(place.root, path, NOWHERE, target_id, False, False)), SCAN_COST, expands=True)
    if not extra:
        return False
    directory = place._replace(source_id=place.target_id, target_id=NOWHERE)
    packed, kinds = pack_names(names[row] for row in extra), bytes(listed.kinds[row] for row in extra)
    inodes = b"".join(listed.inodes[row : row + 1].tobytes() for row in extra)
    result.spawn(RemoveNames(directory, NOBODY, packed, kinds, inodes), len(extra) * CALL_COST, expands=True)
    return True


def _is_ours(sides: _Sides, name: bytes, folded: Callable[[], Container[bytes]]) -> bool:
    """Return True if the target file system treats ``name`` as another name, which the source has. Raise ``Problem``.

    Args:
        folded: returns the case-folded names of the source.
    """
    present = look(sides.target, name)
    return present is not None and answers_to_another(sides.target, name, present) and fold(name) in folded()
