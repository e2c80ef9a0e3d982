"""When a resumed job gives a directory its metadata, it checks that items which earlier runs copied still exist.

If a name is missing, or a file has another size, the job must not end as a success. Only names, types and sizes are
compared (``--verify`` compares contents), and only for items whose source has not changed since the job began. Items
that ``--existing`` keeps need not match their source. Nothing is checked if any item had failed when the phase began,
because the job does not end as a success then.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator
from contextlib import ExitStack, suppress

from pcopy.fsio.close import closing_descriptor
from pcopy.fsio.directories import entry_count, list_names_in_directory
from pcopy.fsio.existing import looks_like_copy
from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.fsio.retries import open_with_retries
from pcopy.fsio.source import source_item_status
from pcopy.fsio.temporary import TEMPORARY_NAME_PREFIX, is_private_file
from pcopy.tasks.base import counts
from pcopy.tasks.base.job_filters import JobFilter
from pcopy.tasks.base.kind import TaskSteps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.recoded_names import recoded_file_name, recoded_target_name
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import Place
from pcopy.tasks.files.existing import ExistingItem, item_status_or_none
from pcopy.text import printable_path

NAMES_PER_SLICE = 32
"""Number of names after which the task yields, so that the rank can handle messages."""

MAX_LEVELS_BELOW = 32
"""Number of levels below a directory at which names are checked: one call of the backend enters no more levels."""

_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

_KEEPING_EXISTING_CHOICES = ("skip", "newer")
"""Values of ``--existing`` with which existing files are kept that are no copies. So an item that differs from its
source may be such a file, and does not count as lost.
"""

_PARTIAL_FILE_WARNING = (
    "may be an incomplete copy of an earlier run, and its source no longer exists: remove it unless it is yours"
)


def lost_items_problem(
    rank: Rank, place: Place, *, checks_below: bool = False
) -> Generator[None, None, Problem | None]:
    """Return a ``Problem`` if items that earlier runs copied into the directory ``place`` are missing or changed, or if
    the source cannot be listed; else None. ``checks_below`` is True if names are checked in all directories below, too.
    """
    if rank.copy_options.verify or rank.totals_at_phase_start()[counts.FAILED]:
        return None
    if (
        rank.options.one_file_system
        and place.source_id.mount_code != rank.sources[place.root].identity_of_directory(b"").mount_code
    ):
        return None  # a mount point: its contents were not copied
    try:
        source, target = rank.open_source_directory(place), rank.open_target_directory(place)
    except Problem:
        return None  # the task that has to enter the directory reports the error
    lost, example = 0, b""
    try:
        for number, name in enumerate(list_names_in_directory(source)):
            if not number % NAMES_PER_SLICE:
                yield
            if _is_item_lost(rank, place, source, target, name, MAX_LEVELS_BELOW if checks_below else 0):
                lost, example = lost + 1, example or name
    except Problem as problem:
        return problem
    if not lost:
        return None
    items = "an item that was copied is" if lost == 1 else f"{lost} items that were copied are"
    text = f"{items} missing or changed since ({printable_path(example)}); copy again with --existing changed"
    return Problem("look", 0, text=text)


def _is_item_lost(rank: Rank, place: Place, source: int, target: int, name: bytes, levels: int) -> bool:
    """Return True if an earlier run copied the item ``name``, and the copy is now missing or has another type or size.
    Return False if that cannot be found out.

    Args:
        source, target: descriptors of the source and of the target directory.
        levels: number of levels below the item, if it is a directory, at which names are checked, too.
    """
    new_name, recoded = rank.target_name(place, name), None
    try:
        wanted = source_item_status(source, name, follow=rank.copy_options.dereference)
        if rank.copy_options.compresses_or_decompresses_files and stat.S_ISREG(wanted.st_mode):
            recoded = recoded_target_name(rank.job, place, name)
        present = item_status_or_none(target, recoded or new_name)
    except Problem:
        return False
    is_own = (place.root, os.path.join(place.path, name)) in rank.job.own
    if (
        rank.is_changed_since_job_start(wanted)
        or is_own
        or not rank.shared_instance(JobFilter).selects_item(place, name, wanted)
    ):
        return False
    if present is None or recoded:
        return present is None  # the file was compressed or decompressed: its expected size is not known
    if stat.S_ISDIR(wanted.st_mode):
        return rank.copy_options.existing == "changed" and _has_lost_names(rank, place, source, target, name, levels)
    if rank.copy_options.existing in _KEEPING_EXISTING_CHOICES or looks_like_copy(wanted, present, 0, contents=True):
        return False
    return rank.copy_options.existing == "fail" or ExistingItem(rank, place, target, new_name, present).is_made_by_job()


def _has_lost_names(rank: Rank, place: Place, source: int, target: int, name: bytes, levels: int) -> bool:
    """Return True if the target of the subdirectory ``name`` lacks a name that its source has.

    This is checked with the parent directory: a subdirectory in which nothing had to be copied got its metadata when it
    was scanned, so no task of its own checks it.

    Args:
        source, target: descriptors of the source and of the target directory of ``place``, the parent directory.
        levels: number of levels of directories below the subdirectory that are checked in the same way.
    """
    try:
        with errors_as_problem("open"), ExitStack() as stack:
            inner_source, inner_target = (
                stack.enter_context(closing_descriptor(open_with_retries(name, _DIRECTORY_FLAGS, dir_fd=at)))
                for at in (source, target)
            )
            if os.fstat(inner_source).st_dev != os.fstat(source).st_dev:
                return False  # another file system is mounted there and may have been excluded
            inner = place._replace(path=os.path.join(place.path, name))
            return any(
                _is_name_lost(rank, inner, inner_source, inner_target, item, levels)
                for item in list_names_in_directory(inner_source)
            )
    except Problem:
        return False  # the task that has to enter the directory reports the error


def _is_name_lost(rank: Rank, place: Place, source: int, target: int, name: bytes, levels: int) -> bool:
    """Return True if the target directory of ``place`` lacks the item ``name``, or if one of the directories below that
    item lacks a name that its source has. The arguments are those of ``_has_lost_names``.
    """
    candidates = {name, recoded_file_name(rank.copy_options, name) or name}
    if any(item_status_or_none(target, candidate) is not None for candidate in candidates):
        is_entered = levels and rank.shared_instance(JobFilter).selects_directory(place.path_of(name))
        return bool(is_entered) and _has_lost_names(rank, place, source, target, name, levels - 1)
    wanted = source_item_status(source, name)
    return (
        not rank.is_changed_since_job_start(wanted)
        and (place.root, os.path.join(place.path, name)) not in rank.job.own
        and rank.shared_instance(JobFilter).selects_item(place, name, wanted)
    )


def warn_of_partial_files(rank: Rank, result: TaskResult, place: Place) -> TaskSteps:
    """Warn about files in the target that an earlier run may have been writing when it was killed, and whose source no
    longer exists.

    They are searched only if the target has more names than the source. If several sources are copied into DST, DST
    itself is not searched, because it contains items of other sources.
    """
    shared = len(rank.job.roots) > 1 and not rank.path_below_target(place.root, place.path)
    if (
        not rank.job.cut_short or shared or rank.copy_options.compresses_or_decompresses_files
    ):  # a file that is compressed or decompressed gets its final name only when it is complete
        return
    with suppress(Problem, OSError):  # the task that has to read the directories reports the error
        source, target = rank.open_source_directory(place), rank.open_target_directory(place)
        if entry_count(target, counts_sockets=True) <= entry_count(source, counts_sockets=True):
            return
        for number, name in enumerate(list_names_in_directory(target)):
            if not number % NAMES_PER_SLICE:
                yield None
            status = None if name.startswith(TEMPORARY_NAME_PREFIX) else item_status_or_none(target, name)
            is_ours = status is not None and is_private_file(status) and status.st_ctime_ns >= rank.job.began
            if is_ours and item_status_or_none(source, name) is None:
                result.warn_about_item(place, name, _PARTIAL_FILE_WARNING)
