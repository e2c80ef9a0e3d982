"""A target whose name may be taken: what becomes of what is there."""

from __future__ import annotations

import errno
import os
import stat

from pcopy.fsio.existing import Decision, decide
from pcopy.fsio.problem import Problem
from pcopy.tasks.context import Context
from pcopy.tasks.phases import Phase
from pcopy.tasks.values import Place


def look(directory: int, name: bytes) -> os.stat_result | None:
    """The status of ``name`` itself, None if it is free; raises ``Problem``."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Problem.of("stat", error) from error


def may_replace(context: Context, place: Place, source: os.stat_result, target: os.stat_result) -> bool:
    """May ``target``, which is there, give way to ``source``? False: it stays, and the item counts as skipped.

    What did not verify does, and what an earlier run of this job made. With ``--checksum`` False says only that their
    contents are to be compared. Raises ``Problem`` where the item fails instead.
    """
    if context.phase >= Phase.REPAIR or (context.is_ours(target) and not stat.S_ISDIR(target.st_mode)):
        return True
    if place.fresh and context.job.run == 1:  # later, what is older than the job shows that the directory is older too
        text = "its name in the target is taken by another item of this job (does the file system fold case?)"
        raise Problem("create", errno.EEXIST, text=text)
    options = context.options
    decision = decide(options.existing, options.modify_window, source, target, contents=options.checksum)
    if decision is Decision.FAIL:
        raise Problem("create", errno.EEXIST)
    return decision is Decision.REPLACE


def clear_way(directory: int, name: bytes, present: os.stat_result | None) -> None:
    """Makes room for a rename to ``name``: of a directory only an empty one gives way. Raises ``Problem``."""
    if present is not None and stat.S_ISDIR(present.st_mode):
        try:
            os.rmdir(name, dir_fd=directory)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise Problem.of("rmdir", error) from error
