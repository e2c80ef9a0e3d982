"""CopyAnew: an earlier run has given a copy its name, and could not set all of its metadata. It is copied once more.

By its name alone the copy would be taken for the user's, and stay. So the failure leaves a task to a resumed job that
knows the copy's identity: it is removed if it is still that item, and nobody has written to it since.
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
    """Removes the names of ``item`` that are the inode ``inode`` with that ``mark``, which an earlier run has made and
    not all of whose metadata could be set. Then the item is copied.

    ``known`` are size and mtime of what nobody has written to since (the size counts of files only). If it
    ``is_whole``, all of its metadata was set; then what was written to since is the user's, and no failure. With the
    attempt 0 the inode's size counts no more, and is counted again.
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
        """Looks at the names again now: those of one inode meet in LINK, also with some of a directory made anew."""
        size, mtime = self.known
        made = Unnamed(b"", self.inode, self.mark)
        known = Known(FILE, size, b"", Version(0, size, mtime, 0))
        if not self.item.attempt:  # these looks are no first ones, and will not do it
            result.count(counts.FOUND_BYTES, self.item.size, self.item.names[0][0])
        item = self.item._replace(attempt=max(1, self.item.attempt))
        for place, name in self.item.names:
            try:
                there = existing(rank, place, name)
                if there is not None and is_it(there, made, known):
                    present = there.status
                    if present.st_mtime_ns == mtime and (present.st_size == size or not stat.S_ISREG(present.st_mode)):
                        remove(there.directory, there.name)
                    elif not self.is_whole:
                        text = "it lacks metadata and was changed since it was copied: remove it, and resume the job"
                        raise Problem("create", errno.EEXIST, text=text)
                result.look_again(place, name, item.attempt)
            except Problem as problem:
                again = self._replace(item=item._replace(names=((place, name),)))
                result.fail(place, name, problem, item.size, retry=again, touched=True)
            yield None


def anew(rank: Rank, item: Item, made: Unnamed | Identity) -> CopyAnew | Item:
    """What a resumed job does about the names of ``item``, of which the first is what was ``made``."""
    present = status_there(rank, *item.names[0])
    if present is None:
        return item
    return CopyAnew(item, made.inode, made.mark, (present.st_size, present.st_mtime_ns))


def looked_at(gone: Gone, item: Item, made: Unnamed | Identity, known: Known) -> Iterator[Task]:
    """Names of which some are an item that the job has made go, and are gathered with those that will be found."""
    all_names = (*((place, name) for place, name, _ in item.failed), *item.names)
    if kept := tuple(dict.fromkeys(gone.kept(all_names))):
        again = item._replace(names=kept, failed=(), attempt=gone.attempt(item, all_names))
        yield gone.new(CopyAnew(again, made.inode, made.mark, (known.size, known.version.mtime), is_whole=True))
