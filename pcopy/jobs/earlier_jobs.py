"""Unfinished jobs that have to do with a new one: mostly the same command was given before.

After an interruption DST is there, so that the same words mean a place in it. That is hardly meant, and is refused. But
a command that still means the same place begins anew, and when all is copied the older job is discarded: no nightly run
stops because of an older job. A file that a kill has cut short must not be kept as if it were whole: a new job that
would keep it is refused. A job that cannot be read may have any places, but for one of another version whose roots can
be read all the same. Rule: two directories are the same by their identity, never by their names; the same words
elsewhere are another job. No job is touched that somebody works on.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from pcopy.checkpoint.layout import is_distrusted
from pcopy.errors import Refused
from pcopy.fsio.close import held_open
from pcopy.jobs.directories import (
    Listed,
    StoredJob,
    is_in_state_directory,
    last_worked_on,
    state_directory,
    unfinished,
)
from pcopy.jobs.job_file import FAILED_ITEMS, NOT_ALL_WRITTEN, JobFile, JobRoot, name_of
from pcopy.jobs.lifecycle import resuming
from pcopy.jobs.lock import locks
from pcopy.jobs.paths import lying_in, resolve, source_of, target_of
from pcopy.jobs.roots import check_roots, is_there, look_at
from pcopy.named import NamedTuple
from pcopy.tasks.base.job import Options, Root
from pcopy.text import shown

_SELECTING = ("dereference", "one_file_system")
"""Options without which a copy of the same source has other items."""

KEEPING_UNREAD = {"newer": "-u (--existing newer)", "skip": "--existing skip"}
"""Policies that keep a file whatever is in it, so that one that is cut short would stay; and how users write them."""


class Earlier(NamedTuple):
    """What there is to say of older jobs, and those that are to go when the new one has ended well. ``doubted`` as in
    ``Job``."""

    told: tuple[str, ...] = ()
    superseded: tuple[Listed, ...] = ()
    doubted: int = 0


def earlier_jobs(roots: Sequence[Root], options: Options, *, alone: bool) -> Earlier:
    """The unfinished jobs that have to do with a new one of these ``roots``.

    ``alone``: it has no job directory of its own. Then one that would copy into what the same command has begun to copy
    to is refused. So is one that would keep what an older one has left unfinished. Raises ``Refused`` with the ways on.
    """
    try:
        found = unfinished(state_directory())
    except Refused:
        return Earlier()  # it will be said when this job is to be stored
    told, superseded = [], []
    for listed in found:
        if (file := listed.file) is None:
            if not listed.roots or _meet(listed.roots, roots):
                told.append(_unread(listed, options))
            continue
        if alone and len(roots) == len(file.roots) == 1 and _is_begun_elsewhere(file, roots[0], options):
            raise _refusal(listed, file, roots[0])
        if (
            options.existing in KEEPING_UNREAD
            and _may_have_cut_short(listed.path, file, roots)
            and not locks(listed.path)
        ):
            raise Refused(
                f"{_unfinished(listed)}, and {_would_keep(options)}: go on with it ({resuming(listed.path)}), "
                "or write --existing changed"
            )
        if alone and _copies_the_same(file, roots, options) and not locks(listed.path):
            superseded.append(listed)
        else:
            told += _overlapping(listed, file, roots)
    return Earlier((*_superseding(superseded), *told), tuple(superseded), _doubted(found, roots))


def _doubted(found: Sequence[Listed], roots: Sequence[Root]) -> int:
    """Return the time since which jobs that have not finished may have written to the destination what is not durable.

    In nanoseconds since 1970, by the destination's clock; 0 if there is no such job. Of a job that cannot be read that
    is the time at which its directory was made.
    """
    since = [
        _not_durable_since(listed)
        for listed in found
        if _meet(listed.file.roots if listed.file else listed.roots, roots) or not (listed.file or listed.roots)
        if not locks(listed.path)
    ]
    return min(filter(None, since), default=0)


def _not_durable_since(listed: Listed) -> int:
    """Return when the last durable cut of a job began, or the job itself; 0 if all is durable that it has written."""
    from pcopy.checkpoint.resume import last_cut_began  # most jobs find none before them

    file = listed.file
    if file is None:
        return _made(listed.path) or 1
    with suppress(OSError):
        if is_distrusted(listed.path):
            return file.t0
    if file.state in (FAILED_ITEMS, NOT_ALL_WRITTEN) and file.options.get("sync") and not file.totals.get("unsynced"):
        return 0  # its last phase has synced the destination
    try:
        return last_cut_began(listed.path) or file.stored or file.t0
    except (Refused, OSError):
        return file.stored or file.t0


def _made(path: bytes) -> int:
    """Return when a directory was made, in nanoseconds since 1970; 0 if its file system does not record that."""
    from pcopy import libc

    with suppress(OSError), held_open(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as directory:
        return libc.birth_of(directory, b"")
    return 0


def taken_over(job: StoredJob, roots: Sequence[Root], options: Options) -> Earlier:
    """The jobs that a resumed one of these ``roots`` takes with it, as it has told when it began.

    One on which somebody has worked since then is not among them.
    """
    found: Sequence[Listed] = ()
    if is_in_state_directory(job.path):
        with suppress(Refused):
            found = unfinished(state_directory())
    superseded = [
        listed
        for listed in found
        if listed.path != job.path
        and listed.file
        and last_worked_on(listed) < job.file.created
        and _copies_the_same(listed.file, roots, options)
        and not locks(listed.path)
    ]
    return Earlier(tuple(_superseding(superseded)), tuple(superseded))


def _unread(listed: Listed, options: Options) -> str:
    """The notice about a job that cannot be read, and may have this destination; raises as ``earlier_jobs`` does."""
    name = name_of(listed.path)
    if options.existing in KEEPING_UNREAD and not locks(listed.path):
        raise Refused(
            f"job {name} cannot be read. It may have this destination, and {_would_keep(options)}: "
            f"write --existing changed ({listed.trouble})"
        )
    return f"job {name} cannot be read, and may have this destination: {listed.trouble}"


def _meet(old: Sequence[JobRoot], new: Sequence[Root]) -> bool:
    """Return True if a root of each copies to the same place, or one into that of the other."""
    theirs, mine = {target_of(root) for root in old}, {target_of(root) for root in new}
    if any(lying_in(theirs, mine)) or any(lying_in(mine, theirs)):
        return True
    around = {target: _identity_of(target) for target in {root.target for root in old}}
    if not {(around[root.target], root.name) for root in old}.isdisjoint((root.target_id, root.name) for root in new):
        return True
    there = {*map(_identity_of, theirs)} - {None}
    return bool(there) and any(_identity_of(path) in there for path in mine)


def _identity_of(path: bytes) -> tuple[int, int] | None:
    """Return what ``path`` leads to; None if that cannot be looked at."""
    with suppress(OSError):
        return look_at(path).identity
    return None


def _would_keep(options: Options) -> str:
    return (
        f"what it was writing when it ended early may be cut short, which {KEEPING_UNREAD[options.existing]} would keep"
    )


def _superseding(found: Sequence[Listed]) -> list[str]:
    """One line, however many nights have failed; the newest job comes first."""
    if not found:
        return []
    older, they_are = len(found) - 1, "they are" if len(found) > 1 else "it is"
    also = f" (nor have {older} older ones)" if older > 1 else " (nor has an older one)" if older else ""
    return [
        f"{_unfinished(found[0])}{also} with this destination: {resuming(found[0].path)} would go on with it instead; "
        f"{they_are} discarded when this one ends with status 0"
    ]


def _unfinished(listed: Listed) -> str:
    return f"job {name_of(listed.path)} has not finished"


def _overlapping(listed: Listed, file: JobFile, roots: Sequence[Root]) -> list[str]:
    """The notices about jobs that copy into the destination of another one."""
    mine, theirs = [target_of(root) for root in roots], [target_of(root) for root in file.roots]
    state, goes_on = _unfinished(listed), f"{resuming(listed.path)} goes on with it"
    if locks(listed.path):
        state, goes_on = f"job {name_of(listed.path)} is still busy", "two jobs at once get into each other's way"
    else:
        try:
            check_roots(file)
        except Refused:
            gone = "what it copied from or to is gone, or another directory is there now"
            goes_on = f"{gone}; pcopy --discard {name_of(listed.path)} gives it up"
    if any(lying_in(mine, theirs)):
        return [f"{state} with this destination: {goes_on}"]
    if (inner := next(lying_in(theirs, mine), None)) is not None:
        return [f"{state} with {shown(inner)} in this destination: {goes_on}"]
    return []


def _is_begun_elsewhere(file: JobFile, new: Root, options: Options) -> bool:
    """Has the same command meant the directory itself then that it means a place in now?"""
    old = file.roots[0]
    if old.item or new.item or not old.name or not new.name:
        return False
    with suppress(OSError, Refused, KeyError):
        return (
            look_at(target_of(old)).identity == new.target_id
            and is_there(old)
            and _is_same_source(old, new)
            and _selects_the_same(file, options)
            and are_same(means_now(file), [new])
        )
    return False


def means_now(file: JobFile) -> tuple[Root, ...]:
    """What the command that began a job would copy from where to where if it were given now; raises ``Refused``."""
    asked = file.asked
    follow, stays = file.options["dereference"], file.options["one_file_system"]
    return resolve(asked["SRC"], asked["DST"], asked["--no-target-directory"], follow=follow, stays=stays)


def are_same(some: Sequence[Root], others: Sequence[Root]) -> bool:
    """Is the same copied to the same places, as it is called now?"""
    ends = [[(source_of(root), target_of(root)) for root in roots] for roots in (some, others)]
    return ends[0] == ends[1]


def _selects_the_same(file: JobFile, options: Options) -> bool:
    return all(file.options.get(name) == getattr(options, name) for name in _SELECTING)


def _copies_the_same(file: JobFile, roots: Sequence[Root], options: Options) -> bool:
    """Is all that the job copies copied by a new one, to the same place?"""
    return _selects_the_same(file, options) and all(any(_is_same(old, new) for new in roots) for old in file.roots)


def _may_have_cut_short(path: bytes, file: JobFile, roots: Sequence[Root]) -> bool:
    """Was a run of it ended in disorder while it may have been writing a new file of theirs under its final name?"""
    with suppress(OSError):
        file = file._replace(killed=file.killed or is_distrusted(path))
    if not file.may_have_cut_short:
        return False
    by_item: dict[bytes, list[Root]] = {}
    for root in roots:
        by_item.setdefault(root.item, []).append(root)
    return any(_is_same(old, new) for old in file.roots for new in by_item.get(old.item, ()))


def _is_same(old: JobRoot, new: Root) -> bool:
    """Is it the same item, copied to the same place? Not, if one of them can't be looked at."""
    with suppress(OSError):
        if old.item != new.item or not _is_same_source(old, new):
            return False
        around = look_at(old.target)
        is_same = (around.identity[1], around.place) == (old.target_id[1], old.target_place)
        if not is_same or not (old.item or is_there(old)):
            return False
        if (around.identity, old.name) == (new.target_id, new.name):
            return True
        return not old.item and look_at(target_of(old)).identity == look_at(target_of(new)).identity
    return False


def _is_same_source(old: JobRoot, new: Root) -> bool:
    """By the inode and the file system of the directory: device numbers change. Raises ``OSError``."""
    seen = look_at(new.source)
    return (seen.identity[1], seen.place) == (old.source_id[1], old.source_place)


def _refusal(listed: Listed, file: JobFile, new: Root) -> Refused:
    source, began, now = (shown(path) for path in (source_of(new), target_of(file.roots[0]), target_of(new)))
    name = name_of(listed.path)
    state, way = "has not finished copying", "go on with the job"
    if locks(listed.path):
        state, way = "is still copying", "wait for its end; if it is stopped, go on with it"
    return Refused(
        f"job {name} {state} {source} to {began}, and now that this is there the same command would copy to {now}: "
        f"{way} ({resuming(listed.path)}), or discard it (pcopy --discard {name})"
    )
