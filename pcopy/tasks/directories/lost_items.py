"""Checks, when a resumed job finishes a directory, that items which earlier runs copied still exist.

If a name is missing, or a file has another size, the job must not end as a success. Only names, types and sizes are
compared (``--verify`` compares contents), and only for items whose source has not changed since the job began. Items
that ``--existing`` keeps need not match their source. Nothing is checked if any item had failed when the phase began,
because the job does not end as a success in that case.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator
from contextlib import ExitStack, suppress

from pcopy.fsio.close import held_open
from pcopy.fsio.directories import count_entries, list_names
from pcopy.fsio.existing import alike
from pcopy.fsio.patience import open_patiently
from pcopy.fsio.problem import Problem, failing
from pcopy.fsio.source import source_status
from pcopy.fsio.temporary import PREFIX, is_undressed
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.recoded import recoded_in, recoded_name
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.selected import Selected
from pcopy.tasks.base.values import Place
from pcopy.tasks.files.existing import Existing, look
from pcopy.text import shown

NAMES_PER_SLICE = 32
"""Number of names after which the task yields to other tasks."""

_ENTERED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

_KEEPING = ("skip", "newer")
"""Values of ``--existing`` that keep existing files which are no copies; a differing item may be one of those."""

_STRAY = "may be cut short by a run that ended early, and is no longer in the source: remove it unless it is yours"


def lost_since(rank: Rank, place: Place) -> Generator[None, None, Problem | None]:
    """Return a ``Problem`` if items that earlier runs copied into the directory are missing or changed, or the source
    cannot be listed; else None.
    """
    if rank.options.verify or rank.begun_with()[counts.FAILED]:
        return None
    if rank.options.one_file_system and place.source_id.mount != rank.sources[place.root].identity(b"").mount:
        return None  # a mount point: its contents were not copied
    try:
        source, target = rank.open_source(place), rank.open_target(place)
    except Problem:
        return None  # the task that has to enter it reports the error
    lost, example = 0, b""
    try:
        for number, name in enumerate(list_names(source)):
            if not number % NAMES_PER_SLICE:
                yield
            if _is_lost(rank, place, source, target, name):
                lost, example = lost + 1, example or name
    except Problem as problem:
        return problem
    if not lost:
        return None
    items = "an item that was copied is" if lost == 1 else f"{lost} items that were copied are"
    text = f"{items} missing or changed since ({shown(example)}); copy again with --existing changed"
    return Problem("look", 0, text=text)


def _is_lost(rank: Rank, place: Place, source: int, target: int, name: bytes) -> bool:
    """Return True if the item ``name`` was copied by an earlier run and is now missing, or changed in type or size.

    Return False if that cannot be determined.

    Args:
        source: descriptor of the source directory.
        target: descriptor of the target directory.
    """
    new_name, recoded = rank.new_name(place, name), None
    try:
        wanted = source_status(source, name, follow=rank.options.dereference)
        if rank.options.recodes and stat.S_ISREG(wanted.st_mode):
            recoded = recoded_in(rank.job, place, name)
        present = look(target, recoded or new_name)
    except Problem:
        return False
    is_own = (place.root, os.path.join(place.path, name)) in rank.job.own
    if rank.is_touched(wanted) or is_own or not rank.own(Selected).takes_found(place, name, wanted):
        return False
    if present is None or recoded:
        return present is None  # the expected size of a recoded file is not known
    if stat.S_ISDIR(wanted.st_mode):
        return rank.options.existing == "changed" and _lacks(rank, place, source, target, name)
    if rank.options.existing in _KEEPING or alike(wanted, present, 0, contents=True):
        return False
    return rank.options.existing == "fail" or Existing(rank, place, target, new_name, present).is_made()


def _lacks(rank: Rank, place: Place, source: int, target: int, name: bytes) -> bool:
    """Return True if a name is missing in the target of the sub-directory ``name``.

    A sub-directory in which nothing had to be copied is finished as soon as it is scanned, so no task of its own checks
    it.
    """
    try:
        with failing("open"), ExitStack() as stack:
            inner_source, inner_target = (
                stack.enter_context(held_open(open_patiently(name, _ENTERED, dir_fd=at))) for at in (source, target)
            )
            if os.fstat(inner_source).st_dev != os.fstat(source).st_dev:
                return False  # another file system is mounted there and may have been excluded
            inner = place._replace(path=os.path.join(place.path, name))
            return any(
                all(
                    look(inner_target, candidate) is None
                    for candidate in {item, recoded_name(rank.options, item) or item}
                )
                and not rank.is_touched(wanted := source_status(inner_source, item))
                and (place.root, os.path.join(inner.path, item)) not in rank.job.own
                and rank.own(Selected).takes_found(inner, item, wanted)
                for item in list_names(inner_source)
            )
    except Problem:
        return False  # the task that has to enter it reports the error


def warn_of_strays(rank: Rank, result: Result, place: Place) -> Steps:
    """Warn about files that a killed earlier run may have been writing and whose source no longer exists.

    They are searched only if the target has more names than the source. DST itself is not searched if several sources
    are copied into it, since it may hold their items.
    """
    shared = len(rank.job.roots) > 1 and not rank.below_target(place.root, place.path)
    if not rank.job.cut_short or shared or rank.options.recodes:  # a recoded file gets its name when it is complete
        return
    with suppress(Problem, OSError):  # the task that has to read them reports the error
        source, target = rank.open_source(place), rank.open_target(place)
        if count_entries(target, sockets=True) <= count_entries(source, sockets=True):
            return
        for number, name in enumerate(list_names(target)):
            if not number % NAMES_PER_SLICE:
                yield None
            status = None if name.startswith(PREFIX) else look(target, name)
            is_ours = status is not None and is_undressed(status) and status.st_ctime_ns >= rank.job.began
            if is_ours and look(source, name) is None:
                result.warn(place, name, _STRAY)
