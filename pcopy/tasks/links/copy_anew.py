"""CopyAnew: copy an item again whose copy an earlier run has named, but without all of its metadata.

By its name alone such a copy would be taken for a file of the user and be kept. The failure therefore leaves a task for
a resumed job that records the copy's identity: the copy is removed if it is still that inode and nothing has written to
it since.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Iterator

from pcopy.engine.task import Task
from pcopy.fsio.identity import Identity
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import Version
from pcopy.fsio.temporary import remove
from pcopy.signature.items import FILE
from pcopy.tasks.base import counts
from pcopy.tasks.base.codec import encode
from pcopy.tasks.base.kind import Gone, OfItem, Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import Item, Known, Unnamed
from pcopy.tasks.files.existing import existing, status_there
from pcopy.tasks.files.naming import is_it


class CopyAnew(OfItem, code=35, doing="looking at", is_note=False):
    """Removes those names of ``item`` that are an incomplete copy made by an earlier run, and has the item copied
    again.

    Fields:

    - ``inode``, ``mark``: identity of that copy (``pcopy.fsio.identity``).
    - ``known``: size and mtime of the copy if nothing has written to it since. The size is compared for regular files
      only.
    - ``is_whole``: the copy had all of its metadata. If something has written to it since, it then belongs to the user
      and is no failure.

    If ``item.attempt`` is 0, the size of the inode has been subtracted from the counters and is added again.
    """

    inode: int
    mark: bytes
    known: tuple[int, int]
    is_whole: bool = False

    def reduced(self, task: Task, gone: Gone) -> Iterator[Task]:
        if kept := gone.kept(self.item.names):
            item = self.item._replace(names=kept, attempt=gone.attempt(self.item, self.item.names))
            yield task._replace(payload=encode(self._replace(item=item)))

    def run(self, rank: Rank, result: Result) -> Steps:
        """Remove the names that are the incomplete copy, and have all names statted again.

        They are statted now because all names of an inode are gathered in the phase LINK, together with those in
        directories that are created again.
        """
        size, mtime = self.known
        made = Unnamed(b"", self.inode, self.mark)
        known = Known(FILE, size, b"", Version(0, size, mtime, 0))
        if not self.item.attempt:  # names that are statted again (attempt > 0) do not count the size
            result.count(counts.FOUND_BYTES, self.item.size, self.item.names[0][0])
        item = self.item._replace(attempt=max(1, self.item.attempt))
        for place, name in self.item.names:
            try:
                existing_item = existing(rank, place, name)
                if existing_item is not None and is_it(existing_item, made, known):
                    present = existing_item.status
                    if present.st_mtime_ns == mtime and (present.st_size == size or not stat.S_ISREG(present.st_mode)):
                        remove(existing_item.directory, existing_item.name)
                    elif not self.is_whole:
                        text = "it lacks metadata and was changed since it was copied: remove it, and resume the job"
                        raise Problem("create", errno.EEXIST, text=text)
                result.look_again(place, name, item.attempt)
            except Problem as problem:
                again = self._replace(item=item._replace(names=((place, name),)))
                result.fail(place, name, problem, item.size, retry=again, touched=True)
            yield None


def anew(rank: Rank, item: Item, made: Unnamed | Identity) -> CopyAnew | Item:
    """Return the retry for the names of ``item`` in a resumed job: a ``CopyAnew``, or the item if its first name does
    not exist.

    Args:
        made: the inode that the job created under the first name.
    """
    present = status_there(rank, *item.names[0])
    if present is None:
        return item
    return CopyAnew(item, made.inode, made.mark, (present.st_size, present.st_mtime_ns))


def looked_at(gone: Gone, item: Item, made: Unnamed | Identity, known: Known) -> Iterator[Task]:
    """Yield a task that removes the copy ``made`` under the names of ``item`` and gathers them with names that will be
    found.
    """
    all_names = (*((place, name) for place, name, _ in item.failed), *item.names)
    if kept := tuple(dict.fromkeys(gone.kept(all_names))):
        again = item._replace(names=kept, failed=(), attempt=gone.attempt(item, all_names))
        yield gone.new(CopyAnew(again, made.inode, made.mark, (known.size, known.version.mtime), is_whole=True))
