"""CopyAnew: what an earlier run has named, and could not give all of its metadata, is copied once more.

By its name it would be taken for the user's, which stays. So the task that a failure leaves to a resumed job knows the
item: it is removed if it is still that, and nobody has written to it since.
"""

from __future__ import annotations

import errno
import stat

from pcopy.engine.driver import Slices
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import Version
from pcopy.fsio.temporary import remove
from pcopy.signature.items import FILE
from pcopy.tasks import counts
from pcopy.tasks.context import Context
from pcopy.tasks.naming import is_it
from pcopy.tasks.result import Result
from pcopy.tasks.targets import look
from pcopy.tasks.values import CopyAnew, Known, LinkGroup, ScanNames, Unnamed


def anew(context: Context, group: LinkGroup, inode: int, mark: bytes) -> CopyAnew | LinkGroup:
    """What a resumed job does about the names of ``group``, of which the first is the item with that ``inode``."""
    place, name = group.names[0]
    try:
        present = look(context.open_target(place), context.new_name(place, name))
    except Problem:
        present = None
    if present is None:
        return group
    return CopyAnew(group, inode, mark, (present.st_size, present.st_mtime_ns))


def copy_anew(task: CopyAnew, context: Context, result: Result) -> Slices:
    """Removes what is still as it was, and looks at the names again, now: those of one inode meet in LINK, also with
    some that are found in a directory that is made anew."""
    size, mtime = task.known
    item = Unnamed(b"", task.inode, task.mark)
    known = Known(FILE, size, b"", Version(0, size, mtime, 0))
    if not task.group.attempt:  # these looks are no first ones, and will not do it
        result.count(counts.FOUND_BYTES, task.group.size, task.group.names[0][0])
    group = task.group._replace(attempt=max(1, task.group.attempt))
    for place, name in task.group.names:
        try:
            target, new_name = context.open_target(place), context.new_name(place, name)
            present = look(target, new_name)
            if present is not None and is_it(context, place, new_name, present, item, known):
                if present.st_mtime_ns == mtime and (present.st_size == size or not stat.S_ISREG(present.st_mode)):
                    remove(target, new_name)
                elif not task.is_whole:
                    text = "it lacks metadata and was changed since it was copied: remove it, and resume the job"
                    raise Problem("create", errno.EEXIST, text=text)
            result.spawn(ScanNames(place, name, group.attempt), expands=True)
        except Problem as problem:
            again = task._replace(group=group._replace(names=((place, name),)))
            result.fail(place, name, problem, group.size, retry=again, touched=True)
        yield
    return result.outcome()
