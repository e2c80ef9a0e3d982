"""If a directory of ours lacks permissions for us, we add them until the directory is finished.

A directory of somebody else is never opened up. Root needs no permissions.
"""

from __future__ import annotations

import os
import stat

from pcopy.fsio.close import held_open
from pcopy.fsio.nodes import handle_of, open_node
from pcopy.fsio.preserve import CAP_DAC_OVERRIDE, capable
from pcopy.fsio.problem import failing
from pcopy.fsio.source import status_of
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.values import Place
from pcopy.tasks.files.existing import look


def let_us_in(parent: int, name: bytes, present: os.stat_result) -> None:
    """Gives us what we lack in an existing directory of ours, by a descriptor that no symbolic link can turn away."""
    if present.st_mode & 0o700 == 0o700 or capable(CAP_DAC_OVERRIDE) or present.st_uid != os.geteuid():
        return
    with held_open(open_node(parent, name, on_source=False)) as held:
        status = status_of(held)
        if stat.S_ISDIR(status.st_mode):
            open_up(handle_of(held), status)


def open_up(target: int | bytes, status: os.stat_result) -> None:
    """As ``let_us_in``, for a target directory that is open."""
    if capable(CAP_DAC_OVERRIDE) or status.st_uid != os.geteuid():
        return
    with failing("chmod"):
        os.chmod(target, stat.S_IMODE(status.st_mode) | 0o700)


def let_us_into(rank: Rank, place: Place) -> None:
    """A target directory that has been finished is needed once more; raises ``Problem``."""
    path = rank.below_target(place.root, place.path)
    if capable(CAP_DAC_OVERRIDE) or not path:
        return
    targets = rank.targets[place.root]
    above, _, name = path.rpartition(b"/")
    parent = targets.open(above)
    present = look(parent, name)
    if present is not None and stat.S_ISDIR(present.st_mode):
        let_us_in(parent, name, present)
        targets.forget(path)
