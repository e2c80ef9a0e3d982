"""Directories of ours that we lack permissions in: we give them to ourselves until the directory is finished.

What belongs to somebody else is never opened up, and who may do anything anyway needs nothing.
"""

from __future__ import annotations

import os
import stat

from pcopy.fsio.close import let_go
from pcopy.fsio.nodes import handle_of, open_node
from pcopy.fsio.preserve import CAP_DAC_OVERRIDE, capable
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of
from pcopy.tasks.context import Context
from pcopy.tasks.targets import look
from pcopy.tasks.values import Place


def let_us_in(parent: int, name: bytes, present: os.stat_result) -> None:
    """Gives us what we lack in an existing directory of ours, by a descriptor that no symbolic link can turn away."""
    if present.st_mode & 0o700 == 0o700 or capable(CAP_DAC_OVERRIDE) or present.st_uid != os.geteuid():
        return
    held = open_node(parent, name, on_source=False)
    try:
        status = status_of(held)
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            os.chmod(handle_of(held), stat.S_IMODE(status.st_mode) | 0o700)
    except OSError as error:
        raise Problem.of("chmod", error) from error
    finally:
        let_go(held)


def open_up(target: int, status: os.stat_result) -> None:
    """As ``let_us_in``, for a root's target."""
    if capable(CAP_DAC_OVERRIDE) or status.st_uid != os.geteuid():
        return
    try:
        os.chmod(target, stat.S_IMODE(status.st_mode) | 0o700)
    except OSError as error:
        raise Problem.of("chmod", error) from error


def let_us_into(context: Context, place: Place) -> None:
    """A target directory that has been finished is needed once more; raises ``Problem``."""
    path = context.below_target(place.root, place.path)
    if capable(CAP_DAC_OVERRIDE) or not path:
        return
    targets = context.targets[place.root]
    above, _, name = path.rpartition(b"/")
    parent = targets.open(above)
    present = look(parent, name)
    if present is not None and stat.S_ISDIR(present.st_mode):
        let_us_in(parent, name, present)
        targets.forget(path)
