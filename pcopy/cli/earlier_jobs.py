"""Unfinished jobs that have to do with the one that is to begin: the same command, given once more.

After an interruption DST is there, so that the same words mean a place in it. That is refused, for it is hardly meant;
but what means the same place as then begins anew, and takes an older job with it once all is there: nobody's nightly
run stops because of one. Rule: which directories are the same is decided by identity, never by name; the same words
elsewhere are another job. No job is touched that somebody works on.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from pcopy.checkpoint.job_file import JobFile, JobRoot
from pcopy.checkpoint.jobs import (
    Listed,
    StoredJob,
    is_in_state_directory,
    last_worked_on,
    state_directory,
    unfinished,
)
from pcopy.checkpoint.roots import is_there, look_at
from pcopy.cli.job_table import locks, name_of
from pcopy.cli.kept_job import resuming
from pcopy.cli.paths import lies_in, resolve, source_of, target_of
from pcopy.errors import Refused
from pcopy.tasks.job import Options, Root
from pcopy.text import shown

_SELECTING = ("dereference", "one_file_system")
"""Options without which a copy of the same source has other items."""


class Earlier(NamedTuple):
    """What there is to say of older jobs, and those that are to go when the new one has ended well."""

    told: tuple[str, ...] = ()
    superseded: tuple[Listed, ...] = ()


def earlier_jobs(roots: Sequence[Root], options: Options, *, alone: bool) -> Earlier:
    """The unfinished jobs that have to do with a new one of these ``roots``.

    ``alone``: it does not go on with a job of its own directory. Then one that would copy into what the same command
    has begun to copy to is refused: raises ``Refused`` with both ways on.
    """
    try:
        found = [(listed, listed.file) for listed in unfinished(state_directory()) if listed.file]
    except Refused:
        return Earlier()  # it will be said when this job is to be stored
    told, superseded = [], []
    for listed, file in found:
        if alone and len(roots) == len(file.roots) == 1 and _is_begun_elsewhere(file, roots[0], options):
            raise _refusal(listed, file, roots[0])
        if alone and _copies_the_same(file, roots, options) and not locks(listed):
            superseded.append(listed)
        else:
            told += _overlapping(listed, file, roots)
    return Earlier((*_superseding(superseded), *told), tuple(superseded))


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
        and not locks(listed)
    ]
    return Earlier(tuple(_superseding(superseded)), tuple(superseded))


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
    return f"job {name_of(listed)} has not finished"


def _overlapping(listed: Listed, file: JobFile, roots: Sequence[Root]) -> list[str]:
    """What there is to say if one copies into what the other does."""
    mine, theirs = [target_of(root) for root in roots], [target_of(root) for root in file.roots]
    state, goes_on = _unfinished(listed), f"{resuming(listed.path)} goes on with it"
    if locks(listed):
        state, goes_on = f"job {name_of(listed)} is still busy", "two jobs at once get into each other's way"
    if any(lies_in(target, other) for target in mine for other in theirs):
        return [f"{state} with this destination: {goes_on}"]
    if inner := [other for target in mine for other in theirs if lies_in(other, target)]:
        return [f"{state} with {shown(inner[0])} in this destination: {goes_on}"]
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
            and _means_now(file, options) == new[:4]
        )
    return False


def _means_now(file: JobFile, options: Options) -> tuple[bytes, ...]:
    """What the command that began a job would copy from where to where if it were given now; raises ``Refused``.

    Nothing where its options choose other items.
    """
    asked = file.asked
    if any(asked.get("--" + name.replace("_", "-")) != getattr(options, name) for name in _SELECTING):
        return ()
    (root,) = resolve(asked["SRC"], asked["DST"], asked["--no-target-directory"], follow=options.dereference)
    return tuple(root[:4])


def _copies_the_same(file: JobFile, roots: Sequence[Root], options: Options) -> bool:
    """Is all that the job copies copied by a new one, to the same place?"""
    if any(file.options.get(name) != getattr(options, name) for name in _SELECTING):
        return False
    with suppress(OSError):
        return all(any(_is_same(old, new) for new in roots) for old in file.roots)
    return False


def _is_same(old: JobRoot, new: Root) -> bool:
    """Is it the same item, copied to the same place? Raises ``OSError``."""
    if old.item != new.item or not _is_same_source(old, new):
        return False
    around = look_at(old.target)
    if (around.identity[1], around.place) != (old.target_id[1], old.target_place) or not (old.item or is_there(old)):
        return False
    if (around.identity, old.name) == (new.target_id, new.name):
        return True
    return not old.item and look_at(target_of(old)).identity == look_at(target_of(new)).identity


def _is_same_source(old: JobRoot, new: Root) -> bool:
    """By the inode and the file system of the directory: device numbers change. Raises ``OSError``."""
    seen = look_at(new.source)
    return (seen.identity[1], seen.place) == (old.source_id[1], old.source_place)


def _refusal(listed: Listed, file: JobFile, new: Root) -> Refused:
    source, began, now = (shown(path) for path in (source_of(new), target_of(file.roots[0]), target_of(new)))
    name = name_of(listed)
    state, way = "has not finished copying", "go on with the job"
    if locks(listed):
        state, way = "is still copying", "wait for its end; if it is stopped, go on with it"
    return Refused(
        f"job {name} {state} {source} to {began}, and now that this is there the same command would copy to {now}: "
        f"{way} ({resuming(listed.path)}), or give it up (pcopy --discard {name})"
    )
