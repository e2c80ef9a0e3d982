"""What a new job does about older, unfinished jobs with the same destination, such as one that the same command began.

Rules:
- ``pcopy SRC DST`` copies to DST if DST does not exist, else to DST/SRC. So if such a command is given again after an
  interruption, it means another directory. That is hardly intended, and is refused.
- A command that still means the same directories starts a new job. When the new job has copied everything, the older
  job is discarded, so that a nightly run does not stop because of an older job.
- A file that a killed job left incomplete must not be kept as if it were complete. A new job is refused if its options
  would keep such a file.
- A job whose file cannot be read counts as a job with the same destination, unless another version recorded it and at
  least its sources and targets can be read.
- Two directories are the same if they are the same inode, whatever their names. The same command in another working
  directory is another job.
- No job is changed while a rank works on it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from pcopy.checkpoint.layout import has_distrusted_records
from pcopy.errors import RequestRefused
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.close import closing_descriptor
from pcopy.jobs.directories import (
    ListedJob,
    StoredJob,
    is_in_state_directory,
    last_change_of_job,
    state_directory,
    unfinished_jobs,
)
from pcopy.jobs.job_file import JOB_FAILED_ITEMS, JOB_NOT_ALL_WRITTEN, JobFile, JobRoot, job_name
from pcopy.jobs.lifecycle import resume_command
from pcopy.jobs.lock import lock_holders_if_any
from pcopy.jobs.paths import paths_in_trees, resolve_sources_and_targets, source_path, target_path
from pcopy.jobs.roots import checked_roots_of_job, directory_identity, is_target_as_recorded
from pcopy.tasks.base.job import CopyOptions, Options, Root
from pcopy.text import printable_path

POLICIES_KEEPING_UNREAD_FILES = {"newer": "-u (--existing newer)", "skip": "--existing skip"}
"""Policies of ``--existing`` that keep a file without reading it, so that an incomplete file would remain.

The value is the spelling of the option in messages.
"""


class _SelectionOptions(NamedTuple):
    """The options that decide which items a job copies from a source.

    A new job can replace an older one only if both have the same values of them.
    """

    dereference: bool
    one_file_system: bool


class EarlierJobsDecision(NamedTuple):
    """What a new job has to do about older, unfinished jobs with the same destination.

    Fields:
    - ``notices``: notices about these jobs for the user.
    - ``superseded``: the jobs to discard after the new one has ended with status 0.
    - ``doubted``: nanoseconds since 1970, by the clock of the destination: items that changed later may be the work of
      such a job and may not be on stable storage. 0 if there is no such job.
    """

    notices: tuple[str, ...] = ()
    superseded: tuple[ListedJob, ...] = ()
    doubted: int = 0


def decide_about_earlier_jobs(
    roots: Sequence[Root], options: Options, copy_options: CopyOptions, *, has_default_directory: bool
) -> EarlierJobsDecision:
    """Return what a new job, which copies ``roots`` (sources and targets) with these options, has to do about older
    unfinished jobs.

    ``has_default_directory``: True if the user has not named a job directory for the new job (``--checkpoint``).

    Raise ``RequestRefused``, with what to do, in two cases: the options of the new job would keep incomplete files of
    an older job; or ``has_default_directory`` is True, and the same command has begun to copy to another directory.
    """
    try:
        found = unfinished_jobs(state_directory())
    except RequestRefused:
        return EarlierJobsDecision()  # The error is reported when the new job is recorded.
    notices, superseded = [], []
    selection = _SelectionOptions(copy_options.dereference, options.one_file_system)
    for listed in found:
        if (file := listed.file) is None:
            if not listed.roots or _destinations_overlap(listed.roots, roots):
                notices.append(_unreadable_job_notice(listed, copy_options))
            continue
        if (
            has_default_directory
            and len(roots) == len(file.roots) == 1
            and _destination_has_moved(file, roots[0], selection)
        ):
            raise _destination_moved_error(listed, file, roots[0])
        if (
            copy_options.existing in POLICIES_KEEPING_UNREAD_FILES
            and _may_have_incomplete_files(listed.path, file, roots)
            and not lock_holders_if_any(listed.path)
        ):
            raise RequestRefused(
                f"{_unfinished_job_text(listed)}, and {_incomplete_files_kept_text(copy_options)}: resume it "
                f"({resume_command(listed.path)}), "
                "or write --existing changed"
            )
        if (
            has_default_directory
            and _is_job_covered_by(file, roots, selection)
            and not lock_holders_if_any(listed.path)
        ):
            superseded.append(listed)
        else:
            notices += _overlapping_job_notice(listed, file, roots)
    return EarlierJobsDecision(
        (*_superseded_jobs_notice(superseded), *notices), tuple(superseded), _oldest_unsynced_time(found, roots)
    )


def _oldest_unsynced_time(found: Sequence[ListedJob], roots: Sequence[Root]) -> int:
    """Return the earliest time at which an unfinished job may have written data to the destination that never reached
    stable storage.

    In nanoseconds since 1970, by the destination's clock; 0 if there is no such job. Jobs on which a rank works are not
    considered. A job that cannot be read counts from the time at which its directory was created.

    Args:
        found: the unfinished jobs.
        roots: sources and targets of the new job.
    """
    since = [
        _time_of_last_durable_data(listed)
        for listed in found
        if _destinations_overlap(listed.file.roots if listed.file else listed.roots, roots)
        or not (listed.file or listed.roots)
        if not lock_holders_if_any(listed.path)
    ]
    return min(filter(None, since), default=0)


def _time_of_last_durable_data(listed: ListedJob) -> int:
    """Return a time for a job: all data that it wrote before is on stable storage. 0 if that holds for all its data.

    In nanoseconds since 1970. It is the time of the job's last record of its progress on stable storage, or else of the
    job's start.
    """
    from pcopy.checkpoint.resume import last_checkpoint_time  # slow to import, and rarely needed

    file = listed.file
    if file is None:
        return _birth_time_of_directory(listed.path) or 1
    with suppress(OSError):
        if has_distrusted_records(listed.path):
            return file.t0
    if (
        file.state in (JOB_FAILED_ITEMS, JOB_NOT_ALL_WRITTEN)
        and file.options.get("sync")
        and not file.totals.get("unsynced")
    ):
        return 0  # The job came to its end, and its last phase has synced the destination.
    try:
        return last_checkpoint_time(listed.path) or file.stored or file.t0
    except (RequestRefused, OSError):
        return file.stored or file.t0


def _birth_time_of_directory(path: bytes) -> int:
    """Return the time of birth of a directory, in nanoseconds since 1970; 0 if its file system does not record that."""
    from pcopy import libc

    with suppress(OSError), closing_descriptor(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as directory:
        return libc.birth_time(directory, b"")
    return 0


def jobs_superseded_by_resume(
    job: StoredJob, roots: Sequence[Root], options: Options, copy_options: CopyOptions
) -> EarlierJobsDecision:
    """Return the older jobs that are to be discarded after the resumed ``job`` has ended with status 0.

    They are the unfinished jobs whose sources and targets ``job`` also copies. A job is not included if its records
    have changed since ``job`` was created, or if a rank works on it.
    """
    found: Sequence[ListedJob] = ()
    if is_in_state_directory(job.path):
        with suppress(RequestRefused):
            found = unfinished_jobs(state_directory())
    selection = _SelectionOptions(copy_options.dereference, options.one_file_system)
    superseded = [
        listed
        for listed in found
        if listed.path != job.path
        and listed.file
        and last_change_of_job(listed) < job.file.created
        and _is_job_covered_by(listed.file, roots, selection)
        and not lock_holders_if_any(listed.path)
    ]
    return EarlierJobsDecision(tuple(_superseded_jobs_notice(superseded)), tuple(superseded))


def _unreadable_job_notice(listed: ListedJob, options: CopyOptions) -> str:
    """Return the notice about the job ``listed``, which cannot be read and may have the same destination as the new
    job.

    ``options`` are those of the new job. Raise ``RequestRefused`` if they would keep incomplete files of the older job,
    and no rank works on that.
    """
    name = job_name(listed.path)
    if options.existing in POLICIES_KEEPING_UNREAD_FILES and not lock_holders_if_any(listed.path):
        raise RequestRefused(
            f"job {name} cannot be read. It may have this destination, and {_incomplete_files_kept_text(options)}: "
            f"write --existing changed ({listed.reason})"
        )
    return f"job {name} cannot be read, and may have this destination: {listed.reason}"


def _destinations_overlap(old: Sequence[JobRoot], new: Sequence[Root]) -> bool:
    """True if a target of one job is the same directory as a target of the other job, or lies in one.

    ``old`` and ``new`` are the sources and targets of the two jobs.
    """
    theirs, mine = {target_path(root) for root in old}, {target_path(root) for root in new}
    if any(paths_in_trees(theirs, mine)) or any(paths_in_trees(mine, theirs)):
        return True
    parents = {target: _identity_of_directory(target) for target in {root.target for root in old}}
    if not {(parents[root.target], root.name) for root in old}.isdisjoint((root.target_id, root.name) for root in new):
        return True
    existing = {*map(_identity_of_directory, theirs)} - {None}
    return bool(existing) and any(_identity_of_directory(path) in existing for path in mine)


def _identity_of_directory(path: bytes) -> tuple[int, int] | None:
    """Return (device, inode) of the directory ``path``, which identify it; None if it cannot be opened."""
    with suppress(OSError):
        return directory_identity(path).identity
    return None


def _incomplete_files_kept_text(options: CopyOptions) -> str:
    """Return the middle of an error message: the new job's ``options`` would keep incomplete files of an older job."""
    return (
        "what it was writing when it ended early may be cut short, which "
        f"{POLICIES_KEEPING_UNREAD_FILES[options.existing]} "
        "would keep"
    )


def _superseded_jobs_notice(found: Sequence[ListedJob]) -> list[str]:
    """Return the notice that the new job will replace the older jobs ``found``, as a list of one line; empty if there
    are none.

    ``found``: the jobs to be discarded, the newest first. The notice names only the first one, and counts the others.
    """
    if not found:
        return []
    older, they_are = len(found) - 1, "they are" if len(found) > 1 else "it is"
    also = f" (nor have {older} older ones)" if older > 1 else " (nor has an older one)" if older else ""
    return [
        f"{_unfinished_job_text(found[0])}{also} with this destination: {resume_command(found[0].path)} would resume "
        f"it instead; {they_are} discarded when this one ends with status 0"
    ]


def _unfinished_job_text(listed: ListedJob) -> str:
    """Return the beginning of a message: the job ``listed`` has not finished."""
    return f"job {job_name(listed.path)} has not finished"


def _overlapping_job_notice(listed: ListedJob, file: JobFile, roots: Sequence[Root]) -> list[str]:
    """Return a notice, as a list of one line, if the destinations of the older job and of the new job overlap; else an
    empty list.

    They overlap if a target of one job is, or lies in, a target of the other.

    Args:
        listed, file: the older job, and its job file.
        roots: sources and targets of the new job.
    """
    mine, theirs = [target_path(root) for root in roots], [target_path(root) for root in file.roots]
    state, advice = _unfinished_job_text(listed), f"{resume_command(listed.path)} resumes it"
    if lock_holders_if_any(listed.path):
        state, advice = f"job {job_name(listed.path)} is still busy", "two jobs at once get into each other's way"
    else:
        try:
            checked_roots_of_job(file)
        except RequestRefused:
            reason = "its source or destination is missing, or is another directory now"
            advice = f"{reason}; pcopy --discard {job_name(listed.path)} discards it"
    if any(paths_in_trees(mine, theirs)):
        return [f"{state} with this destination: {advice}"]
    if (inner := next(paths_in_trees(theirs, mine), None)) is not None:
        return [f"{state} with {printable_path(inner)} in this destination: {advice}"]
    return []


def _destination_has_moved(file: JobFile, new: Root, selection: _SelectionOptions) -> bool:
    """True if the command of the older job, given again now, means the directory that the new job copies to.

    That is so if DST did not exist when the older job began, so that the job copied to DST itself. Now DST exists, and
    the same command means a directory in DST.

    Args:
        file: the job file of the older job, which has one source.
        new: the only source and target of the new job.
        selection: options of the new job.
    """
    old = file.roots[0]
    if old.item or new.item or not old.name or not new.name:
        return False
    with suppress(OSError, RequestRefused, KeyError):
        return (
            directory_identity(target_path(old)).identity == new.target_id
            and is_target_as_recorded(old)
            and _is_same_source(old, new)
            and _selects_same_items(file, selection)
            and are_same_paths(roots_of_repeated_command(file), [new])
        )
    return False


def roots_of_repeated_command(file: JobFile) -> tuple[Root, ...]:
    """Return the sources and targets which the command of a recorded job would have if the user gave it again now.

    They differ from the recorded ones if DST has been created since. Raise ``RequestRefused`` if the command is not
    possible now, for example because a source is missing.
    """
    asked = file.asked
    follow, one_file_system = file.options["dereference"], file.options["one_file_system"]
    return resolve_sources_and_targets(
        asked["SRC"], asked["DST"], asked["--no-target-directory"], follow=follow, one_file_system=one_file_system
    )


def are_same_paths(first: Sequence[Root], second: Sequence[Root]) -> bool:
    """True if ``first`` and ``second`` have the same paths of sources and targets, in the same order."""
    ends = [[(source_path(root), target_path(root)) for root in roots] for roots in (first, second)]
    return ends[0] == ends[1]


def _selects_same_items(file: JobFile, selection: _SelectionOptions) -> bool:
    """True if the new job and the older one (``file``) select items from a source by the same options."""
    return all(file.options.get(name) == value for name, value in selection._asdict().items())


def _is_job_covered_by(file: JobFile, roots: Sequence[Root], selection: _SelectionOptions) -> bool:
    """True if the new job copies all that the older job ``file`` was to copy, so that it can replace the older job.

    That is so if it copies all its sources to the same targets, and selects items by the same options. ``roots`` and
    ``selection`` are those of the new job.
    """
    return _selects_same_items(file, selection) and all(
        any(_is_same_source_and_target(old, new) for new in roots) for old in file.roots
    )


def _may_have_incomplete_files(path: bytes, file: JobFile, roots: Sequence[Root]) -> bool:
    """True if an older job with a source and target of the new job may have left incomplete files there.

    That is so if one of its runs was killed, or if the host was rebooted before its files were on stable storage.

    Args:
        path, file: directory and job file of the older job.
        roots: sources and targets of the new job.
    """
    with suppress(OSError):
        file = file._replace(killed=file.killed or has_distrusted_records(path))
    if not file.may_have_incomplete_files:
        return False
    by_item: dict[bytes, list[Root]] = {}
    for root in roots:
        by_item.setdefault(root.item, []).append(root)
    return any(_is_same_source_and_target(old, new) for old in file.roots for new in by_item.get(old.item, ()))


def _is_same_source_and_target(old: JobRoot, new: Root) -> bool:
    """True if ``old``, of a recorded job, and ``new`` copy the same item to the same target.

    False if one of the directories cannot be opened.
    """
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
    """True if the source directories of ``old``, of a recorded job, and ``new`` are the same inode on the same file
    system.

    Device numbers are not compared: they change when a file system is mounted again. Raise ``OSError`` if the directory
    cannot be opened.
    """
    current = directory_identity(new.source)
    return (current.identity[1], current.file_system) == (old.source_id[1], old.source_place)


def _destination_moved_error(listed: ListedJob, file: JobFile, new: Root) -> RequestRefused:
    """Return the error for a new job whose command has already begun to copy to another directory, in an older job.

    Args:
        listed, file: the older job, and its job file.
        new: source and target of the new job.
    """
    source, began, now = (
        printable_path(path) for path in (source_path(new), target_path(file.roots[0]), target_path(new))
    )
    name = job_name(listed.path)
    state, advice = "has not finished copying", "resume the job"
    if lock_holders_if_any(listed.path):
        state, advice = "is still copying", "wait for its end; if it is stopped, resume it"
    return RequestRefused(
        f"job {name} {state} {source} to {began}, and since {began} exists now, the same command would copy to "
        f"{now}: {advice} ({resume_command(listed.path)}), or discard the job (pcopy --discard {name})"
    )
