"""Unfinished jobs that concern a new job, mostly because the same command was given before.

Rules:
- After an interruption the directory DST exists, so the same command now means a directory inside DST. That is hardly
  intended, and is refused.
- A command that still means the same directories starts a new job. When that has copied everything, the older job is
  discarded, so that a nightly run does not stop because of an older job.
- A file that a killed job left incomplete must not be kept as if it were complete. A new job with options that would
  keep it is refused.
- A job that cannot be read may have any roots, unless another version recorded it and its roots can be read.
- Two directories are the same if their identities are equal, whatever their names. The same words in another directory
  are another job.
- No job is changed while a rank works on it.
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
"""Options that change which items a job copies from the same source."""

KEEPING_UNREAD = {"newer": "-u (--existing newer)", "skip": "--existing skip"}
"""Policies of ``--existing`` that keep a file without reading it, so that an incomplete file would remain; with their
spelling for users.
"""


class Earlier(NamedTuple):
    """Older jobs that concern a new one.

    Fields:
    - ``told``: notices for the user.
    - ``superseded``: jobs to discard after the new one has ended with status 0.
    - ``doubted``: as in ``Job``.
    """

    told: tuple[str, ...] = ()
    superseded: tuple[Listed, ...] = ()
    doubted: int = 0


def earlier_jobs(roots: Sequence[Root], options: Options, *, alone: bool) -> Earlier:
    """Return the unfinished jobs that concern a new job with these ``roots``.

    ``alone``: the new job has no job directory of its own (``--checkpoint``). Then the job is refused if the same
    command has begun to copy to another directory.

    Raise ``Refused``, with what to do, for such a job, and for one that would keep incomplete files of an older job.
    """
    try:
        found = unfinished(state_directory())
    except Refused:
        return Earlier()  # The error is reported when the new job is recorded.
    notices, superseded = [], []
    for listed in found:
        if (file := listed.file) is None:
            if not listed.roots or _meet(listed.roots, roots):
                notices.append(_unread(listed, options))
            continue
        if alone and len(roots) == len(file.roots) == 1 and _is_begun_elsewhere(file, roots[0], options):
            raise _refusal(listed, file, roots[0])
        if (
            options.existing in KEEPING_UNREAD
            and _may_have_cut_short(listed.path, file, roots)
            and not locks(listed.path)
        ):
            raise Refused(
                f"{_unfinished(listed)}, and {_would_keep(options)}: resume it ({resuming(listed.path)}), "
                "or write --existing changed"
            )
        if alone and _copies_the_same(file, roots, options) and not locks(listed.path):
            superseded.append(listed)
        else:
            notices += _overlapping(listed, file, roots)
    return Earlier((*_superseding(superseded), *notices), tuple(superseded), _doubted(found, roots))


def _doubted(found: Sequence[Listed], roots: Sequence[Root]) -> int:
    """Return the time from which on unfinished jobs may have written data to the destination that never reached
    storage.

    In nanoseconds since 1970, by the destination's clock; 0 if there is no such job. For a job that cannot be read it
    is the time at which its directory was created.
    """
    since = [
        _not_durable_since(listed)
        for listed in found
        if _meet(listed.file.roots if listed.file else listed.roots, roots) or not (listed.file or listed.roots)
        if not locks(listed.path)
    ]
    return min(filter(None, since), default=0)


def _not_durable_since(listed: Listed) -> int:
    """Return when the last durable cut of a job, or the job itself, began; 0 if all that it has written is durable.

    In nanoseconds since 1970.
    """
    from pcopy.checkpoint.resume import last_cut_began  # slow to import, and rarely needed

    file = listed.file
    if file is None:
        return _made(listed.path) or 1
    with suppress(OSError):
        if is_distrusted(listed.path):
            return file.t0
    if file.state in (FAILED_ITEMS, NOT_ALL_WRITTEN) and file.options.get("sync") and not file.totals.get("unsynced"):
        return 0  # Its last phase has synced the destination.
    try:
        return last_cut_began(listed.path) or file.stored or file.t0
    except (Refused, OSError):
        return file.stored or file.t0


def _made(path: bytes) -> int:
    """Return the time of birth of a directory, in nanoseconds since 1970; 0 if its file system does not record that."""
    from pcopy import libc

    with suppress(OSError), held_open(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as directory:
        return libc.birth_of(directory, b"")
    return 0


def taken_over(job: StoredJob, roots: Sequence[Root], options: Options) -> Earlier:
    """Return the older jobs that a resumed job supersedes: those that it named in its notice when it was started.

    Jobs on which somebody has worked since then are not included.
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
    """Return the notice about a job that cannot be read and may have the same destination; raise as ``earlier_jobs``
    does.
    """
    name = name_of(listed.path)
    if options.existing in KEEPING_UNREAD and not locks(listed.path):
        raise Refused(
            f"job {name} cannot be read. It may have this destination, and {_would_keep(options)}: "
            f"write --existing changed ({listed.trouble})"
        )
    return f"job {name} cannot be read, and may have this destination: {listed.trouble}"


def _meet(old: Sequence[JobRoot], new: Sequence[Root]) -> bool:
    """True if a root of one job copies to the same directory as a root of the other, or to one inside it."""
    theirs, mine = {target_of(root) for root in old}, {target_of(root) for root in new}
    if any(lying_in(theirs, mine)) or any(lying_in(mine, theirs)):
        return True
    parents = {target: _identity_of(target) for target in {root.target for root in old}}
    if not {(parents[root.target], root.name) for root in old}.isdisjoint((root.target_id, root.name) for root in new):
        return True
    existing = {*map(_identity_of, theirs)} - {None}
    return bool(existing) and any(_identity_of(path) in existing for path in mine)


def _identity_of(path: bytes) -> tuple[int, int] | None:
    """Return (device, inode) of the directory ``path``; None if it cannot be examined."""
    with suppress(OSError):
        return look_at(path).identity
    return None


def _would_keep(options: Options) -> str:
    """Return the part of a message that says why incomplete files would be kept."""
    return (
        f"what it was writing when it ended early may be cut short, which {KEEPING_UNREAD[options.existing]} would keep"
    )


def _superseding(found: Sequence[Listed]) -> list[str]:
    """Return the notice about superseded jobs: one line, however many jobs there are; empty if there are none.

    ``found``: the newest job comes first.
    """
    if not found:
        return []
    older, they_are = len(found) - 1, "they are" if len(found) > 1 else "it is"
    also = f" (nor have {older} older ones)" if older > 1 else " (nor has an older one)" if older else ""
    return [
        f"{_unfinished(found[0])}{also} with this destination: {resuming(found[0].path)} would resume it instead; "
        f"{they_are} discarded when this one ends with status 0"
    ]


def _unfinished(listed: Listed) -> str:
    """Return the beginning of a message about an unfinished job."""
    return f"job {name_of(listed.path)} has not finished"


def _overlapping(listed: Listed, file: JobFile, roots: Sequence[Root]) -> list[str]:
    """Return a notice if the older job copies to the destination of the new one, or to a directory in it; else an empty
    list.
    """
    mine, theirs = [target_of(root) for root in roots], [target_of(root) for root in file.roots]
    state, advice = _unfinished(listed), f"{resuming(listed.path)} resumes it"
    if locks(listed.path):
        state, advice = f"job {name_of(listed.path)} is still busy", "two jobs at once get into each other's way"
    else:
        try:
            check_roots(file)
        except Refused:
            reason = "its source or destination is missing, or is another directory now"
            advice = f"{reason}; pcopy --discard {name_of(listed.path)} discards it"
    if any(lying_in(mine, theirs)):
        return [f"{state} with this destination: {advice}"]
    if (inner := next(lying_in(theirs, mine), None)) is not None:
        return [f"{state} with {shown(inner)} in this destination: {advice}"]
    return []


def _is_begun_elsewhere(file: JobFile, new: Root, options: Options) -> bool:
    """True if the same command meant DST itself when the older job began, and now means a directory inside DST."""
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
    """Return the roots that the command of a recorded job would have now.

    Raise ``Refused`` if they cannot be resolved.
    """
    asked = file.asked
    follow, one_file_system = file.options["dereference"], file.options["one_file_system"]
    return resolve(asked["SRC"], asked["DST"], asked["--no-target-directory"], follow=follow, stays=one_file_system)


def are_same(first: Sequence[Root], second: Sequence[Root]) -> bool:
    """True if both have the same source and target paths, in the same order."""
    ends = [[(source_of(root), target_of(root)) for root in roots] for roots in (first, second)]
    return ends[0] == ends[1]


def _selects_the_same(file: JobFile, options: Options) -> bool:
    """True if the options that select items are the same."""
    return all(file.options.get(name) == getattr(options, name) for name in _SELECTING)


def _copies_the_same(file: JobFile, roots: Sequence[Root], options: Options) -> bool:
    """True if a new job with these ``roots`` copies all roots of the older job to the same directories."""
    return _selects_the_same(file, options) and all(any(_is_same(old, new) for new in roots) for old in file.roots)


def _may_have_cut_short(path: bytes, file: JobFile, roots: Sequence[Root]) -> bool:
    """True if a run of the older job was killed while it may have been writing one of the new job's files under its
    final name.
    """
    with suppress(OSError):
        file = file._replace(killed=file.killed or is_distrusted(path))
    if not file.may_have_cut_short:
        return False
    by_item: dict[bytes, list[Root]] = {}
    for root in roots:
        by_item.setdefault(root.item, []).append(root)
    return any(_is_same(old, new) for old in file.roots for new in by_item.get(old.item, ()))


def _is_same(old: JobRoot, new: Root) -> bool:
    """True if both roots copy the same item to the same place; False if one of the directories cannot be examined."""
    with suppress(OSError):
        if old.item != new.item or not _is_same_source(old, new):
            return False
        parent = look_at(old.target)
        is_same = (parent.identity[1], parent.place) == (old.target_id[1], old.target_place)
        if not is_same or not (old.item or is_there(old)):
            return False
        if (parent.identity, old.name) == (new.target_id, new.name):
            return True
        return not old.item and look_at(target_of(old)).identity == look_at(target_of(new)).identity
    return False


def _is_same_source(old: JobRoot, new: Root) -> bool:
    """True if the source directory has the same inode and the same file system; raise ``OSError`` if it cannot be
    examined.

    Device numbers are not compared: they change.
    """
    current = look_at(new.source)
    return (current.identity[1], current.place) == (old.source_id[1], old.source_place)


def _refusal(listed: Listed, file: JobFile, new: Root) -> Refused:
    """Return the error for a job whose command now means another directory."""
    source, began, now = (shown(path) for path in (source_of(new), target_of(file.roots[0]), target_of(new)))
    name = name_of(listed.path)
    state, advice = "has not finished copying", "resume the job"
    if locks(listed.path):
        state, advice = "is still copying", "wait for its end; if it is stopped, resume it"
    return Refused(
        f"job {name} {state} {source} to {began}, and now that this is there the same command would copy to {now}: "
        f"{advice} ({resuming(listed.path)}), or discard it (pcopy --discard {name})"
    )
