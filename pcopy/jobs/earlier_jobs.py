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

from pcopy.checkpoint.layout import has_distrusted_records
from pcopy.errors import RequestRefused
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.close import closed_at_end
from pcopy.jobs.directories import (
    ListedJob,
    StoredJob,
    is_in_state_directory,
    last_change_of,
    state_directory,
    unfinished_jobs,
)
from pcopy.jobs.job_file import FAILED_ITEMS, NOT_ALL_WRITTEN, JobFile, JobRoot, job_name
from pcopy.jobs.lifecycle import resume_command
from pcopy.jobs.lock import lock_holders_if_any
from pcopy.jobs.paths import paths_in_trees, resolve_roots, source_path, target_path
from pcopy.jobs.roots import check_roots, directory_identity, is_target_as_recorded
from pcopy.tasks.base.job import Options, Root
from pcopy.text import printable_path

_SELECTION_OPTIONS = ("dereference", "one_file_system")
"""Options that change which items a job copies from the same source."""

KEEP_WITHOUT_READING = {"newer": "-u (--existing newer)", "skip": "--existing skip"}
"""Policies of ``--existing`` that keep a file without reading it, so that an incomplete file would remain; with their
spelling for users.
"""


class EarlierJobs(NamedTuple):
    """Older jobs that concern a new one.

    Fields:
    - ``notices``: notices for the user.
    - ``superseded``: jobs to discard after the new one has ended with status 0.
    - ``doubted``: as in ``Job``.
    """

    notices: tuple[str, ...] = ()
    superseded: tuple[ListedJob, ...] = ()
    doubted: int = 0


def earlier_jobs(roots: Sequence[Root], options: Options, *, has_default_directory: bool) -> EarlierJobs:
    """Return the unfinished jobs that concern a new job with these ``roots``.

    ``has_default_directory``: the new job has no job directory of its own (``--checkpoint``). Then the job is refused
    if the same command has begun to copy to another directory.

    Raise ``RequestRefused``, with what to do, for such a job, and for one that would keep incomplete files of an older
    job.
    """
    try:
        found = unfinished_jobs(state_directory())
    except RequestRefused:
        return EarlierJobs()  # The error is reported when the new job is recorded.
    notices, superseded = [], []
    for listed in found:
        if (file := listed.file) is None:
            if not listed.roots or _destinations_overlap(listed.roots, roots):
                notices.append(_unreadable_notice(listed, options))
            continue
        if (
            has_default_directory
            and len(roots) == len(file.roots) == 1
            and _destination_has_moved(file, roots[0], options)
        ):
            raise _destination_moved_error(listed, file, roots[0])
        if (
            options.existing in KEEP_WITHOUT_READING
            and _may_have_incomplete_files(listed.path, file, roots)
            and not lock_holders_if_any(listed.path)
        ):
            raise RequestRefused(
                f"{_unfinished_text(listed)}, and {_incomplete_kept_text(options)}: resume it "
                f"({resume_command(listed.path)}), "
                "or write --existing changed"
            )
        if has_default_directory and _is_covered_by(file, roots, options) and not lock_holders_if_any(listed.path):
            superseded.append(listed)
        else:
            notices += _overlap_notice(listed, file, roots)
    return EarlierJobs(
        (*_superseding_notice(superseded), *notices), tuple(superseded), _oldest_unsynced_time(found, roots)
    )


def _oldest_unsynced_time(found: Sequence[ListedJob], roots: Sequence[Root]) -> int:
    """Return the time from which on unfinished jobs may have written data to the destination that never reached
    storage.

    In nanoseconds since 1970, by the destination's clock; 0 if there is no such job. For a job that cannot be read it
    is the time at which its directory was created.
    """
    since = [
        _unsynced_since(listed)
        for listed in found
        if _destinations_overlap(listed.file.roots if listed.file else listed.roots, roots)
        or not (listed.file or listed.roots)
        if not lock_holders_if_any(listed.path)
    ]
    return min(filter(None, since), default=0)


def _unsynced_since(listed: ListedJob) -> int:
    """Return when the last durable cut of a job, or the job itself, began; 0 if all that it has written is durable.

    In nanoseconds since 1970.
    """
    from pcopy.checkpoint.resume import last_cut_time  # slow to import, and rarely needed

    file = listed.file
    if file is None:
        return _birth_of_directory(listed.path) or 1
    with suppress(OSError):
        if has_distrusted_records(listed.path):
            return file.t0
    if file.state in (FAILED_ITEMS, NOT_ALL_WRITTEN) and file.options.get("sync") and not file.totals.get("unsynced"):
        return 0  # Its last phase has synced the destination.
    try:
        return last_cut_time(listed.path) or file.stored or file.t0
    except (RequestRefused, OSError):
        return file.stored or file.t0


def _birth_of_directory(path: bytes) -> int:
    """Return the time of birth of a directory, in nanoseconds since 1970; 0 if its file system does not record that."""
    from pcopy import libc

    with suppress(OSError), closed_at_end(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as directory:
        return libc.birth_time(directory, b"")
    return 0


def superseded_by_resume(job: StoredJob, roots: Sequence[Root], options: Options) -> EarlierJobs:
    """Return the older jobs that a resumed job supersedes: those that it named in its notice when it was started.

    Jobs on which somebody has worked since then are not included.
    """
    found: Sequence[ListedJob] = ()
    if is_in_state_directory(job.path):
        with suppress(RequestRefused):
            found = unfinished_jobs(state_directory())
    superseded = [
        listed
        for listed in found
        if listed.path != job.path
        and listed.file
        and last_change_of(listed) < job.file.created
        and _is_covered_by(listed.file, roots, options)
        and not lock_holders_if_any(listed.path)
    ]
    return EarlierJobs(tuple(_superseding_notice(superseded)), tuple(superseded))


def _unreadable_notice(listed: ListedJob, options: Options) -> str:
    """Return the notice about a job that cannot be read and may have the same destination; raise as ``earlier_jobs``
    does.
    """
    name = job_name(listed.path)
    if options.existing in KEEP_WITHOUT_READING and not lock_holders_if_any(listed.path):
        raise RequestRefused(
            f"job {name} cannot be read. It may have this destination, and {_incomplete_kept_text(options)}: "
            f"write --existing changed ({listed.reason})"
        )
    return f"job {name} cannot be read, and may have this destination: {listed.reason}"


def _destinations_overlap(old: Sequence[JobRoot], new: Sequence[Root]) -> bool:
    """True if a root of one job copies to the same directory as a root of the other, or to one inside it."""
    theirs, mine = {target_path(root) for root in old}, {target_path(root) for root in new}
    if any(paths_in_trees(theirs, mine)) or any(paths_in_trees(mine, theirs)):
        return True
    parents = {target: _identity_of(target) for target in {root.target for root in old}}
    if not {(parents[root.target], root.name) for root in old}.isdisjoint((root.target_id, root.name) for root in new):
        return True
    existing = {*map(_identity_of, theirs)} - {None}
    return bool(existing) and any(_identity_of(path) in existing for path in mine)


def _identity_of(path: bytes) -> tuple[int, int] | None:
    """Return (device, inode) of the directory ``path``; None if it cannot be examined."""
    with suppress(OSError):
        return directory_identity(path).identity
    return None


def _incomplete_kept_text(options: Options) -> str:
    """Return the part of a message that says why incomplete files would be kept."""
    return (
        f"what it was writing when it ended early may be cut short, which {KEEP_WITHOUT_READING[options.existing]} "
        "would keep"
    )


def _superseding_notice(found: Sequence[ListedJob]) -> list[str]:
    """Return the notice about superseded jobs: one line, however many jobs there are; empty if there are none.

    ``found``: the newest job comes first.
    """
    if not found:
        return []
    older, they_are = len(found) - 1, "they are" if len(found) > 1 else "it is"
    also = f" (nor have {older} older ones)" if older > 1 else " (nor has an older one)" if older else ""
    return [
        f"{_unfinished_text(found[0])}{also} with this destination: {resume_command(found[0].path)} would resume it "
        "instead; "
        f"{they_are} discarded when this one ends with status 0"
    ]


def _unfinished_text(listed: ListedJob) -> str:
    """Return the beginning of a message about an unfinished job."""
    return f"job {job_name(listed.path)} has not finished"


def _overlap_notice(listed: ListedJob, file: JobFile, roots: Sequence[Root]) -> list[str]:
    """Return a notice if the older job copies to the destination of the new one, or to a directory in it; else an empty
    list.
    """
    mine, theirs = [target_path(root) for root in roots], [target_path(root) for root in file.roots]
    state, advice = _unfinished_text(listed), f"{resume_command(listed.path)} resumes it"
    if lock_holders_if_any(listed.path):
        state, advice = f"job {job_name(listed.path)} is still busy", "two jobs at once get into each other's way"
    else:
        try:
            check_roots(file)
        except RequestRefused:
            reason = "its source or destination is missing, or is another directory now"
            advice = f"{reason}; pcopy --discard {job_name(listed.path)} discards it"
    if any(paths_in_trees(mine, theirs)):
        return [f"{state} with this destination: {advice}"]
    if (inner := next(paths_in_trees(theirs, mine), None)) is not None:
        return [f"{state} with {printable_path(inner)} in this destination: {advice}"]
    return []


def _destination_has_moved(file: JobFile, new: Root, options: Options) -> bool:
    """True if the same command meant DST itself when the older job began, and now means a directory inside DST."""
    old = file.roots[0]
    if old.item or new.item or not old.name or not new.name:
        return False
    with suppress(OSError, RequestRefused, KeyError):
        return (
            directory_identity(target_path(old)).identity == new.target_id
            and is_target_as_recorded(old)
            and _is_same_source(old, new)
            and _has_same_selection(file, options)
            and same_paths(roots_of_command_now(file), [new])
        )
    return False


def roots_of_command_now(file: JobFile) -> tuple[Root, ...]:
    """Return the roots that the command of a recorded job would have now.

    Raise ``RequestRefused`` if they cannot be resolved.
    """
    asked = file.asked
    follow, one_file_system = file.options["dereference"], file.options["one_file_system"]
    return resolve_roots(
        asked["SRC"], asked["DST"], asked["--no-target-directory"], follow=follow, one_file_system=one_file_system
    )


def same_paths(first: Sequence[Root], second: Sequence[Root]) -> bool:
    """True if both have the same source and target paths, in the same order."""
    ends = [[(source_path(root), target_path(root)) for root in roots] for roots in (first, second)]
    return ends[0] == ends[1]


def _has_same_selection(file: JobFile, options: Options) -> bool:
    """True if the options that select items are the same."""
    return all(file.options.get(name) == getattr(options, name) for name in _SELECTION_OPTIONS)


def _is_covered_by(file: JobFile, roots: Sequence[Root], options: Options) -> bool:
    """True if a new job with these ``roots`` copies all roots of the older job to the same directories."""
    return _has_same_selection(file, options) and all(
        any(_is_same_root(old, new) for new in roots) for old in file.roots
    )


def _may_have_incomplete_files(path: bytes, file: JobFile, roots: Sequence[Root]) -> bool:
    """True if a run of the older job was killed while it may have been writing one of the new job's files under its
    final name.
    """
    with suppress(OSError):
        file = file._replace(killed=file.killed or has_distrusted_records(path))
    if not file.may_have_incomplete_files:
        return False
    by_item: dict[bytes, list[Root]] = {}
    for root in roots:
        by_item.setdefault(root.item, []).append(root)
    return any(_is_same_root(old, new) for old in file.roots for new in by_item.get(old.item, ()))


def _is_same_root(old: JobRoot, new: Root) -> bool:
    """True if both roots copy the same item to the same place; False if one of the directories cannot be examined."""
    with suppress(OSError):
        if old.item != new.item or not _is_same_source(old, new):
            return False
        parent = directory_identity(old.target)
        is_same = (parent.identity[1], parent.file_system) == (old.target_id[1], old.target_place)
        if not is_same or not (old.item or is_target_as_recorded(old)):
            return False
        if (parent.identity, old.name) == (new.target_id, new.name):
            return True
        return (
            not old.item
            and directory_identity(target_path(old)).identity == directory_identity(target_path(new)).identity
        )
    return False


def _is_same_source(old: JobRoot, new: Root) -> bool:
    """True if the source directory has the same inode and the same file system; raise ``OSError`` if it cannot be
    examined.

    Device numbers are not compared: they change.
    """
    current = directory_identity(new.source)
    return (current.identity[1], current.file_system) == (old.source_id[1], old.source_place)


def _destination_moved_error(listed: ListedJob, file: JobFile, new: Root) -> RequestRefused:
    """Return the error for a job whose command now means another directory."""
    source, began, now = (
        printable_path(path) for path in (source_path(new), target_path(file.roots[0]), target_path(new))
    )
    name = job_name(listed.path)
    state, advice = "has not finished copying", "resume the job"
    if lock_holders_if_any(listed.path):
        state, advice = "is still copying", "wait for its end; if it is stopped, resume it"
    return RequestRefused(
        f"job {name} {state} {source} to {began}, and now that this is there the same command would copy to {now}: "
        f"{advice} ({resume_command(listed.path)}), or discard it (pcopy --discard {name})"
    )
