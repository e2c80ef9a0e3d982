"""What earlier runs have copied, and is not there any more when a directory is finished.

A name that is gone, or a file that has another size, must not end as a success. Only names, types and sizes are
compared (``--verify`` compares all), and only of items whose source nobody has touched since the job began; what was
kept because of ``--existing`` need not be like its source. If anything had failed when the phase began, nothing is
looked at: the job doesn't end as a success.
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
"""Names after each of which the rank looks up from its work."""

_ENTERED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

_KEEPING = ("skip", "newer")
"""Values of ``--existing`` that leave files alone which are no copies: what is there may be one of those."""

_STRAY = "may be cut short, by a run that ended early, and the source has it no more: remove it, unless it is yours"


def lost_since(rank: Rank, place: Place) -> Generator[None, None, Problem | None]:
    """The problem of a directory of which an earlier run's items are gone or cut, or can't be listed; else None."""
    if rank.options.verify or rank.begun_with()[counts.FAILED]:
        return None
    if rank.options.one_file_system and place.source_id.mount != rank.sources[place.root].identity(b"").mount:
        return None  # a mount point, of which nothing but itself was copied
    try:
        source, target = rank.open_source(place), rank.open_target(place)
    except Problem:
        return None  # what can't be entered is told where it has to be
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
    text = f"{items} gone or changed since ({shown(example)}); copy again with --existing changed"
    return Problem("look", 0, text=text)


def _is_lost(rank: Rank, place: Place, source: int, target: int, name: bytes) -> bool:
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
        return present is None  # how large it has to be is not known
    if stat.S_ISDIR(wanted.st_mode):
        return rank.options.existing == "changed" and _lacks(rank, place, source, target, name)
    if rank.options.existing in _KEEPING or alike(wanted, present, 0, contents=True):
        return False
    return rank.options.existing == "fail" or Existing(rank, place, target, new_name, present).is_made()


def _lacks(rank: Rank, place: Place, source: int, target: int, name: bytes) -> bool:
    """Is a name gone from the directory ``name``? One in which nothing was left to do is finished when it is scanned:
    no task names it any more."""
    try:
        with failing("open"), ExitStack() as stack:
            there, here = (
                stack.enter_context(held_open(open_patiently(name, _ENTERED, dir_fd=at))) for at in (source, target)
            )
            if os.fstat(there).st_dev != os.fstat(source).st_dev:
                return False  # what is mounted may be left out
            inner = place._replace(path=os.path.join(place.path, name))
            return any(
                all(look(here, called) is None for called in {each, recoded_name(rank.options, each) or each})
                and not rank.is_touched(wanted := source_status(there, each))
                and (place.root, os.path.join(inner.path, each)) not in rank.job.own
                and rank.own(Selected).takes_found(inner, each, wanted)
                for each in list_names(there)
            )
    except Problem:
        return False  # what can't be entered is told where it has to be


def warn_of_strays(rank: Rank, result: Result, place: Place) -> Steps:
    """Tells of files that an earlier run may have been writing when it was killed, and whose source has gone since.

    They are looked for only where the target has more names than the source. DST itself may hold other sources' items.
    """
    shared = len(rank.job.roots) > 1 and not rank.below_target(place.root, place.path)
    if not rank.job.cut_short or shared or rank.options.recodes:  # a recoded file has no name before it is whole
        return
    with suppress(Problem, OSError):  # what can't be read is told where it has to be
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
