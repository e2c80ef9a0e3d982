"""What earlier runs have copied is looked at once more when its directory is finished: is it still there?

A job waits for days, and others work in its destination meanwhile. What an earlier run has finished is not copied, or
read, again; but a name that is gone, or a file that has another size, must not end as a success. Only names, types and
sizes are compared (``--verify`` compares all), and only of items whose source nobody has touched since the job began;
what was kept because of ``--existing`` is no copy, and need not be like its source.
If anything had failed when the phase began, nothing is looked at: it may be that very item, and the job doesn't end as
a success.
"""

from __future__ import annotations

import stat
from collections.abc import Generator

from pcopy.fsio.directories import list_names
from pcopy.fsio.existing import alike
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import source_status
from pcopy.tasks import counts
from pcopy.tasks.context import Context
from pcopy.tasks.scan_names import NAMES_PER_SLICE
from pcopy.tasks.targets import is_made, look
from pcopy.tasks.values import Place
from pcopy.text import shown

_KEEPING = ("skip", "newer")
"""Values of ``--existing`` that leave files alone which are no copies: what is there may be one of those."""


def lost_since(context: Context, place: Place) -> Generator[None, None, Problem | None]:
    """The problem of a directory of which an earlier run's items are gone or cut, or can't be listed; else None."""
    if context.job.run == 1 or context.options.verify or context.begun_with()[counts.FAILED]:
        return None
    if context.options.one_file_system and place.source_id[0] != context.sources[place.root].identity(b"")[0]:
        return None  # a mount point, of which nothing but itself was copied
    try:
        source, target = context.open_source(place), context.open_target(place)
    except Problem:
        return None  # what can't be entered is told where it has to be
    lost, example = 0, b""
    try:
        for number, name in enumerate(list_names(source)):
            if not number % NAMES_PER_SLICE:
                yield
            if _is_lost(context, place, source, target, name):
                lost, example = lost + 1, example or name
    except Problem as problem:
        return problem
    if not lost:
        return None
    items = "an item that was copied is" if lost == 1 else f"{lost} items that were copied are"
    text = f"{items} gone or changed since ({shown(example)}); copy again with --existing changed"
    return Problem("look", 0, text=text)


def _is_lost(context: Context, place: Place, source: int, target: int, name: bytes) -> bool:
    new_name = context.new_name(place, name)
    try:
        wanted = source_status(source, name, follow=context.options.dereference)
        present = look(target, new_name)
    except Problem:
        return False
    if stat.S_ISDIR(wanted.st_mode) or context.is_touched(wanted):
        return False
    if present is None:
        return True
    if context.options.existing in _KEEPING or alike(wanted, present, 0, contents=True):
        return False
    return context.options.existing == "fail" or is_made(context, place, target, new_name, present)
